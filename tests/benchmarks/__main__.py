"""Speed figures: ``python -m tests.benchmarks [NAME ...] [options]``, from the checkout.

update     one R2D2 update beside a hand-written one
collect    acting and collecting beside a bare loop and the collectors of others
startup    --help, a config error, the first environment step
overlap    pipeline=overlapped beside pipeline=serial
diengine   updates and runs of DI-engine's settings beside DI-engine
solve      seconds to 195 on CartPole-v0 beside DI-engine
endtoend   DQN runs beside Stable-Baselines3, Tianshou and a CleanRL-style script
ppo        PPO runs beside Stable-Baselines3 and a CleanRL-style script
replay     the replay beside others (python -m tests.benchmarks.replay has options of its own)
curve      draws the README's learning curves (alone; --peers DIR makes the runs it lacks)

Without a name all are run. Exit code 1 when a target is missed or a comparison with a target could
not be made (its cells say so); 0 otherwise. ``--table FILE`` prints the README's tables from the
rows that ``--out FILE`` has written.
"""

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # read when numpy is loaded; a run of rlrun has it too
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.benchmarks import collect, diengine, endtoend, overlap, replay, solve, startup, update
from tests.benchmarks.replay_table import markdown, read_rows
from tests.benchmarks.timing import Row, machine, table, write_rows


def _diengine(o: Namespace) -> list[Row]:
    return diengine.measure(
        o.peers, threads=tuple(o.threads), repeats=o.rounds, seconds=o.seconds,
        env_steps=o.env_steps or (6_000 if o.quick else 25_000), runs=o.runs,
    )  # fmt: skip


def _endtoend(o: Namespace) -> list[Row]:
    steps = o.env_steps or (6_000 if o.quick else 50_000)
    return endtoend.measure(o.peers, env_steps=steps, runs=o.runs)


def _ppo(o: Namespace) -> list[Row]:
    steps = o.env_steps or (10_000 if o.quick else 100_000)
    return endtoend.measure(o.peers, env_steps=steps, runs=o.runs, contest=endtoend.PPO)


def _overlap(o: Namespace) -> list[Row]:
    steps = o.env_steps or (24_000 if o.quick else 150_000)
    return overlap.measure(repeats=o.runs, env_steps=steps)


BENCHMARKS: dict[str, Callable[[Namespace], list[Row]]] = {
    "update": lambda o: update.measure(
        threads=tuple(o.threads), repeats=o.rounds, seconds=o.seconds
    ),
    "collect": lambda o: collect.measure(o.peers, repeats=o.rounds, seconds=o.seconds),
    "startup": lambda o: startup.measure(repeats=o.rounds),
    "overlap": _overlap,
    "diengine": _diengine,
    "solve": lambda o: solve.measure(
        o.peers, seeds=1 if o.quick else o.seeds, threads=o.threads[0]
    ),
    "endtoend": _endtoend,
    "ppo": _ppo,
    "replay": lambda o: replay.measure(list(replay.SECTIONS), o.peers, o.quick, o.repeats),
}


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
    given.rounds = given.repeats or (3 if given.quick else 9)
    given.runs = 1 if given.quick else min(given.rounds, 3)
    given.seconds = 0.1 if given.quick else 0.5
    print(machine(), flush=True)
    rows: list[Row] = []
    for name in given.names or BENCHMARKS:
        rows += BENCHMARKS[name](given)
    print(table(rows))
    if given.out is not None:
        write_rows(rows, given.out)
    return 0 if all(row.met is not False for row in rows) else 1


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
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="thread counts (1 2)"
    )
    parser.add_argument(
        "--env-steps",
        type=int,
        help="length of the runs (25000; endtoend 50000, ppo 100000)",
    )
    parser.add_argument("--quick", action="store_true", help="short and noisy")
    return parser


if __name__ == "__main__":
    sys.exit(main())
