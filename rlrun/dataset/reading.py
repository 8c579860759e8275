"""A dataset directory: verified before it is used, mapped rather than read."""

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun import codec
from rlrun.codec import MissingCoder
from rlrun.dataset.dealing import Trajectory, deal
from rlrun.dataset.files import (
    CODED,
    CODED_FORMAT,
    DESCRIPTION,
    FORMAT,
    require_spaces,
    unflatten,
    unseal,
)
from rlrun.errors import CodecError, ConfigError, StorageError
from rlrun.rundir import tensorfile
from rlrun.types import Segment, Spec, Tree

MAPPED = 8  # shards that are open at once
DECODED = 2  # of coded ones: they lie in memory


class _Every:
    """Every name: all tensors are wanted as numpy arrays."""

    def __contains__(self, name: object) -> bool:
        return True


def read(directory: str | Path) -> "Dataset":
    """The dataset in ``directory``. Its rows are verified and read when they are asked for.

    Raises: ConfigError when there is none or another rlrun wrote it, StorageError when its
    description is damaged.
    """
    directory = Path(directory)
    key = f"buffer.load = {directory}"
    try:
        fields = unseal((directory / DESCRIPTION).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as e:
        what = f"has no {DESCRIPTION}" if directory.is_dir() else "is no directory"
        fix = "make one with rlrun export RUN_DIR DATA_DIR"
        raise ConfigError(f"{key}: {what}; a dataset directory is allowed; {fix}") from e
    except (OSError, ValueError) as e:
        raise _damaged(directory, DESCRIPTION, str(e)) from e
    if fields["format"] not in (FORMAT, CODED_FORMAT):
        wrong = f"has format {fields['format']} (of rlrun {fields.get('rlrun')})"
        raise ConfigError(
            f"{key}: {wrong}; this one reads formats {FORMAT} and {CODED_FORMAT}; export it anew"
        )
    return Dataset(directory, fields)


def _damaged(directory: Path, file: str, why: str) -> StorageError:
    return StorageError(
        f"buffer.load = {directory}: {file} {why}; a dataset must be as it was written; restore "
        "the file, or export it anew"
    )


class Dataset:
    """Rows that some run collected: ``columns`` environments side by side.

    ``described`` is dataset.json. Memory: 24 bytes per trajectory; at most MAPPED shards (and the
    states) are mapped at a time, and the system takes their pages back when it needs them.
    Coded shards are decoded into memory instead, DECODED at a time.
    """

    def __init__(self, directory: Path, described: dict[str, Any]) -> None:
        self.directory, self.described = directory, described
        self.columns = int(described["columns"])
        self.rows = int(described["rows"])  # over all columns, end rows included
        self.steps = int(described["steps"])
        self.episodes_finished = int(described["episodes"])
        self.source: dict[str, Any] = described["source"]
        rows = [shard["rows"] // self.columns for shard in described["shards"]]
        self._starts = np.cumsum([0, *rows])[:-1].tolist()  # first row of every shard
        self._open: dict[int, dict[str, np.ndarray]] = {}  # least recently used first
        self._verified: set[str] = set()

    def summary(self) -> str:
        """One line for a person."""
        files = [*self.described["shards"], self.described["index"], self.described["states"]]
        size = sum(entry["bytes"] for entry in files if entry)
        score = self.described["return"]
        mean = f" of return {score['mean']:.4g} +- {score['std']:.4g}" if score else ""
        return (
            f"dataset: {self.steps} steps in {self.described['trajectories']} trajectories, "
            f"{self.episodes_finished} finished episodes{mean}; "
            f"{size / 1e6:.1f} MB in {self.directory} (shards: {len(self.described['shards'])})"
        )

    def require(self, spec: Spec, extras: Collection[str] = ()) -> None:
        """Raises ConfigError unless the rows come from an environment with the spaces ``spec``
        and have these ``extras``, StorageError unless every file is there in its size."""
        where = f"buffer.load = {self.directory}"
        require_spaces(self.described["spaces"], spec, where)
        have = [n.removeprefix("extras/") for n in self.described["fields"] if "extras/" in n]
        if missing := sorted(set(extras) - set(have)):
            raise ConfigError(
                f"{where}: its rows lack {', '.join(missing)} (collector.keep_info); there are "
                f"{', '.join(have) or 'none'}; set collector.keep_info=[], or export with it"
            )
        files = [*self.described["shards"], self.described["index"], self.described["states"]]
        for entry in filter(None, files):
            path = self.directory / entry["file"]
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                what = "has another size" if path.is_file() else "is missing"
                raise _damaged(self.directory, entry["file"], what)

    def trajectories(self) -> Iterator[Trajectory]:
        """All trajectories, by first row.

        One whose beginning the buffer had overwritten begins with its oldest row; one that was open
        when it was written, or that a resume cut, ends truncated, as by a time limit.
        """
        index = self._index
        for row, column, steps in zip(*(x.tolist() for x in index), strict=True):
            yield Trajectory(steps, partial(self._read, column, row, steps))

    def episodes(self) -> Iterator[Segment]:
        """The same, each in memory: T steps [T, 1] and T + 1 observations."""
        return (trajectory.read(0, trajectory.steps) for trajectory in self.trajectories())

    def chunks(self, columns: int, rows: int, *, like: Segment | None = None) -> Iterator[Segment]:
        """All rows dealt anew into ``columns``, as ``deal`` describes it.

        ``states`` are zeros but before the rows the dataset has a state for, the first rows of the
        windows it was exported with: windows cut by the same tiling find theirs (but in a
        trajectory whose beginning was overwritten: it is tiled from where it begins now).
        Memory: the segment, and of one trajectory the rows that lie in it.

        Raises: ConfigError (fields differ from ``like``), StorageError (damaged files).
        """
        where = f"buffer.load = {self.directory}"
        return deal(self.trajectories(), columns, rows, like=like, where=where)

    def block(self, start: int, stop: int) -> dict[str, Tree]:
        """Rows [start, stop) of all columns, time first: obs [T, columns, …], action, reward.

        Raises: StorageError (damaged files).
        """

        def rows(name: str) -> np.ndarray:
            each = [self._rows(name, column, start, stop) for column in range(self.columns)]
            return np.stack(each, axis=1)

        found = {name: rows(name) for name in ("action", "reward")}
        return {"obs": unflatten(self.described["obs"], rows), **found}

    # -- rows ------------------------------------------------------------------------------------

    def _read(self, column: int, row: int, steps: int, start: int, stop: int) -> Segment:
        """Steps [start, stop) of the trajectory of ``steps`` steps from ``row``."""
        first, last = row + start, row + stop

        def field(name: str) -> torch.Tensor:
            return torch.from_numpy(self._rows(name, column, first, last)[:, None])

        terminated, truncated = field("terminated"), field("truncated")
        if start < stop == steps:
            truncated[-1] |= ~terminated[-1]
        opens = torch.zeros(stop - start + 1, 1, dtype=torch.bool)
        opens[0] = start == 0
        extras = [n for n in self.described["fields"] if n.startswith("extras/")]
        return Segment(
            obs=unflatten(
                self.described["obs"],
                lambda n: torch.from_numpy(self._rows(n, column, first, last + 1)[:, None]),
            ),
            first=opens,
            action=field("action"),
            reward=field("reward"),
            terminated=terminated,
            truncated=truncated,
            valid=torch.ones_like(terminated),
            extras={name.removeprefix("extras/"): field(name) for name in extras},
            states=self._states_of(column, first, last),
        )

    def _rows(self, name: str, column: int, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of one column, a copy."""
        number, found = bisect_right(self._starts, start) - 1, list[np.ndarray]()
        while not found or start < stop:
            rows, offset = self._shard(number)[name], self._starts[number]
            number += 1
            end = min(stop, self._starts[number]) if number < len(self._starts) else stop
            found.append(rows[start - offset : end - offset, column])
            start = end
        return np.concatenate(found)

    def _states_of(self, column: int, start: int, stop: int) -> Tree:
        entry = self.described["states"]
        if entry is None:
            return ()
        key, tensors = self._states
        lo, hi = np.searchsorted(key, column * self.rows + np.array([start, stop]))
        at = tensors["row"][lo:hi] - start

        def leaf(name: str) -> torch.Tensor:
            given = tensors[name]
            out = np.zeros((stop - start, 1, *given.shape[1:]), given.dtype)
            out[at, 0] = given[lo:hi]
            return torch.from_numpy(out)

        return unflatten(entry["tree"], leaf)

    # -- files -----------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tensors = self._load(self.described["index"])
        return tensors["row"], tensors["column"], tensors["steps"]

    @cached_property
    def _states(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        tensors = self._load(self.described["states"])
        return tensors["column"] * self.rows + tensors["row"], tensors

    def _shard(self, number: int) -> dict[str, np.ndarray]:
        found = self._open.pop(number, None)
        if found is None:
            entry = self.described["shards"][number]
            most = DECODED if "coder" in entry else MAPPED
            while len(self._open) >= most:
                del self._open[next(iter(self._open))]
            found = self._load(entry)
        self._open[number] = found
        return found

    def _load(self, entry: dict[str, Any]) -> dict[str, np.ndarray]:
        """The tensors of a file, whose bytes are checked the first time."""
        name = entry["file"]
        path = self.directory / name
        try:
            if name not in self._verified:
                _verify(path, entry)
                self._verified.add(name)
            if path.suffix == CODED:
                return dict(codec.decode(path.read_bytes(), max_bytes=int(entry["raw"])))
            tensors = tensorfile.read(path, numpy=_Every())
        except MissingCoder:
            raise
        except (OSError, ValueError, CodecError) as e:
            raise _damaged(self.directory, name, str(e)) from e
        return {n: x for n, x in tensors.items() if isinstance(x, np.ndarray)}


def _verify(path: Path, entry: dict[str, Any]) -> None:
    """Raises ValueError unless the file is the one that was written."""
    if not path.is_file():
        raise ValueError("is missing")
    if path.stat().st_size != entry["bytes"]:
        raise ValueError(f"has {path.stat().st_size} bytes, not {entry['bytes']}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise ValueError("is damaged (its sha256 is wrong)")
