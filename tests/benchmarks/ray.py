"""``ray_link``: the codec on a slow link, env steps/s of ``pipeline=ray`` with and without it.

Every collector's link is a sleep for each byte that it sends. Rows are frames of 84 x 84 bytes.
"""

import json
import os
import tempfile
from argparse import Namespace
from pathlib import Path
from unittest import mock

from tests.benchmarks import codec_data, runs
from tests.benchmarks.rows import Row, make_row

FAULTS = "RLRUN_RAY_FAULTS"  # environment variable that slows links down
LINKS = (100.0, 1000.0)  # Mbit/s
LINK_WORDS = (
    "policy=dqn", "torso=nature_cnn", "env=gym", "env.backend=sync", "env.frame_stack=4",
    f"env.id=tests.benchmarks.codec_data:{codec_data.SCREENS}", "pipeline=ray",
    "pipeline.num_actors=1", "collector.num_envs=8", "collector.n_sample=256",
    "buffer.capacity=20000", "learner.replay_ratio=0.05", "learner.learning_starts=256",
    "learner.batch_size=4", "run.eval_episodes=1", "eval.max_episode_steps=10", "logger.every=512",
    "logger.progress=off", "logger.tensorboard=false", "run.checkpoint_every=1000000",
    "run.stop_value=null",
)  # fmt: skip


def ray_link(o: Namespace) -> list[Row]:
    """Env steps/s over every link and by every transport."""
    rows, steps = list[Row](), o.env_steps or (1536 if o.quick else 20_000)
    for mbps in LINKS[: 1 if o.quick else None]:
        kinds = {kind: [f"transport={kind}"] for kind in ("raw", "coded", "auto")}
        kinds["auto"] += [f"transport.link_mbps={mbps:g}"]
        speeds: dict[str, float] = {}
        for kind in ("auto",) if o.quick else kinds:
            speeds[kind], share = speed(mbps, kinds[kind], steps)
            setting = {"Mbit/s": mbps, "env_steps": steps, "sent_of_raw": round(share, 4)}
            raw = [speeds["raw"]] if "raw" in speeds else []
            rows.append(make_row(f"link, {kind}", setting, "raw", "env steps/s", [speeds[kind]],
                                 raw, kind="speedup", higher=True))  # fmt: skip
    return rows


def speed(mbps: float, words: list[str], steps: int) -> tuple[float, float]:
    """Env steps/s after the first record, and bytes sent per raw byte."""
    faults = {FAULTS: json.dumps({"throttle": mbps * 125_000}), "RLRUN_TRUST": "tests"}
    with tempfile.TemporaryDirectory() as directory, mock.patch.dict(os.environ, faults):
        total = [f"run.total_steps={steps}", f"run.eval_every={steps}", f"run.dir={directory}/run"]
        with mock.patch.object(runs, "in_process", False):  # a process starts Ray once
            runs.rlrun(*LINK_WORDS, *words, *total, threads=None)
        lines = runs.json_lines(Path(directory, "run", "timings.jsonl"))
    first, last = lines[1], lines[-1]
    seconds = last["time/wall_seconds"] - first["time/wall_seconds"]
    raw, sent = (sum(x[f"ray/chunks_{k}_bytes"] for x in lines) for k in ("raw", "sent"))
    return (last["env_steps"] - first["env_steps"]) / seconds, sent / raw
