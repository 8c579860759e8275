"""The codec on a slow link: env steps/s of pipeline=ray with and without it.

    python -m tests.benchmarks.ray_link [--quick]

Every collector's link is a sleep for each byte that it sends. Rows are frames of 84 x 84 bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FAULTS = "RLRUN_RAY_FAULTS"  # environment variable that slows links down
LINKS = {"100 MbE": 100.0, "1 GbE": 1000.0}  # Mbit/s
WORDS = (
    "policy=dqn", "torso=nature_cnn", "env=gym", "env.id=tests.benchmarks.pixels:test/Pixels-v0",
    "env.backend=sync", "env.frame_stack=4", "pipeline=ray", "pipeline.num_actors=1",
    "collector.num_envs=8",
    "collector.n_sample=256", "buffer.capacity=20000", "learner.replay_ratio=0.05",
    "learner.learning_starts=256", "learner.batch_size=4", "run.eval_episodes=1",
    "eval.max_episode_steps=10", "logger.every=512", "logger.progress=off",
    "logger.tensorboard=false", "run.checkpoint_every=1000000", "run.stop_value=null",
)  # fmt: skip


def speed(mbps: float, words: list[str], steps: int) -> dict[str, float]:
    """Env steps/s after the first record, and bytes sent per raw byte."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory, "run")
        total = [f"run.total_steps={steps}", f"run.eval_every={steps}", f"run.dir={run_dir}"]
        faults = json.dumps({"throttle": mbps * 125_000})
        env = os.environ | {FAULTS: faults, "RLRUN_TRUST": "tests"}
        command = [sys.executable, "-m", "rlrun", *WORDS, *words, *total]
        subprocess.run(command, env=env, check=True, cwd=Path(__file__).parents[2])
        lines = [json.loads(x) for x in (run_dir / "timings.jsonl").read_text().splitlines()]
    first, last = lines[1], lines[-1]
    seconds = last["time/wall_seconds"] - first["time/wall_seconds"]
    raw = sum(line["ray/chunks_raw_bytes"] for line in lines)
    return {
        "env_steps_per_s": (last["env_steps"] - first["env_steps"]) / seconds,
        "sent_of_raw": sum(line["ray/chunks_sent_bytes"] for line in lines) / raw,
        "bytes_per_step": raw / last["env_steps"],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    steps = 1536 if given.quick else 20_000
    links = {"100 MbE": 100.0} if given.quick else LINKS
    for name, mbps in links.items():
        kinds = {
            "raw": ["transport=raw"],
            "coded": ["transport=coded"],
            "auto": ["transport=auto", f"transport.link_mbps={mbps:g}"],
        }
        for kind, words in list(kinds.items())[2 if given.quick else 0 :]:
            print(json.dumps({"link": name, "transport": kind, **speed(mbps, words, steps)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
