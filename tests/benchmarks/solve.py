"""Seconds to a greedy 195 on CartPole-v0: rlrun beside DI-engine's own R2D2, seed by seed.

DI-engine stops at the first evaluation of 8 episodes >= 195, its own rule. rlrun runs DI-engine's
settings by the same rule, and its own defaults by that rule and by two successive evaluations of 50
episodes (which DI-engine's time, taken by the easier rule, favours DI-engine in).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.own_run import own_run
from tests.benchmarks.process import PeerFailed, interpreter, peer_run
from tests.benchmarks.timing import Row, make_row

MOST = 250_000  # env steps
PRESET = "experiment=diengine_r2d2_cartpole"
EASY = ("run.eval_episodes=8", "run.stop_after=1", "run.stop_value=195")
HARD = ("run.eval_episodes=50", "run.stop_after=2", "run.stop_value=195")
OWN = ("policy=r2d2", "env=cartpole_v0")
SIDES: dict[str, tuple[tuple[str, ...], float]] = {  # overrides, how many times as fast
    "DI-engine's settings, its rule": ((PRESET, *EASY), 4.0),
    "DI-engine's settings, 2 x 50 episodes": ((PRESET, *HARD), 4.0),
    "rlrun's defaults, DI-engine's rule": ((*OWN, *EASY), 12.0),
    "rlrun's defaults, 2 x 50 episodes": ((*OWN, *HARD), 12.0),
}
EASIER = tuple(name for name in SIDES if name.endswith("rule"))


def measure(
    peers: Path | None,
    *,
    seeds: int,
    threads: int,
    most: int = MOST,
    names: Sequence[str] = tuple(SIDES),
) -> list[Row]:
    """Rows of seconds and of env steps for the named ``SIDES``; ``most``: env steps of a run."""
    python, theirs, missing = interpreter(peers, "ding"), list[dict[str, Any]](), ""
    own: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(seeds):
        if not missing:
            try:
                theirs.append(_theirs(python, seed, threads, most))
            except PeerFailed as e:
                missing = str(e)
        for name in names:
            own[name].append(_own(seed, threads, SIDES[name][0], most))
    theirs = [] if missing else theirs
    rows: list[Row] = []
    for name in names:
        rows += _rows(name, own[name], theirs, SIDES[name][1], missing, threads)
    return rows


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
                 note="imports on neither side, evaluation on both; reached: runs that got there"),
        make_row("to 195, steps", setting, "di-engine", "env steps", values(own, "env_steps"),
                 values(theirs, "env_steps"), kind="fact", **fields),
    ]  # fmt: skip


def _theirs(python: Path | None, seed: int, threads: int, most: int) -> dict[str, Any]:
    return peer_run(python, "diengine_run.py", seed, threads, "normal", most, 195, threads=threads)


def _own(seed: int, threads: int, overrides: tuple[str, ...], most: int) -> dict[str, Any]:
    found = own_run(*overrides, seed=seed, threads=threads, env_steps=most)
    return found | {"solved": found["env_steps"] < most}
