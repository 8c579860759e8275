"""Every byte of a small run directory flipped, and every file cut at every byte.

``python -m tests.faults.flips [--every N]`` prints a row for each file: changes, those that
``rlrun verify`` does not notice, and checkpoints that load as something that was not saved. Exit
code 1 for either. ``.lock`` (a process id) and ``rlrun.log`` (messages) hold nothing that is read.
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.cli.main import main as rlrun
from rlrun.errors import CheckpointError
from rlrun.rundir import verify
from rlrun.rundir.checkpoint import list_checkpoints, load_newest
from tests.exact import differences
from tests.rundir.test_travel import WORDS

TINY = ("torso.hidden=[4]", "run.keep_checkpoints=2", "buffer.capacity=96")
UNREAD = {".lock", "rlrun.log"}


class Count(NamedTuple):
    """What happened to one file."""

    name: str
    changes: int
    unnoticed: int
    wrong: int


def make_run(run_dir: Path) -> None:
    """Train a run of 60 KB."""
    assert rlrun([*WORDS, *TINY, f"run.dir={run_dir}"]) == 0


def states(run_dir: Path, path: Path) -> dict[str, Any]:
    """The state of each checkpoint, by name; its rows are read from copies made in ``path``."""
    found: dict[str, Any] = {}
    newest = list_checkpoints(run_dir / "checkpoints")
    for i in range(len(newest)):
        copy = path / f"saved_{i}"
        shutil.copytree(run_dir, copy)
        for later in newest[i + 1 :]:
            shutil.rmtree(copy / "checkpoints" / later.name)
        state, used = load_newest(copy / "checkpoints")
        found[used.name] = state
    return found


def damages(content: bytes, every: int) -> Iterator[bytes]:
    """``content`` with one bit of one byte flipped, and cut before that byte."""
    for at in range(0, len(content), every):
        yield content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
        yield content[:at]


def damage(run_dir: Path, name: str, every: int) -> Count:
    """Damage one file in every way, in a copy of the directory."""
    with tempfile.TemporaryDirectory() as path:
        copy = Path(path) / "run"
        shutil.copytree(run_dir, copy)
        saved = states(copy, Path(path))
        file, changes, unnoticed, wrong = copy / name, 0, 0, 0
        for content in damages(file.read_bytes(), every):
            file.write_bytes(content)
            changes += 1
            unnoticed += not verify.Report(copy).problems
            if name.startswith("checkpoints/") or name.endswith(".jsonl"):
                wrong += not _loads_what_was_saved(copy, saved)
    return Count(name, changes, unnoticed, wrong)


def _loads_what_was_saved(run_dir: Path, saved: dict[str, Any]) -> bool:
    try:
        state, used = load_newest(run_dir / "checkpoints")
    except CheckpointError:
        return True
    return not list(differences(state, saved[used.name]))


def files_of(run_dir: Path) -> list[str]:
    """The files that are read, the largest first."""
    files = [p for p in run_dir.rglob("*") if p.is_file() and p.name not in UNREAD]
    files.sort(key=lambda p: -p.stat().st_size)
    return [p.relative_to(run_dir).as_posix() for p in files]


def count(run_dir: Path, every: int) -> Iterator[Count]:
    """The counts of all files, on every core."""
    names = files_of(run_dir)
    context = get_context("forkserver")
    quiet = {"initializer": logging.disable}  # every damage is a warning
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context, **quiet) as pool:
        yield from pool.map(damage, [run_dir] * len(names), names, [every] * len(names))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="every N-th byte only")
    given = parser.parse_args(argv)
    bad = total = 0
    print("| file | changes | unnoticed | wrong loads |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as path:
        make_run(Path(path) / "run")
        for c in count(Path(path) / "run", given.every):
            print(f"| {c.name} | {c.changes} | {c.unnoticed} | {c.wrong} |", flush=True)
            bad, total = bad + c.unnoticed + c.wrong, total + c.changes
    print(f"{total} changes, {bad} unnoticed or loaded wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
