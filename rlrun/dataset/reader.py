"""Reader of dataset directories. Files are verified at first use and memory-mapped."""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun import codec
from rlrun.codec import MissingCoder
from rlrun.dataset.format import (
    CODED_FORMAT,
    CODED_SUFFIX,
    DESCRIPTION_FILE,
    FORMAT,
    INDEX_FILE,
    STATES_FILE,
    as_segment,
    has_final_entry,
    leaf_names,
    require_description,
    require_spaces,
    require_structure,
    unflatten,
)
from rlrun.dataset.packing import Trajectory, TrajectorySource
from rlrun.errors import CodecError, ConfigError, StorageError
from rlrun.functional.recorded import RowSpaces
from rlrun.run.checkpoint import MISFITS
from rlrun.run.files import MAX_READ, file_problem, member, read_file, unseal
from rlrun.run.tensors import read_tensors
from rlrun.types import Segment, Spec, Tree

MAX_MAPPED_SHARDS = 8  # open at once
MAX_DECODED_SHARDS = 2  # coded shards are decoded into memory


def read_dataset(directory: str | Path, key: str = "buffer.load") -> "Dataset":
    """Open the dataset in ``directory``. Its rows are verified and read lazily.

    ``key``: with which errors begin.

    Raises: ConfigError if there is none or its format is unknown, StorageError if its description
    is damaged.
    """
    directory = Path(directory)
    prefix = f"{key} = {directory}"
    try:
        fields = unseal(read_file(directory / DESCRIPTION_FILE))
    except (FileNotFoundError, NotADirectoryError) as e:
        violation = f"has no {DESCRIPTION_FILE}" if directory.is_dir() else "is not a directory"
        fix = "make one with rlrun export RUN_DIR DATA_DIR"
        raise ConfigError(f"{prefix}: {violation}; a dataset directory is allowed; {fix}") from e
    except ValueError as e:
        reason = "is damaged (its sha256 is wrong)"
        raise _damaged_error(prefix, DESCRIPTION_FILE, reason) from e
    except OSError as e:
        raise _damaged_error(prefix, DESCRIPTION_FILE, str(e)) from e
    if fields.get("format") not in (FORMAT, CODED_FORMAT):
        violation = f"has format {fields.get('format')} (of rlrun {fields.get('rlrun')})"
        raise ConfigError(
            f"{prefix}: {violation}; this one reads formats {FORMAT} and {CODED_FORMAT}; export "
            "again"
        )
    with _described(prefix):
        return Dataset(directory, fields, prefix)


@contextmanager
def _described(prefix: str, file: str = DESCRIPTION_FILE) -> Iterator[None]:
    """Raise StorageError for a description with other parts or types than the writer's."""
    try:
        yield
    except MISFITS as e:
        detail = " ".join(str(e).split())[:200]
        reason = f"is not as rlrun writes it ({type(e).__name__}: {detail})"
        raise _damaged_error(prefix, file, reason) from e


def _damaged_error(prefix: str, file: str, reason: str) -> StorageError:
    return StorageError(
        f"{prefix}: {file} {reason}; a dataset must be as it was written; restore the file, or "
        "export it again"
    )


def _numbers(tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return a vector of integers. Raises: TypeError for anything else."""
    vector = tensors[name]
    if vector.ndim != 1 or vector.dtype.kind not in "iu":
        raise TypeError(f"{name} is {vector.dtype} {list(vector.shape)}, not a vector of integers")
    return vector.astype(np.int64)


class Dataset(TrajectorySource):
    """Rows collected by a run in ``columns`` environments.

    ``description`` is dataset.json. Memory: 24 bytes per trajectory. At most ``MAX_MAPPED_SHARDS``
    shards (and the states) are mapped at a time. Coded shards are decoded into memory,
    ``MAX_DECODED_SHARDS`` at a time.
    """

    def __init__(self, directory: Path, description: dict[str, Any], prefix: str) -> None:
        self.directory, self.description, self.prefix = directory, description, prefix
        shards, rows = require_description(description)
        self.columns: int = description["columns"]
        self.rows: int = description["rows"]  # of all columns, including end rows
        self.steps: int = description["steps"]
        self.source: dict[str, Any] = description["source"]
        fields = description["fields"]
        self._extras = [n.removeprefix("extras/") for n in fields if n.startswith("extras/")]
        self._action_start = np.asarray(description.get("action_start", 0), np.int64)
        self._row_spaces: RowSpaces | None = None  # spaces of the environment, once required
        others = description["index"], description["states"]
        self._files = [*description["shards"], *filter(None, others)]
        self._starts = np.cumsum([0, *rows])[:-1].tolist()  # first row of every shard
        self._shard_rows = dict(zip(shards, rows, strict=True))  # rows per column, by file
        self._open: dict[int, dict[str, np.ndarray]] = {}  # least recently used first
        self._verified: set[str] = set()
        self._compared: set[str] = set()  # shards whose values are checked

    def summary(self) -> str:
        """Return a one-line summary."""
        size = sum(entry["bytes"] for entry in self._files)
        score = self.description["return"]
        mean = f" of return {score['mean']:.4g} +- {score['std']:.4g}" if score else ""
        return (
            f"dataset: {self.steps} steps in {self.description['trajectories']} trajectories, "
            f"{self.description['episodes']} finished episodes{mean}; "
            f"{size / 1e6:.1f} MB in {self.directory} (shards: {len(self.description['shards'])})"
        )

    def require(self, spec: Spec, extras: Collection[str] = ()) -> None:
        """Raise ConfigError unless the rows have the spaces ``spec`` and these ``extras``.

        Rows that are read later raise it for a value outside these spaces. Raise StorageError
        unless every file exists with its size.
        """
        require_spaces(self.description["spaces"], spec, self.prefix)
        with _described(self.prefix):
            require_structure(self.description["obs"], spec.obs)
        self._row_spaces = RowSpaces(spec.obs, spec.action, masked=True)
        if missing := sorted(set(extras) - set(self._extras)):
            have = ", ".join(self._extras) or "none"
            raise ConfigError(
                f"{self.prefix}: its rows lack {', '.join(missing)} (collector.keep_info); there "
                f"are {have}; set collector.keep_info=[], or export with it"
            )
        for entry in self._files:
            with _described(self.prefix):
                path = member(self.directory, entry["file"])
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                violation = "has another size" if path.is_file() else "is missing"
                raise _damaged_error(self.prefix, entry["file"], violation)

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield all trajectories in the order of their first rows.

        A trajectory whose beginning the buffer had overwritten starts with its oldest row. One that
        was unfinished when written, or interrupted by a resume, ends truncated.
        """
        for row, column, steps in zip(*(x.tolist() for x in self._index), strict=True):
            yield Trajectory(steps, partial(self._read, column, row, steps))

    def block(self, start: int, stop: int) -> dict[str, Tree]:
        """Return rows [start, stop) of all columns: obs [T, columns, …], action, reward.

        Raises: StorageError (damaged files).
        """

        def rows(name: str) -> np.ndarray:
            each = [self._rows(name, column, start, stop) for column in range(self.columns)]
            return np.stack(each, axis=1)

        fields = {name: rows(name) for name in ("action", "reward")}
        return {"obs": unflatten(self.description["obs"], rows), **fields}

    # -- rows ------------------------------------------------------------------------------------

    def _read(self, column: int, row: int, steps: int, start: int, stop: int) -> Segment:
        """Return steps [start, stop) of the trajectory with ``steps`` steps from ``row`` on."""
        first, last = row + start, row + stop

        def field(name: str) -> torch.Tensor:
            end = last + has_final_entry(name)
            return torch.from_numpy(self._rows(name, column, first, end)[:, None])

        terminated, truncated = field("terminated"), field("truncated")
        if start < stop == steps:
            truncated[-1] |= ~terminated[-1]
        opens = torch.zeros(stop - start + 1, 1, dtype=torch.bool)
        opens[0] = start == 0
        made = {"first": opens, "truncated": truncated, "valid": torch.ones_like(terminated)}
        states = self._states_of(column, first, last)
        obs = self.description["obs"]
        return as_segment(lambda n: made[n] if n in made else field(n), obs, self._extras, states)

    def _rows(self, name: str, column: int, start: int, stop: int) -> np.ndarray:
        """Return a copy of rows [start, stop) of one column."""
        number, pieces = bisect_right(self._starts, start) - 1, list[np.ndarray]()
        while not pieces or start < stop:
            rows, offset = self._shard(number)[name], self._starts[number]
            number += 1
            end = min(stop, self._starts[number]) if number < len(self._starts) else stop
            pieces.append(rows[start - offset : end - offset, column])
            start = end
        return np.concatenate(pieces)

    def _states_of(self, column: int, start: int, stop: int) -> Tree:
        entry = self.description["states"]
        if entry is None:
            return ()
        key, tensors = self._states
        lo, hi = np.searchsorted(key, column * self.rows + np.array([start, stop]))
        at = tensors["row"][lo:hi] - start

        def leaf(name: str) -> torch.Tensor:
            stored = tensors[name]
            out = np.zeros((stop - start, 1, *stored.shape[1:]), stored.dtype)
            out[at, 0] = stored[lo:hi]
            return torch.from_numpy(out)

        return unflatten(entry["tree"], leaf)

    # -- files -----------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with _described(self.prefix, INDEX_FILE):
            tensors = self._load(self.description["index"])
            row, column, steps = (_numbers(tensors, name) for name in ("row", "column", "steps"))
            if not len(row) == len(column) == len(steps):
                raise ValueError("its columns are of different lengths")
            rows = self.rows // self.columns
            good = (row >= 0) & (steps >= 0) & (steps <= rows) & (row <= rows - steps)
            if not (good & (column >= 0) & (column < self.columns)).all():
                raise ValueError("a trajectory lies outside of the rows")
        return row, column, steps

    @cached_property
    def _states(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with _described(self.prefix, STATES_FILE):
            tensors = self._load(self.description["states"])
            row, column = _numbers(tensors, "row"), _numbers(tensors, "column")
            good = (row >= 0) & (row < self.rows) & (column >= 0) & (column < self.columns)
            key = column * self.rows + row
            if not good.all() or (np.diff(key) < 0).any():
                raise ValueError("its rows are not those of the dataset, in order")
            for name in leaf_names(self.description["states"]["tree"]):
                if len(tensors[name]) != len(row):
                    raise ValueError(f"{name} has {len(tensors[name])} entries, not {len(row)}")
        return key, tensors

    def _shard(self, number: int) -> dict[str, np.ndarray]:
        arrays = self._open.pop(number, None)
        if arrays is None:
            entry = self.description["shards"][number]
            most = MAX_DECODED_SHARDS if "coder" in entry else MAX_MAPPED_SHARDS
            while len(self._open) >= most:
                del self._open[next(iter(self._open))]
            arrays = self._load(entry)
            self._check_shard(arrays, entry["file"])
        self._open[number] = arrays
        return arrays

    def _check_shard(self, arrays: dict[str, np.ndarray], file: str) -> None:
        """Count the actions from 0, and check fields and values of the rows once.

        Raises: StorageError; ConfigError for a value outside the required spaces.
        """
        rows = self._shard_rows[file]
        with _described(self.prefix, file):
            for name, kind in self.description["fields"].items():
                shape = [rows + has_final_entry(name), self.columns, *kind["shape"]]
                actual = f"{arrays[name].dtype} {list(arrays[name].shape)}"
                if actual != f"{kind['dtype']} {shape}":
                    raise ValueError(f"{name} is {actual}, not {kind['dtype']} {shape}")
            if self._action_start.any():
                shifted = arrays["action"].astype(np.int64) - self._action_start
                arrays["action"] = shifted.astype(arrays["action"].dtype)
                if (arrays["action"] != shifted).any():
                    raise ValueError("an action does not fit its dtype")
            if file in self._compared:
                return
            valid = arrays["valid"].astype(bool)
            wrong = None if np.isfinite(arrays["reward"][valid]).all() else "a reward is not finite"
            if self._row_spaces is not None:
                obs = unflatten(self.description["obs"], arrays.__getitem__)
                wrong = wrong or self._row_spaces.violation(obs, arrays["action"], valid)
        if wrong is not None:
            raise ConfigError(
                f"{self.prefix}: {file}: {wrong}; a dataset holds values of its "
                "spaces; export it again, or use another"
            )
        if self._row_spaces is not None:
            self._compared.add(file)

    def _load(self, entry: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the tensors of a file, verified the first time."""
        name = entry["file"]
        try:
            path = member(self.directory, name)
            if name not in self._verified:
                if problem := file_problem(path, entry):
                    raise ValueError(problem)
                self._verified.add(name)
            if path.suffix == CODED_SUFFIX:
                content = read_file(path, MAX_READ)
                return dict(codec.decode(content, max_bytes=int(entry["raw"])))
            return {n: np.asarray(x) for n, x in read_tensors(path).items()}
        except MissingCoder:
            raise
        except (OSError, *MISFITS, CodecError) as e:
            raise _damaged_error(self.prefix, name, str(e)) from e
