"""Rows of a replay as immutable segment files: each row is written once, not in every checkpoint.

``checkpoints/rows/000000000_000010000_<hash>.safetensors`` holds rows first..stop-1 of every array
of one ring. A checkpoint writes the rows that are new since the last one and lists all segments it
needs; those that no checkpoint lists are deleted. A last segment that is small is replaced by one
with its rows and the new ones, so that many short intervals do not make many files.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rlrun.rundir import tensorfile

SMALL = 1 << 16, 1 << 22  # bytes below which a last segment is replaced: at least, at most
TEMPORARY = ".tmp_segment"
SIZES = "/sizes"  # suffix of the name of an array of lengths
COPY = 1 << 28  # bytes of new rows that are copied at most
SHARE = 256  # within these limits: this fraction of all segments of the ring


class Part(NamedTuple):
    """A segment file and the rows in it."""

    file: str
    first: int
    stop: int
    sha256: str
    bytes: int


@dataclass(slots=True)
class RowFiles:
    """The segment files in ``directory`` that hold the rows of one ring, oldest first."""

    directory: Path | None = None
    parts: list[Part] = field(default_factory=list)

    def usable(self, directory: Path, first: int, stop: int) -> list[Part]:
        """The parts that a checkpoint of rows first..stop-1 in ``directory`` can list."""
        if self.directory != directory or not self.parts or self.parts[-1].stop > stop:
            return []
        parts = [part for part in self.parts if part.stop > first]
        total = sum(part.bytes for part in parts)
        small = min(max(total // SHARE, SMALL[0]), SMALL[1])
        if parts and parts[-1].stop < stop and parts[-1].bytes < small:
            parts.pop()
        return parts if all(_has_size(directory / p.file, p.bytes) for p in parts) else []


def _has_size(path: Path, size: int) -> bool:
    try:
        return os.lstat(path).st_size == size
    except OSError:
        return False


class Rows(ABC):
    """A leaf of a state tree: rows ``first``..``stop``-1, which are never changed once written.

    All leaves with the same ``files`` have the same rows.
    """

    first: int
    stop: int
    files: RowFiles

    @abstractmethod
    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        """Yield (first, stop, arrays by suffix of their name) of consecutive pieces of rows.

        The suffix "" has the rows [columns, stop - first, ...]. Rows of different length are
        joined bytes uint8 [...], row by row, with their lengths int64 [stop - first, columns] under
        ``SIZES``.
        """

    def size_of(self, first: int, stop: int) -> int:
        """Bytes of rows first..stop-1, where a copy of them would take memory."""
        return 0

    def frozen(self) -> "Rows":
        """The rows as they are now, which later writes to the ring do not change."""
        return self

    def saved_files(self) -> RowFiles:
        """The files that hold these rows, for the ring that loads them."""
        return RowFiles()

    def arrays(self, first: int, stop: int, *, copy: bool = True) -> dict[str, np.ndarray]:
        """Rows first..stop-1 (at least one), as in ``pieces``: arrays in host memory, fresh ones
        with ``copy``."""
        pieces = [arrays for _, _, arrays in self.pieces(first, stop)]
        if len(pieces) == 1 and not copy:
            return pieces[0]
        axis = 0 if SIZES in pieces[0] else 1
        return {name: np.concatenate([p[name] for p in pieces], axis) for name in pieces[0]}

    def read(self, first: int, stop: int) -> np.ndarray:
        """Rows first..stop-1 [columns, stop - first, ...], a fresh array in host memory."""
        return self.arrays(first, stop)[""]

    def fill(self, store: Any) -> None:
        """Write the rows to a ring [columns, rows, ...] and zeros to its other slots.

        Raises: ValueError when they do not fit, in shape or dtype.
        """
        rows = store.shape[1]
        if not 0 <= self.first <= self.stop <= self.first + rows:
            raise ValueError(f"rows {self.first} to {self.stop} do not fit a ring of {rows}")
        for slot, count in slices(self.stop, self.first + rows, rows):
            store[:, slot : slot + count] = 0
        empty = (
            np.empty(0, store.dtype)
            if isinstance(store, np.ndarray)
            else store[:0].numpy(force=True)
        )
        for first, stop, arrays in self.pieces(self.first, self.stop):
            piece, done = arrays[""], 0
            wanted = (store.shape[0], stop - first, *store.shape[2:])
            if (piece.shape, piece.dtype) != (wanted, empty.dtype):
                raise ValueError(f"rows are {piece.dtype}{list(piece.shape)}, not {wanted}")
            for slot, count in slices(first, stop, rows):
                part = piece[:, done : done + count]
                store[:, slot : slot + count] = like(part, store)
                done += count

    def __eq__(self, other: object) -> bool:
        """Compare the rows themselves, wherever they are."""
        if not isinstance(other, Rows) or (self.first, self.stop) != (other.first, other.stop):
            return NotImplemented if not isinstance(other, Rows) else False
        if self.first == self.stop:
            return True
        ours, theirs = (x.arrays(x.first, x.stop) for x in (self, other))
        return ours.keys() == theirs.keys() and all(
            (x.dtype, x.shape) == (theirs[n].dtype, theirs[n].shape)
            and x.tobytes() == theirs[n].tobytes()
            for n, x in ours.items()
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.first}, {self.stop})"

    __hash__ = None  # type: ignore[assignment]


def slices(first: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield (slot, count) of the slices of a ring of ``rows`` slots that rows first.. are in."""
    while first < stop:
        slot = first % rows
        count = min(stop - first, rows - slot)
        yield slot, count
        first += count


def like(array: np.ndarray, store: Any) -> Any:
    """``array``, as a tensor if ``store`` is one."""
    return tensorfile.as_tensor(array) if isinstance(store, Tensor) else array


class RingRows(Rows):
    """Rows in a ring [columns, rows, ...]: row r of column c is ``array[c, r % rows]``."""

    def __init__(self, array: Any, first: int, stop: int, files: RowFiles) -> None:
        self.array, self.first, self.stop, self.files = array, first, stop, files

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        for slot, count in slices(first, stop, self.array.shape[1]):
            piece = self.array[:, slot : slot + count]
            found = piece.numpy(force=True) if isinstance(piece, Tensor) else piece
            yield first, first + count, {"": found}
            first += count

    def size_of(self, first: int, stop: int) -> int:
        return int(self.array[:, :1].nbytes) * (stop - first)

    def frozen(self) -> "RingRows":
        array = self.array.clone() if isinstance(self.array, Tensor) else self.array.copy()
        return RingRows(array, self.first, self.stop, RowFiles())


class SavedRows(Rows):
    """Rows in segment files, read when they are asked for."""

    def __init__(self, name: str, first: int, stop: int, files: RowFiles) -> None:
        """``name``: of the tensors in the files. Raises: ValueError when the files lack rows."""
        self.name, self.first, self.stop, self.files = name, first, stop, files
        edges = [(part.first, part.stop) for part in files.parts]
        joined = all(a[1] == b[0] for a, b in pairwise(edges))
        whole = bool(edges) and edges[0][0] <= first and edges[-1][1] == stop
        if not 0 <= first <= stop or (first != stop and not (joined and whole)):
            raise ValueError(f"its segments do not hold rows {first} to {stop} of {name}")

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        assert self.files.directory is not None
        for part in self.files.parts:
            low, high = max(first, part.first), min(stop, part.stop)
            if low >= high:
                continue
            arrays = tensorfile.read_arrays(self.files.directory / part.file, self.name)
            yield low, high, self._cut(arrays, part, low, high)

    def _cut(
        self, arrays: Mapping[str, np.ndarray], part: Part, low: int, high: int
    ) -> dict[str, np.ndarray]:
        """Rows low..high-1 of a part."""
        count, data, sizes = part.stop - part.first, arrays[""], arrays.get(SIZES)
        low, high = low - part.first, high - part.first
        if (data if sizes is None else sizes.T).shape[1:2] != (count,):
            raise ValueError(f"{part.file}: {self.name} has not {count} rows")
        if sizes is None:
            return {"": data[:, low:high]}
        if (sizes < 0).any() or sizes.sum() != len(data):
            raise ValueError(f"{part.file}: the sizes of {self.name} are wrong")
        ends = np.concatenate([[0], np.cumsum(sizes.sum(1))])
        return {"": data[ends[low] : ends[high]], SIZES: sizes[low:high]}

    def saved_files(self) -> RowFiles:
        return RowFiles(self.files.directory, list(self.files.parts))


@dataclass(slots=True)
class NewSegment:
    """The rows of one ring that a checkpoint has to write, and the parts that precede them."""

    files: RowFiles
    parts: list[Part]
    first: int
    stop: int
    arrays: dict[str, np.ndarray]
    small: bool  # the arrays are copies

    def write(self, directory: Path) -> Path | None:
        """Write and fsync the segment in ``directory``; return its path, None without new rows.

        The directory is not synced. Raises: OSError, TypeError.
        """
        if self.first == self.stop:
            return None
        temporary = directory / TEMPORARY
        temporary.unlink(missing_ok=True)
        digest, size = tensorfile.write(temporary, self.arrays, {})
        name = f"{self.first:09d}_{self.stop:09d}_{digest[:16]}.safetensors"
        os.rename(temporary, directory / name)
        self.parts.append(Part(name, self.first, self.stop, digest, size))
        self.arrays, self.first = {}, self.stop
        return directory / name

    def commit(self, directory: Path) -> None:
        """The checkpoint is durable: the next one may list these files."""
        self.files.directory, self.files.parts = directory, self.parts


def new_segments(leaves: Mapping[str, Rows], directory: Path) -> list[NewSegment]:
    """Return what has to be written of ``leaves`` (by name), one entry per ring.

    Rows of at most ``COPY`` bytes in all are copies; more must be written before the rings change.
    """
    rings: dict[int, list[tuple[str, Rows]]] = {}
    for name, leaf in leaves.items():
        rings.setdefault(id(leaf.files), []).append((name, leaf))
    todo, size = [], 0
    for members in rings.values():
        first, stop, files = members[0][1].first, members[0][1].stop, members[0][1].files
        assert all((leaf.first, leaf.stop) == (first, stop) for _, leaf in members)
        parts = files.usable(directory, first, stop)
        start = parts[-1].stop if parts else first
        size += sum(leaf.size_of(start, stop) for _, leaf in members)
        todo.append((members, NewSegment(files, parts, start, stop, {}, small=True)))
    for members, new in todo:
        new.small = size <= COPY
        if new.first < new.stop:
            for name, leaf in members:
                found = leaf.arrays(new.first, new.stop, copy=new.small)
                new.arrays |= {name + suffix: array for suffix, array in found.items()}
    return [new for _, new in todo]
