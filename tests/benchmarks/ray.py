"""``ray_scaling``: collectors of ``pipeline=ray`` whose environments wait, beside the ideal line.

A step of the environment sleeps 5 ms, as a game or a simulator behind a socket does. N collectors
of one environment each, in two processes, make at most N / 5 ms env steps/s. Bare actors of Ray,
which only sleep and send as many bytes, show what is left to win. Then four collectors with shorter
steps and processes of their own, beside ``pipeline=serial`` with as many environments: from which
step on Ray pays.
"""

import subprocess
import tempfile
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from tests.benchmarks import runs
from tests.benchmarks.rows import Row, make_row
from tests.benchmarks.runs import Answer
from tests.benchmarks.whole import started
from tests.env.base import Env

SLEEP = 0.005  # seconds of a step
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # collectors
PROCESSES = 2  # of them
BARE = 32  # actors that only sleep
SECONDS, QUICK_SECONDS = 6.0, 2.0  # that are measured
STEPS, BESIDE = (0.0, 0.001), 4  # seconds of a step, collectors (serial: environments)
TARGET = {count: 0.9 for count in COUNTS if count <= 32}  # of the ideal line


class Sleeper(Env):
    """Observations of four numbers, episodes of 200 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, sleep: float = SLEEP) -> None:
        self.sleep = sleep

    def _obs(self) -> np.ndarray:
        return np.full(4, self.t / 200, np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.sleep)
        self.t += 1
        return self._obs(), float(action), False, self.t >= 200, {}


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


PATIENCE = 240.0  # seconds until all collectors have answered: each process loads torch
SERIAL = [word for word in WORDS if not word.startswith(("pipeline", "collector"))]


def ray_scaling(o: Namespace) -> list[Row]:
    """Env steps/s of so many collectors, of the ideal line; updates/s, lag, bytes."""
    rows = list[Row]()
    seconds = QUICK_SECONDS if o.quick else SECONDS
    for count in (2,) if o.quick else COUNTS:
        together = f"pipeline.collectors_per_process={-(-count // PROCESSES)}"
        processes = min(count, PROCESSES)
        lines = run_for(seconds, count, processes, round(count / SLEEP / 4), *WORDS, together)
        setting, ideal = {"collectors": count, **facts(lines)}, count / SLEEP
        target = {} if o.quick or count not in TARGET else {"target": TARGET[count]}
        rows.append(make_row("scaling", setting, "ideal", "env steps/s", [speed(lines)], [ideal],
                             kind="speedup", higher=True, **target))  # fmt: skip
        print(f"{setting}: {speed(lines):.0f} env steps/s, ideal {ideal:.0f}", flush=True)
        if o.quick or count == BARE:
            bare = bare_speed(seconds, count, processes)
            rows.append(make_row("bare actors", {"actors": count}, "ideal", "env steps/s", [bare],
                                 [ideal], kind="speedup", higher=True))  # fmt: skip
            print(f"bare actors, {count}: {bare:.0f} env steps/s", flush=True)
    for sleep in () if o.quick else STEPS:
        word = f"env.kwargs={{sleep: {sleep}}}"
        envs = f"collector.num_envs={BESIDE}", f"collector.n_sample={64 * BESIDE}"
        ours = speed(run_for(seconds, BESIDE, BESIDE, 1000, *WORDS, word))
        serial = speed(run_for(seconds, 0, 0, 1000, *SERIAL, *envs, word))
        setting = {"collectors": BESIDE, "step, ms": 1000 * sleep}
        rows.append(make_row("short steps", setting, "serial", "env steps/s", [ours], [serial],
                             kind="speedup", higher=True))  # fmt: skip
        print(f"{setting}: {ours:.0f} env steps/s, serial {serial:.0f}", flush=True)
    return rows


class Sleepers:
    """A process of bare actors."""

    def chunk(self, steps: int) -> dict[str, np.ndarray]:
        """Sleep ``steps`` times. Return arrays of the size of a chunk of ``Sleeper``."""
        for _ in range(steps):
            time.sleep(SLEEP)
        return {
            "obs": np.zeros((steps + 1, 1, 4), np.float32), "action": np.zeros((steps, 1), int),
            "reward": np.zeros((steps, 1), np.float32), "flags": np.zeros((steps, 1, 4), bool),
        }  # fmt: skip


def bare_speed(seconds: float, count: int, processes: int, steps: int = 64) -> float:
    """Return the steps/s of ``count`` actors that only sleep, two orders each, as ``AHEAD``."""
    from rlrun.pipeline.ray.cluster import Cluster

    cluster = Cluster(None, cpus=processes, gpus=0, custom={})
    try:
        import ray  # asks for a token if the cluster came first

        threads = count // processes
        actor: Any = ray.remote(Sleepers).options(num_cpus=0, max_concurrency=threads)
        actors = [actor.remote() for _ in range(processes)]
        ray.get([a.chunk.remote(1) for a in actors])
        orders = {a.chunk.remote(steps): a for a in actors * threads for _ in range(2)}
        times: list[float] = []  # of replies, which come ``count`` at a time
        while len(times) < count * (2 + seconds / steps / SLEEP):
            for reply in ray.wait([*orders])[0]:
                ray.get(reply)
                a = orders.pop(reply)
                orders[a.chunk.remote(steps)] = a
                times.append(time.perf_counter())
        rounds = len(times) // count - 1
        return rounds * count * steps / (times[(rounds + 1) * count - 1] - times[count - 1])
    finally:
        cluster.close()


def run_for(seconds: float, count: int, processes: int, every: int, *words: str) -> list[Answer]:
    """Return the lines of timings.jsonl, one for ``every`` env steps, of ``seconds`` of a run.

    They begin once all ``processes`` of ``count`` collectors have answered. The run is ended then.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.dict("os.environ", {"RLRUN_TRUST": "tests"}),
    ):
        run_dir, actors = Path(directory, "run"), [f"pipeline.num_actors={count}"] * (count > 0)
        capacity = f"buffer.capacity={max(20_000, 2000 * count)}"
        process = started(*words, *actors, capacity, f"logger.every={every}", f"run.dir={run_dir}")
        try:
            return records(process, run_dir, processes, seconds)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def records(
    process: subprocess.Popen[bytes], run_dir: Path, processes: int, seconds: float
) -> list[Answer]:
    """Return the lines of ``seconds`` from when so many ``processes`` of collectors work."""
    path, roles, before = run_dir / "timings.jsonl", run_dir / "roles", 0
    give_up = time.perf_counter() + PATIENCE + seconds
    while True:
        time.sleep(0.1)
        assert process.poll() is None, f"the run ended with exit code {process.returncode}"
        assert time.perf_counter() < give_up, "not all collectors answer"
        lines = runs.json_lines(path)
        if len([*roles.glob("*collector*.log")]) < processes:
            before = len(lines)
        elif len(found := lines[before:]) > 1 and wall(found) >= seconds:
            return found


def wall(lines: list[Answer]) -> float:
    """Return the seconds between the first and the last line."""
    took: float = lines[-1]["time/wall_seconds"] - lines[0]["time/wall_seconds"]
    return took


def speed(lines: list[Answer]) -> float:
    """Return env steps/s."""
    steps: int = lines[-1]["env_steps"] - lines[0]["env_steps"]
    return steps / wall(lines)


def facts(lines: list[Answer]) -> dict[str, float]:
    """Return updates/s, lag and bytes/s."""
    last, names = lines[-1], ("ray/chunks_sent_bytes", "ray/weights_sent_bytes")
    sent = sum(line[name] for line in lines[1:] for name in names)
    return {
        "updates/s": round(last["time/updates_per_s"], 1),
        "lag, updates": round(last["ray/policy_lag"], 1),
        "lag, env steps": round(last["ray/weights_age"]),
        "kB/s": round(sent / wall(lines) / 1000),
    }
