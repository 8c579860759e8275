"""Throughput of asynchronous environments while their worker processes are killed.

``python -m tests.faults.workers [--seconds 120] [--every 2] [--num-envs 4]`` prints steps per
second without and with a SIGKILL of one worker every so many seconds. Exit code 1 below 85 %.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rlrun.env.workers import AsyncEnv

SHARE = 0.85  # of the steps without kills, at least


@dataclass
class Rate:
    """Steps of all environments in some seconds."""

    steps: int = 0
    seconds: float = 0.0
    kills: int = 0

    @property
    def per_second(self) -> float:
        return self.steps / self.seconds


def stepping(env: "AsyncEnv", rate: Rate, seconds: float, rng: np.random.Generator | None) -> None:
    """Step ``env`` for so long and add to ``rate``; with ``rng``, kill one worker at its end."""
    action, start = np.zeros(env.num_envs, np.int64), time.perf_counter()
    killed = rng is None
    while (passed := time.perf_counter() - start) < seconds:
        if not killed and passed > seconds / 2:
            worker = env._raw.workers[rng.integers(env.num_envs)]
            os.kill(worker.process.pid, signal.SIGKILL)
            rate.kills, killed = rate.kills + 1, True
        env.step(action)
        rate.steps += env.num_envs
    rate.seconds += time.perf_counter() - start


def measure(seconds: float, every: float, num_envs: int, seed: int = 0) -> tuple[Rate, Rate, int]:
    """(without kills, with them, processes left over); both by turns, ``seconds`` each."""
    from rlrun.env import make_env  # here: a new worker imports this module
    from rlrun.env.workers import AsyncEnv
    from tests.env.presets import config_of

    config = config_of("CartPole-v1", backend="async", on_worker_failure="restart")
    env = make_env(config, num_envs=num_envs)
    assert isinstance(env, AsyncEnv)
    rng, plain, cut = np.random.default_rng(seed), Rate(), Rate()
    env.reset(seed=seed)
    try:
        while cut.seconds < seconds:
            stepping(env, plain, every, None)
            stepping(env, cut, every, rng)
        assert env.restarts == cut.kills
        pids = [process.pid for process in env._raw.processes]
    finally:
        env.close()
    return plain, cut, sum(os.path.exists(f"/proc/{pid}") for pid in pids)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills")
    parser.add_argument("--num-envs", type=int, default=4)
    given = parser.parse_args(argv)
    plain, cut, left = measure(given.seconds, given.every, given.num_envs)
    share = cut.per_second / plain.per_second
    print("| kills | steps/s without | steps/s with | share | processes left |")
    print("| --- | --- | --- | --- | --- |")
    rates = f"{plain.per_second:.0f} | {cut.per_second:.0f} | {share:.1%}"
    print(f"| {cut.kills} | {rates} | {left} |")
    return int(share < SHARE or left > 0)


if __name__ == "__main__":
    sys.exit(main())
