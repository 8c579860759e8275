"""Writer of dataset directories, which appear atomically."""

import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rlrun import __version__, codec
from rlrun.dataset.format import (
    CODED_FORMAT,
    CODED_SUFFIX,
    DESCRIPTION_FILE,
    FORMAT,
    INDEX_FILE,
    STATES_FILE,
    arrays_by_name,
    flatten,
    has_final_entry,
    spec_json,
)
from rlrun.errors import ConfigError, storage_errors
from rlrun.functional.recorded import RowSpaces
from rlrun.run.files import fsync_directory, seal, write_file
from rlrun.run.tensors import write_tensors
from rlrun.types import Segment, Spec, Tree, tree_leaves, tree_map

KeptStates = tuple[np.ndarray, np.ndarray, Tree]  # row [N], column [N], leaves [N, ...]


def write_dataset(
    directory: str | Path,
    parts: Iterable[Segment],
    *,
    spec: Spec,
    meta: dict[str, Any],
    shard_rows: int,
    states: KeptStates | None = None,
    coder: str | None = None,
) -> None:
    """Write consecutive collected segments as a dataset.

    The dataset is written into a temporary directory next to ``directory``, fsynced and renamed, so
    a crash leaves no partial dataset. End rows end a trajectory. One that is unfinished after the
    last segment is truncated by the reader.

    Args:
        directory: the new dataset.
        parts: time-major [T, B] segments with the same B columns; their ``states`` are ignored.
        spec: the spaces of the environment. Discrete actions are counted from 0 in any case.
        meta: origin of the rows (JSON values).
        shard_rows: rows per file, over all columns.
        states: (row, column, leaves) of stored recurrent states, row 0 being the first row of
            ``parts``; states of rows that are not written are dropped.
        coder: write shards as frames of ``rlrun.codec`` with this coder.

    Memory: one shard, the states and the index of trajectories. With ``coder`` about three shards,
    for the reader as well.

    Raises: ConfigError (no steps, an action outside its space), StorageError (also if ``directory``
    is not new or empty).
    """
    if coder is not None:
        codec.check_coder(coder)
    directory = Path(directory).absolute()
    temporary = directory.with_name(f".tmp_{directory.name}_{os.getpid()}")
    need = "a writable directory with room for it is needed; free space or choose another"
    try:
        with storage_errors(f"DATA_DIR = {directory}: the dataset", need):
            directory.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)  # left by an earlier process of this pid
            temporary.mkdir()
            checked = _of_spaces(parts, RowSpaces(spec.obs, spec.action), directory)
            description = _write_tensors(temporary, checked, shard_rows, states, coder)
            if description["steps"] == 0:
                violation = "there are no steps to write; at least one is needed; collect some"
                raise ConfigError(f"DATA_DIR = {directory}: {violation} first")
            kind, spaces = FORMAT if coder is None else CODED_FORMAT, spec_json(spec)
            head = {"format": kind, "rlrun": __version__, "spaces": spaces, "action_start": 0}
            content = seal({**head, **description, "source": meta})
            write_file(temporary / DESCRIPTION_FILE, content)
            fsync_directory(temporary)
            os.rename(temporary, directory)  # fails unless that is new or empty
            fsync_directory(directory.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _of_spaces(
    parts: Iterable[Segment], row_spaces: RowSpaces, directory: Path
) -> Iterator[Segment]:
    """Yield ``parts``. Raises: ConfigError for an action outside its space."""
    for part in parts:
        wrong = row_spaces.violation(None, part.action, part.valid)
        if wrong is not None:
            raise ConfigError(
                f"DATA_DIR = {directory}: {wrong}; a dataset holds values of its spaces, Discrete "
                "actions counted from 0; give those"
            )
        yield part


def _write_tensors(
    directory: Path,
    parts: Iterator[Segment],
    shard_rows: int,
    states: KeptStates | None,
    coder: str | None,
) -> dict[str, Any]:
    """Write the tensors. Return their description for dataset.json."""
    like = next(parts, None)
    if like is None:
        return {"steps": 0}
    columns = like.reward.shape[1]
    runs, shards = _TrajectoryIndex(columns), list[dict[str, Any]]()
    for arrays in _split_into_shards(chain([like], parts), max(1, shard_rows // columns)):
        runs.add(arrays)
        entry = _write_shard(directory / f"data-{len(shards):05d}", arrays, coder)
        shards.append({**entry, "rows": len(arrays["reward"]) * columns})
    index, episodes = runs.finish()
    fields = {
        name: {"dtype": str(x.dtype), "shape": [*x.shape[2:]]}
        for name, x in arrays_by_name(like).items()
        if not name.startswith("states")
    }
    return {
        "columns": columns,
        "rows": runs.row * columns,
        "steps": int(index["steps"].sum()),
        "trajectories": len(index["steps"]),
        **episodes,
        "obs": flatten(like.obs, "obs")[0],
        "fields": fields,
        "shards": shards,
        "index": _write_arrays(directory / INDEX_FILE, index),
        "states": _write_states(directory / STATES_FILE, states, runs.row),
    }


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    digest, size = write_tensors(path, arrays, {"format": "pt"})
    return {"file": path.name, "sha256": digest, "bytes": size}


def _write_shard(path: Path, arrays: dict[str, np.ndarray], coder: str | None) -> dict[str, Any]:
    """Write the rows of a shard. Return its entry, with the decoded size if it is coded."""
    if coder is None:
        return _write_arrays(path.with_suffix(".safetensors"), arrays)
    frame, path = codec.encode_chunk(arrays, coder=coder), path.with_suffix(CODED_SUFFIX)
    write_file(path, frame)
    raw = sum(x.nbytes for x in arrays.values())
    digest = hashlib.sha256(frame).hexdigest()
    return {"file": path.name, "sha256": digest, "bytes": len(frame), "coder": coder, "raw": raw}


def _write_states(path: Path, states: KeptStates | None, rows: int) -> dict[str, Any] | None:
    """Write the states, sorted by column and row."""
    if states is None or not tree_leaves(states[2]):
        return None
    row, column = (x.astype(np.int64) for x in states[:2])
    order = np.lexsort((row, column))
    order = order[(row[order] >= 0) & (row[order] < rows)]
    structure, leaves = flatten(tree_map(lambda x: np.asarray(x)[order], states[2]), "states")
    entry = _write_arrays(path, {"row": row[order], "column": column[order], **leaves})
    return {**entry, "states": len(order), "tree": structure}


def _split_into_shards(parts: Iterable[Segment], rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows in shards of ``rows`` per column, each with the observation after its last
    row.

    The next shard overwrites the arrays.
    """
    store: dict[str, np.ndarray] = {}
    filled = 0
    for part in parts:
        arrays = {n: x for n, x in arrays_by_name(part).items() if not n.startswith("states")}
        valid, done = arrays["valid"], arrays["terminated"] | arrays["truncated"]
        assert not (valid & arrays["first"][1:]).any(), "an episode starts without an end row"
        assert not (done & valid)[:-1][valid[1:]].any(), "an episode continues after its end"
        if not store:
            store = {
                n: np.empty((rows + has_final_entry(n), *x.shape[1:]), x.dtype)
                for n, x in arrays.items()
            }
        at, steps = 0, len(arrays["reward"])
        while at < steps:
            count = min(steps - at, rows - filled)
            for name, x in arrays.items():
                entries = count + has_final_entry(name)
                store[name][filled : filled + entries] = x[at : at + entries]
            at, filled = at + count, filled + count
            if filled == rows:
                yield store
                filled = 0
    if filled:
        yield {name: x[: filled + has_final_entry(name)] for name, x in store.items()}


class _TrajectoryIndex:
    """Incremental index of trajectories, which are runs of valid rows in a column."""

    def __init__(self, columns: int) -> None:
        self.row = 0
        self.begin = np.full(columns, -1, np.int64)  # first row of the current trajectory
        self.whole = np.zeros(columns, bool)  # whether it starts with its episode
        self.done = np.zeros(columns, bool)  # the previous row ended its episode
        self.total = np.zeros(columns)  # sum of its rewards in earlier shards
        self.table: list[tuple[int, int, int]] = []  # row, column, steps
        self.finished: list[tuple[float, int]] = []  # return, length of complete episodes

    def add(self, arrays: dict[str, np.ndarray]) -> None:
        """Add the next rows of every column."""
        valid, reward = arrays["valid"], arrays["reward"]
        done = np.concatenate([self.done[None], arrays["terminated"] | arrays["truncated"]])
        changes = valid != np.concatenate([(self.begin >= 0)[None], valid[:-1]])
        start = np.zeros(len(self.begin), np.int64)  # first row of a trajectory in this shard
        for t, c in zip(*(x.tolist() for x in np.nonzero(changes)), strict=True):
            if valid[t, c]:
                self.begin[c], self.whole[c] = self.row + t, arrays["first"][t, c]
                self.total[c], start[c] = 0.0, t
            else:
                self.total[c] += reward[start[c] : t, c].sum(dtype=np.float64)
                self._close(c, self.row + t, bool(done[t, c]))
        for c in np.flatnonzero(self.begin >= 0):
            self.total[c] += reward[start[c] :, c].sum(dtype=np.float64)
        self.done = done[-1]
        self.row += len(valid)

    def _close(self, column: int, stop: int, done: bool) -> None:
        begin = int(self.begin[column])
        self.table.append((begin, column, stop - begin))
        if done and self.whole[column]:
            self.finished.append((float(self.total[column]), stop - begin))
        self.begin[column] = -1

    def finish(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return (the index by first row, the episode statistics of dataset.json)."""
        for c in np.flatnonzero(self.begin >= 0):
            self._close(int(c), self.row, bool(self.done[c]))
        row, column, steps = np.array(sorted(self.table), np.int64).reshape(-1, 3).T
        stats: dict[str, Any] = {
            "episodes": len(self.finished),
            "return": None,
            "length_mean": None,
        }
        if self.finished:
            returns, lengths = np.array(self.finished).T
            values = {n: float(getattr(returns, n)()) for n in ("mean", "std", "min", "max")}
            assert all(map(math.isfinite, values.values())), "a reward is not finite"
            stats |= {"return": values, "length_mean": float(lengths.mean())}
        return {"row": row, "column": column, "steps": steps}, stats
