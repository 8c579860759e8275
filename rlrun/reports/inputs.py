"""Where runs are: the run directories that the arguments of a command name. Torch-free."""

import glob
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.errors import ConfigError
from rlrun.run.files import CONFIG, MAX_ENTRIES, RECORD, member, read_file

SWEEP = "sweep.json"
SEEDS = "seeds.json"  # of a sweep with seeds=auto
_DEEPEST = 32  # levels of directories that are searched for runs


@dataclass(frozen=True)
class RunSource:
    """A directory where a run is or should be. ``sweep``: its entry in sweep.json, or {}."""

    path: Path
    sweep: dict[str, Any]


def find_jobs(arguments: Sequence[str]) -> list[RunSource]:
    """Return the runs that run directories, sweep directories, parents and globs name, each once.

    Links below an argument are not followed: a directory may be a stranger's.

    Raises: ConfigError for an argument that holds no run.
    """
    found: dict[str, RunSource] = {}
    for argument in arguments:
        jobs = [job for path in _expand(argument) for job in _below(path)]
        if not jobs:
            wrong = "holds no run" if os.path.lexists(argument) else "no such directory"
            raise ConfigError(
                f"DIR = {argument}: {wrong}; a run directory, a sweep, a directory above them or a "
                "glob in quotes is allowed; run directories are under outputs/",
                key="DIR",
            )
        for job in jobs:
            found.setdefault(os.path.realpath(job.path), job)
    return list(found.values())


def _expand(argument: str) -> list[Path]:
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [Path(argument)]
    return [Path(name) for name in sorted(glob.glob(argument, recursive=True), key=natural)]


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key that orders the digits in a name by value: run2 before run10."""
    parts, digits = [], ""
    for char in text:
        if char in "0123456789":
            digits += char
            continue
        parts += [(0, int(digits[:18]), ""), (1, 0, char)] if digits else [(1, 0, char)]
        digits = ""
    return [*parts, (0, int(digits[:18]), "")] if digits else parts


def _below(top: Path) -> list[RunSource]:
    if (top / RECORD).is_file() or (top / CONFIG).is_file():
        return [RunSource(top, {})]
    return [*_search(top)] if top.is_dir() else []


def _search(top: Path) -> Iterator[RunSource]:
    seen = 0
    directories = [(top, 0)]
    while directories:
        directory, depth = directories.pop(0)
        listed = {entry.path.name: entry for entry in sweep_jobs(directory)}
        yield from listed.values()
        below = []
        for entry in _entries(directory):
            seen += 1
            if seen > MAX_ENTRIES:
                raise ConfigError(
                    f"DIR = {top}: holds more than {MAX_ENTRIES} files; name a directory of fewer, "
                    "or the runs with a glob",
                    key="DIR",
                )
            if entry.name in listed or not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            if (path / RECORD).is_file() or (path / CONFIG).is_file():
                yield RunSource(path, {})
            elif depth < _DEEPEST and entry.name[0] != ".":
                below.append((path, depth + 1))
        directories += below


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: natural(entry.name))
    except FileNotFoundError:  # removed meanwhile
        return []
    except OSError as e:
        raise ConfigError(
            f"DIR = {directory}: cannot be read ({e.strerror}); a readable directory is needed; "
            "change its rights, or name the runs with a glob",
            key="DIR",
        ) from e


def sweep_jobs(sweep_dir: Path) -> list[RunSource]:
    """Return the jobs that sweep.json lists, in its order; none when there is no such file."""
    path = sweep_dir / SWEEP
    if not os.path.lexists(path):
        return []
    try:
        fields = json.loads(read_file(path))
        jobs = fields["jobs"] if isinstance(fields, dict) else fields
        named = [(member(sweep_dir, job["name"]), job) for job in jobs]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []  # the directories that are there are still found
    return [RunSource(path, dict(job)) for path, job in named]


@dataclass(frozen=True)
class _Sweep:
    """A directory with sweep.json or seeds.json. ``jobs``: listed run directories, or none."""

    auto: bool
    jobs: frozenset[Path]


class AutoSweeps:
    """Finds the sweep with ``seeds=auto`` that a run is of; reads each sweep once.

    Such a sweep is known by seeds.json, or by ``seeds=auto`` in a command in sweep.json: so also
    while it runs, when it failed or was interrupted, and when ``rlrun resume`` finished it.
    """

    def __init__(self) -> None:
        self._known: dict[Path, _Sweep | None] = {}

    def of(self, run_dir: Path) -> Path | None:
        """Return the directory of the sweep, which may be several levels above, else None."""
        run_dir = Path(os.path.realpath(run_dir))
        for above in run_dir.parents[:_DEEPEST]:
            if above not in self._known:
                self._known[above] = _sweep(above)
            sweep = self._known[above]
            if sweep is not None and (run_dir in sweep.jobs or not sweep.jobs):
                return above if sweep.auto else None
        return None


def _sweep(directory: Path) -> _Sweep | None:
    listed, decided = (os.path.lexists(directory / name) for name in (SWEEP, SEEDS))
    if not listed and not decided:
        return None
    jobs = frozenset(job.path for job in sweep_jobs(directory))
    return _Sweep(decided or _types_auto(directory / SWEEP), jobs)


def _types_auto(path: Path) -> bool:
    """Whether a command that made a sweep had seeds=auto."""
    try:
        commands = json.loads(read_file(path))["commands"]
        return any(str(word).lstrip("+") == "seeds=auto" for words in commands for word in words)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
