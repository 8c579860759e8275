"""Settings of the DQN peers: conf/experiment/zoo_dqn_cartpole.yaml; evaluations and output.

Imported by scripts that run in a peer's own environment: no rlrun here.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ENV = "CartPole-v1"
HIDDEN, LR, GAMMA, CLIP = [256, 256], 2.3e-3, 0.99, 10.0
BATCH, CAPACITY, START = 64, 100_000, 1000  # START: env steps at random, no learning before
COLLECT, UPDATES = 256, 128  # env steps and updates that take turns
EPS_END, EPS_OVER = 0.04, 8000  # epsilon falls from 1 over that many env steps
EVAL_EVERY, EPISODES, EVAL_SEED = 2000, 50, 1_000_000


def epsilon(env_steps: int) -> float:
    """The probability of a random action, as SB3 has it."""
    if env_steps < START:
        return 1.0
    return max(EPS_END, 1 + (EPS_END - 1) * env_steps / EPS_OVER)


@dataclass
class Run:
    """The clock of a run, started by making one, and its evaluations between collects."""

    evaluate: Callable[[], float] | None = None  # mean return of EPISODES greedy episodes
    start: float = field(default_factory=time.perf_counter)
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)
    eval_seconds: float = 0.0

    def after(self, env_steps: int, *, last: bool = False) -> None:
        """Evaluate when the last collect passed a multiple of EVAL_EVERY, and at the end."""
        due = env_steps // EVAL_EVERY > max(0, env_steps - COLLECT) // EVAL_EVERY
        done = bool(self.curve) and self.curve[-1][0] == env_steps
        if done or not (due or last):
            return
        assert self.evaluate is not None
        began = time.perf_counter()
        score = float(self.evaluate())
        end = time.perf_counter()
        self.eval_seconds += end - began
        self.curve.append((env_steps, score, end - self.start, self.eval_seconds))

    def answer(self, env_steps: int, updates: int, parameters: int, **facts: Any) -> str:
        """The line the script prints; call it where the run ends."""
        wall = time.perf_counter() - self.start
        return json.dumps({
            "wall": wall, "env_steps": env_steps, "updates": updates,
            "parameters": parameters, "eval_seconds": self.eval_seconds, "curve": self.curve,
            **facts,
        })  # fmt: skip
