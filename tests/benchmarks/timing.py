"""Interleaved timings, rows of results, the table they are printed as."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

NOT_INSTALLED = "not installed"


@dataclass(frozen=True)
class Timing:
    """Seconds a call, by the wall clock and of the process's CPU time."""

    wall: float
    cpu: float


def time_calls(function: Callable[[], object], calls: int) -> Timing:
    """The mean of ``calls`` successive calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        function()
    wall = time.perf_counter() - wall
    return Timing(wall / calls, (time.process_time() - cpu) / calls)


def calls_for(function: Callable[[], object], seconds: float) -> int:
    """How many calls fill ``seconds``; warms the function up on the way."""
    time_calls(function, 3)
    return max(2, round(seconds / max(time_calls(function, 3).wall, 1e-9)))


Side = Callable[[], Timing]  # takes one measurement
Pair = tuple[Timing, Timing]  # ours, the other's, one right after the other


def interleaved(ours: Side, other: Side, repeats: int) -> list[Pair]:
    """``repeats`` pairs; who goes first alternates, so that a drift cancels."""
    pairs: list[Pair] = []
    for i in range(repeats):
        if i % 2:
            second = other()
            pairs.append((ours(), second))
        else:
            pairs.append((ours(), other()))
    return pairs


@dataclass
class Row:
    """One line of the table and of the JSON file.

    ``ours`` and ``other`` are medians over repeats, ``*_range`` their least and largest value.
    ``ratio`` is the median over pairs and ``spread`` its range: ours / other for ``cost`` (lower
    is better), how many times faster we are for ``speedup``. None where the other is ``missing``.
    """

    name: str
    setting: dict[str, Any]
    against: str  # whom ``other`` belongs to
    unit: str
    kind: str  # cost, speedup or fact (a number shown side by side, no ratio wanted)
    ours: float
    other: float | None
    ratio: float | None
    ours_range: list[float] = field(default_factory=list)
    other_range: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    cpu_ratio: float | None = None  # the same of CPU time: what noise of other jobs spares
    target: float | None = None
    missing: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Return whether the target is reached (no ratio: False); None without a target."""
        if self.target is None:
            return None
        if self.ratio is None:
            return False
        return self.ratio <= self.target if self.kind == "cost" else self.ratio >= self.target


def make_row(
    name: str,
    setting: dict[str, Any],
    against: str,
    unit: str,
    ours: Sequence[float],
    other: Sequence[float],
    *,
    kind: str,
    higher: bool = False,
    **fields: Any,
) -> Row:
    """A row of measured values; ``higher``: larger values are the faster ones. ``other`` may be
    empty (not measured)."""
    inverse = kind == "speedup" and not higher
    ratios = [b / a if inverse else a / b for a, b in zip(ours, other, strict=False)]
    return Row(
        name, setting, against, unit, kind, statistics.median(ours),
        statistics.median(other) if other else None,
        statistics.median(ratios) if ratios and kind != "fact" else None,
        ours_range=_range(ours), other_range=_range(other),
        spread=_range(ratios) if kind != "fact" else [], **fields,
    )  # fmt: skip


def timing_row(
    name: str, setting: dict[str, Any], against: str, pairs: list[Pair], *, kind: str, **fields: Any
) -> Row:
    """A row in milliseconds a call."""
    ours, other = zip(*pairs, strict=True)
    cpu = [a.cpu / b.cpu if kind == "cost" else b.cpu / a.cpu for a, b in pairs]
    wall = ([t.wall * 1e3 for t in side] for side in (ours, other))
    fields["cpu_ratio"] = statistics.median(cpu)
    return make_row(name, setting, against, "ms", *wall, kind=kind, **fields)


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if values else []


def machine() -> str:
    """The line above the table: what the figures were taken on, with the widest vectors in use."""
    vectors = torch.backends.cpu.get_cpu_capability()  # AVX2, AVX512, ...
    if "NUMBA_CPU_NAME" in os.environ:
        vectors += f", numba's code for {os.environ['NUMBA_CPU_NAME']}"
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = (
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    )
    return f"{platform.machine()} ({vectors}), {os.cpu_count()} cores{load}; {versions}"


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text, one line each."""
    head = ("name", "setting", "ours", "other", "", "ratio", "spread", "cpu", "target")
    lines = [head] + [_cells(row) for row in rows]
    width = [max(len(line[i]) for line in lines) for i in range(len(head))]
    out = [
        "  ".join(c.ljust(w) for c, w in zip(line, width, strict=True)).rstrip() for line in lines
    ]
    notes = [f"  {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*out, *dict.fromkeys(notes)])


def quick_table(rows: Sequence[Row]) -> str:
    """The rows of a quick form: no targets, since it is short and noisy, and only finite figures.

    Rows of peers that are missing are left out, each peer with one line that says why; where no
    other row of the same measure is left, ours stands alone. So are figures that a short run does
    not reach (a task that is not solved).
    """
    kept, left_out = [], dict[str, None]()
    present = {_measure(row) for row in rows if not row.missing}
    for row in rows:
        row = replace(row, target=None)
        if row.missing:
            left_out[f"left out: {row.against} ({row.missing})"] = None
            if _measure(row) in present:
                continue
            row = replace(row, against="", missing="")
            present.add(_measure(row))
        if not math.isfinite(row.ours) or not math.isfinite(row.other or 0.0):
            left_out[f"left out: {row.name} (not reached in a quick run)"] = None
        else:
            kept.append(row)
    return "\n".join([table(kept), *left_out])


def _measure(row: Row) -> tuple[str, str]:
    return row.name, str(row.setting)


def _cells(row: Row) -> tuple[str, ...]:
    setting = " ".join(f"{k}={v}" for k, v in row.setting.items())
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    spread = "..".join(f"{x:.2f}" for x in row.spread)
    other = f"{_number(row.other)} {row.against}" if row.other is not None else row.missing
    sign = "<=" if row.kind == "cost" else ">="
    verdict = {None: "", True: "met", False: "missed" if row.ratio is not None else "not measured"}
    target = "" if row.target is None else f"{sign} {row.target:g} {verdict[row.met]}"
    cpu = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}x"
    return row.name, setting, _number(row.ours), other, row.unit, ratio, spread, cpu, target


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """One JSON object a line."""
    text = "".join(json.dumps(asdict(row) | {"met": row.met}) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
