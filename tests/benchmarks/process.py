"""Programs as processes: rlrun's command line, and peers in environments of their own."""

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.timing import NOT_INSTALLED

SCRIPTS = Path(__file__).parent / "peers"
CHECKOUT = Path(__file__).parents[2]


class PeerFailed(Exception):
    """A peer that is there gave no figures; the text says why."""


def interpreter(peers: Path | None, name: str) -> Path | None:
    """The Python of the environment ``name`` below the folder of peers, None: not installed."""
    path = None if peers is None else peers.absolute() / name / "bin" / "python"
    return path if path is not None and path.exists() else None


def peer_run(python: Path | None, script: str, *arguments: Any, threads: int) -> dict[str, Any]:
    """The output of a script of ``peers``, and ``process``.

    Raises:
        PeerFailed: there is no ``python``, or the script failed.
    """
    if python is None:
        raise PeerFailed(NOT_INSTALLED)
    with tempfile.TemporaryDirectory() as directory:
        return run([python, SCRIPTS / script, *arguments], threads, cwd=Path(directory))


def run(command: list[Any], threads: int, *, cwd: Path) -> dict[str, Any]:
    """The one JSON line the command prints, and what ``measured`` says of its process."""
    output, process = measured(command, threads, cwd=cwd)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerFailed("failed: it printed no answer")
    return json.loads(lines[-1]) | process


def measured(command: Sequence[Any], threads: int, *, cwd: Path) -> tuple[str, dict[str, float]]:
    """(standard output, seconds of the whole process: ``process`` by the clock, ``process_cpu``).

    Raises: PeerFailed with the last line the program wrote to its standard error.
    """
    cpu, start = _cpu_of_children(), time.perf_counter()
    with tempfile.NamedTemporaryFile("w+") as log:
        done = subprocess.run(
            [str(c) for c in command], cwd=cwd, env=environment(threads), text=True,
            stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        wall = time.perf_counter() - start
        if done.returncode:
            raise PeerFailed(failure(done.returncode, Path(log.name)))
    return done.stdout, {"process": wall, "process_cpu": _cpu_of_children() - cpu}


def _cpu_of_children() -> float:
    """User and system seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(threads: int) -> dict[str, str]:
    """This process's environment variables with the thread counts set."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return os.environ | dict.fromkeys(names, str(threads))


def failure(code: int, log: Path) -> str:
    """The last output line of a failed program."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"failed (exit {code}): {lines[-1][:120] if lines else 'no output'}"
