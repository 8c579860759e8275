"""Speed figures: ``python -m tests.benchmarks [NAME ...] [options]``, from the checkout.

NAME: update, diengine or endtoend; without one all are run. Exit code 1 when a target is missed
or a comparison with a target could not be made (its cells say so); 0 otherwise.
"""

import argparse
import sys
from pathlib import Path

from tests.benchmarks import diengine, endtoend, update
from tests.benchmarks.timing import Row, machine, table, write_rows

NAMES = ("update", "diengine", "endtoend")


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    given = _parser().parse_args(argv)
    unknown = [n for n in given.names if n not in NAMES]
    if unknown:
        _parser().error(f"unknown benchmark {unknown[0]}; there are: {', '.join(NAMES)}")
    repeats = given.repeats or (3 if given.quick else 9)
    seconds = 0.1 if given.quick else 0.5
    threads = tuple(given.threads)
    print(machine(), flush=True)
    rows: list[Row] = []
    for name in given.names or NAMES:
        if name == "update":
            rows += update.measure(threads=threads, repeats=repeats, seconds=seconds)
        elif name == "endtoend":
            rows += endtoend.measure(
                given.peers, env_steps=given.env_steps or (6_000 if given.quick else 50_000),
                runs=1 if given.quick else min(repeats, 3),
            )  # fmt: skip
        else:
            rows += diengine.measure(
                given.peers, threads=threads, repeats=repeats, seconds=seconds,
                env_steps=given.env_steps or (6_000 if given.quick else 25_000),
                runs=1 if given.quick else min(repeats, 3),
            )  # fmt: skip
    print(table(rows))
    if given.out is not None:
        write_rows(rows, given.out)
    return 0 if all(row.met is not False for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="update|diengine|endtoend", help="default: all")
    parser.add_argument(
        "--peers", type=Path, help="folder of peers' environments: ding, sb3, tianshou, torchrl"
    )
    parser.add_argument("--out", type=Path, help="file for the rows, one JSON object a line")
    parser.add_argument("--repeats", type=int, help="interleaved pairs (9), runs end to end (<= 3)")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="thread counts (1 2)"
    )
    parser.add_argument(
        "--env-steps", type=int, help="length of the runs end to end (25000; endtoend 50000)"
    )
    parser.add_argument("--quick", action="store_true", help="short and noisy")
    return parser


if __name__ == "__main__":
    sys.exit(main())
