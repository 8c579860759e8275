"""Speed figures: ``python -m tests.benchmarks [NAME ...] [options]``, from the checkout.

update     one R2D2 update beside a hand-written one
cells      every recurrent memory over a window beside nn.LSTM
collect    acting and collecting beside a bare loop and the collectors of others
startup    --help, a config error, the first rows of a run
overlap    pipeline=overlapped beside pipeline=serial
diengine   updates and runs of DI-engine's settings beside DI-engine
solve      seconds to 195 on CartPole-v0 beside DI-engine
endtoend   DQN runs beside Stable-Baselines3, Tianshou and a CleanRL-style script
ppo        PPO runs beside Stable-Baselines3 and a CleanRL-style script
replay     the replay beside others (python -m tests.benchmarks.replay has options of its own)
curve      draws the README's learning curves (alone; --peers DIR makes the runs it lacks)

Without a name all are run. Exit code 1 when a target is missed or a comparison with a target could
not be made (its cells say so); 0 otherwise. ``--quick`` shows that a benchmark works: short runs,
no targets, rows of missing peers left out. ``--table FILE`` prints markdown tables from the rows
that ``--out FILE`` has written. Commands of their own: tests.benchmarks.ablation, codec,
codec_uses, cliffwalk, replay, scores. tests/benchmarks/README.md describes them all.
"""

import argparse
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import (
    cells,
    collect,
    diengine,
    endtoend,
    overlap,
    replay,
    solve,
    startup,
    update,
)
from tests.benchmarks.replay_table import markdown, read_rows
from tests.benchmarks.shapes import DEFAULT
from tests.benchmarks.timing import Row, machine, quick_table, table, write_rows


def _update(o: Namespace) -> list[Row]:
    shapes = {"shapes": (DEFAULT,)} if o.quick else {}
    return update.measure(threads=o.threads, repeats=o.rounds, seconds=o.seconds, **shapes)


def _cells(o: Namespace) -> list[Row]:
    shape = {"shape": cells.SHORT} if o.quick else {}
    return cells.measure(repeats=o.rounds, seconds=o.seconds, **shape)


def _collect(o: Namespace) -> list[Row]:
    envs = {"envs": collect.ENVS[:1]} if o.quick else {}
    return collect.measure(o.peers, repeats=o.rounds, seconds=o.seconds, **envs)


def _startup(o: Namespace) -> list[Row]:
    return startup.measure(repeats=o.runs if o.quick else o.rounds, warm=not o.quick)


def _overlap(o: Namespace) -> list[Row]:
    return overlap.measure(repeats=o.runs, env_steps=_steps(o, 2_000, 150_000))


def _diengine(o: Namespace) -> list[Row]:
    shapes = {"shapes": diengine.SHAPES[:1]} if o.quick else {}
    return diengine.measure(
        o.peers, threads=o.threads, repeats=o.rounds, seconds=o.seconds,
        env_steps=_steps(o, 2_000, 25_000), runs=o.runs, **shapes,
    )  # fmt: skip


def _solve(o: Namespace) -> list[Row]:
    names = solve.EASIER if o.quick else tuple(solve.SIDES)
    return solve.measure(
        o.peers, seeds=1 if o.quick else o.seeds, threads=o.threads[0],
        most=_steps(o, 2_000, solve.MOST), names=names,
    )  # fmt: skip


def _endtoend(o: Namespace) -> list[Row]:
    return endtoend.measure(o.peers, env_steps=_steps(o, 2_000, 50_000), runs=o.runs)


def _ppo(o: Namespace) -> list[Row]:
    steps = _steps(o, 2_000, 100_000)
    return endtoend.measure(o.peers, env_steps=steps, runs=o.runs, contest=endtoend.PPO)


def _replay(o: Namespace) -> list[Row]:
    return replay.measure(list(replay.SECTIONS), o.peers, o.quick, o.repeats)


def _steps(o: Namespace, quick: int, full: int) -> int:
    return int(o.env_steps or (quick if o.quick else full))


BENCHMARKS: dict[str, Callable[[Namespace], list[Row]]] = {
    "update": _update, "cells": _cells, "collect": _collect, "startup": _startup,
    "overlap": _overlap,
    "diengine": _diengine, "solve": _solve, "endtoend": _endtoend, "ppo": _ppo, "replay": _replay,
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    given = _parser().parse_args(argv)
    if given.table is not None:
        print(markdown(read_rows(given.table)))
        return 0
    if given.names == ["curve"]:  # a picture, no rows
        from tests.benchmarks import curve

        return curve.main(given.peers)
    unknown = [n for n in given.names if n not in BENCHMARKS]
    if unknown:
        _parser().error(f"unknown benchmark {unknown[0]}; there are: {', '.join(BENCHMARKS)}")
    given.threads = tuple(given.threads or ([1] if given.quick else [1, 2]))
    given.rounds = given.repeats or (2 if given.quick else 9)
    given.runs = 1 if given.quick else min(given.rounds, 3)
    given.seconds = 0.02 if given.quick else 0.5
    print(machine(), flush=True)
    rows: list[Row] = []
    for name in given.names or BENCHMARKS:
        rows += BENCHMARKS[name](given)
    print(quick_table(rows) if given.quick else table(rows))
    if given.out is not None:
        write_rows(rows, given.out)
    return 0 if given.quick or all(row.met is not False for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument(
        "--peers", type=Path, help="folder of peers' environments: ding, sb3, tianshou, torchrl"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="print such rows as markdown")
    parser.add_argument("--seeds", type=int, default=5, help="of solve (5)")
    parser.add_argument("--out", type=Path, help="file for the rows, one JSON object a line")
    parser.add_argument("--repeats", type=int, help="interleaved pairs (9), runs end to end (<= 3)")
    parser.add_argument("--threads", type=int, nargs="+", help="thread counts (1 2; quick: 1)")
    parser.add_argument(
        "--env-steps",
        type=int,
        help="length of the runs (diengine 25000, endtoend 50000, ppo 100000, overlap 150000)",
    )
    parser.add_argument("--quick", action="store_true", help="short and noisy, without targets")
    return parser


if __name__ == "__main__":
    sys.exit(main())
