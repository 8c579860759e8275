"""A report as sections of sentences, tables and figures, written as HTML, Markdown, text and CSV.

Texts are escaped for each format, because names in a config may be untrusted. The page is one HTML
file with figures and style inside. It has no scripts and loads nothing, and a content security
policy forbids both. Every text, name and link is escaped. Figures are those of `inline_svg`, whose
texts matplotlib has escaped. The report directory contains the page as index.html, report.md, the
tables as CSV files, and figures as SVG and PNG.
"""

import csv
import html
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, count, repeat
from pathlib import Path
from typing import NamedTuple

from rlrun.errors import ConfigError, storage_errors
from rlrun.reports.runs import printable
from rlrun.run.files import replace_file
from rlrun.terminal import table_lines


class Interval(NamedTuple):
    """An estimate and its interval. ``low`` and ``high`` are NaN if none is claimed."""

    value: float
    low: float
    high: float


Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class MadeRows:
    """Rows that are made on every read, because 10^6 of them would need 200 MB."""

    make: Callable[[], Iterator[tuple[Cell, ...]]]

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return self.make()


@dataclass(frozen=True)
class Table:
    """Rows under column names. ``name``: of its CSV file."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] | MadeRows

    def shown(self) -> tuple[list[list[str]], list[bool]]:
        """Return the names of the columns and the texts of the rows, and which columns are numbers.

        Left out are columns without a value, and the environment if it is the same in all rows.
        """
        rows = [[show_cell(cell) for cell in row] for row in self.rows]
        texts = [{row[i] for row in rows} for i in range(len(self.columns))]
        informative = [texts[i] - {"", "-"} and (name != "environment" or len(texts[i]) > 1)
                       for i, name in enumerate(self.columns)]  # fmt: skip
        kept = [i for i, shown in enumerate(informative) if shown or not any(informative)]
        numeric = [any(isinstance(row[i], int | float | Interval) and not isinstance(row[i], bool)
                       for row in self.rows) for i in kept]  # fmt: skip
        return [[row[i] for i in kept] for row in [[*self.columns], *rows]], numeric

    def flat(self) -> Iterator[list[Cell]]:
        """Yield the names of the columns, then the rows.

        An interval takes three columns: ``name``, ``name low`` and ``name high``.
        """
        intervals = {i for row in self.rows for i, x in enumerate(row) if isinstance(x, Interval)}
        widths = [3 if i in intervals else 1 for i in range(len(self.columns))]
        named = zip(self.columns, widths, strict=True)
        yield [name + end for name, width in named for end in ("", " low", " high")[:width]]
        for row in self.rows:
            cells: list[Cell] = []
            for cell, width in zip(row, widths, strict=True):
                cells += cell if isinstance(cell, Interval) else (cell, None, None)[:width]
            yield cells


def show_number(value: float) -> str:
    """Return four significant digits, or all digits of a large number below 10^9."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def show_cell(cell: Cell) -> str:
    """Return the displayed text of a cell."""
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


def terminal_lines(table: Table) -> list[str]:
    """Return the lines of a table with aligned columns."""
    return table_lines(*table.shown())


def markdown(table: Table) -> str:
    """Return the table in GitHub's Markdown."""
    texts, numeric = table.shown()
    head, *rows = (" | ".join(map(markdown_text, cells)) for cells in texts)
    rule = " | ".join("---:" if right else "---" for right in numeric)
    return "".join(f"| {line} |\n" for line in [head, rule, *rows])


def markdown_text(text: str) -> str:
    """Return a text escaped so that Markdown shows it unchanged."""
    text = html.escape(printable(text), quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]|#~$!" else c for c in text)


def csv_text(table: Table) -> str:
    """Return the table as CSV with all digits.

    NaN is an empty cell. A text that a spreadsheet would take for a formula gets an apostrophe.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(_csv_text, row) for row in table.flat())
    return out.getvalue()


def _csv_text(cell: Cell) -> str:
    if isinstance(cell, float):
        return "" if math.isnan(cell) else repr(float(cell))
    text = show_cell(cell)
    risky = isinstance(cell, str) and text[:1] in ("=", "+", "-", "@")
    return f"'{text}" if risky else text


INK = "#1a1b1c"  # of texts and axes; the page replaces it by its text colour


class Picture(NamedTuple):
    """A finished figure. ``name``: of its files. ``title``: a description in words."""

    name: str
    title: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Section:
    """Figures, then tables, then notes on them, under a title.

    ``lead``: sentences for the head of the report, if they are few.
    """

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    lead: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Name of the section in links."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Document:
    """The whole report. ``text``: its summary. ``data``: tables that are written only as CSV."""

    title: str
    text: list[str]
    sections: list[Section]
    data: list[Table] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        return [*(table for part in self.sections for table in part.tables), *self.data]

    @property
    def pictures(self) -> list[Picture]:
        """Every figure, in order."""
        return [picture for part in self.sections for picture in part.pictures]


def document_markdown(document: Document) -> str:
    """Return the report in Markdown. Figures and tables are separate files."""
    parts = [f"# {markdown_text(document.title)}\n"]
    parts += [f"{markdown_text(text)}\n" for text in document.text]
    for part in document.sections:
        parts += [f"## {markdown_text(part.title)}\n"]
        parts += [f"![{markdown_text(p.title)}]({p.name}.svg)\n" for p in part.pictures]
        parts += [*map(markdown, part.tables), *(f"{markdown_text(text)}\n" for text in part.text)]
    return "\n".join([*parts, f"{_DIGITS} in this directory."])


_DIGITS = "All digits, and every evaluation: the CSV files"

GENERATOR = '<meta name="generator" content="rlrun report">'
MARK = '<meta name="rlrun-runs" content="{}">'  # which runs the report is on
_LONG = 31  # lines from which a table scrolls
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HEAD = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
{GENERATOR}
{MARK}
<link rel="icon" href="data:,">
"""


def document_html(document: Document, mark: str) -> str:
    """Return the page. ``mark``: identifies its runs, see `mark_of`."""
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    links = (_tag("a", part.title, href=f"#{part.anchor}") for part in document.sections)
    return "\n".join([
        f"{_HEAD.format(mark)}{_tag('title', document.title)}\n<style>\n{style}</style>",
        _tag("h1", document.title), *(_tag("p", text, kind="lead") for text in document.text),
        f"<nav>{' '.join(links)}</nav>", *map(_section, document.sections),
        _tag("footer", f"Written by rlrun report. {_DIGITS} next to this page."), "",
    ])  # fmt: skip


def _tag(name: str, text: str, kind: str = "", **attributes: str) -> str:
    """Return an element around an escaped text. ``kind``: its class."""
    merged = {"class": kind, **attributes} if kind else attributes
    words = "".join(f' {key}="{html.escape(value)}"' for key, value in merged.items())
    return f"<{name}{words}>{html.escape(text)}</{name}>"


def _section(part: Section) -> str:
    figures = [f"<figure>\n{inline_svg(p)}\n{_tag('figcaption', p.title)}\n</figure>"
               for p in part.pictures]  # fmt: skip
    return "\n".join([
        f"<section>\n{_tag('h2', part.title, id=part.anchor)}",
        *(['<div class="figures">', *figures, "</div>"] if figures else []),
        *map(_table, part.tables),
        *(_tag("p", text) for text in part.text),
        "</section>",
    ])  # fmt: skip


def _table(table: Table) -> str:
    texts, numeric = table.shown()
    kind = "table tall" if len(texts) > _LONG else "table"
    lines = [f'<div class="{kind}" id="table-{html.escape(table.name)}">\n<table>\n<thead>']
    for tag, cells in zip(chain(["th"], repeat("td")), texts, strict=False):
        row = "".join(
            _tag(tag, text, "number" if right else "long" * (len(text) > 48))
            for text, right in zip(cells, numeric, strict=True)
        )
        lines += [f"<tr>{row}</tr>"] + ["</thead>\n<tbody>"] * (tag == "th")
    return "\n".join([*lines, "</tbody>\n</table>\n</div>"])


def inline_svg(picture: Picture) -> str:
    """Return the svg element for a page, with unique ids and the page's text colour and font."""
    svg = picture.svg[picture.svg.index("<svg") :].strip()
    # A style would apply to the whole page.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.S)
    svg = re.sub(r"\bid=\"([\w.-]+)\"", rf'id="{picture.name}-\1"', svg)
    svg = re.sub(r"(url\(#|xlink:href=\"#)", rf"\g<1>{picture.name}-", svg)
    svg = re.sub(r'(<svg .*?)width="[^"]*"|(<svg .*?) height="[^"]*"', r"\1\2", svg)
    svg = svg.replace("fill: #ffffff", "fill: none")  # the background is the page's
    return svg.replace(INK, "currentColor").replace("<svg ", '<svg role="img" ', 1)


PAGE, TEXT = "index.html", "report.md"
TABLES = (
    "scores", "comparisons", "efficiency", "aggregates", "sensitivity", "config", "runs", "curves",
    "evaluations", "seeds", "sequential", "success", "selection",
)  # fmt: skip
_FILES = (PAGE, TEXT, *(f"{name}.csv" for name in TABLES), "figure_*.svg", "figure_*.png")
_OWN = (*_FILES, *(f".tmp_{name}" for name in _FILES))  # .tmp_: left by a killed report


def mark_of(dirs: Sequence[str], out: Path) -> str:
    """Return a text that distinguishes a report in ``out`` on the runs of ``dirs`` from others.

    Directories are relative to ``out``, so that a sweep can be moved together with its report.
    """
    base = os.path.realpath(out)
    paths = (name.replace("\0", "") for name in dirs)  # rejected when read
    names = sorted({os.path.relpath(os.path.realpath(path), base) for path in paths})
    return sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def default_out(dirs: Sequence[str]) -> Path:
    """Return the directory of a report: ``report`` in the directory of its runs, else here.

    If a report on other runs, or other files, are there, it is the next free one of report-2, …
    """
    top = Path(dirs[0]) if len(dirs) == 1 and os.path.isdir(dirs[0]) else Path()
    names = chain(["report"], (f"report-{number}" for number in count(2)))
    return next(top / name for name in names if not _taken(top / name, mark_of(dirs, top / name)))


def check_out(out: Path, mark: str) -> None:
    """Raise ConfigError unless ``out`` is new, empty, or an earlier report on the same runs."""
    if wrong := _taken(out, mark):
        raise ConfigError(
            f"--out = {out}: {wrong}; a new or empty directory, or an earlier report on the same "
            "runs, is allowed; choose another, or delete it",
            key="--out",
        )


def _taken(out: Path, mark: str) -> str:
    """Return why no report with ``mark`` may be written to ``out``, "" if it may."""
    if not os.path.lexists(out):
        return ""
    if not out.is_dir():
        return "is not a directory"
    if not any(out.iterdir()):
        return ""
    try:
        head = (out / PAGE).read_bytes()[:1000].decode("utf-8", "replace")
    except OSError:
        head = ""
    if GENERATOR not in head:
        return "holds files that are not a report"
    match = re.search(MARK.format("([0-9a-f]+)"), head)
    return "holds a report on other runs" if match and match[1] != mark else ""


def write_report(document: Document, out: Path, mark: str) -> None:
    """Write a report: every file atomically, the page last. Then delete files of an earlier one.

    If interrupted, the page is that of the earlier report or says that it is unfinished, and the
    report can be written again.

    Raises: ConfigError as `check_out`, StorageError.
    """
    check_out(out, mark)
    files: dict[str, bytes | Table] = {f"{table.name}.csv": table for table in document.tables}
    files[TEXT] = document_markdown(document).encode()
    for picture in document.pictures:
        files |= {f"{picture.name}.svg": picture.svg.encode(), f"{picture.name}.png": picture.png}
    files[PAGE] = document_html(document, mark).encode()
    with storage_errors(f"--out = {out}:", "a writable directory is needed; choose another"):
        out.mkdir(parents=True, exist_ok=True)
        if not (out / PAGE).exists():
            text = "This report is being written. If it was interrupted, run the command again."
            page = f"{_HEAD.format(mark)}<title>Report</title>\n<p>{text}</p>\n"
            replace_file(out / PAGE, page.encode())
        for name, content in files.items():
            content = csv_text(content).encode() if isinstance(content, Table) else content
            replace_file(out / name, content)
        for path in [path for pattern in _OWN for path in out.glob(pattern)]:
            if path.name not in files:
                path.unlink()
