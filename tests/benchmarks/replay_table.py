"""The tables of TABLES.md of the replay benchmark, from its JSON rows."""

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.benchmarks.timing import Row

SMALL = 2.0  # milliseconds below which a line is in microseconds


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that ``write_rows`` wrote."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        del fields["met"]
        rows.append(Row(**fields))
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """A table for every set of peers, one line a measure, then the notes.

    ``ratio`` is that to the fastest (or smallest) of the peers, with its range over the rounds.
    """
    measures = [list(g) for _, g in groupby(rows, key=lambda r: (r.name, str(r.setting)))]
    measured = [m for m in measures if m[0].name != "machine"]
    tables: dict[tuple[str, ...], list[list[Row]]] = {}
    for measure in measured:
        key = tuple(_who(row)[0] for row in measure)
        tables.setdefault(key if len(key) > 1 else (), []).append(measure)
    parts = [_table(key, group) for key, group in tables.items()]
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.note and row.name not in notes.setdefault(row.note, []):
            notes[row.note].append(row.name)
    lines = [f"{_title(' and '.join(names))}: {note}." for note, names in notes.items()]
    return "\n\n".join([*parts, *lines])


def _table(peers: tuple[str, ...], measures: list[list[Row]]) -> str:
    """``peers``: a column for each; none: the one other side is named in its cell."""
    versions = {who: version for m in measures for who, version in map(_who, m) if version}
    columns = [f"{who} {versions.get(who, '')}".strip() for who in peers] or ["beside"]
    head = ["measure", "rlrun", *columns, "ratio to the fastest" if peers else "ratio", "wanted"]
    lines = [head, ["---"] * len(head)] + [_line(m, named=not peers) for m in measures]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _line(measure: list[Row], *, named: bool) -> list[str]:
    first = measure[0]
    setting = ", ".join(_said(k, v) for k, v in first.setting.items())
    best = _hardest(measure)
    ratio = "" if best.ratio is None else f"{best.ratio:.2f}"
    if best.spread:
        ratio += " ({:.2f}-{:.2f})".format(*best.spread)
    small = first.unit == "ms" and first.ours < SMALL
    unit, scale = ("µs", 1e3) if small else (first.unit, 1.0)
    cells = [_value(row, scale) + (f" ({row.against})" if named else "") for row in measure]
    title = first.name + (f" ({setting})" if setting else "")
    return [f"{title}, {unit}", _number(first.ours * scale), *cells, ratio, _verdict(best)]


def _hardest(measure: list[Row]) -> Row:
    """The row that decides: one that is missing, else the least favourable ratio."""
    missing = [row for row in measure if row.ratio is None]
    if missing:
        return missing[0]
    return (max if measure[0].kind == "cost" else min)(measure, key=lambda r: r.ratio or 0.0)


def _verdict(row: Row) -> str:
    if row.target is None:
        return row.missing
    sign = "≤" if row.kind == "cost" else "≥"
    state = row.missing or ("met" if row.met else "missed")
    return f"{sign} {row.target:g}, {state}"


def _who(row: Row) -> tuple[str, str]:
    """(name, version) of the other side."""
    found = re.fullmatch(r"([a-z-]+) (\d\S*)", row.against)
    return (found[1], found[2]) if found else (row.against, "")


def _value(row: Row, scale: float) -> str:
    """The other side's; the reason where there is none."""
    return row.missing if row.other is None else _number(row.other * scale)


def _number(value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _said(name: str, value: float | int | str) -> str:
    """256 rows, but batch 256."""
    words = [name, _number(value)]
    return " ".join(reversed(words) if name.endswith("s") else words)


def _title(name: str) -> str:
    return name[:1].upper() + name[1:]
