"""Names, shapes and dtypes of a replay's arrays, and their size, known before allocation.

Does not import torch, so that config validation can compute sizes.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import create_empty_array

from rlrun.errors import ConfigError, ResourceError, StorageError
from rlrun.functional.recorded import RowSpaces
from rlrun.schema import BufferConfig, Config
from rlrun.schema.policy import Window
from rlrun.spaces import JointSpace, Tree, tree_leaves, tree_map


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
NUMBER = np.dtype(np.int64)
REWARD = _FLOAT = np.dtype(np.float32)
_FLAGS = 8  # bytes of a row's reward, first, terminated, truncated and valid
SHARE = 0.8  # of free memory, if buffer.max_bytes is null
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


def row_of(
    config: Config, obs: gym.Space[Any], action: gym.Space[Any], state: Tree | None = None
) -> Row:
    """Return one row of an environment with these spaces under this config.

    ``state``: an initial recurrent state [1, ...] of a memory ``mypkg.mod:Cell``; None: a built-in
    memory.
    """
    extras = dict.fromkeys(config.collector.keep_info, ArraySpec((), _FLOAT))
    if config.policy.records_log_prob:
        extras["log_prob"] = ArraySpec((), _FLOAT)
    number = ArraySpec(action.shape or (), np.dtype(action.dtype or np.int64))
    if state is None:
        specs: Tree = tuple(ArraySpec((w,), _FLOAT) for w in config.memory.state_widths())
    else:
        specs = tree_map(lambda s: ArraySpec(tuple(s.shape[1:]), _FLOAT), state)
    if isinstance(obs, JointSpace):  # every agent has its own state
        agents = obs.num_agents
        specs = tree_map(lambda spec: replace(spec, shape=(agents, *spec.shape)), specs)
    spaces = RowSpaces(obs, action, config.policy.masks)
    example = create_empty_array(obs, 1)
    blocks = tree_map(lambda x: ArraySpec(x.shape[1:], x.dtype), example)
    return Row(blocks, number, extras, specs, spaces)


def make_layout(
    config: Config, row: Row, window: Window, columns: int, *, parts: int = 1
) -> Layout:
    """Return the layout of ``buffer.capacity`` rows over ``columns``, and their windows.

    Windows of one learned row without a recurrent state need no table. Otherwise
    buffer.window_capacity is its size, by default twice the number of full windows. Short episodes
    make more windows, and the oldest are dropped early when the table is full. It is rounded up to
    a multiple of ``parts``.
    """
    c = config.buffer
    rows = c.column_rows(columns) + 1  # a slot for the newest observation
    windows = c.window_capacity
    if windows is None and not _single_rows(config, row, window):
        whole = -(-c.capacity // config.collector.stride(window))
        windows = min(2 * whole + 2 * columns, rows * columns)
    windows = windows and -(-windows // parts) * parts
    slots = rows * columns if windows is None else windows
    return Layout(
        row, columns, rows, windows, sampler_blocks(c.name, slots), goals=c.relabel is not None,
        compress=c.compress, device=c.device,
    )  # fmt: skip


def _single_rows(config: Config, row: Row, window: Window) -> bool:
    """Return whether every stored row has a window of its own, so that no table is needed."""
    single = window.learned == 1 and not window.burnin and not tree_leaves(row.state)
    return single and config.collector.tiling == "lossless"


def check_size(
    config: Config, layout: Layout, window: Window, *, free: int | None = None
) -> Layout:
    """Return the layout if it takes at most buffer.max_bytes, or 80 % of the free memory.

    ``free``: free bytes on buffer.device, if that is not the host. Compressed images are not in the
    sum, because their size is not known; the layout's ``room`` is the rest of the limit.

    Raises: ResourceError naming the largest capacity that fits.
    """
    c = config.buffer
    if c.mmap is not None:
        return _check_files(config, layout)
    if c.device != "cpu" and c.max_bytes is None and free is None:
        return layout  # checked again when the device is open
    (limit, why), size = _limit(c), attrgetter("nbytes")
    if c.max_bytes is None and free is not None:
        limit, why = int(SHARE * free), f"80 % of the free memory of {c.device}"
        size = attrgetter("on_device")
    if size(layout) <= limit:
        left = limit - layout.nbytes  # for compressed images
        return layout if layout.packed <= left else replace(layout, room=left)
    fits = _largest(config, layout, window, limit, size)
    fixes = [f"set buffer.capacity={fits}"] if fits else ["no capacity fits: free memory"]
    fixes += ["raise buffer.max_bytes"] if c.max_bytes is not None else []
    fixes += ["lower buffer.window_capacity"] if c.window_capacity is not None else []
    movable = c.device == "cpu" and not c.compress
    fixes += ["set buffer.mmap=DIR (rows on disk)"] if movable else []
    raise ResourceError(
        f"buffer.capacity = {c.capacity}: {layout.describe()}; allowed are {amount(limit)} "
        f"({why}); {', or '.join(fixes)}"
    )


def _limit(config: BufferConfig) -> tuple[int, str]:
    """Return (bytes that arrays in memory may take, reason)."""
    if config.max_bytes is not None:
        return config.max_bytes, "buffer.max_bytes"
    return int(SHARE * free_bytes(None)), "80 % of the free memory"


def demo_config(config: Config, row: Row, window: Window, lengths: list[int]) -> Config:
    """Return the config of a replay that holds trajectories of ``lengths`` steps in one column."""
    c, single = config.collector, _single_rows(config, row, window)
    capacity = sum(lengths) + len(lengths) + window.rows + config.env.frame_stack + 1
    windows = sum(-(-steps // c.stride(window)) + 1 for steps in lengths)
    buffer = replace(
        config.buffer, capacity=capacity, window_capacity=None if single else windows, mmap=None,
        load=None, demos=None, max_bytes=None, compress=False,
    )  # fmt: skip
    seed = (config.seed + 2**31) % 2**32  # a random stream of its own
    return replace(config, seed=seed, buffer=buffer, collector=replace(c, num_envs=1))


def check_demos(config: Config, layout: Layout, window: Window, lengths: list[int]) -> None:
    """Raise ResourceError if demonstrations and the rows of ``layout`` do not fit together."""
    c, row = config.buffer, layout.row
    demos = make_layout(demo_config(config, row, window, lengths), row, window, 1)
    need = demos.nbytes + layout.nbytes - (layout.movable if c.mmap is not None else 0)
    limit, why = _limit(c)
    if need > limit:
        fix = "lower buffer.capacity, or choose a smaller dataset"
        raise ResourceError(
            f"buffer.demos = {c.demos}: {demos.describe()}; {amount(need)} with the run's rows; "
            f"allowed are {amount(limit)} ({why}); {fix}"
        )


def check_rollout(config: Config, row: Row) -> str:
    """Return a line on the size of an on-policy rollout.

    Raises: ResourceError if it does not fit, see ``check_size``.
    """
    c = config.buffer
    each = sum(b.nbytes for b in tree_leaves((row.obs, row.action, row.extras, row.state)))
    need = c.capacity * (each + _FLAGS)
    limit, why = _limit(c)
    envs = config.collector.num_envs
    text = f"rollout: room for {c.capacity} rows of {envs} environments, {amount(need)}"
    if need > limit:
        raise ResourceError(
            f"buffer.capacity = {c.capacity}: {text}; allowed are {amount(limit)} ({why}); lower "
            "buffer.capacity and collector.n_sample"
        )
    return text


def _check_files(config: Config, layout: Layout) -> Layout:
    """Return the layout if its files fit the disk and its priorities fit the memory."""
    c = config.buffer
    assert c.mmap is not None
    directory = Path(c.mmap)
    existing = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        wrong = "is not writable" if existing.is_dir() else "is not a directory"
        fix = "choose another directory, or set buffer.mmap=null"
        raise ConfigError(
            f"buffer.mmap = {c.mmap}: {existing} {wrong}; allowed is a writable directory; {fix}"
        )
    memory = layout.nbytes - layout.movable
    for need, free, where in (
        (layout.movable, free_bytes(directory), "disk"),
        (memory, free_bytes(None), "memory (priorities stay there)"),
    ):
        limit, why = int(SHARE * free), f"80 % of the free {where}"
        if c.max_bytes is not None and c.max_bytes < limit:
            limit, why = c.max_bytes, "buffer.max_bytes"
        if need > limit:
            raise ResourceError(
                f"buffer.capacity = {c.capacity}: {layout.describe()}; {amount(need)} of it must "
                f"fit into {amount(limit)} ({why}); lower buffer.capacity"
            )
    return layout


def _largest(
    config: Config, layout: Layout, window: Window, limit: int, size: Callable[[Layout], int]
) -> int | None:
    """Return the largest capacity of two significant digits that fits ``limit`` bytes, or None."""

    def fits(capacity: int) -> bool:
        changed = replace(config, buffer=replace(config.buffer, capacity=capacity))
        return size(make_layout(changed, layout.row, window, layout.columns)) <= limit

    length = window.rows + rows_before(config.env.frame_stack)
    batch = config.learner.batch_size * config.collector.stride(window)
    least = max(length * layout.columns, config.learner.learning_starts, batch)
    if not fits(least):
        return None
    low, high = least, config.buffer.capacity  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    short = low - low % 10 ** max(len(str(low)) - 2, 0)
    return short if short >= least and fits(short) else low
