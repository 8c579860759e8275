"""The report as one HTML file: figures and style inside, no scripts, nothing loaded.

Every text, name and link is escaped; figures are those of `inline_svg`, whose texts matplotlib has
escaped. A content security policy forbids scripts and requests besides.
"""

import html
from collections.abc import Iterator

from rlrun.reports.document import Document, Section
from rlrun.reports.figures import Picture, inline_svg
from rlrun.reports.tables import Cell, Table, numeric_columns, show_cell

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
