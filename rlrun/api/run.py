"""The class Run: a run directory in Python."""

import copy
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlrun.api.calls import StrPath, directory_of, errors_of_cli
from rlrun.errors import ConfigError
from rlrun.log import METRICS, TIMED, TIMINGS
from rlrun.log.jsonl import read_records
from rlrun.reports.runs import flatten, read_config, resolve
from rlrun.run.files import CONFIG, read_record
from rlrun.schema.spelling import nearest

if TYPE_CHECKING:
    from rlrun.run.agent import Agent

Series = tuple[NDArray[np.int64], NDArray[np.float64]]  # env_steps [K], values [K]


class Run:
    """A run directory: its config, its record, its metrics, its agent.

    A ``Run`` is a path: ``rlrun.load(run)`` and ``open(run / "config.yaml")`` accept it. Properties
    read the files at that moment, also while the run is active.
    """

    def __init__(self, directory: StrPath) -> None:
        """Raises: ConfigError if it is not a run directory, CheckpointError if it is damaged."""
        self.directory = directory_of(directory)
        self.record  # noqa: B018, raises

    def __fspath__(self) -> str:
        return str(self.directory)

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def __repr__(self) -> str:
        keys = self.config
        what = f"{keys['policy']['name']} on {keys['env']['id']}, {self.status}"
        score = "" if self.score is None else f", score {self.score:.4g}"
        return f"Run({what}{score}, {str(self.directory)!r})"

    @property
    @errors_of_cli
    def record(self) -> dict[str, Any]:
        """Everything in run.json: seed, env_steps, versions, machine, command, ..."""
        return read_record(self.directory)

    @property
    def status(self) -> str:
        """``running``, ``done``, ``failed`` or ``interrupted``."""
        return str(self.record["status"])

    @property
    def summary(self) -> dict[str, float] | None:
        """The evaluation of the final weights: return_mean, return_std, ...; None without one."""
        evaluation: dict[str, float] | None = self.record.get("eval")
        return evaluation

    @property
    def score(self) -> float | None:
        """The mean return of the final weights; None if they were not evaluated."""
        return None if self.summary is None else self.summary["return_mean"]

    @cached_property
    @errors_of_cli
    def config(self) -> dict[str, Any]:
        """The config of the run, nested as on the command line.

        Interpolations are resolved, except those of ``oc.env``, which may be secrets.
        """
        path = self.directory / CONFIG
        try:
            values = read_config(path)
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"{path}: cannot be read ({e}); that of a run directory of rlrun is required; "
                "restore it from a copy"
            ) from e
        keys = dict(flatten(values))
        return {key: _resolved(value, keys) for key, value in values.items()}

    @property
    def metrics(self) -> Any:
        """All metrics that the run logged (metrics.jsonl).

        With pandas a DataFrame: a row per env step (the index), a column per metric, NaN where it
        was not logged. Without pandas a dict: metric -> (env_steps int64 [K], values float64 [K]).
        """
        return self._table(METRICS)

    @property
    def timings(self) -> Any:
        """Metrics that differ between equal runs (timings.jsonl: ``time/...``), as ``metrics``."""
        return self._table(TIMINGS)

    @errors_of_cli
    def metric(self, name: str) -> Series:
        """Return (env_steps int64 [K], values float64 [K]) of one metric, e.g.
        ``eval/return_mean``.

        Raises: ConfigError if the run has not logged it.
        """
        name = str(name)
        series = as_series(self._records(TIMINGS if name.startswith(TIMED) else METRICS))
        if name not in series:
            group = name.partition("/")[0]
            close = [key for key in series if key.partition("/")[0] == group] or [*series]
            close = nearest(name, [*series], 3) or close[:8]
            raise ConfigError(
                f"metric = {name}: was not logged; the run has {', '.join(close) or 'none'}; "
                "choose one of run.metrics"
            )
        return series[name]

    def agent(self, weights: str | int = "final", *, device: str | None = None) -> "Agent":
        """Return the agent of this run, as ``rlrun.load``."""
        from rlrun.api.agents import load

        return load(self, weights, device=device)

    @errors_of_cli
    def _records(self, file: str) -> list[tuple[int, dict[str, float]]]:
        path = self.directory / file
        return list(read_records(path)) if path.exists() else []

    def _table(self, file: str) -> Any:
        records = self._records(file)
        frame = as_frame(records)
        return as_series(records) if frame is None else frame


def _resolved(value: Any, keys: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(part, keys) for key, part in value.items()}
    return copy.deepcopy(resolve(value, keys))


def find_pandas() -> Any:
    """Return the package pandas, or None if it is not installed."""
    try:
        return import_module("pandas")
    except ImportError:
        return None


def as_series(records: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, Series]:
    """Return metric -> (env_steps, values), in the order of the records."""
    points: dict[str, list[tuple[int, float]]] = {}
    for step, values in records:
        for name, value in values.items():
            points.setdefault(name, []).append((step, value))
    return {
        name: (np.array([s for s, _ in pairs], np.int64), np.array([x for _, x in pairs]))
        for name, pairs in sorted(points.items())
    }


def as_frame(records: Iterable[tuple[int, Mapping[str, float]]]) -> Any:
    """Return a DataFrame with a row per env step and a column per metric, NaN where it has none.

    None if pandas is not installed.
    """
    pandas = find_pandas()
    if pandas is None:
        return None
    rows: dict[int, dict[str, float]] = {}
    for step, values in records:
        rows.setdefault(step, {}).update(values)
    names = sorted({name for values in rows.values() for name in values})
    index = pandas.Index(list(rows), name="env_steps", dtype="int64")
    return pandas.DataFrame(list(rows.values()), index=index, columns=names, dtype="float64")
