"""The report directory: index.html, report.md, CSV files, figures as SVG and PNG."""

import os
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from rlrun.errors import ConfigError, StorageError
from rlrun.reports.document import Document, document_markdown
from rlrun.reports.page import GENERATOR, MARK, document_html, unfinished
from rlrun.reports.tables import csv_text
from rlrun.run.files import replace_file

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
