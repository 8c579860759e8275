"""``ray_scaling``: collectors of ``pipeline=ray`` whose environments wait, beside the ideal line.

A step of the environment sleeps 5 ms, as a game or a simulator behind a socket does. N collectors
of one environment each make at most N / 5 ms env steps/s.
"""

import subprocess
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from tests.benchmarks import runs
from tests.benchmarks.rows import Row, make_row
from tests.benchmarks.runs import Answer
from tests.benchmarks.whole import started

SLEEP = 0.005  # seconds of a step
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # collectors
SECONDS, QUICK_SECONDS = 10.0, 2.0  # that are measured
TARGET = {count: 0.9 for count in COUNTS if count <= 32}  # of the ideal line


class Sleeper(gymnasium.Env[np.ndarray, Any]):
    """Observations of four numbers, episodes of 200 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**given)
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(SLEEP)
        self.t += 1
        return np.full(4, self.t / 200, np.float32), float(action), False, self.t >= 200, {}


SLEEPER = "rlrun-benchmarks/Sleeper-v0"
gymnasium.register(SLEEPER, Sleeper)
WORDS = (
    "policy=dqn", "env=gym", "env.backend=sync", f"env.id=tests.benchmarks.ray:{SLEEPER}",
    "pipeline=ray", "pipeline.collector.num_cpus=0", "torso.hidden=[64]", "collector.num_envs=1",
    "collector.n_sample=64", "learner.update_per_collect=null", "learner.replay_ratio=1",
    "learner.batch_size=64", "learner.learning_starts=64",
    "run.eval_every=100000000", "logger.progress=off", "logger.tensorboard=false",
    "run.checkpoint_every=100000000", "run.stop_return=null", "run.total_steps=100000000",
)  # fmt: skip


PATIENCE = 240.0  # seconds until all collectors have answered: each loads torch


def ray_scaling(o: Namespace) -> list[Row]:
    """Env steps/s of so many collectors, of the ideal line; updates/s, lag, bytes."""
    rows = list[Row]()
    for count in (2,) if o.quick else COUNTS:
        began = time.perf_counter()
        speed, facts = measured(count, QUICK_SECONDS if o.quick else SECONDS)
        ideal, setting = count / SLEEP, {"collectors": count, **facts}
        target = {} if o.quick or count not in TARGET else {"target": TARGET[count]}
        rows.append(make_row("scaling", setting, "ideal", "env steps/s", [speed], [ideal],
                             kind="speedup", higher=True, **target))  # fmt: skip
        took = time.perf_counter() - began
        print(f"{setting}: {speed:.0f} env steps/s, {speed / ideal:.2f} of the ideal line "
              f"({took:.0f} s)", flush=True)  # fmt: skip
    return rows


def measured(count: int, seconds: float) -> tuple[float, dict[str, float]]:
    """Env steps/s of ``seconds`` once all collectors have answered, and facts of that time.

    The run is stopped then.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.dict("os.environ", {"RLRUN_TRUST": "tests"}),
    ):
        run_dir = Path(directory, "run")
        process = started(
            *WORDS, f"pipeline.num_actors={count}", f"logger.every={round(count / SLEEP / 4)}",
            f"buffer.capacity={max(20_000, 2000 * count)}", f"run.dir={run_dir}",
        )  # fmt: skip
        try:
            lines = records(process, run_dir, count, seconds)
        finally:
            process.terminate()
            process.wait()
    first, last = lines[0], lines[-1]
    took = last["time/wall_seconds"] - first["time/wall_seconds"]
    sent = sum(x["ray/chunks_sent_bytes"] + x["ray/weights_sent_bytes"] for x in lines[1:])
    return (last["env_steps"] - first["env_steps"]) / took, {
        "updates/s": round(last["time/updates_per_s"], 1),
        "lag, updates": round(last["ray/policy_lag"], 1),
        "lag, env steps": round(last["ray/weights_age"]),
        "kB/s": round(sent / took / 1000),
    }


def records(
    process: subprocess.Popen[bytes], run_dir: Path, count: int, seconds: float
) -> list[Answer]:
    """Return the lines of timings.jsonl of ``seconds``, from when ``count`` collectors work."""
    path, roles, before = run_dir / "timings.jsonl", run_dir / "roles", 0
    give_up = time.perf_counter() + PATIENCE + seconds
    while True:
        time.sleep(0.1)
        assert process.poll() is None, f"the run ended with exit code {process.returncode}"
        assert time.perf_counter() < give_up, "not all collectors answer"
        lines = runs.json_lines(path)
        if len([*roles.glob("collector_*.log")]) < count:
            before = len(lines)
        elif (
            len(found := lines[before:]) > 1
            and found[-1]["time/wall_seconds"] - found[0]["time/wall_seconds"] >= seconds
        ):
            return found
