"""Names, shapes and dtypes of a replay's arrays, known before allocation.

Does not import torch, so that config validation can compute sizes.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.errors import StorageError
from rlrun.functional.recorded import RowSpaces
from rlrun.spaces import Tree, tree_leaves, tree_map


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of an array, or of one entry of a field."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def times(self, *lead: int) -> "ArraySpec":
        """Return the spec with axes ``lead`` in front."""
        return ArraySpec((*lead, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """Shapes and dtypes of one row of one environment."""

    obs: Tree  # of ArraySpecs
    action: ArraySpec
    extras: dict[str, ArraySpec]
    state: Tree  # of ArraySpecs: recurrent state before the row, kept once per window
    spaces: RowSpaces | None = field(default=None, compare=False)  # None: not from an environment


HUGE_PAGE = 1 << 21  # bytes of a huge page on x86 and most others
BLOCK_ROWS = 16  # rows of a column compressed together (buffer.compress)
IMAGE_BYTES = 256  # smallest uint8 entry that counts as an image
FLAG = np.dtype(np.uint8)
REWARD = np.dtype(np.float32)
NUMBER = np.dtype(np.int64)
TABLE = ("column", "learn", "burnin", "last", "ended", "release", "origin")


@dataclass(frozen=True, slots=True)
class Layout:
    """All arrays of a replay of ``rows`` rows in each of ``columns``.

    ``windows``: slots of the window table; None: every row has a window of its own. ``sampler``:
    name -> ArraySpec. ``goals``: store the first and the last row of every row's episode, for
    hindsight relabelling. ``compress``: store image observations as ``CompressedRows``, whose size
    is not known in advance. ``room``: limit of that size in bytes; None: no limit. ``device``: of
    observations, actions and extras.
    """

    row: Row
    columns: int
    rows: int
    windows: int | None
    sampler: dict[str, ArraySpec]
    goals: bool = False
    compress: bool = False
    room: int | None = None
    device: str = "cpu"

    def packs(self, entry: ArraySpec) -> bool:
        """Return whether observations like ``entry`` are compressed."""
        image = entry.dtype == np.uint8 and entry.nbytes >= IMAGE_BYTES
        return self.compress and image

    def ring(self) -> dict[str, Tree]:
        """Return field -> tree of ArraySpecs [columns, rows, ...]."""
        lead = (self.columns, self.rows)
        fields = {f"extras/{name}": block for name, block in self.row.extras.items()}
        fields |= {
            "action": self.row.action,
            "reward": ArraySpec((), REWARD),
            "flags": ArraySpec((), FLAG),
        }
        out = {name: block.times(*lead) for name, block in fields.items()}
        if self.goals:
            out |= {"origin": ArraySpec(lead, NUMBER), "final": ArraySpec(lead, NUMBER)}

        def stored(entry: ArraySpec) -> ArraySpec:
            return entry.times(self.columns, BLOCK_ROWS if self.packs(entry) else self.rows)

        return {"obs": tree_map(stored, self.row.obs), **out}

    def table(self) -> dict[str, ArraySpec]:
        """Return name -> ArraySpec of the window table."""
        lines = ArraySpec((self.windows or 0, len(TABLE)), NUMBER)  # one line per window
        return {"lines": lines, "alive": ArraySpec((self.slots,), np.dtype(bool))}

    def states(self) -> Tree:
        """Return the tree of ArraySpecs [windows, ...] of the recurrent states."""
        return tree_map(lambda b: b.times(self.windows or 0), self.row.state)

    @property
    def slots(self) -> int:
        """Number of slots for windows."""
        return self.windows if self.windows is not None else self.columns * self.rows

    def parts(self) -> dict[str, int]:
        """Return the bytes of rows, window table, states and sampler."""
        return {
            "rows": total(self.ring()),
            "table": total(self.table()),
            "states": total(self.states()),
            "sampler": total(self.sampler),
        }

    @property
    def packed(self) -> int:
        """Uncompressed bytes of the compressed observations, the upper bound of their size."""
        images = [b for b in tree_leaves(self.row.obs) if self.packs(b)]
        each: int = sum(b.nbytes for b in images)
        return self.columns * self.rows * each

    @property
    def movable(self) -> int:
        """Bytes that buffer.mmap can keep in files: all but the sampler's."""
        return self.nbytes - self.parts()["sampler"]

    @property
    def on_device(self) -> int:
        """Bytes of observations, actions and extras: those on ``device``."""
        names = ("reward", "flags", "origin", "final")
        return total({name: x for name, x in self.ring().items() if name not in names})

    @property
    def nbytes(self) -> int:
        """Sum of the bytes of all arrays."""
        return sum(self.parts().values())

    def fingerprint(self) -> str:
        """Return a text that a saved state and the replay that loads it must share."""
        row = self.row
        blocks = [*tree_leaves(row.obs), row.action, *row.extras.values(), *tree_leaves(row.state)]
        fields = [f"{b.dtype}{list(b.shape)}" for b in blocks]
        windows = "rows" if self.windows is None else f"{self.windows} windows"
        packed = ", images compressed" if self.packed else ""
        return f"{self.columns} x {self.rows} rows of {', '.join(fields)}{packed}; {windows}"

    def describe(self) -> str:
        """Return one line with the sizes of rows, states, and the rest."""
        parts, capacity = self.parts(), (self.rows - 1) * self.columns
        of = [f"the rows {amount(parts['rows'])}"]
        if (state := total(self.row.state)) and self.windows is not None:
            of.append(f"{self.windows:,} recurrent states of {amount(state)}")
        if rest := parts["table"] + parts["sampler"]:
            of.append(f"windows and priorities {amount(rest)}")
        text = f"room for {capacity:,} rows, {amount(self.nbytes)}"
        text += f" ({', '.join(of)})" if len(of) > 1 else ""
        if self.packed:
            most = self.packed if self.room is None else min(self.packed, self.room)
            text += f" and compressed images, {amount(most)} at most"
        return text


def rows_before(stack: int) -> int:
    """Return the rows read before a window: the previous action, ``stack`` frames."""
    return max(1, stack - 1)


def num_leaves(capacity: int) -> int:
    """Return the smallest power of two >= capacity: the leaves of a sum tree."""
    return 1 << max(capacity - 1, 0).bit_length()


def sampler_blocks(name: str, slots: int) -> dict[str, ArraySpec]:
    """Return name -> ArraySpec of the named sampler's arrays over ``slots``."""

    def block(size: int, dtype: str) -> ArraySpec:
        return ArraySpec((size,), np.dtype(dtype))

    if name == "uniform":
        return {}
    if name == "rank":
        ranks = slots + slots // 16 + 1  # a sixteenth more for windows added since the last sort
        index = "int32" if ranks < 2**31 else "int64"
        position, priority = block(slots, index), block(slots, "float32")
        order, cdf = block(ranks, index), block(ranks, "float64")
        return {"order": order, "position": position, "priority": priority, "cdf": cdf}
    nodes = block(2 * num_leaves(slots), "float64")
    return {"raw": block(slots, "float32"), "sum": nodes}


def total(tree: Tree) -> int:
    """Return the bytes of a tree of ArraySpecs."""
    return sum(b.nbytes for b in tree_leaves(tree) if isinstance(b, ArraySpec))


def amount(nbytes: float) -> str:
    """Format bytes: 24.0 MB, 1.0 KB (powers of 1000)."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} PB"


def free_bytes(directory: Path | None) -> int:
    """Return the free bytes of memory (cgroup limits included), or of the disk of ``directory``."""
    if directory is not None:
        while not directory.exists():
            directory = directory.parent
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize
    free = [_meminfo(), *_cgroup()]
    return min((f for f in free if f is not None), default=2**63)


def _meminfo() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:  # not Linux
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _cgroup() -> Iterator[int]:
    """Yield the free bytes under the container's limit, for cgroup versions 2 and 1."""
    root = Path("/sys/fs/cgroup")
    pairs = (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    )
    for limit, used in pairs:
        try:
            yield max(0, int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):
            continue


Allocate = Callable[[ArraySpec], np.ndarray]


def in_memory(block: ArraySpec) -> np.ndarray:
    """Return zeros. Untouched pages take no memory.

    Large arrays ask for huge pages (Linux). Rows are read at random, and the CPU caches the
    addresses of too few small pages.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or block.nbytes < HUGE_PAGE:
        return np.zeros(block.shape, block.dtype)
    try:
        pages = mmap.mmap(-1, block.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(advice)
    except OSError:  # no huge pages, or no memory: np.zeros raises MemoryError
        return np.zeros(block.shape, block.dtype)
    return np.ndarray(block.shape, block.dtype, pages)


def on_disk(directory: Path) -> Allocate:
    """Return an allocator of zeros in unnamed files of ``directory``, mapped into memory.

    The system caches hot pages. The files vanish with the process, however it ends.

    Raises (when called): StorageError if the directory cannot be made or has no room.
    """
    key = f"buffer.mmap = {directory}"

    def allocate(block: ArraySpec) -> np.ndarray:
        if not block.nbytes:
            return np.zeros(block.shape, block.dtype)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as file:
                # Reserve the disk space now: a full disk later would kill the process.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, block.nbytes)
                return np.memmap(file, block.dtype, "w+", shape=block.shape)
        except (OSError, ValueError, OverflowError) as e:
            raise StorageError(
                f"{key}: {amount(block.nbytes)} cannot be allocated ({e}); allowed is a "
                "writable directory with enough space; choose another, or lower buffer.capacity"
            ) from e

    return allocate
