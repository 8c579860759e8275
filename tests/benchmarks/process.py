"""Programs that print one JSON line: rlrun's own runs, and peers in environments of their own."""

import json
import os
import subprocess
import sys
import tempfile
import time
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


def own_run(preset: str, seed: int, threads: int, env_steps: int) -> dict[str, Any]:
    """What ``own_run.py`` prints of ``rlrun experiment=preset``, and ``process``."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable, "-m", "tests.benchmarks.own_run", preset, seed, threads, env_steps,
            f"{directory}/run",
        ]  # fmt: skip
        return run(command, threads, cwd=CHECKOUT)


def peer_run(python: Path | None, script: str, *arguments: Any, threads: int) -> dict[str, Any]:
    """What a script of ``peers`` prints, and ``process``.

    Raises:
        PeerFailed: there is no ``python``, or the script failed.
    """
    if python is None:
        raise PeerFailed(NOT_INSTALLED)
    with tempfile.TemporaryDirectory() as directory:
        return run([python, SCRIPTS / script, *arguments], threads, cwd=Path(directory))


def run(command: list[Any], threads: int, *, cwd: Path) -> dict[str, Any]:
    """The one JSON line the command prints, and ``process``, the seconds it took in all."""
    start = time.perf_counter()
    with tempfile.NamedTemporaryFile("w+") as log:
        done = subprocess.run(
            [str(c) for c in command], cwd=cwd, env=environment(threads), text=True,
            stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        process = time.perf_counter() - start
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise PeerFailed(failure(done.returncode, Path(log.name)))
    return {**json.loads(lines[-1]), "process": process}


def environment(threads: int) -> dict[str, str]:
    """This process's environment variables with the thread counts set."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def failure(code: int, log: Path) -> str:
    """What a program that failed said last."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"failed (exit {code}): {lines[-1][:120] if lines else 'no output'}"
