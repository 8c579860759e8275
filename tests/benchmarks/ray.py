"""``ray_scaling``: collectors of ``pipeline=ray`` whose environments wait, beside the ideal line.

A step of the environment sleeps 5 ms, as a game or a simulator behind a socket does. N collectors
of one environment each make at most N / 5 ms env steps/s.
"""

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

SLEEP = 0.005  # seconds of a step
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # collectors
SECONDS = 20  # of the ideal run that are measured
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
    "learner.batch_size=64", "learner.learning_starts=64", "run.eval_episodes=1",
    "eval.max_episode_steps=5", "logger.progress=off", "logger.tensorboard=false",
    "run.checkpoint_every=100000000", "run.stop_return=null",
)  # fmt: skip


def ray_scaling(o: Namespace) -> list[Row]:
    """Env steps/s of so many collectors, of the ideal line; updates/s, lag, bytes."""
    rows = list[Row]()
    for count in (2,) if o.quick else COUNTS:
        seconds = 2 if o.quick else SECONDS
        speed, facts = measured(count, seconds)
        ideal, setting = count / SLEEP, {"collectors": count, **facts}
        target = {} if o.quick or count not in TARGET else {"target": TARGET[count]}
        rows.append(make_row("scaling", setting, "ideal", "env steps/s", [speed], [ideal],
                             kind="speedup", higher=True, **target))  # fmt: skip
    return rows


def measured(count: int, seconds: float) -> tuple[float, dict[str, float]]:
    """Env steps/s after the first records, and facts of the last one."""
    per_second = count / SLEEP
    every = max(int(per_second * seconds / 4), 64 * count)
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.dict("os.environ", {"RLRUN_TRUST": "tests"}),
        mock.patch.object(runs, "in_process", False),  # a process starts Ray once
    ):
        runs.rlrun(
            *WORDS, f"pipeline.num_actors={count}", f"logger.every={every}",
            f"buffer.capacity={max(20_000, 2000 * count)}", f"run.total_steps={6 * every}",
            f"run.eval_every={6 * every}", f"run.dir={directory}/run", threads=1,
        )  # fmt: skip
        lines = runs.json_lines(Path(directory, "run", "timings.jsonl"))
    # All collectors run by the second record; the last one waits for the evaluation.
    first, last = lines[1], lines[4]
    steps = last["env_steps"] - first["env_steps"]
    took = last["time/wall_seconds"] - first["time/wall_seconds"]
    return steps / took, {
        "updates/s": round(last["time/updates_per_s"], 1),
        "lag, updates": round(last["ray/policy_lag"], 1),
        "lag, env steps": round(last["ray/weights_age"]),
        "kB/s": round((last["ray/chunks_sent_bytes"] + last["ray/weights_sent_bytes"])
                      / (every / per_second) / 1000),
    }  # fmt: skip
