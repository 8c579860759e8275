"""Runs in the form that reports need: status, config, evaluations, scores. Does not import torch.

Files may be untrusted. Only regular files of bounded size are read, and only finite numbers and
printable text leave this module. Unreadable files make a run ``damaged``, which the report lists.
Env steps never decrease within metrics.jsonl and timings.jsonl, and only finite numbers are logged.
Any other line is damage, after which nothing is read, because the rest may belong to another run.
"""

import glob
import json
import math
import os
import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from rlrun import errors
from rlrun.errors import ConfigError, RlrunError
from rlrun.run.files import (
    CONFIG,
    LOG,
    MAX_ENTRIES,
    RECORD,
    is_card,
    member,
    read_file,
    read_lines,
    read_record,
)
from rlrun.run.manifest import METRICS
from rlrun.schema.spelling import with_present_names

T = TypeVar("T")

_LARGEST = 1e150  # largest number; sums of squares would overflow beyond it
_LINE = re.compile(rb'\{"env_steps": ?(\d{1,18}(?:\.0)?)[,}]')  # how each record begins

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Records:
    """Records of a file. ``columns``: metric -> env_steps [K], values [K].

    ``damage``: "line 7 is not a record", or "" if the file is whole. ``env_steps``: of the last
    record, 0 without one.
    """

    columns: dict[str, tuple[Floats, Floats]]
    damage: str
    env_steps: float


def read_records(path: Path, keys: Sequence[str] | None, *, ended: bool) -> Records:
    """Return the records of the metrics ``keys``, of all if None. Without a file there are none.

    ``ended``: nobody writes the file, so its last line must be complete. The file is read line by
    line: memory holds 8 bytes per number and per env step, which metrics share.
    """
    columns: _Columns = {key: (array("d"), array("d")) for key in keys or ()}
    wanted = re.compile(b"|".join(re.escape(json.dumps(key).encode()) for key in keys or ()))
    env_steps, damage = 0.0, ""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        for number, line in enumerate(read_lines(path) if os.path.lexists(path) else (), 1):
            start, fault = _LINE.match(line), ""
            if not line.endswith(b"\n"):
                damage = f"line {number} is cut" if ended else ""
                break
            if start is None or not line.endswith(b"}\n"):
                fault = "is not a record"
            elif float(start[1]) < env_steps:
                fault = f"goes back to {float(start[1]):.0f} env steps"
            else:
                env_steps = float(start[1])
                fault = _append(line, columns, keys) if wanted.search(line) else ""
            if fault:
                damage = f"line {number} {fault}"
                break
    except (OSError, ValueError) as e:
        damage = f"cannot be read ({e.strerror if isinstance(e, OSError) else e})"
    return Records(_arrays(columns), damage, env_steps)


_Columns = dict[str, tuple["array[float]", "array[float]"]]


def _arrays(columns: _Columns) -> dict[str, tuple[Floats, Floats]]:
    """Return the columns as arrays of the same memory. Metrics of the same env steps share them."""
    arrays: dict[str, tuple[Floats, Floats]] = {}
    for key in [*columns]:
        env_steps, x = map(np.asarray, columns.pop(key))
        equal = (steps for steps, _ in arrays.values() if np.array_equal(steps, env_steps))
        arrays[key] = next(equal, env_steps), x
    return arrays


def _append(line: bytes, columns: _Columns, keys: Sequence[str] | None) -> str:
    """Append the metrics of a record to their columns. Return the damage, or ""."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return "is not a record"
    env_steps = values.pop("env_steps")
    for key in values if keys is None else values.keys() & columns.keys():
        if (value := finite_number(values[key])) is None:
            return f"has no finite {key}"
        steps, column = columns.setdefault(key, (array("d"), array("d")))
        steps.append(env_steps)
        column.append(value)
    return ""


def finite_number(value: Any) -> float | None:
    """Return a number as float, or None for anything else and if its square is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None


SWEEP = "sweep.json"
SEEDS = "seeds.json"  # in a sweep with seeds=auto
UNDECIDED = "undecided so far"  # status in seeds.json while seeds may follow
_DEEPEST = 32  # levels of directories that are searched for runs


@dataclass(frozen=True)
class RunSource:
    """A directory that is or should be a run. ``sweep``: its entry in sweep.json, or {}."""

    path: Path
    sweep: dict[str, Any]


def find_jobs(arguments: Sequence[str]) -> list[RunSource]:
    """Return the runs that run directories, sweep directories, parents and globs name, each once.

    Links below an argument are not followed, because a directory may be untrusted.

    Raises: ConfigError for an argument that holds no run.
    """
    sources: dict[str, RunSource] = {}
    for argument in arguments:
        paths = [argument]
        if glob.has_magic(argument) and not os.path.lexists(argument):
            paths = sorted(glob.glob(argument, recursive=True), key=natural)
        jobs = [job for path in paths for job in _search(Path(path))]
        if not jobs:
            wrong = "holds no run" if os.path.lexists(argument) else "no such directory"
            allowed = "a run directory, a sweep, a directory above them or a glob in quotes"
            fix = "run directories are under outputs/"
            raise _dir_error(argument, f"{wrong}; {allowed} is allowed; {fix}")
        for job in jobs:
            sources.setdefault(os.path.realpath(job.path), job)
    return list(sources.values())


def _dir_error(directory: object, text: str) -> ConfigError:
    return ConfigError(f"DIR = {directory}: {text}", key="DIR")


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders the digits in a name by value: run2 before run10."""
    parts = [part for part in re.split("([0-9]+)", text) if part]
    return [(0, int(p[:18]), "") if p[0] in "0123456789" else (1, 0, p) for p in parts]


def _is_run(path: Path) -> bool:
    config = os.path.isfile(path / CONFIG)  # False for names that are too long
    return os.path.isfile(path / RECORD) or (config and not is_card(path))


def _search(top: Path) -> Iterator[RunSource]:
    """Yield the runs at and below ``top``, breadth first, a sweep's runs in its order."""
    if _is_run(top):
        yield RunSource(top, {})
        return
    seen, directories = 0, deque([(top, 0)] if os.path.isdir(top) else [])
    while directories:
        directory, depth = directories.popleft()
        listed = {job.path.name: job for job in sweep_jobs(directory)}
        yield from listed.values()
        entries = _entries(directory)
        seen += len(entries)
        if seen > MAX_ENTRIES:
            fix = "name a directory of fewer, or the runs with a glob"
            raise _dir_error(top, f"holds more than {MAX_ENTRIES} files; {fix}")
        for entry in entries:
            if entry.name in listed or not entry.is_dir(follow_symlinks=False):
                continue
            if _is_run(Path(entry.path)):
                yield RunSource(Path(entry.path), {})
            elif depth < _DEEPEST and entry.name[0] != ".":
                directories.append((Path(entry.path), depth + 1))


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: natural(entry.name))
    except FileNotFoundError:  # removed meanwhile
        return []
    except OSError as e:
        fix = "fix its permissions, or name the runs with a glob"
        text = f"cannot be read ({e.strerror}); a readable directory is needed; {fix}"
        raise _dir_error(directory, text) from e


def read_json(path: Path, read: Callable[[Any], T], default: T) -> T:
    """Return ``read`` of an untrusted JSON file, ``default`` if it does not fit or exist."""
    try:
        return read(json.loads(read_file(path)))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return default


def sweep_jobs(sweep_dir: Path) -> list[RunSource]:
    """Return the jobs that sweep.json lists, in its order; none if there is no such file."""

    def read(fields: Any) -> list[RunSource]:
        jobs = fields["jobs"] if isinstance(fields, dict) else fields
        return [RunSource(member(sweep_dir, job["name"]), dict(job)) for job in jobs]

    return read_json(sweep_dir / SWEEP, read, [])


_Sweeps = dict[Path, tuple[bool, frozenset[Path]] | None]  # directory -> (seeds=auto, its runs)


def _auto_sweep(run_dir: Path, known: _Sweeps) -> Path | None:
    """Return the sweep with ``seeds=auto`` of a run, maybe several levels above, or None.

    Such a sweep is recognised by seeds.json, or by ``seeds=auto`` in a command in sweep.json. So it
    is also recognised while it runs, after a failure or interruption, and after ``rlrun resume``.
    ``known``: the sweeps that were read before.
    """
    run_dir = Path(os.path.realpath(run_dir))
    for above in run_dir.parents[:_DEEPEST]:
        if above not in known:
            known[above] = _read_sweep(above)
        auto, jobs = known[above] or (False, {None})
        if run_dir in jobs or not jobs:
            return above if auto else None
    return None


def _read_sweep(directory: Path) -> tuple[bool, frozenset[Path]] | None:
    listed, decided = (os.path.lexists(directory / name) for name in (SWEEP, SEEDS))
    if not listed and not decided:
        return None

    def types_auto(fields: Any) -> bool:
        words = [word for command in fields["commands"] for word in command]
        return any(str(word).lstrip("+") == "seeds=auto" for word in words)

    auto = decided or read_json(directory / SWEEP, types_auto, False)
    return auto, frozenset(job.path for job in sweep_jobs(directory))


TIMINGS = "timings.jsonl"
SEARCH, FRESH = "search.json", "final_"  # file of a search; prefix of its runs on fresh seeds
_MAX_CONFIG = 2**18  # bytes of config.yaml
_MAX_DEPTH = 32
_MAX_LINKS = 9  # most references in a chain
_MAX_TEXT = 500  # characters of a name or a message
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_METRICS = (
    "eval/return_mean", "eval/return_std", "eval/return_min", "eval/return_max", "eval/success",
    "collect/restarts", "collect/return_mean",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of a run in order, all arrays [K]. NaN: the value is not known."""

    env_steps: Floats
    return_mean: Floats
    wall_seconds: Floats
    success: Floats


@dataclass(frozen=True)
class RunData:
    """One run. ``status``: that of run.json, or waiting, not started (in a sweep) or damaged.

    ``problem``: which file is damaged, and how. ``trial``: whether a search chose by its score.
    """

    path: Path
    name: str
    status: str
    config: dict[str, Any]
    record: dict[str, Any]
    problem: str = ""
    overrides: tuple[str, ...] = ()
    trial: bool = False
    listed_code: int | None = None  # exit code in sweep.json, present even for a killed job
    auto: Path | None = None  # the seeds=auto sweep that added its seed
    search: Path | None = None  # the search to which it belongs

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Full name of every config key -> value; interpolations unresolved."""
        return dict(flatten(self.config))

    @property
    def seed(self) -> int | None:
        """The seed, or None if it is not known."""
        seed = self.keys.get("seed", self.record.get("seed"))
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @cached_property
    def records(self) -> Records:
        """Evaluations, restarts and returns of training in metrics.jsonl."""
        return read_records(self.path / METRICS, _METRICS, ended=self.status == "done")

    @cached_property
    def _times(self) -> Records:
        return read_records(self.path / TIMINGS, ["time/wall_seconds"], ended=self.status == "done")

    @cached_property
    def damage(self) -> str:
        """The damage of metrics.jsonl, "" if its evaluations are all that the run made."""
        damage = self.records.damage
        if not damage and self.status == "done" and self.final:
            steps, last = self.evaluations.env_steps, finite(self.final.get("env_steps"))
            last = self.number("env_steps") if math.isnan(last) else last
            if math.isfinite(last) and not (len(steps) and steps[-1] >= last):
                damage = f"the evaluation at {last:.0f} env steps is missing"
        return f"{METRICS}: {damage}" if damage else ""

    @property
    def damaged_times(self) -> str:
        """The damage of timings.jsonl, without which wall times are not known."""
        return f"{TIMINGS}: {self._times.damage}" if self._times.damage else ""

    @cached_property
    def evaluations(self) -> Evaluations:
        """The evaluations, the last one if an env step has several.

        In a damaged file those before the damage, see ``damage``.
        """
        columns = self.records.columns
        steps, returns = columns["eval/return_mean"]
        last = np.append(steps[1:] != steps[:-1], True)[: len(steps)]  # they never decrease
        steps, returns = steps[last], returns[last]
        newest = dict(zip(*columns["eval/success"], strict=True))
        shares = np.array([newest.get(step, math.nan) for step in steps], np.float64)
        return Evaluations(steps, returns, self._wall_at(steps), shares)

    def _wall_at(self, env_steps: Floats) -> Floats:
        """Return the seconds since the run began, interpolated between records around each step."""
        steps, seconds = self._times.columns["time/wall_seconds"]
        if not len(steps) or self._times.damage:
            return np.full(len(env_steps), math.nan)
        last, total = self.number("env_steps"), self.number("wall_seconds")
        if self.status == "done" and last >= steps[-1] and total >= seconds[-1]:
            steps, seconds = np.append(steps, last), np.append(seconds, total)
        wall: Floats = np.interp(env_steps, np.append(0.0, steps), np.append(0.0, seconds))
        return wall

    @property
    def final(self) -> dict[str, Any]:
        """The evaluation of the final weights in run.json, empty if there is none."""
        result = self.record.get("eval")
        return result if isinstance(result, dict) else {}

    @property
    def exit_code(self) -> int | None:
        """The exit code in run.json, or the sweep's of a killed run (a signal's is negative)."""
        code = self.record.get("exit_code")
        return code if isinstance(code, int) else self.listed_code

    @cached_property
    def failure(self) -> str:
        """The last error in rlrun.log, or ""."""
        lines = logged(self.path, "] - exit ")
        return printable(f"exit {lines[-1]}") if lines else ""

    @property
    def successes(self) -> tuple[int, int] | None:
        """(successes, episodes) of the final weights, if the environment reports success."""
        share, episodes = (finite(self.final.get(key)) for key in ("success", "episodes"))
        if not (0 <= share <= 1 and 1 <= episodes <= 1e9):
            return None
        return round(share * episodes), int(episodes)

    def number(self, key: str) -> float:
        """Return a number of run.json, or NaN."""
        return finite(self.record.get(key))

    @cached_property
    def progress(self) -> tuple[float, float]:
        """Return (env steps, wall-clock seconds) so far, for a killed run the last known ones."""
        steps, wall = self.number("env_steps"), self.number("wall_seconds")
        if self.status == "done" or not self.record:
            return steps, wall
        at, seconds = self._times.columns["time/wall_seconds"]
        last = float(seconds[-1]) if len(at) and not self._times.damage else 0.0
        return max(steps, self.records.env_steps), max(wall, last)

    def text(self, key: str) -> str:
        """Return a printable text of run.json, or ""."""
        value = self.record.get(key)
        return printable(value) if isinstance(value, str) else ""

    @cached_property
    def restarts(self) -> int:
        """Number of restarted workers of environments."""
        return int(self.records.columns["collect/restarts"][1].sum())

    @property
    def total_steps(self) -> float:
        """Env steps that the run was to do, NaN if the config does not say."""
        return finite(resolve(self.keys.get("run.total_steps"), self.keys))

    @property
    def stop_return(self) -> float:
        """Mean return that counts as solved, NaN if the config does not say."""
        return finite(resolve(self.keys.get("run.stop_return"), self.keys))


def logged(run_dir: Path, mark: str) -> list[str]:
    """Return what follows ``mark`` in the lines of rlrun.log that have it."""
    try:
        lines = read_file(run_dir / LOG).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):  # it has not begun, or is not a regular file
        return []
    return [text for line in lines if (text := line.partition(mark)[2])]


def read_run(path: Path | str) -> RunData:
    """Return the run in a directory. Damage gives the status ``damaged``, not an error."""
    return _read(RunSource(Path(path), {}), {})


def read_runs(arguments: Sequence[str]) -> list[RunData]:
    """Return the runs that run directories, sweeps, directories above them and globs name.

    Raises: ConfigError for an argument that holds no run.
    """
    sweeps: _Sweeps = {}
    runs = [_read(job, sweeps) for job in find_jobs(arguments)]
    often = Counter(run.name for run in runs)
    sweep_of = [printable(run.path.absolute().parent.name) for run in runs]
    return [run if often[run.name] == 1 else replace(run, name=f"{sweep}/{run.name}")
            for run, sweep in zip(runs, sweep_of, strict=True)]  # fmt: skip


def _read(job: RunSource, sweeps: _Sweeps) -> RunData:
    name = printable(job.path.name if job.path.name not in ("", "..") else job.path.resolve().name)
    overrides = job.sweep.get("overrides")
    typed = tuple(map(printable, overrides)) if isinstance(overrides, list) else ()
    config: dict[str, Any] = {}
    record: dict[str, Any] = {}
    problem = ""
    try:
        if (job.path / CONFIG).exists():
            config = read_config(job.path / CONFIG)
            if not typed:
                path = job.path / "overrides.yaml"
                lines = _safe_yaml(read_file(path, _MAX_CONFIG)) if path.exists() else []
                typed = tuple(map(printable, lines)) if isinstance(lines, list) else ()
        if (job.path / RECORD).exists():
            record = read_record(job.path)
            if not config:
                raise ValueError(f"damaged: {CONFIG} is missing")
    except (OSError, ValueError, RlrunError) as e:
        problem = printable(f"damaged: {e.strerror or e}" if isinstance(e, OSError) else e)
    status = "damaged" if problem else _status(job, record)
    above = Path(os.path.realpath(job.path)).parent.parent
    search = above if (above / SEARCH).is_file() else None
    trial = search is not None and not name.startswith(FRESH)
    code, auto = job.sweep.get("exit_code"), _auto_sweep(job.path, sweeps)
    listed = code if isinstance(code, int) else None
    return RunData(
        job.path, name, status, config, record, problem, typed, trial, listed, auto, search
    )


def _status(job: RunSource, record: dict[str, Any]) -> str:
    """Return the status in run.json, or the sweep's if the job did not write one."""
    state, listed = record.get("status"), job.sweep.get("status")
    known = ("running", "done", "failed", "interrupted", "waiting")
    if state == "running" and listed in ("failed", "interrupted"):
        return str(listed)  # a killed run cannot record that itself
    return str(state) if state in known else str(listed) if listed in known else "not started"


def read_config(path: Path) -> dict[str, Any]:
    """Return the config of a run. Raises: OSError, ValueError."""
    return parse_config(read_file(path, _MAX_CONFIG))


def parse_config(content: bytes) -> dict[str, Any]:
    """Return the config in the bytes of a config.yaml. It must not be changed.

    Groups that runs share are parsed once.

    Raises: ValueError.
    """
    parts = [part for part in re.split(rb"^(?=\w)", content, flags=re.MULTILINE) if part]
    try:
        values = [(_safe_part if len(part) < _LARGE_PART else _safe_yaml)(part) for part in parts]
    except ValueError:
        values = []
    if not values or not all(isinstance(value, dict) for value in values):  # not a config of rlrun
        values = [_safe_yaml(content)]
        if not isinstance(values[0], dict):
            raise ValueError("config.yaml holds no config")
    config = dict(item for value in values for item in value.items())
    renamed: dict[str, Any] = with_present_names(config)
    return renamed


def _safe_yaml(content: bytes) -> Any:
    """Return the value of yaml without aliases, which could expand far beyond its size."""
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


_safe_part = lru_cache(1024)(_safe_yaml)
_LARGE_PART = 4096  # bytes


def flatten(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full name, value) of the leaves of a config. A list is a leaf."""
    for key, value in config.items():
        name = f"{prefix}{printable(key)}"
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def resolve(value: Any, keys: dict[str, Any]) -> Any:
    """Return the value of ``${other.key}`` among ``keys``, or any other value unchanged."""
    for _ in range(_MAX_LINKS):
        if not (isinstance(value, str) and value[:2] == "${" and value[-1] == "}"):
            break
        value = keys.get(value[2:-1], value)
    return value


def finite(value: Any) -> float:
    """Return a number, or NaN for anything else and for numbers that no float can hold."""
    number = finite_number(value)
    return math.nan if number is None else number


def printable(value: object) -> str:
    """Return a text on one line, shortened, with control characters escaped."""
    return errors.printable(str(value)[:_MAX_TEXT])


SCORES = "final, best_of_last:K or auc"


def score(run: RunData, kind: str) -> float | None:
    """Return the score of a finished run, else None.

    ``final``: mean return of the final weights (run.json). ``best_of_last:K``: the best of the last
    K evaluations, which is biased upwards. ``auc``: `mean_over_steps` to run.total_steps. The last
    two are None if evaluations are missing in metrics.jsonl.

    Raises: ConfigError for another ``kind``.
    """
    parse_score(kind)
    if run.status != "done":
        return None
    if kind == "final":
        return finite_number(run.final.get("return_mean"))
    steps, returns = run.evaluations.env_steps, run.evaluations.return_mean
    if not len(steps) or run.damage:
        return None
    return curve_score(kind, steps, returns, max(steps[-1], np.nan_to_num(run.total_steps)))


def curve_score(kind: str, steps: Floats, returns: Floats, end: float) -> float:
    """Return the score of ``kind`` of K > 0 evaluations; see `mean_over_steps` for the arguments.

    ``final``: the last return.
    """
    last = parse_score(kind)
    if last is not None:
        return float(returns[-last:].max())
    return float(returns[-1]) if kind == "final" else mean_over_steps(steps, returns, end)


def mean_over_steps(steps: Floats, returns: Floats, end: float) -> float:
    """Return the area under a learning curve from 0 to ``end`` env steps, divided by ``end``.

    ``steps`` [K] increase up to ``end``, ``returns`` [K]. Between evaluations the curve is a line
    (trapezoidal rule). Before the first it has the first value, after the last one the last value,
    as a solved run keeps its weights.

    Of the definitions measured it depends least on ``run.eval_every``: on learners that rise
    linearly, exponentially or as a sigmoid it is within 1.3 % of the range of returns of the true
    area with 20 evaluations, 3 % with 10 and 10 % with 5. The rest is what a learner gained before
    its first evaluation. If each value held until the next one, these would be 3, 7 and 15 %.
    Measured in tests/reports/test_intervals.py.
    """
    if end <= 0:
        return float(returns[-1])
    x, y = [0.0, *steps, end], [returns[0], *returns, returns[-1]]
    return float(np.trapezoid(y, x) / end)


def parse_score(kind: str) -> int | None:
    """Return K of ``best_of_last:K``, None for the others. Raises: ConfigError."""
    name, colon, count = kind.partition(":")
    if kind in ("final", "auc"):
        return None
    if name == "best_of_last" and colon and re.fullmatch("[1-9][0-9]{0,7}", count):
        return int(count)
    raise ConfigError(
        f"--score = {printable(kind)}: is not a score; {SCORES} is allowed, with K >= 1; "
        "correct the command",
        key="--score",
    )
