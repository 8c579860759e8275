"""Rows into a dataset directory, which is there whole or not at all."""

import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlrun import __version__, codec
from rlrun.dataset.files import (
    CODED,
    CODED_FORMAT,
    DESCRIPTION,
    FORMAT,
    INDEX,
    STATES,
    arrays_of,
    behind,
    flatten,
    fsync,
    require_new,
    seal,
    spec_json,
    write_error,
    write_file,
)
from rlrun.errors import ConfigError
from rlrun.rundir import tensorfile
from rlrun.types import Segment, Spec, Tree, tree_leaves, tree_map

PART = 1024  # rows of every column that are taken out of a replay at once

States = tuple[np.ndarray, np.ndarray, Tree]  # row [N], column [N], leaves [N, ...]


def write(
    directory: str | Path,
    parts: Iterable[Segment],
    *,
    spec: Spec,
    meta: dict[str, Any],
    shard_rows: int,
    states: States | None = None,
    coder: str | None = None,
) -> None:
    """Writes collected segments, each the continuation of the one before, as a dataset.

    ``parts``: time-major [T, B] segments with the same B columns; their ``states`` are left out.
    ``states``: (row, column, leaves) of the recurrent states that are kept, row 0 being the first
    row of the parts; those of rows that are not written are left out. ``meta`` (JSON values) says
    where the rows come from. ``shard_rows``: rows over all columns in one file. Memory: one shard,
    the states, and the index of trajectories. ``coder``: shards are frames of ``rlrun.codec`` with
    that coder; memory is about three shards then, here and for who reads them.

    A segment's end rows are what closes a trajectory; one that is open behind the last part is
    closed when it is read. Everything is written into a temporary directory beside ``directory``,
    fsynced and renamed: after a crash there is no half dataset.

    Raises: ConfigError (``directory`` is not new or empty, no steps), StorageError.
    """
    if coder is not None:
        codec.check_coder(coder)
    directory = Path(directory).absolute()
    require_new(directory)
    temporary = directory.with_name(f".tmp_{directory.name}_{os.getpid()}")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that had our number
        temporary.mkdir()
        described = _fill(temporary, iter(parts), shard_rows, states, coder)
        if described["steps"] == 0:
            wrong = "there are no steps to write; at least one is needed; collect some first"
            raise ConfigError(f"DATA_DIR = {directory}: {wrong}")
        kind = FORMAT if coder is None else CODED_FORMAT
        head = {"format": kind, "rlrun": __version__, "spaces": spec_json(spec)}
        content = seal({**head, **described, "source": meta})
        write_file(temporary / DESCRIPTION, content)
        fsync(temporary)
        os.rename(temporary, directory)
        fsync(directory.parent)
    except BaseException as e:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(e, OSError):
            raise write_error(directory, e.strerror or str(e)) from e
        raise


def _fill(
    directory: Path,
    parts: Iterator[Segment],
    shard_rows: int,
    states: States | None,
    coder: str | None,
) -> dict[str, Any]:
    """Writes the tensors; what dataset.json says of them."""
    like = next(parts, None)
    if like is None:
        return {"steps": 0}
    columns = like.reward.shape[1]
    runs, shards = _Runs(columns), list[dict[str, Any]]()
    for arrays in _shards(chain([like], parts), max(1, shard_rows // columns)):
        runs.add(arrays)
        entry = _write_shard(directory / f"data-{len(shards):05d}", arrays, coder)
        shards.append({**entry, "rows": len(arrays["reward"]) * columns})
    index, episodes = runs.finish()
    fields = {
        name: {"dtype": str(x.dtype), "shape": [*x.shape[2:]]}
        for name, x in arrays_of(like).items()
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
        "index": _write(directory / INDEX, index),
        "states": _write_states(directory / STATES, states, runs.row),
    }


def _write(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    digest, size = tensorfile.write(path, arrays, {"format": "pt"})
    return {"file": path.name, "sha256": digest, "bytes": size}


def _write_shard(path: Path, arrays: dict[str, np.ndarray], coder: str | None) -> dict[str, Any]:
    """The rows of a shard; coded, they say how many bytes they are decoded."""
    if coder is None:
        return _write(path.with_suffix(".safetensors"), arrays)
    frame, path = codec.encode_chunk(arrays, coder=coder), path.with_suffix(CODED)
    write_file(path, frame)
    raw = sum(x.nbytes for x in arrays.values())
    digest = hashlib.sha256(frame).hexdigest()
    return {"file": path.name, "sha256": digest, "bytes": len(frame), "coder": coder, "raw": raw}


def _write_states(path: Path, states: States | None, rows: int) -> dict[str, Any] | None:
    """The states in the order of column and row."""
    if states is None or not tree_leaves(states[2]):
        return None
    row, column = (x.astype(np.int64) for x in states[:2])
    order = np.lexsort((row, column))
    order = order[(row[order] >= 0) & (row[order] < rows)]
    structure, leaves = flatten(tree_map(lambda x: np.asarray(x)[order], states[2]), "states")
    entry = _write(path, {"row": row[order], "column": column[order], **leaves})
    return {**entry, "states": len(order), "tree": structure}


def _shards(parts: Iterable[Segment], rows: int) -> Iterator[dict[str, np.ndarray]]:
    """The same rows in pieces of ``rows`` per column, each with the observation behind its last.

    The arrays are overwritten by the next piece.
    """
    store: dict[str, np.ndarray] = {}
    filled = 0
    for part in parts:
        arrays = {n: x for n, x in arrays_of(part).items() if not n.startswith("states")}
        _check(arrays)
        if not store:
            store = {
                n: np.empty((rows + behind(n), *x.shape[1:]), x.dtype) for n, x in arrays.items()
            }
        at, steps = 0, len(arrays["reward"])
        while at < steps:
            count = min(steps - at, rows - filled)
            for name, x in arrays.items():
                more = count + behind(name)
                store[name][filled : filled + more] = x[at : at + more]
            at, filled = at + count, filled + count
            if filled == rows:
                yield store
                filled = 0
    if filled:
        yield {name: x[: filled + behind(name)] for name, x in store.items()}


def _check(arrays: dict[str, np.ndarray]) -> None:
    """The layout of rows: what the index relies on."""
    valid = arrays["valid"]
    assert not (valid & arrays["first"][1:]).any(), "an episode opens without an end row before it"
    done = arrays["terminated"] | arrays["truncated"]
    assert not (done & valid)[:-1][valid[1:]].any(), "an episode goes on behind its end"


class _Runs:
    """Trajectories: the runs of valid rows in a column, found as rows arrive piece by piece."""

    def __init__(self, columns: int) -> None:
        self.row = 0
        self.begin = np.full(columns, -1, np.int64)  # first row of the open trajectory
        self.whole = np.zeros(columns, bool)  # it begins with its episode
        self.done = np.zeros(columns, bool)  # the row before ended its episode
        self.total = np.zeros(columns)  # its rewards in the pieces before
        self.table: list[tuple[int, int, int]] = []  # row, column, steps
        self.finished: list[tuple[float, int]] = []  # return, length of whole finished episodes

    def add(self, arrays: dict[str, np.ndarray]) -> None:
        """The next rows of every column."""
        valid, reward = arrays["valid"], arrays["reward"]
        done = np.concatenate([self.done[None], arrays["terminated"] | arrays["truncated"]])
        changes = valid != np.concatenate([(self.begin >= 0)[None], valid[:-1]])
        start = np.zeros(len(self.begin), np.int64)  # where an open trajectory begins in here
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
        """(the index, in the order of first rows; what dataset.json says of the episodes)."""
        for c in np.flatnonzero(self.begin >= 0):
            self._close(int(c), self.row, bool(self.done[c]))
        row, column, steps = np.array(sorted(self.table), np.int64).reshape(-1, 3).T
        said: dict[str, Any] = {"episodes": len(self.finished), "return": None, "length_mean": None}
        if self.finished:
            returns, lengths = np.array(self.finished).T
            values = {n: float(getattr(returns, n)()) for n in ("mean", "std", "min", "max")}
            assert all(map(math.isfinite, values.values())), "a reward is not finite"
            said |= {"return": values, "length_mean": float(lengths.mean())}
        return {"row": row, "column": column, "steps": steps}, said


class _Ring(Protocol):
    @property
    def columns(self) -> int:
        """Environments, or agents."""

    @property
    def oldest(self) -> int:
        """The first row of ``stored``."""

    @property
    def head(self) -> int:
        """The row behind the last."""


class Stored(Protocol):
    """What a replay must offer to be exported."""

    @property
    def ring(self) -> _Ring:
        """Knows which rows there are."""

    def stored(self, rows: int, /, *, skip: int) -> Iterator[Segment]:
        """All rows but the oldest, in order, as [T, B] segments of at most ``rows`` rows."""

    def stored_states(self) -> States:
        """The states of the windows: (row, column, leaves)."""


def export(
    replay: Stored,
    out: Path,
    *,
    config_text: str,
    spec: Spec,
    meta: dict[str, Any],
    shard_rows: int,
    last: int | None = None,
    coder: str | None = None,
) -> None:
    """Writes what a replay holds, and the states of its windows, as the dataset ``out``.

    ``last``: only the newest rows, so many over all columns (rounded up), as many of each.

    Raises: ConfigError, StorageError, as ``write``.
    """
    row, column, leaves = replay.stored_states()
    ring = replay.ring
    kept = ring.head - ring.oldest
    skip = 0 if last is None else max(0, kept - -(-last // ring.columns))
    write(
        out,
        replay.stored(PART, skip=skip),
        spec=spec,
        meta={**meta, "config": config_text},
        shard_rows=shard_rows,
        states=(row - ring.oldest - skip, column, leaves),
        coder=coder,
    )
