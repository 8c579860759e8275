"""Seconds to a greedy 195 on CartPole-v0: rlrun beside DI-engine's own R2D2, seed by seed.

DI-engine stops at the first evaluation of 8 episodes >= 195, its own rule. rlrun runs DI-engine's
settings by the same rule, and its own defaults by that rule and by two successive evaluations of 50
episodes (which DI-engine's time, taken by the easier rule, favours DI-engine in).
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.process import CHECKOUT, PeerFailed, interpreter, peer_run, run
from tests.benchmarks.timing import Row, make_row

MOST = 250_000  # env steps
EASY = ("run.eval_episodes=8", "run.stop_after=1", "run.stop_value=195")
HARD = ("run.eval_episodes=50", "run.stop_after=2", "run.stop_value=195")
OWN = ("-", "policy=r2d2", "env=cartpole_v0")
SIDES: dict[str, tuple[tuple[str, ...], float]] = {  # overrides, how many times as fast
    "DI-engine's settings, its rule": (("diengine_r2d2_cartpole", *EASY), 4.0),
    "DI-engine's settings, 2 x 50 episodes": (("diengine_r2d2_cartpole", *HARD), 4.0),
    "rlrun's defaults, DI-engine's rule": ((*OWN, *EASY), 12.0),
    "rlrun's defaults, 2 x 50 episodes": ((*OWN, *HARD), 12.0),
}


def measure(peers: Path | None, *, seeds: int, threads: int) -> list[Row]:
    """Rows of seconds, and of env steps, for every way rlrun goes."""
    python, theirs, missing = interpreter(peers, "ding"), list[dict[str, Any]](), ""
    own: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    for seed in range(seeds):
        if not missing:
            try:
                theirs.append(_theirs(python, seed, threads))
            except PeerFailed as e:
                missing = str(e)
        for name, (overrides, _) in SIDES.items():
            own[name].append(_own(seed, threads, overrides))
    theirs = [] if missing else theirs
    return [row for name, (_, target) in SIDES.items()
            for row in _rows(name, own[name], theirs, target, missing, threads)]  # fmt: skip


def _rows(
    name: str, own: list[dict[str, Any]], theirs: list[dict[str, Any]], target: float,
    missing: str, threads: int,
) -> list[Row]:  # fmt: skip
    reached = sum(run["solved"] for run in own)
    setting = {"rlrun": name, "seeds": len(own), "reached": reached, "threads": threads}
    fields: dict[str, Any] = {"missing": missing}

    def values(runs: list[dict[str, Any]], key: str) -> list[float]:
        return sorted(float(run[key]) for run in runs)  # medians of each side, not pairs of seeds

    return [
        make_row("to 195", setting, "di-engine", "s", values(own, "wall"), values(theirs, "wall"),
                 kind="speedup", target=target, **fields,
                 note="imports on neither side, evaluation on both"),
        make_row("to 195, steps", setting, "di-engine", "env steps", values(own, "env_steps"),
                 values(theirs, "env_steps"), kind="fact", **fields),
    ]  # fmt: skip


def _theirs(python: Path | None, seed: int, threads: int) -> dict[str, Any]:
    return peer_run(python, "diengine_run.py", seed, threads, "normal", MOST, 195, threads=threads)


def _own(seed: int, threads: int, given: tuple[str, ...]) -> dict[str, Any]:
    """``given``: experiment, overrides."""
    preset, *overrides = given
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.benchmarks.own_run", preset, seed, threads, MOST,
                   f"{directory}/run", *overrides]  # fmt: skip
        found = run(command, threads, cwd=CHECKOUT)
    return found | {"solved": found["env_steps"] < MOST}
