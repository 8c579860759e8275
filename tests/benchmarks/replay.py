"""Replay beside its peers: ``python -m tests.benchmarks.replay [SECTION ...] [options]``.

Sections: vectors, images, sequences, lists, size, memory, cliffwalk; all without a name. Peers are
virtual environments in the folder ``--peers``: torchrl/ (torchrl and cpprb), tianshou/, ding/.
Every side runs on one thread, in turn with the others; figures are medians with their range. Exit
code 1 when a target is missed or a peer is missing (its rows say so); 0 otherwise. ``--quick``:
little data, no targets, rows of missing peers left out.

``--table FILE`` prints the tables of TABLES.md from the rows that ``--out FILE`` has written.
"""

import argparse
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

_ONE = {n: "1" for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}
if __name__ == "__main__":  # read when numpy, torch and numba are loaded
    os.environ.update(_ONE)

import torch  # noqa: E402

from tests.benchmarks.product import COMPILED  # noqa: E402
from tests.benchmarks.replay_client import Effort  # noqa: E402
from tests.benchmarks.replay_sections import CHECKOUT, QUICK, SECTIONS, Sizes  # noqa: E402
from tests.benchmarks.replay_table import markdown, read_rows  # noqa: E402
from tests.benchmarks.timing import Row, machine, quick_table, table, write_rows  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    given = _parser().parse_args(argv)
    if given.table is not None:
        print(markdown(read_rows(given.table)))
        return 0
    unknown = [n for n in given.sections if n not in SECTIONS]
    if unknown:
        _parser().error(f"unknown section {unknown[0]}; there are: {', '.join(SECTIONS)}")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = measure(given.sections or list(SECTIONS), given.peers, given.quick, given.repeats)
    finally:
        torch.set_num_threads(before)
    print(quick_table(rows) if given.quick else table(rows))
    if given.out is not None:
        write_rows(rows, given.out)
    return 0 if given.quick or all(row.met is not False and not row.missing for row in rows) else 1


def measure(names: list[str], peers: Path | None, quick: bool, repeats: int | None) -> list[Row]:
    """The rows of the named sections, and first one that says where they were measured."""
    effort = Effort(repeats or (2 if quick else 9), 0.003 if quick else 0.2)
    rows = [_machine(effort, quick)]
    print(rows[0].note, flush=True)
    for name in names:
        start = time.perf_counter()
        rows += SECTIONS[name](peers, QUICK if quick else Sizes(), effort)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return rows


def _machine(effort: Effort, quick: bool) -> Row:
    """A fact without another side; its note goes under the tables."""
    git = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=7"]
    done = subprocess.run(git, capture_output=True, text=True)
    commit = f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit"
    numba = f", numba {version('numba')}" if COMPILED else ", no numba"
    note = f"{machine()}{numba}; {commit}; one thread a side, "
    note += f"medians of {effort.repeats} rounds (range)"
    note += "; quick: small and noisy" if quick else ""
    return Row("machine", {}, "", "cores", "fact", os.cpu_count() or 0, None, None, note=note)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.replay", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--out", type=Path, help="file for the rows, one JSON object a line")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print the tables of such a file"
    )
    parser.add_argument("--repeats", type=int, help="rounds (9)")
    parser.add_argument("--quick", action="store_true", help="small, short and noisy")
    return parser


if __name__ == "__main__":
    sys.exit(main())
