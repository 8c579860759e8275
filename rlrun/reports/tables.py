"""A table once, written for the terminal, for Markdown and as CSV.

Texts are escaped for where they go: a name in a config may be a stranger's.
"""

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlrun.reports.runs import printable


class Interval(NamedTuple):
    """An estimate and its interval; low and high are NaN where none is claimed."""

    value: float
    low: float
    high: float


Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Table:
    """Rows under column names. ``name``: of its CSV file."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def shown(self) -> "Table":
        """The table as a reader sees it: without columns that say nothing.

        These are empty ones, and the environment where it is the same in all rows.
        """
        kept = [
            i
            for i, name in enumerate(self.columns)
            if not self.rows
            or (
                any(show_cell(row[i]) for row in self.rows)
                and (name != "environment" or len({row[i] for row in self.rows}) > 1)
            )
        ]
        rows = [tuple(row[i] for i in kept) for row in self.rows]
        return Table(self.name, tuple(self.columns[i] for i in kept), rows)


def show_number(value: float) -> str:
    """Return four significant digits, or all digits of a large number below 10^9."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def show_cell(cell: Cell) -> str:
    """Return the text of a cell as a reader sees it."""
    if isinstance(cell, Interval):
        text = show_number(cell.value)
        if math.isnan(cell.low) and math.isnan(cell.high):
            return text
        bounds = f"[{show_number(cell.low)}, {show_number(cell.high)}]"
        return bounds if math.isnan(cell.value) else f"{text} {bounds}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return str(cell)
    if isinstance(cell, float):
        return show_number(cell)
    return "" if cell is None else printable(cell)


def is_numeric(cell: Cell) -> bool:
    """True for a cell that is aligned to the right."""
    return isinstance(cell, int | float | Interval) and not isinstance(cell, bool)


def numeric_columns(table: Table) -> list[bool]:
    """Return which columns are aligned to the right."""
    return [any(is_numeric(row[i]) for row in table.rows) for i in range(len(table.columns))]


def terminal_lines(table: Table) -> list[str]:
    """Return the lines of a table with aligned columns."""
    table = table.shown()
    shown = [[show_cell(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *shown, strict=True)]
    right = numeric_columns(table)
    lines = []
    for cells in [table.columns, *shown]:
        padded = (
            text.rjust(width) if align else text.ljust(width)
            for text, width, align in zip(
                cells, widths, right or [False] * len(widths), strict=True
            )
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def markdown(table: Table) -> str:
    """Return the table in the Markdown of GitHub."""
    table = table.shown()
    right = numeric_columns(table)
    head = [_markdown_row(table.columns)]
    head.append("| " + " | ".join("---:" if align else "---" for align in right) + " |")
    rows = [_markdown_row([show_cell(cell) for cell in row]) for row in table.rows]
    return "\n".join([*head, *rows]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    text = html.escape(printable(text), quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]|#~$!" else c for c in text)


def csv_text(table: Table) -> str:
    """Return the table as CSV, with all digits; an interval takes three columns.

    NaN is an empty cell. A text that a spreadsheet would take for a formula gets an apostrophe.
    """
    wide = [
        any(isinstance(row[i], Interval) for row in table.rows) for i in range(len(table.columns))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [
        [n, f"{n} low", f"{n} high"] if w else [n] for n, w in zip(table.columns, wide, strict=True)
    ]
    writer.writerow([_csv_word(name) for group in names for name in group])
    for row in table.rows:
        writer.writerow(
            [text for cell, w in zip(row, wide, strict=True) for text in _csv_cells(cell, w)]
        )
    return out.getvalue()


def _csv_cells(cell: Cell, wide: bool) -> list[str]:
    if wide:
        numbers = cell if isinstance(cell, Interval) else (cell, None, None)
        return [text for number in numbers for text in _csv_cells(number, False)]
    if isinstance(cell, float):
        return ["" if math.isnan(cell) else repr(float(cell))]
    return [_csv_word(cell) if isinstance(cell, str) else show_cell(cell)]


def _csv_word(text: str) -> str:
    """A name or text of a stranger, so that no spreadsheet takes it for a formula."""
    text = printable(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
