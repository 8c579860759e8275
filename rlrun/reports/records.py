"""Records of metrics.jsonl and timings.jsonl, up to the first line that no run writes. Torch-free.

Env steps never go back within a file, and only finite numbers are logged: any other line is damage,
after which nothing is read, for what follows may be of another run.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.run.files import read_file

MAX_METRICS = 2**30  # bytes of a file
_LARGEST = 1e150  # of a number: sums of squares overflow beyond
_LINE = re.compile(rb'\{"env_steps": ?(\d{1,18}(?:\.0)?)[,}]')  # how each record begins

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Records:
    """Records of a file. ``columns``: metric -> env_steps [K], values [K].

    ``damage``: "line 7 is no record", or "" where the file is whole. ``env_steps``: of the last
    record, 0 without one.
    """

    columns: dict[str, tuple[Floats, Floats]]
    damage: str
    env_steps: float


def read_records(path: Path, keys: Sequence[str], *, ended: bool) -> Records:
    """Return the records of the metrics ``keys``; no file is a file without records.

    ``ended``: nobody writes the file, so that its last line must be complete.
    """
    found: dict[str, list[tuple[float, float]]] = {key: [] for key in keys}
    env_steps = 0.0
    try:
        content = read_file(path, MAX_METRICS) if path.exists() else b""
        damage, env_steps = _read_lines(content, found, ended=ended)
    except (OSError, ValueError) as e:
        damage = f"cannot be read ({e.strerror if isinstance(e, OSError) else e})"
    tables = {key: np.array(rows, np.float64).reshape(-1, 2) for key, rows in found.items()}
    columns = {key: (table[:, 0], table[:, 1]) for key, table in tables.items()}
    return Records(columns, damage, env_steps)


def _read_lines(
    content: bytes, found: dict[str, list[tuple[float, float]]], *, ended: bool
) -> tuple[str, float]:
    """Append (env_steps, value) of each metric to ``found``; return damage and the last step."""
    *lines, rest = content.split(b"\n")
    words = {key: json.dumps(key).encode() for key in found}
    before = 0.0
    for number, line in enumerate(lines, 1):
        start = _LINE.match(line)
        if start is None or not line.endswith(b"}"):
            return f"line {number} is no record", before
        step = float(start[1])
        if step < before:
            return f"line {number} goes back to {step:.0f} env steps", before
        before = step
        if not any(word in line for word in words.values()):
            continue
        values = _decode(line)
        for key, rows in found.items():
            value = finite_number(values.get(key, 0.0))
            if value is None:
                return f"line {number} has no finite {key}", before
            if key in values:
                rows.append((step, value))
        if not values:
            return f"line {number} is no record", before
    return f"line {len(lines) + 1} is cut" if rest and ended else "", before


def _decode(line: bytes) -> dict[str, Any]:
    """The values of a record; none of a line that is no JSON object."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def finite_number(value: Any) -> float | None:
    """Return a number as float; None for anything else, and where its square is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None
