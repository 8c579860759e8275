"""What peers' scripts share: settings of DQN, PPO and PQN, evaluations, output, memory, serving.

Imported by scripts that run in a peer's own environment: no rlrun here, no package either.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

OUT = sys.stdout  # some peers print: ``quiet`` leaves it to the answers alone
ENV = "CartPole-v1"
EVAL_EVERY, EPISODES, EVAL_SEED = 2000, 50, 1_000_000
CONFORM = Path(__file__).parents[3] / "rlrun" / "env" / "conform.py"
COLLECT = 256  # env steps that take turns with learning


class DQN:
    """conf/experiment/zoo_dqn_cartpole.yaml as numbers."""

    HIDDEN, LR, GAMMA, CLIP = [256, 256], 2.3e-3, 0.99, 10.0
    BATCH, CAPACITY, START = 64, 100_000, 1000  # START: env steps at random, no learning before
    UPDATES = 128  # behind COLLECT env steps
    EPS_END, EPS_OVER = 0.04, 8000  # epsilon falls from 1 over that many env steps


class PPO:
    """conf/experiment/zoo_ppo_cartpole.yaml as numbers; ENVS * STEPS is COLLECT."""

    ENVS, STEPS, BATCH, EPOCHS = 8, 32, 256, 20
    LR, CLIP, GAMMA, LAMBDA = 1e-3, 0.2, 0.98, 0.8  # LR and CLIP fall to 0 over the run
    VALUE, ENTROPY, NORM, EPS = 0.5, 0.0, 0.5, 1e-5


class PQN:
    """``tests.benchmarks.jax.PQN`` as numbers."""

    ENVS, STEPS, EPOCHS, MINIBATCHES = 32, 32, 4, 4
    LR, CLIP, GAMMA, LAMBDA = 1e-3, 10.0, 0.99, 0.65
    EPS_END, EPS_SHARE = 0.05, 0.5  # epsilon falls from 1 over that share of the run


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

    def answer(self, env_steps: int, updates: int, net: Any) -> None:
        """Print the line of the script; call it where the run ends."""
        import torch

        say({
            "wall": time.perf_counter() - self.start, "env_steps": env_steps, "updates": updates,
            "parameters": parameters(net), "eval_seconds": self.eval_seconds, "curve": self.curve,
            "threads": torch.get_num_threads(),
        })  # fmt: skip


def parameters(net: Any) -> int:
    return sum(p.numel() for p in net.parameters())


def integers(words: list[str]) -> list[int]:
    """The arguments of a script, the second of which is torch's number of threads."""
    import torch

    found = [int(word) for word in words]
    torch.set_num_threads(found[1])
    return found


def quiet() -> None:
    """What the peer prints goes to standard error."""
    sys.stdout = sys.stderr


def say(message: dict) -> None:
    """Print a JSON line."""
    print(json.dumps(message), file=OUT, flush=True)


def probe_main(
    version: str, cannot: dict[str, str], score: Callable[[str, Any, int], float]
) -> None:
    """Answer PROBE CONTROL SEED: the greedy return, or why a library cannot express the probe.

    ``score`` gets the probe's name, ``make`` of rlrun.env.conform for it, and the seed.
    """
    import torch

    quiet()
    probe, control, seed = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])
    spec = importlib.util.spec_from_file_location("conform", CONFORM)
    conform = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conform)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    make = partial(conform.make, probe, control=control)
    found = {"cannot": cannot[probe]} if probe in cannot else {"score": score(probe, make, seed)}
    say(found | {"version": version})


def serve(facts: dict, answer: Callable[[str], dict]) -> None:
    """Print the facts, then an answer to every line of standard input."""
    say(facts)
    for line in sys.stdin:
        say(answer(line))


def timed(function: Callable[[], object], calls: int) -> dict:
    """Seconds of a call, by the wall clock and of CPU time."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall / calls, "cpu": cpu / calls}


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the most it ever was
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
