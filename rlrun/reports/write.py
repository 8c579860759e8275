"""The report directory: index.html, report.md, CSV files, figures as SVG and PNG."""

from pathlib import Path

from rlrun.errors import ConfigError, StorageError
from rlrun.reports.document import Document, document_markdown
from rlrun.reports.page import GENERATOR, UNFINISHED, document_html
from rlrun.reports.tables import csv_text
from rlrun.rundir.durable import replace_file

PAGE, TEXT = "index.html", "report.md"
TABLES = (
    "scores", "comparisons", "efficiency", "aggregates", "sensitivity", "config", "runs", "curves",
    "evaluations", "seeds", "sequential", "success", "selection",
)  # fmt: skip
_FILES = (PAGE, TEXT, *(f"{name}.csv" for name in TABLES), "figure_*.svg", "figure_*.png")
_OWN = (*_FILES, *(f".tmp_{name}" for name in _FILES))  # the latter of a report that was killed


def check_out(out: Path) -> None:
    """Raise ConfigError unless ``out`` is new, empty, or an earlier report."""
    if not out.exists():
        return
    wrong = None if out.is_dir() else "is no directory"
    if wrong is None and any(out.iterdir()) and not _is_report(out / PAGE):
        wrong = "holds files that are no report"
    if wrong:
        raise ConfigError(
            f"--out = {out}: {wrong}; a new or empty directory, or an earlier report, is allowed; "
            "choose another",
            key="--out",
        )


def _is_report(page: Path) -> bool:
    try:
        return GENERATOR in page.read_bytes()[:1000].decode("utf-8", "replace")
    except OSError:
        return False


def write_report(document: Document, out: Path) -> None:
    """Write a report: every file atomically, the page last; then delete files of an earlier one.

    One that is interrupted leaves the page of the earlier report, or one that says so, and can be
    written again.

    Raises: ConfigError as `check_out`, StorageError.
    """
    check_out(out)
    files = {PAGE: document_html(document).encode(), TEXT: document_markdown(document).encode()}
    files |= {f"{table.name}.csv": csv_text(table).encode() for table in document.tables}
    for picture in document.pictures:
        files |= {f"{picture.name}.svg": picture.svg.encode(), f"{picture.name}.png": picture.png}
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / PAGE).exists():
            replace_file(out / PAGE, UNFINISHED.encode())
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
