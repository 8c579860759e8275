"""Checks of a loaded state before anything reads it.

A checkpoint's hashes detect damage, not manipulation: whoever writes the numbers can write the
hashes. The kernels index rows and slots without bounds checks, so every number is checked here
once.
"""

from typing import Any

import numpy as np
from torch import Tensor

from rlrun.buffer.kernels import LARGEST
from rlrun.errors import CheckpointError
from rlrun.functional.recorded import RowSpaces
from rlrun.run.tensors import Rows
from rlrun.spaces import tree_leaves, tree_map

MOST_ROWS = 2**53  # rows of a column since the run began; sums of them fit into int64
MOST_CREDIT = 2**24  # rows that the next updates may learn


def require(ok: Any, part: str, wrong: str) -> None:
    """Raise CheckpointError unless ``ok``. ``part`` names the part of the saved state."""
    if not ok:
        raise CheckpointError(
            f"checkpoint, {part}: {wrong}; a checkpoint must be as it was saved; use another one, "
            "or start the run again"
        )


def integer(part: str, value: Any, low: int, high: int) -> int:
    """Return ``value``, an integer within [low, high]. Raises: CheckpointError."""
    good = _kind(value) in "iu" and low <= value <= high
    require(good, part, f"{_short(value)} is not an integer within [{low}, {high}]")
    return int(value)


def number(part: str, value: Any, low: float, high: float) -> float:
    """Return ``value``, a number within [low, high]. Raises: CheckpointError."""
    good = _kind(value) in "iuf" and low <= value <= high
    require(good, part, f"{_short(value)} is not a number within [{low:g}, {high:g}]")
    return float(value)


def reason(part: str, value: Any) -> str | None:
    """Return ``value``, a text or None. Raises: CheckpointError."""
    require(value is None or isinstance(value, str), part, f"is not a text: {_short(value)}")
    text: str | None = value
    return text


def fill(part: str, store: Any, x: Any, *, lead: int = 0) -> None:
    """Copy ``x`` to the start of ``store`` along axis ``lead`` and zero the rest.

    ``x``: an array or tensor with the dtype of ``store`` and, except along that axis, its shape.

    Raises: CheckpointError.
    """
    like(part, x, store, skip=lead)
    used = x.shape[lead]
    require(used <= store.shape[lead], part, f"{used} entries, there are {store.shape[lead]}")
    at = (slice(None),) * lead
    store[*at, :used] = x
    store[*at, used:] = 0


def fill_rows(part: str, store: Any, rows: Any, first: int, stop: int) -> None:
    """Write ``rows``, which must be rows first..stop-1, to the ring ``store`` [columns, rows, ...].

    Raises: CheckpointError.
    """
    require(isinstance(rows, Rows), part, f"holds no rows but {_short(rows)}")
    wrong = f"has rows {_short(rows.first)} to {_short(rows.stop)}, not {first} to {stop}"
    require((rows.first, rows.stop) == (first, stop), part, wrong)
    try:
        rows.fill(store)
    except ValueError as e:
        require(False, part, str(e))


def like(part: str, x: Any, store: Any, *, skip: int | None = None) -> None:
    """Raise CheckpointError unless ``x`` has the dtype and the shape of ``store``.

    ``skip``: an axis of any length.
    """
    require(isinstance(x, np.ndarray | Tensor), part, f"is not an array: {_short(x)}")
    shape, expected = list(x.shape), list(store.shape)
    if skip is not None and len(shape) == len(expected):
        expected[skip] = shape[skip]
    wrong = f"is {x.dtype} {shape}, this run has {store.dtype} {expected}"
    require(_dtype(x) == _dtype(store) and shape == expected, part, wrong)


def check_counts(counts: Any, names: Any) -> dict[str, int]:
    """Return the counts of a state by name. Raises: CheckpointError."""
    require(isinstance(counts, dict) and set(counts) == set(names), "counts", "other names")
    return {name: integer(f"counts.{name}", counts[name], 0, MOST_ROWS) for name in names}


def check_tree(part: str, loaded: Any, template: Any) -> None:
    """Raise CheckpointError unless ``loaded`` is a tree of arrays with ``template``'s structure."""
    kinds = [tree_map(lambda x: isinstance(x, np.ndarray), tree) for tree in (loaded, template)]
    require(kinds[0] == kinds[1], part, "has another structure")


def check_values(part: str, spaces: RowSpaces | None, obs: Any, action: Any, valid: Any) -> None:
    """Raise CheckpointError unless every value is in its space; ``spaces`` None: no check."""
    wrong = None if spaces is None else spaces.violation(obs, action, valid)
    require(wrong is None, part, str(wrong))


def check_table(table: Any) -> None:
    """Raise CheckpointError unless the rows of every live window are stored rows."""
    ring, window = table.ring, table.window
    head = integer("windows.head", table.head, 0, ring.head if table.of_rows else MOST_ROWS)
    integer("windows.tail", table.tail, max(0, head - table.capacity), head)
    if table.of_rows:
        require(head == ring.head, "windows.head", f"{head} of {ring.head} rows")
        return
    slots = np.flatnonzero(table.alive)
    column, learn, burnin, last, ended, _, origin = table.lines[slots].T
    first = learn - burnin
    for name, good in {
        "column": (column >= 0) & (column < ring.columns),
        "burnin": (burnin >= 0) & (burnin <= window.burnin),
        "learn": (learn >= 0) & (learn <= ring.head + window.rows) & (first >= 0),
        "last": (last - ended >= first) & (last <= learn - window.burnin + window.rows - 1),
        "ended": (ended == 0) | (ended == 1),
        "origin": (origin >= 0) & (origin <= first),
    }.items():
        require(good.all(), f"windows.{name}", "is not a row of its window")


def check_recent(recent: Any, states: Any, window: Any, ring: Any) -> None:
    """Raise CheckpointError unless ``recent`` are states before the last rows of all columns.

    ``states``: the stored ones, [slots, ...].
    """
    check_tree("windows.recent", recent, states)
    for x, store in zip(tree_leaves(recent), tree_leaves(states), strict=True):
        shape = (min(ring.head, window.rows), ring.columns, *store.shape[1:])
        good = x.shape == shape and x.dtype == store.dtype
        require(good, "windows.recent", f"is {x.dtype} {list(x.shape)}, not {list(shape)}")


def check_cutter(cutter: Any, origin: Any, row: Any) -> None:
    """Raise CheckpointError unless every ``origin`` is -1 or a row up to ``row``."""
    like("cutter.origin", origin, cutter.origin)
    integer("cutter.row", row, 0, MOST_ROWS)
    good = (origin >= -1) & (origin <= row)
    require(good.all(), "cutter.origin", f"is not within [-1, {row}]")


def check_blocks(blocks: Any, state: Any) -> None:
    """Raise CheckpointError unless ``state`` has the stored blocks of ``CompressedRows``."""
    like("ring.open", state["open"], blocks.open)
    integer("ring.rows", state["rows"], blocks.rows, blocks.rows)
    packed = state["blocks"]
    require(isinstance(packed, Rows), "ring.blocks", f"holds no rows but {_short(packed)}")
    stop = integer("ring.blocks.stop", packed.stop, 0, MOST_ROWS)
    first = max(0, stop + 1 - blocks.column_blocks)
    require(packed.first == first, "ring.blocks", f"begins at {_short(packed.first)}, not {first}")


def check_priorities(part: str, priority: Any) -> None:
    """Raise CheckpointError unless every priority is NaN (none), or finite and >= 0."""
    values = np.asarray(host(priority))
    good = np.isnan(values) | ((values >= 0) & (values < np.inf))
    require(good.all(), part, "is negative or infinite")


def largest(value: Any) -> float:
    """Return the largest priority of a state, a float32 >= 0. Raises: CheckpointError."""
    maximum = number("sampler.largest", value, 0, LARGEST)
    require(float(np.float32(maximum)) == maximum, "sampler.largest", f"{maximum} is not a float32")
    return maximum


def check_invariants(*problems: str | None) -> None:
    """Raise CheckpointError naming the first broken invariant."""
    for problem in problems:
        require(problem is None, "buffer", str(problem))


def host(x: Any) -> Any:
    return x.numpy(force=True) if isinstance(x, Tensor) else x


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _kind(value: Any) -> str:
    """Return numpy's letter for the type of a single number (``i``, ``u``, ``f``), else ``O``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "i"  # of any size
    single = isinstance(value, float | np.generic | np.ndarray) and np.ndim(value) == 0
    return np.asarray(value).dtype.kind if single else "O"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
