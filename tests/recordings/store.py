"""The recordings on disk, and how they are made."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.recordings import policies, runs
from tests.recordings.fingerprint import machine

FILES = {name: Path(__file__).with_name(f"{name}.json") for name in ("policies", "runs")}


def read(name: str) -> dict[str, Any]:
    """{"machine": what computed it, "cases": {case: values}}."""
    found: dict[str, Any] = json.loads(FILES[name].read_text())
    return found


def write(name: str, cases: dict[str, Any]) -> None:
    """One line for each case."""
    lines = (f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in cases.items())
    text = f'{{"machine": {json.dumps(machine())},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    FILES[name].write_text(text)


def run(name: str) -> dict[str, Any]:
    """``runs.compute`` in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        return runs.compute(name, Path(directory))


def record(names: Sequence[str] = ()) -> None:
    """Compute every case and write the files of ``names`` (none: both)."""
    made: dict[str, tuple[Any, Callable[[str], Any]]] = {
        "policies": (policies.CASES, policies.compute),
        "runs": (runs.RUNS, run),
    }
    for name in names or made:
        cases, compute = made[name]
        write(name, {case: compute(case) for case in cases})
