"""Reading and streaming writing of safetensors files."""

import hashlib
import json
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from rlrun.run.manifest import DTYPES

Array: TypeAlias = Tensor | np.ndarray


def as_tensor(array: Array) -> Tensor:
    """Return a contiguous tensor in host memory, without a copy if possible.

    Raises: TypeError if torch lacks the dtype.
    """
    if isinstance(array, np.ndarray):
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        if not native.flags.writeable or any(stride < 0 for stride in native.strides):
            native = native.copy()  # torch supports neither
        try:
            return torch.from_numpy(np.ascontiguousarray(native)).reshape(array.shape)
        except TypeError as e:
            raise TypeError(f"cannot store dtype {array.dtype}: {e}") from e
    return array.detach().cpu().contiguous()


def raw_bytes(array: Array) -> "memoryview[int]":
    """Return the bytes of the elements, row-major."""
    flat = as_tensor(array).reshape(-1)
    if flat.numel() <= 1:  # contiguous for any stride, but view() needs stride 1
        flat = flat.as_strided((flat.numel(),), (1,))
    elements: memoryview[int] = flat.view(torch.uint8).numpy().data
    return elements


def write_tensors(
    path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]
) -> tuple[str, int]:
    """Write and fsync a new file. Return its SHA-256 (hex) and size in bytes.

    The safetensors library would copy all tensors, and a replay may not fit in memory twice.
    Format: 8 bytes length of the header, the header (JSON, padded to 8 bytes), the elements of all
    tensors.

    Raises: TypeError for an unsupported dtype, OSError.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    # Wide dtypes first for alignment.
    names = sorted(tensors, key=lambda name: (-_torch_dtype(tensors[name]).itemsize, name))
    for name in names:
        dtype, shape = _torch_dtype(tensors[name]), list(tensors[name].shape)
        size = math.prod(shape) * dtype.itemsize
        span = [offset, offset + size]
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": span}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        head = struct.pack("<Q", len(text)) + text
        parts: Iterator[Any] = chain([head], _byte_chunks(tensors, names))
        for part in parts:
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
        return digest.hexdigest(), file.tell()


def _byte_chunks(
    tensors: Mapping[str, Array], names: list[str]
) -> Iterator["bytes | memoryview[int]"]:
    """Yield the bytes of the elements per tensor, or per entry of non-contiguous arrays."""
    for name in names:
        array = tensors[name]
        contiguous = array.flags.c_contiguous if isinstance(array, np.ndarray) else True
        if contiguous or array.ndim < 2:
            yield raw_bytes(array)
        else:
            yield from (raw_bytes(entry) for entry in array)


def _torch_dtype(array: Array) -> torch.dtype:
    """Return the torch dtype. Raises: TypeError if the format lacks it."""
    dtype = array.dtype if isinstance(array, Tensor) else as_tensor(np.empty(0, array.dtype)).dtype
    if dtype not in _NAMES:
        raise TypeError(f"cannot store dtype {array.dtype}")
    return dtype


_NAMES = {getattr(torch, name): key for key, name in DTYPES.items()}


def read_arrays(path: Path, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file whose names are ``name`` plus a suffix, by suffix.

    Only their bytes are read.

    Raises: ValueError if the file does not hold them, OSError.
    """
    try:
        with path.open("rb"), safe_open(path, framework="np") as file:  # the first says why not
            names = file.keys()
            arrays = {x: file.get_tensor(name + x) for x in ("", SIZES) if name + x in names}
    except SafetensorError as e:
        raise ValueError(f"{path}: {e}") from e
    if "" not in arrays:
        raise ValueError(f"{path}: has no {name}")
    return arrays


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file in host memory, sorted by name.

    Verify the file's hash first: a damaged header is detected here, damaged data is not.

    Raises: ValueError if it is not a safetensors file, OSError.
    """
    try:
        return dict(sorted(load_file(path).items()))
    except SafetensorError as e:
        raise ValueError(f"{path}: {e}") from e


SMALL = 1 << 16, 1 << 22  # limits of the bytes below which a last segment is replaced
TEMPORARY = ".tmp_segment"
SIZES = "/sizes"  # suffix of the name of an array of lengths
COPY = 1 << 28  # most bytes of new rows that are copied
SHARE = 256  # within the limits of SMALL: this fraction of the ring's segments


class SegmentFile(NamedTuple):
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
    parts: list[SegmentFile] = field(default_factory=list)

    def usable(self, directory: Path, first: int, stop: int) -> list[SegmentFile]:
        """Return the parts that a checkpoint of rows first..stop-1 in ``directory`` can list."""
        if self.directory != directory or not self.parts or self.parts[-1].stop > stop:
            return []
        parts = [part for part in self.parts if part.stop > first]
        total = sum(part.bytes for part in parts)
        small = min(max(total // SHARE, SMALL[0]), SMALL[1])
        if parts and parts[-1].stop < stop and parts[-1].bytes < small:
            parts.pop()
        try:
            whole = all(os.lstat(directory / p.file).st_size == p.bytes for p in parts)
        except OSError:
            return []
        return parts if whole else []


class Rows(ABC):
    """A leaf of a state tree: rows ``first``..``stop``-1, which never change once written.

    All leaves with the same ``files`` have the same rows.
    """

    first: int
    stop: int
    files: RowFiles

    @abstractmethod
    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        """Yield (first, stop, arrays by suffix of their name) of consecutive pieces of rows.

        The suffix "" has the rows [columns, stop - first, ...]. Rows of different length are joined
        bytes uint8 [...], row by row, with their lengths int64 [stop - first, columns] under
        ``SIZES``.
        """

    def size_of(self, first: int, stop: int) -> int:
        """Return the bytes that a copy of rows first..stop-1 would take in memory."""
        return 0

    def saved_files(self) -> RowFiles:
        """Return the files that hold these rows, for the ring that loads them."""
        return RowFiles()

    def arrays(self, first: int, stop: int, *, copy: bool = True) -> dict[str, np.ndarray]:
        """Return rows first..stop-1 (at least one) as arrays in host memory, like ``pieces``.

        ``copy``: the arrays are new.
        """
        pieces = [arrays for _, _, arrays in self.pieces(first, stop)]
        if len(pieces) == 1 and not copy:
            return pieces[0]
        axis = 0 if SIZES in pieces[0] else 1
        return {name: np.concatenate([p[name] for p in pieces], axis) for name in pieces[0]}

    def fill(self, store: Any) -> None:
        """Write the rows to a ring [columns, rows, ...] and zeros to its other slots.

        Raises: ValueError if they do not fit in shape or dtype.
        """
        rows = store.shape[1]
        if not 0 <= self.first <= self.stop <= self.first + rows:
            raise ValueError(f"rows {self.first} to {self.stop} do not fit a ring of {rows}")
        for slot, count in slices(self.stop, self.first + rows, rows):
            store[:, slot : slot + count] = 0
        empty = store[:0].numpy(force=True) if isinstance(store, Tensor) else store[:0]
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
        """Compare the rows themselves, wherever they are stored."""
        if not isinstance(other, Rows):
            return NotImplemented
        same = (self.first, self.stop) == (other.first, other.stop)
        if not same or self.first == self.stop:
            return same
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
    """Yield (slot, count) of the slices of rows first..stop-1 in a ring of ``rows`` slots."""
    while first < stop:
        slot = first % rows
        count = min(stop - first, rows - slot)
        yield slot, count
        first += count


def like(array: np.ndarray, store: Any) -> Any:
    """Return ``array``, as a tensor if ``store`` is one."""
    return as_tensor(array) if isinstance(store, Tensor) else array


class RingRows(Rows):
    """Rows in a ring [columns, rows, ...]: row r of column c is ``array[c, r % rows]``."""

    def __init__(self, array: Any, first: int, stop: int, files: RowFiles) -> None:
        self.array, self.first, self.stop, self.files = array, first, stop, files

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        for slot, count in slices(first, stop, self.array.shape[1]):
            piece = self.array[:, slot : slot + count]
            values = piece.numpy(force=True) if isinstance(piece, Tensor) else piece
            yield first, first + count, {"": values}
            first += count

    def size_of(self, first: int, stop: int) -> int:
        return int(self.array[:, :1].nbytes) * (stop - first)


class SavedRows(Rows):
    """Rows in segment files, read on demand."""

    def __init__(self, name: str, first: int, stop: int, files: RowFiles) -> None:
        """``name``: of the tensors in the files. Raises: ValueError if the files lack rows."""
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
            arrays = read_arrays(self.files.directory / part.file, self.name)
            yield low, high, self._cut(arrays, part, low, high)

    def _cut(
        self, arrays: Mapping[str, np.ndarray], part: SegmentFile, low: int, high: int
    ) -> dict[str, np.ndarray]:
        """Return rows low..high-1 of a part."""
        count, data, sizes = part.stop - part.first, arrays[""], arrays.get(SIZES)
        low, high = low - part.first, high - part.first
        if (data if sizes is None else sizes.T).shape[1:2] != (count,):
            raise ValueError(f"{part.file}: {self.name} does not have {count} rows")
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
    """The rows of one ring that a checkpoint has to write, and the parts before them."""

    files: RowFiles
    parts: list[SegmentFile]
    first: int
    stop: int
    arrays: dict[str, np.ndarray]
    small: bool  # the arrays are copies

    def write(self, directory: Path) -> Path | None:
        """Write and fsync the segment in ``directory``. Return its path, or None without new rows.

        The directory is not synced.

        Raises: OSError, TypeError.
        """
        if self.first == self.stop:
            return None
        temporary = directory / TEMPORARY
        temporary.unlink(missing_ok=True)
        digest, size = write_tensors(temporary, self.arrays, {})
        name = f"{self.first:09d}_{self.stop:09d}_{digest[:16]}.safetensors"
        os.rename(temporary, directory / name)
        self.parts.append(SegmentFile(name, self.first, self.stop, digest, size))
        self.arrays, self.first = {}, self.stop
        return directory / name

    def commit(self, directory: Path) -> None:
        """Note that the checkpoint is durable, so the next one may list these files."""
        self.files.directory, self.files.parts = directory, self.parts


def new_segments(leaves: Mapping[str, Rows], directory: Path) -> list[NewSegment]:
    """Return what has to be written of ``leaves`` (by name), one entry per ring.

    Rows of at most ``COPY`` bytes in all are copies. Others must be written before the rings
    change.
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
                arrays = leaf.arrays(new.first, new.stop, copy=new.small)
                new.arrays |= {name + suffix: array for suffix, array in arrays.items()}
    return [new for _, new in todo]


class Packed:
    """A state tree as JSON (``tree``), its tensors and its rows by name.

    The tensors are copies in host memory and the tree is new, so the state may change afterwards.
    Types without a JSON equivalent become an object with one key: $torch, $numpy (a tensor's name),
    $rows, $tuple, $dict (pairs, for keys that are not plain strings), $float (nan, inf, -inf).

    Raises: TypeError for an unsupported value.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Array] = {}
        self.rows: dict[str, Rows] = {}
        self.rings: list[RowFiles] = []  # rings of ``rows``; a $rows holds the index of one
        self.tree = self._encode(state, "")

    def _encode(self, node: Any, path: str) -> Any:
        if isinstance(node, np.generic):
            node = node.item()
        if node is None or isinstance(node, bool | str):
            return node
        if isinstance(node, int):
            return int(node)
        if isinstance(node, float):
            return float(node) if math.isfinite(node) else {"$float": repr(float(node))}
        if isinstance(node, Rows):
            return {"$rows": self._ring(node, path)}
        if isinstance(node, Tensor | np.ndarray):
            name = _free_name(path, self.tensors)
            self.tensors[name] = copied(node)
            return {"$torch" if isinstance(node, Tensor) else "$numpy": name}
        if isinstance(node, list | tuple):
            items = [self._encode(child, _join(path, i)) for i, child in enumerate(node)]
            return items if isinstance(node, list) else {"$tuple": items}
        if isinstance(node, Mapping):
            pairs = [(self._encode(key, path), self._encode(child, _join(path, key)))
                     for key, child in node.items()]  # fmt: skip
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return dict(pairs)
            return {"$dict": pairs}
        raise TypeError(f"state[{path}] is a {type(node).__name__}, which a checkpoint cannot hold")

    def _ring(self, node: Rows, path: str) -> dict[str, Any]:
        name = _free_name(path, self.rows)
        self.rows[name] = node
        if all(files is not node.files for files in self.rings):
            self.rings.append(node.files)
        index = next(i for i, files in enumerate(self.rings) if files is node.files)
        return {"name": name, "first": node.first, "stop": node.stop, "ring": index}


def copied(array: Array) -> Any:
    """Return a copy in host memory."""
    if isinstance(array, Tensor):
        return array.detach().clone() if array.device.type == "cpu" else array.detach().cpu()
    return array.copy()


def _free_name(path: str, taken: Container[str]) -> str:
    name = path or "root"
    while name in taken or name == "__metadata__":
        name += "#"
    return name


def _join(path: str, part: object) -> str:
    return f"{path}/{part}" if path else str(part)


def unpack(node: Any, tensors: Mapping[str, Tensor], rings: list[RowFiles]) -> Any:
    """Return the state of ``Packed.tree``.

    Raises: KeyError, TypeError, ValueError, IndexError if the tree is not one of ``Packed``.
    """
    if isinstance(node, list):
        return [unpack(child, tensors, rings) for child in node]
    if not isinstance(node, dict):
        return node
    match next(iter(node.items()), None):
        case ("$torch", name):
            return tensors[name]
        case ("$numpy", name):
            return tensors[name].numpy()
        case ("$rows", {"name": str(name), "first": int(first), "stop": int(stop), "ring": ring}):
            return SavedRows(name, first, stop, rings[ring])
        case ("$float", text):
            return float(text)
        case ("$tuple", items):
            return tuple(unpack(child, tensors, rings) for child in items)
        case ("$dict", pairs):
            return {unpack(k, tensors, rings): unpack(v, tensors, rings) for k, v in pairs}
    return {key: unpack(child, tensors, rings) for key, child in node.items()}


def require_kind(part: str, loaded: Any, live: Any) -> None:
    """Raise ValueError unless ``loaded``, from a checkpoint, is a state of the kind of ``live``.

    Numbers are finite and of 64 bits. Arrays have the dtype and shape of ``live``, or any length if
    it is empty. Four things are left to the code that loads them: None on either side, parts that
    one side lacks, lists of other lengths, and states of random generators.
    """
    wrong = f"{part} is a {type(loaded).__name__}, not "
    if loaded is None or live is None:
        if isinstance(loaded, float | int):
            _require_number(part, loaded)
    elif isinstance(live, Mapping):
        if not isinstance(loaded, Mapping):
            raise ValueError(f"{wrong}a mapping")
        for key in () if "bit_generator" in live else live.keys() & loaded.keys():
            require_kind(f"{part}.{key}", loaded[key], live[key])
    elif isinstance(live, Tensor | np.ndarray):
        if not isinstance(loaded, Tensor | np.ndarray):
            raise ValueError(f"{wrong}an array")
        same = _dtype(loaded) == _dtype(live) and loaded.ndim == live.ndim
        if not same or (0 not in live.shape and loaded.shape != live.shape):
            shapes = [f"{x.dtype} {list(x.shape)}" for x in (loaded, live)]
            raise ValueError(f"{part} is {shapes[0]}, not {shapes[1]}")
    elif isinstance(live, list | tuple):
        if not isinstance(loaded, list | tuple):
            raise ValueError(f"{wrong}a list")
        for i, item in enumerate(loaded if len(loaded) == len(live) else ()):
            require_kind(f"{part}.{i}", item, live[i])
    elif isinstance(live, float | int) and not isinstance(live, bool):
        _require_number(part, loaded)
    elif type(loaded) is not type(live):
        raise ValueError(f"{wrong}a {type(live).__name__}")


def _dtype(x: Array) -> str:
    """Return a tensor's dtype or an array's kind: an actor's numbers may be wider."""
    return str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else x.dtype.kind


def _require_number(part: str, value: Any) -> None:
    good = isinstance(value, float | int) and not isinstance(value, bool)
    if not good or not (-(2**63) <= value < 2**64):  # False for NaN
        raise ValueError(f"{part} is {str(value)[:40]}, not a number of 64 bits")
