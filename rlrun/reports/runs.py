"""A run as the report needs it: status, config, evaluations, scores. Torch-free.

Files may be a stranger's: only regular files of bounded size are read, only finite numbers and text
that can be printed leave this module, and whatever cannot be read makes the run ``damaged``, which
the report lists.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlrun.errors import RlrunError
from rlrun.reports.inputs import AutoSweeps, RunSource, find_jobs
from rlrun.reports.records import Floats, Records, finite_number, read_records
from rlrun.run.files import CONFIG, RECORD, read_file, read_record
from rlrun.run.manifest import METRICS

TIMINGS = "timings.jsonl"
SEARCH, FRESH = "search.json", "final_"  # of a search; prefix of its runs on fresh seeds
_MAX_CONFIG = 2**18  # bytes of config.yaml
_MAX_DEPTH = 32
_MAX_LINKS = 9  # references that lead from one to the next
_MAX_TEXT = 500  # characters of a name or a message
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_METRICS = (
    "eval/return_mean", "eval/return_std", "eval/return_min", "eval/return_max", "eval/success",
    "collect/restarts",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of a run in order: all arrays [K]. NaN where a value is not known."""

    env_steps: Floats
    return_mean: Floats
    wall_seconds: Floats
    success: Floats


@dataclass(frozen=True)
class RunData:
    """One run. ``status``: that of run.json, or waiting, not started (of a sweep) or damaged.

    ``problem``: which file is damaged, and how. ``trial``: a search chose by its score.
    """

    path: Path
    name: str
    status: str
    config: dict[str, Any]
    record: dict[str, Any]
    problem: str = ""
    overrides: tuple[str, ...] = ()
    trial: bool = False
    listed_code: int | None = None  # exit code in sweep.json, also of a killed job
    auto: Path | None = None  # the sweep that added its seed until it was decided (seeds=auto)
    search: Path | None = None  # the search that it is a run of

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Full name of every config key -> value; interpolations unresolved."""
        return dict(flatten(self.config))

    @property
    def seed(self) -> int | None:
        """The seed, or None when it is not known."""
        seed = self.keys.get("seed", self.record.get("seed"))
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @cached_property
    def records(self) -> Records:
        """Evaluations and restarts in metrics.jsonl."""
        return read_records(self.path / METRICS, _METRICS, ended=self.status == "done")

    @cached_property
    def _times(self) -> Records:
        return read_records(self.path / TIMINGS, ["time/wall_seconds"], ended=self.status == "done")

    @cached_property
    def damage(self) -> str:
        """How metrics.jsonl is damaged; "" where its evaluations are all that the run made."""
        damage, result = self.records.damage, self.record.get("eval")
        if not damage and self.status == "done" and isinstance(result, dict):
            steps, last = self.evaluations.env_steps, finite(result.get("env_steps"))
            last = self.number("env_steps") if math.isnan(last) else last
            if math.isfinite(last) and not (len(steps) and steps[-1] >= last):
                damage = f"the evaluation at {last:.0f} env steps is missing"
        return f"{METRICS}: {damage}" if damage else ""

    @property
    def damaged_times(self) -> str:
        """How timings.jsonl is damaged; wall times are not known then."""
        return f"{TIMINGS}: {self._times.damage}" if self._times.damage else ""

    @cached_property
    def evaluations(self) -> Evaluations:
        """The evaluations, the last one of an env step where there are several.

        Those before the damage in a file that is damaged, see ``damage``.
        """
        columns = self.records.columns
        steps, returns = columns["eval/return_mean"]
        _, last = np.unique(steps[::-1], return_index=True)
        kept = len(steps) - 1 - last
        success = dict(zip(*columns["eval/success"], strict=True))
        shares = np.array([success.get(step, math.nan) for step in steps[kept]], np.float64)
        return Evaluations(steps[kept], returns[kept], self._wall_at(steps[kept]), shares)

    def _wall_at(self, env_steps: Floats) -> Floats:
        """Seconds since the run began, interpolated between the records around each step."""
        steps, seconds = self._times.columns["time/wall_seconds"]
        if not len(steps) or self._times.damage:
            return np.full(len(env_steps), math.nan)
        last, total = self.number("env_steps"), self.number("wall_seconds")
        if self.status == "done" and last >= steps[-1] and total >= seconds[-1]:
            steps, seconds = np.append(steps, last), np.append(seconds, total)
        wall: Floats = np.interp(env_steps, [0.0, *steps], [0.0, *seconds])
        return wall

    @property
    def exit_code(self) -> int | None:
        """That of run.json; of the sweep where the run was killed (a signal's is negative)."""
        code = self.record.get("exit_code")
        return code if isinstance(code, int) else self.listed_code

    @cached_property
    def failure(self) -> str:
        """The last error in rlrun.log; "" when there is none."""
        path = self.path / "rlrun.log"
        try:
            lines = read_file(path).decode("utf-8", "replace").splitlines() if path.exists() else []
        except (OSError, ValueError):
            return ""
        found = [text for line in lines if (text := line.partition("] - exit ")[2])]
        return printable(f"exit {found[-1]}") if found else ""

    @property
    def successes(self) -> tuple[int, int] | None:
        """(successes, episodes) of the final weights, where the environment reports success."""
        result = self.record.get("eval")
        if not isinstance(result, dict):
            return None
        share, episodes = finite(result.get("success")), finite(result.get("episodes"))
        if not (0 <= share <= 1 and 1 <= episodes <= 1e9):
            return None
        return round(share * episodes), int(episodes)

    def number(self, key: str) -> float:
        """A number of run.json; NaN when it has none."""
        return finite(self.record.get(key))

    @cached_property
    def progress(self) -> tuple[float, float]:
        """(env steps, wall-clock seconds) so far; of a killed run what its files know last."""
        steps, wall = self.number("env_steps"), self.number("wall_seconds")
        if self.status == "done" or not self.record:
            return steps, wall
        at, seconds = self._times.columns["time/wall_seconds"]
        last = float(seconds[-1]) if len(at) and not self._times.damage else 0.0
        return max(steps, self.records.env_steps), max(wall, last)

    def text(self, key: str) -> str:
        """A text of run.json that can be printed; "" when it has none."""
        value = self.record.get(key)
        return printable(value) if isinstance(value, str) else ""

    @cached_property
    def restarts(self) -> int:
        """Workers of environments that were restarted."""
        return int(self.records.columns["collect/restarts"][1].sum())

    @property
    def total_steps(self) -> float:
        """Env steps that the run was to do; NaN when the config does not say."""
        return finite(resolve(self.keys.get("run.total_steps"), self.keys))

    @property
    def stop_value(self) -> float:
        """Mean return that counts as solved; NaN when the config does not say."""
        return finite(resolve(self.keys.get("run.stop_value"), self.keys))


def read_run(path: Path | str) -> RunData:
    """Return the run in a directory; damage gives the status ``damaged``, not an error."""
    return _read(RunSource(Path(path), {}), AutoSweeps())


def read_runs(arguments: Sequence[str]) -> list[RunData]:
    """Return the runs that run directories, sweeps, directories above them and globs name.

    Raises: ConfigError for an argument that holds no run.
    """
    sweeps = AutoSweeps()
    runs = [_read(job, sweeps) for job in find_jobs(arguments)]
    often = Counter(run.name for run in runs)
    return [run if often[run.name] == 1 else _renamed(run) for run in runs]


def _renamed(run: RunData) -> RunData:
    """A run of several sweeps' directories of one name: the sweep's name before its own."""
    return replace(run, name=f"{printable(run.path.absolute().parent.name)}/{run.name}")


def _read(job: RunSource, sweeps: AutoSweeps) -> RunData:
    name = printable(job.path.name if job.path.name not in ("", "..") else job.path.resolve().name)
    overrides = job.sweep.get("overrides")
    given = tuple(printable(x) for x in overrides) if isinstance(overrides, list) else ()
    config: dict[str, Any] = {}
    record: dict[str, Any] = {}
    problem = ""
    try:
        if (job.path / CONFIG).exists():
            config = read_config(job.path / CONFIG)
            given = given or _overrides(job.path)
        if (job.path / RECORD).exists():
            record = read_record(job.path)
    except (OSError, ValueError, RlrunError) as e:
        problem = printable(f"damaged: {e.strerror or e}" if isinstance(e, OSError) else e)
    status = "damaged" if problem else _status(job, record)
    above = Path(os.path.realpath(job.path)).parent.parent
    search = above if (above / SEARCH).is_file() else None
    trial = search is not None and not name.startswith(FRESH)
    code = job.sweep.get("exit_code")
    listed = code if isinstance(code, int) else None
    auto = sweeps.of(job.path)
    return RunData(
        job.path, name, status, config, record, problem, given, trial, listed, auto, search
    )


def _status(job: RunSource, record: dict[str, Any]) -> str:
    """Status of run.json; of the sweep where the job did not write one."""
    own, listed = record.get("status"), job.sweep.get("status")
    known = ("running", "done", "failed", "interrupted", "waiting")
    if own == "running" and listed in ("failed", "interrupted"):
        return str(listed)  # killed: it could not say so itself
    return str(own) if own in known else str(listed) if listed in known else "not started"


def _overrides(run_dir: Path) -> tuple[str, ...]:
    path = run_dir / "overrides.yaml"
    lines = _safe_yaml(read_file(path, _MAX_CONFIG)) if path.exists() else []
    return tuple(printable(x) for x in lines) if isinstance(lines, list) else ()


def read_config(path: Path) -> dict[str, Any]:
    """Return the config of a run. Raises: OSError, ValueError."""
    return parse_config(read_file(path, _MAX_CONFIG))


def parse_config(content: bytes) -> dict[str, Any]:
    """Return the config in the bytes of a config.yaml. Raises: ValueError."""
    config = _safe_yaml(content)
    if not isinstance(config, dict):
        raise ValueError("config.yaml holds no config")
    return config


def _safe_yaml(content: bytes) -> Any:
    """The value of yaml without aliases, which could stand for far more than its bytes."""
    try:
        depth = 0
        for event in yaml.parse(content, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("the yaml has aliases")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise ValueError(f"the yaml is nested deeper than {_MAX_DEPTH}")
        return yaml.load(content, Loader=_Loader)  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise ValueError(f"config.yaml: {' '.join(str(e).split())}") from e


def flatten(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full name, value) of the leaves of a config; a list is a leaf."""
    for key, value in config.items():
        name = f"{prefix}{printable(key)}"
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def resolve(value: Any, keys: dict[str, Any]) -> Any:
    """Return what ``${other.key}`` stands for among ``keys``; any other value as it is."""
    for _ in range(_MAX_LINKS):
        if not (isinstance(value, str) and value[:2] == "${" and value[-1] == "}"):
            break
        value = keys.get(value[2:-1], value)
    return value


def finite(value: Any) -> float:
    """Return a number; NaN for anything else, and for what no float can hold."""
    number = finite_number(value)
    return math.nan if number is None else number


def printable(value: object) -> str:
    """Return a text on one line without control characters, which a terminal would obey."""
    text = str(value)[:_MAX_TEXT]
    escaped = (c if c.isprintable() else repr(c)[1:-1] for c in text)
    return "".join(escaped).encode("utf-8", "backslashreplace").decode()
