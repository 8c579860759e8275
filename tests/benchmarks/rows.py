"""Interleaved timings, the rows they become, and how rows are printed and kept."""

import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

NOT_INSTALLED = "not installed"
SMALL = 2.0  # milliseconds below which a line of markdown is in microseconds


class PeerFailed(Exception):
    """A peer gave no figures; the text says why."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call, by the wall clock and of the process's CPU time."""

    wall: float
    cpu: float


Call = Callable[[], object]
Side = Callable[[], Timing]  # takes one measurement


def time_calls(function: Call, calls: int) -> Timing:
    """The mean of ``calls`` successive calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        function()
    wall = time.perf_counter() - wall
    return Timing(wall / calls, (time.process_time() - cpu) / calls)


def calls_for(function: Call, seconds: float) -> int:
    """How many calls fill ``seconds``; warms the function up on the way."""
    time_calls(function, 3)
    return max(2, round(seconds / max(time_calls(function, 3).wall, 1e-9)))


def rounds(sides: dict[str, Side], repeats: int) -> tuple[dict[str, list[Timing]], dict[str, str]]:
    """(``repeats`` timings of every side, why a side has none).

    A round measures every side once and begins with another one each time, so that a drift cancels.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in sides}
    failed: dict[str, str] = {}
    names = list(sides)
    for i in range(repeats):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            if name not in failed:
                try:
                    timings[name].append(sides[name]())
                except PeerFailed as e:
                    failed[name] = str(e)
    return timings, failed


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
        """Whether the target is reached (no ratio: False); None without a target."""
        if self.target is None:
            return None
        if self.ratio is None:
            return False
        return self.ratio <= self.target if self.kind == "cost" else self.ratio >= self.target

    @property
    def measure(self) -> tuple[str, str]:
        return self.name, str(self.setting)


def make_row(
    name: str, setting: dict[str, Any], against: str, unit: str, ours: Sequence[float],
    other: Sequence[float], *, kind: str, higher: bool = False, **fields: Any,
) -> Row:  # fmt: skip
    """A row of measured values; ``higher``: larger values are the faster ones. ``other`` may be
    empty (not measured)."""
    inverse = kind == "speedup" and not higher
    pairs = [] if kind == "fact" else zip(ours, other, strict=False)
    ratios = [b / a if inverse else a / b for a, b in pairs]
    return Row(
        name, setting, against, unit, kind, statistics.median(ours),
        statistics.median(other) if other else None, statistics.median(ratios) if ratios else None,
        ours_range=_range(ours), other_range=_range(other), spread=_range(ratios), **fields,
    )  # fmt: skip


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if values else []


def timing_row(
    name: str, setting: dict[str, Any], against: str, ours: Sequence[Timing],
    other: Sequence[Timing], *, kind: str, **fields: Any,
) -> Row:  # fmt: skip
    """A row in milliseconds a call."""
    if other:
        pairs = zip(ours, other, strict=True)
        cpu = [a.cpu / b.cpu if kind == "cost" else b.cpu / a.cpu for a, b in pairs]
        fields["cpu_ratio"] = statistics.median(cpu)
    wall = ([t.wall * 1e3 for t in side] for side in (ours, other))
    return make_row(name, setting, against, "ms", *wall, kind=kind, **fields)


def beside(
    name: str, setting: dict[str, Any], against: str, ours: Call, other: Call,
    effort: tuple[int, float], *, kind: str, **fields: Any,
) -> Row:  # fmt: skip
    """Two of our own functions in turns; ``effort``: (rounds, seconds of one measurement)."""
    repeats, seconds = effort
    counts = calls_for(ours, seconds), calls_for(other, seconds)
    sides: dict[str, Side] = {
        "ours": lambda: time_calls(ours, counts[0]), "other": lambda: time_calls(other, counts[1]),
    }  # fmt: skip
    found, _ = rounds(sides, repeats)
    return timing_row(name, setting, against, *found.values(), kind=kind, **fields)


def machine() -> str:
    """What the figures were taken on, with the widest vectors in use."""
    import numpy as np
    import torch

    vectors = torch.backends.cpu.get_cpu_capability()  # AVX2, AVX512, ...
    if "NUMBA_CPU_NAME" in os.environ:
        vectors += f", numba's code for {os.environ['NUMBA_CPU_NAME']}"
    return (
        f"{platform.machine()} ({vectors}), {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
        f"numba {version('numba')}"
    )


# -- files and tables ------------------------------------------------------------------------------


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """One JSON object a line."""
    text = "".join(json.dumps(asdict(row) | {"met": row.met}) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that ``write_rows`` wrote."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Row(**{k: v for k, v in fields.items() if k != "met"}) for fields in found]


def quick_rows(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """(rows of a quick form without targets, a line for whatever is left out).

    Rows of missing peers are left out; where no other row of the same measure is left, ours stands
    alone.
    """
    kept, left_out = [], dict[str, None]()
    present = {row.measure for row in rows if not row.missing}
    for row in rows:
        row = replace(row, target=None)
        if row.missing:
            left_out[f"left out: {row.against} ({row.missing})"] = None
            if row.measure in present:
                continue
            row = replace(row, against="", missing="")
            present.add(row.measure)
        kept.append(row)
    return kept, [*left_out]


def markdown(rows: Sequence[Row]) -> str:
    """A table for every set of peers, one line a measure, then the notes.

    ``ratio`` is that to the fastest (or smallest) of the peers, with its range over the rounds.
    """
    tables: dict[tuple[str, ...], list[list[Row]]] = {}
    for _, group in groupby(rows, key=lambda r: r.measure):
        measure = list(group)
        key = tuple(_who(row)[0] for row in measure)
        tables.setdefault(key if len(key) > 1 else (), []).append(measure)
    parts = [_markdown_table(key, group) for key, group in tables.items()]
    notes: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.note:
            notes.setdefault(row.note, {})[row.name] = None
    lines = [f"{' and '.join(names)}: {note}." for note, names in notes.items()]
    return "\n\n".join([*parts, *(line[:1].upper() + line[1:] for line in lines)])


def _markdown_table(peers: tuple[str, ...], measures: list[list[Row]]) -> str:
    """``peers``: a column for each; none: the one other side is named in its cell."""
    versions = {who: number for m in measures for who, number in map(_who, m) if number}
    columns = [f"{who} {versions.get(who, '')}".strip() for who in peers] or ["beside"]
    head = ["measure", "rlrun", *columns, "ratio to the fastest" if peers else "ratio", "wanted"]
    return table(head, [_line(m, named=not peers) for m in measures])


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table as markdown."""
    whole = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in whole)


def _line(measure: list[Row], *, named: bool) -> list[str]:
    first = measure[0]
    missing = [row for row in measure if row.ratio is None]
    hardest = max if first.kind == "cost" else min
    best = missing[0] if missing else hardest(measure, key=lambda r: r.ratio or 0.0)
    ratio = "" if best.ratio is None else f"{best.ratio:.2f}"
    ratio += " ({:.2f}-{:.2f})".format(*best.spread) if best.spread else ""
    small = first.unit == "ms" and first.ours < SMALL
    unit, scale = ("µs", 1e3) if small else (first.unit, 1.0)
    cells = [
        (row.missing if row.other is None else number(row.other * scale))
        + (f" ({row.against})" if named else "")
        for row in measure
    ]
    verdict = best.missing
    if best.target is not None:
        state = best.missing or ("met" if best.met else "missed")
        verdict = f"{'≤' if best.kind == 'cost' else '≥'} {best.target:g}, {state}"
    words = [[k, number(v)] for k, v in first.setting.items()]  # 256 rows, but batch 256
    setting = ", ".join(" ".join(w[::-1] if w[0].endswith("s") else w) for w in words)
    title = first.name + (f" ({setting})" if setting else "")
    return [f"{title}, {unit}", number(first.ours * scale), *cells, ratio, verdict]


def _who(row: Row) -> tuple[str, str]:
    """(name, version) of the other side."""
    found = re.fullmatch(r"([a-z-]+) (\d\S*)", row.against)
    return (found[1], found[2]) if found else (row.against, "")


def number(value: float | int | str) -> str:
    """A figure as the tables show it."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"
