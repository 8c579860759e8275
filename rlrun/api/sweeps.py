"""Many runs from Python: sweeps, searches, reports, comparisons."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.api.calls import StrPath, arguments, check_words, errors_of_cli, path_of, running_call
from rlrun.api.run import find_pandas
from rlrun.cli.report import make_report
from rlrun.cli.run import read_line
from rlrun.cli.search import run_search
from rlrun.cli.sweep import SHOWN, is_ours, start_sweep
from rlrun.config import Composer
from rlrun.errors import ConfigError, RlrunError
from rlrun.reports.document import Table
from rlrun.reports.versus import compare_lines
from rlrun.run.files import read_record
from rlrun.schema.override import Override, read_overrides
from rlrun.sweeps.launcher import CONSOLE, last_error
from rlrun.sweeps.record import JobRecord


@errors_of_cli
def sweep(
    overrides: Sequence[str],
    *,
    quiet: bool = False,
    config_dir: StrPath | None = None,
    trust: Sequence[str] = (),
) -> Any:
    """Train every combination, several at a time, as ``rlrun -m KEY=A,B ...`` does.

    ``overrides``: those of the command line, ``rlrun.sweep(["policy=r2d2,dqn", "seed=0,1"])``,
    which may include ``sweep.dir=PATH``. Jobs are added to an existing sweep. Every job is a
    process. Other arguments are those of ``train``; failed jobs are named on stderr even if
    ``quiet``.

    Returns:
        A row per job of the sweep, as a DataFrame with pandas, else as a list of dicts: the
        keys that its overrides set, then status, exit_code, score (mean return of the final
        weights, or None), env_steps, seconds, directory, and error (the line of a failed job,
        else None). A failed job is a row, not an exception.

    Raises:
        RlrunError: as ``train``, before any job is started; Interrupted at Ctrl-C, once the running
            jobs are saved.
    """
    words = check_words(overrides, "rlrun.sweep")
    with running_call(["-m", *words], trust, quiet=quiet, config_dir=config_dir):
        composer = Composer(config_dir=config_dir)
        line = read_line(composer, words, quiet=quiet, own_process=False)
        if line.seeds:
            wrong = "rlrun.sweep runs the jobs that it is given"
            raise ConfigError(f"{line.seeds[0]}: {wrong}; seed=0,1,2 is allowed; or use rlrun -m")
        if not is_ours(composer.compose(line.overrides, sweep=True)):
            wrong = "rlrun.sweep runs its jobs on this machine or on Ray"
            raise ConfigError(f"hydra/launcher: {wrong}; local and ray are allowed; leave it out")
        path, record = start_sweep(line)
    return as_table([_row(path, job) for job in record.jobs])


@errors_of_cli
def search(
    overrides: Sequence[str],
    *,
    quiet: bool = False,
    config_dir: StrPath | None = None,
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Search for the setting of the best score, as ``rlrun search 'KEY=interval(LOW,HIGH)' ...``.

    ``overrides``: those of the command line, which may include ``search.KEY=VALUE``. Other
    arguments are those of ``train``.

    Returns:
        ``overrides`` of the chosen setting, ``score`` on fresh seeds with ``low`` and ``high``,
        ``seeds``, ``scores``, ``failed_seeds``, ``selection_score``, ``directory``, ... .

    Raises:
        RlrunError: as ``train``; exit_code 1: no trial was completed. Interrupted at Ctrl-C.
    """
    words = check_words(overrides, "rlrun.search")
    with running_call(["search", *words], trust, quiet=quiet, config_dir=config_dir):
        directory, result = run_search(words, config_dir=config_dir, quiet=quiet, own_process=False)
    return {**result.to_dict(), "directory": str(directory)}


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
    listed: Any = dirs if isinstance(dirs, Iterable) and not isinstance(dirs, str) else [dirs]
    names = [path_of(path) for path in listed]
    try:
        scales = [f"{env}={low}:{high}" for env, (low, high) in (references or {}).items()]
    except (AttributeError, TypeError, ValueError) as e:
        allowed = "a dict of an environment and two numbers is allowed"
        fix = 'e.g. references={"CartPole-v1": (20, 500)}'
        raise ConfigError(f"references = {references!r:.60}: {allowed}; {fix}") from e
    if not names:
        raise ConfigError("rlrun.report: no directory; runs and sweeps are allowed; name one")
    if threshold is not None and not (isinstance(threshold, Real) and math.isfinite(threshold)):
        wrong = "is not a finite number; one is allowed; set it"
        raise ConfigError(f"threshold = {threshold}: {wrong}")

    document, _ = make_report(
        names, score=str(score), threshold=threshold, references=scales, baseline=baseline,
        axes=("env_steps", "wall"), out=None if out is None else Path(path_of(out, "out")),
    )  # fmt: skip
    return {table.name: as_table(table_rows(table)) for table in document.tables}


@errors_of_cli
def compare(a: StrPath, b: StrPath, *, score: str = "final") -> list[str]:
    """Return the lines of ``rlrun compare A B``: config diff, scores, the verdict on B against A.

    ``a``, ``b``: run, sweep, parent directory or glob, each with one setting. ``score``: as in
    ``report``.

    Raises: ConfigError for a side without a score, with several settings, or in other environments.
    """
    args = arguments("compare", path_of(a), path_of(b), score=score)
    return list(compare_lines(args.a, args.b, args.score))


def _row(sweep_dir: Path, job: JobRecord) -> dict[str, Any]:
    """Return the row of a job, with values from its run.json."""
    record: dict[str, Any] = {}
    with suppress(RlrunError):  # it did not start, or is damaged
        record = read_record(sweep_dir / job.name)
    evaluation = record.get("eval") if job.status == "done" else None
    error = None if job.status == "done" else last_error(sweep_dir / job.name / CONSOLE)
    typed = (o for o in read_overrides(job.overrides) if o.key not in SHOWN)
    return {
        **dict(map(_setting, typed)),
        "status": job.status,
        "exit_code": job.exit_code,
        "score": evaluation["return_mean"] if evaluation else None,
        "env_steps": record.get("env_steps"),
        "seconds": job.seconds,
        "directory": str(sweep_dir / job.name),
        "error": error,
    }


def _setting(override: Override) -> tuple[str, Any]:
    """Return the key of an override and its value: a number, or the text as typed."""
    for number in (int, float):
        with suppress(ValueError):
            return override.key, number(override.value)
    return override.key, override.value


def as_table(rows: list[dict[str, Any]]) -> Any:
    """Return the rows as a DataFrame, or unchanged without pandas."""
    pandas = find_pandas()
    return rows if pandas is None else pandas.DataFrame(rows)


def table_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a report's table, in Python's numbers; see ``Table.flat``."""
    names, *rows = table.flat()
    return [
        {
            str(name): cell.item() if isinstance(cell, np.generic) else cell
            for name, cell in zip(names, cells, strict=True)
        }
        for cells in rows
    ]
