"""Reports from Python: the tables of ``rlrun report``, the verdict of ``rlrun compare``."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlrun.api.calls import StrPath, arguments, errors_of_cli
from rlrun.api.tables import as_table, table_rows
from rlrun.cli.report import lines_of_comparison, make_report
from rlrun.errors import ConfigError


@errors_of_cli
def report(
    dirs: StrPath | Iterable[StrPath],
    *,
    score: str = "final",
    threshold: float | None = None,
    references: Mapping[str, tuple[float, float]] | None = None,
    baseline: str | None = None,
    out: StrPath | None = None,
) -> dict[str, Any]:
    """Return the tables of ``rlrun report DIR...`` by name.

    ``dirs``: run directories, sweeps, directories above them, globs, ``Run`` objects. ``score``,
    ``threshold``, ``baseline``: the options of that name. ``references``: environment -> scores
    that count as 0 and 1. ``out``: a directory for the page, its figures and CSV files; None:
    nothing is written.

    Returns:
        ``scores`` (a row per setting, with the interval of its mean), ``comparisons``,
        ``efficiency``, ``runs``, ``seeds``, ``evaluations``, ... , as far as the runs allow; each
        a DataFrame with pandas, else a list of dicts. An interval takes three columns: ``score``,
        ``score low`` and ``score high``, NaN if none is claimed.

    Raises:
        ConfigError: a directory holds no run, or an argument is wrong. StorageError: ``out``
            cannot be written.
    """
    names = [dirs] if isinstance(dirs, str | os.PathLike) else [*dirs]
    scales = [f"{env}={low}:{high}" for env, (low, high) in (references or {}).items()]
    if not names:
        raise ConfigError("rlrun.report: no directory; runs and sweeps are allowed; name one")
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"threshold = {threshold}: is not finite; a number is allowed; set one")

    document, _ = make_report(
        [os.fspath(name) for name in names],
        score=score,
        threshold=threshold,
        references=scales,
        baseline=baseline,
        axes=("env_steps", "wall"),
        out=None if out is None else Path(out),
    )
    return {table.name: as_table(table_rows(table)) for table in document.tables}


@errors_of_cli
def compare(a: StrPath, b: StrPath, *, score: str = "final") -> list[str]:
    """Return the lines of ``rlrun compare A B``: config diff, scores, the verdict on B against A.

    ``a``, ``b``: run, sweep, parent directory or glob, each with one setting. ``score``: as in
    ``report``.

    Raises: ConfigError for a side without a score, with several settings, or in other environments.
    """
    return lines_of_comparison(arguments("compare", os.fspath(a), os.fspath(b), score=score))
