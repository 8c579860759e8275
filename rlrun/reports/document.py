"""A report as sections of sentences, tables and figures, written as HTML, Markdown, text and CSV.

Texts are escaped for where they go: a name in a config may be a stranger's. The page is one HTML
file: figures and style inside, no scripts, nothing loaded. Every text, name and link is escaped;
figures are those of `inline_svg`, whose texts matplotlib has escaped. A content security policy
forbids scripts and requests besides. The report directory holds it as index.html, report.md, the
tables as CSV files, figures as SVG and PNG.
"""

import csv
import html
import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from rlrun.errors import ConfigError, StorageError
from rlrun.reports.runs import printable
from rlrun.run.files import replace_file

# -- tables ----------------------------------------------------------------------------------------


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


# -- sections and figures --------------------------------------------------------------------------

INK = "#1a1b1c"  # of texts and axes; the page replaces it by the colour of its text


class Picture(NamedTuple):
    """A drawn figure. ``name``: of its files; ``title``: says in words what it shows."""

    name: str
    title: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Section:
    """Paragraphs, then tables, then figures under a title."""

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Name of the section in links."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Document:
    """The whole report. ``text``: what it says in short. ``data``: tables that are only CSV."""

    title: str
    text: list[str]
    sections: list[Section]
    data: list[Table] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        """Every table, in order."""
        return [*(table for part in self.sections for table in part.tables), *self.data]

    @property
    def pictures(self) -> list[Picture]:
        """Every figure, in order."""
        return [picture for part in self.sections for picture in part.pictures]


# -- Markdown --------------------------------------------------------------------------------------


def document_markdown(document: Document) -> str:
    """Return the report in Markdown; figures and tables are files beside it."""
    return "\n".join(_markdown(document))


def _markdown(document: Document) -> Iterator[str]:
    yield f"# {markdown_text(document.title)}\n"
    for text in document.text:
        yield f"{markdown_text(text)}\n"
    for part in document.sections:
        yield f"## {markdown_text(part.title)}\n"
        for text in part.text:
            yield f"{markdown_text(text)}\n"
        for table in part.tables:
            yield markdown(table)
        for picture in part.pictures:
            yield f"![{markdown_text(picture.title)}]({picture.name}.svg)\n"
    yield "All digits, and every evaluation: the CSV files in this directory."


# -- HTML ------------------------------------------------------------------------------------------

GENERATOR = '<meta name="generator" content="rlrun report">'
MARK = '<meta name="rlrun-runs" content="{}">'  # which runs the report is on
_LONG = 30  # rows of a table that scrolls by itself
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1d21; --paper: #ffffff; --line: #d9dce1;
  --dim: #5c636e; --band: #f4f6f8; --link: #0b62a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #15171b; --line: #363b44;
  --dim: #9aa3af; --band: #1e2127; --link: #7db8ec; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 1.5rem 1.25rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans",
  sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
p { margin: .4rem 0 .8rem; max-width: 75ch; }
p.lead { font-size: 1.05rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .9rem; margin: 1rem 0; }
.table { overflow-x: auto; margin: .75rem 0; }
.tall { max-height: 34rem; overflow-y: auto; border: 1px solid var(--line); }
.tall th { position: sticky; top: 0; background: var(--paper); }
table { border-collapse: collapse; font-size: .86rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .35rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); max-width: 26rem; }
td { white-space: nowrap; }
td.long { white-space: normal; min-width: 18rem; overflow-wrap: anywhere; }
th { font-weight: 600; color: var(--dim); vertical-align: bottom; }
.number { text-align: right; }
tbody tr:nth-child(even) { background: var(--band); }
.figures { display: grid; gap: 1.25rem 1.5rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
figure { margin: 0; max-width: 580px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif
  !important; }
@media (prefers-color-scheme: dark) { figure svg { filter: brightness(1.3); } }
figcaption { font-size: .84rem; color: var(--dim); margin-top: .35rem; }
footer { margin-top: 3rem; font-size: .84rem; color: var(--dim); }
@media (max-width: 600px) { body { padding: 1rem .9rem 3rem; } h1 { font-size: 1.3rem; }
  th, td { padding: .3rem .5rem; } }
"""


def unfinished(mark: str) -> str:
    """Return the page that stands until the report is written."""
    return f"""<!doctype html>
<meta charset="utf-8">
{GENERATOR}
{MARK.format(mark)}
<title>Report</title>
<p>This report is being written, or was interrupted: then run the command again.</p>
"""


def document_html(document: Document, mark: str) -> str:
    """Return the page. ``mark``: of the runs it is on, see `write.mark_of`."""
    return "\n".join(_lines(document, mark)) + "\n"


def _lines(document: Document, mark: str) -> Iterator[str]:
    title = html.escape(document.title)
    yield "<!doctype html>"
    yield '<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield f"{GENERATOR}\n{MARK.format(mark)}"
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{title}</h1>"
    for text in document.text:
        yield f'<p class="lead">{html.escape(text)}</p>'
    links = (
        f'<a href="#{html.escape(part.anchor)}">{html.escape(part.title)}</a>'
        for part in document.sections
    )
    yield f"<nav>{' '.join(links)}</nav>"
    for part in document.sections:
        yield from _section(part)
    yield "<footer>Written by rlrun report. All digits, and every evaluation, are in the CSV files "
    yield "beside this page.</footer>\n</body>\n</html>"


def _section(part: Section) -> Iterator[str]:
    yield f'<section>\n<h2 id="{html.escape(part.anchor)}">{html.escape(part.title)}</h2>'
    for text in part.text:
        yield f"<p>{html.escape(text)}</p>"
    for table in part.tables:
        yield from _table(table)
    if part.pictures:
        yield '<div class="figures">'
        for picture in part.pictures:
            yield _figure(picture)
        yield "</div>"
    yield "</section>"


def _figure(picture: Picture) -> str:
    caption = html.escape(picture.title)
    return f"<figure>\n{inline_svg(picture)}\n<figcaption>{caption}</figcaption>\n</figure>"


def _table(table: Table) -> Iterator[str]:
    table = table.shown()
    numeric = numeric_columns(table)
    kind = "table tall" if len(table.rows) > _LONG else "table"
    yield f'<div class="{kind}" id="table-{html.escape(table.name)}">\n<table>\n<thead><tr>'
    for name, right in zip(table.columns, numeric, strict=True):
        yield _cell("th", name, "number" if right else "")
    yield "</tr></thead>\n<tbody>"
    for row in table.rows:
        yield "<tr>" + "".join(_cells(row, numeric)) + "</tr>"
    yield "</tbody>\n</table>\n</div>"


def _cells(row: tuple[Cell, ...], numeric: list[bool]) -> Iterator[str]:
    for cell, right in zip(row, numeric, strict=True):
        text = show_cell(cell)
        yield _cell("td", text, "number" if right else "long" if len(text) > 48 else "")


def _cell(tag: str, text: str, kind: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<{tag}{attribute}>{html.escape(text)}</{tag}>"


def inline_svg(picture: Picture) -> str:
    """Return the svg element for a page: no ids that clash, the page's own text colour and font."""
    svg = picture.svg[picture.svg.index("<svg") :].strip()
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.S)  # a style is for the page
    svg = re.sub(r"\bid=\"([\w.-]+)\"", rf'id="{picture.name}-\1"', svg)
    svg = re.sub(r"(url\(#|xlink:href=\"#)", rf"\g<1>{picture.name}-", svg)
    svg = re.sub(r'(<svg .*?)width="[^"]*"|(<svg .*?) height="[^"]*"', r"\1\2", svg)
    svg = svg.replace("fill: #ffffff", "fill: none")  # the paper is the page's
    return svg.replace(INK, "currentColor").replace("<svg ", '<svg role="img" ', 1)


# -- the report directory --------------------------------------------------------------------------

PAGE, TEXT = "index.html", "report.md"
TABLES = (
    "scores", "comparisons", "efficiency", "aggregates", "sensitivity", "config", "runs", "curves",
    "evaluations", "seeds", "sequential", "success", "selection",
)  # fmt: skip
_FILES = (PAGE, TEXT, *(f"{name}.csv" for name in TABLES), "figure_*.svg", "figure_*.png")
_OWN = (*_FILES, *(f".tmp_{name}" for name in _FILES))  # the latter of a report that was killed


def mark_of(dirs: Sequence[str], out: Path) -> str:
    """Return what tells a report in ``out`` on the runs of ``dirs`` from one on others.

    Directories are taken relative to ``out``, so that a sweep may move with the report inside it.
    """
    base = os.path.realpath(out)
    paths = (name.replace("\0", "") for name in dirs)  # refused when it is read
    names = sorted({os.path.relpath(os.path.realpath(path), base) for path in paths})
    return sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def default_out(dirs: Sequence[str]) -> Path:
    """Return where a report goes: ``report`` in the directory it is on, else here.

    Where that is taken by a report on other runs, or by other files, the next free of report-2, …
    """
    top = Path(dirs[0]) if len(dirs) == 1 and Path(dirs[0]).is_dir() else Path()
    number = 1
    while True:
        out = top / ("report" if number == 1 else f"report-{number}")
        if not _taken(out, mark_of(dirs, out)):
            return out
        number += 1


def check_out(out: Path, mark: str) -> None:
    """Raise ConfigError unless ``out`` is new, empty, or an earlier report on the same runs."""
    if wrong := _taken(out, mark):
        raise ConfigError(
            f"--out = {out}: {wrong}; a new or empty directory, or an earlier report on the same "
            "runs, is allowed; choose another, or delete it",
            key="--out",
        )


def _taken(out: Path, mark: str) -> str:
    """Return why no report with ``mark`` may be written to ``out``; "" where one may."""
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
    found = re.search(MARK.format("([0-9a-f]+)"), head)
    return "holds a report on other runs" if found and found[1] != mark else ""


def write_report(document: Document, out: Path, mark: str) -> None:
    """Write a report: every file atomically, the page last; then delete files of an earlier one.

    One that is interrupted leaves the page of the earlier report, or one that says so, and can be
    written again.

    Raises: ConfigError as `check_out`, StorageError.
    """
    check_out(out, mark)
    files = {
        PAGE: document_html(document, mark).encode(),
        TEXT: document_markdown(document).encode(),
    }
    files |= {f"{table.name}.csv": csv_text(table).encode() for table in document.tables}
    for picture in document.pictures:
        files |= {f"{picture.name}.svg": picture.svg.encode(), f"{picture.name}.png": picture.png}
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / PAGE).exists():
            replace_file(out / PAGE, unfinished(mark).encode())
        for name in sorted(files, key=lambda name: name == PAGE):
            replace_file(out / name, files[name])
        for path in [path for pattern in _OWN for path in out.glob(pattern)]:
            if path.name not in files:
                path.unlink()
    except OSError as e:
        raise StorageError(
            f"--out = {out}: cannot be written ({e.strerror or e}); a writable directory is "
            "needed; choose another"
        ) from e
