"""The common addition in one kernel: windows of one learned row, drawn in proportion to priority.

What ``Cells.expire``, ``Ring.write``, ``Cells.extend`` and ``Proportional.exchange`` do one after
the other costs more in calls than in work when a chunk is small. Where a row is one observation and
one action, as mostly, those are stored in the same call.
"""

from typing import Any

import numpy as np

from rlrun.buffer.samplers.proportional import Proportional
from rlrun.buffer.samplers.sumtree import exchange
from rlrun.buffer.storage.ring import Ring, note, put
from rlrun.buffer.windows.single_row import Cells, expire, release
from rlrun.jit import jit
from rlrun.types import Chunk


class FusedAppend:
    """Adds chunks to a host ring, its cells and a proportional sampler at once."""

    def __init__(self, ring: Ring, cells: Cells, sampler: Proportional) -> None:
        """``sampler``: without a tree of minima (weight_norm: batch)."""
        self.ring, self.cells, self.sampler = ring, cells, sampler
        tree = sampler.sum
        self.fixed: tuple[Any, ...] = (
            ring.flags, ring.reward, ring.rows, cells.nstep,
            tree.nodes, tree.leaves, tree.depth, sampler.raw,
        )  # fmt: skip

    def __call__(
        self, chunk: Chunk, given: list[np.ndarray], *, close: bool
    ) -> tuple[np.ndarray, int]:
        """Keys of the new windows, and how many of the rows are steps."""
        ring, cells, sampler = self.ring, self.cells, self.sampler
        head, tail = ring.head, cells.tail
        oldest = head + len(chunk.reward) + 1 - ring.rows
        if oldest > 0:
            cells.tail = oldest + cells.reach
        rows: tuple[Any, ...] = (
            cells.pending, head,
            chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward, close,
            tail, cells.tail, sampler.entry(), sampler.largest,
        )  # fmt: skip
        if ring.pair:
            keys, dead, steps = append_pair(*ring.entries(given), *self.fixed, *rows)
            ring.head = head + len(chunk.reward)
        else:
            keys, dead, steps = append(*self.fixed, *rows)
            ring.store(chunk, given)
        change = len(keys) - dead
        cells.live += change
        sampler.count += change
        return keys, steps


@jit
def append(
    flags: np.ndarray, rewards: np.ndarray, rows: int, nstep: int,
    nodes: np.ndarray, leaves: int, depth: int, raw: np.ndarray,
    pending: np.ndarray, head: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, reward: np.ndarray, close: bool,
    tail: int, until: int, mass: float, p: float,
) -> tuple[np.ndarray, int, int]:  # fmt: skip
    """Keys of the windows that became live, how many died, how many rows are steps."""
    steps, columns = reward.shape
    dead = expire(flags, rows, columns, tail, until)
    count = note(flags, rewards, head, rows, first, terminated, truncated, valid, reward, close)
    slots, keys = release(flags, rows, columns, pending, nstep, head, steps)
    exchange(nodes, leaves, depth, dead, slots, mass, False, raw, p, 0.0)
    return keys, len(dead), count


@jit
def append_pair(
    obs: np.ndarray, new_obs: np.ndarray, action: np.ndarray, new_action: np.ndarray,
    flags: np.ndarray, rewards: np.ndarray, rows: int, nstep: int,
    nodes: np.ndarray, leaves: int, depth: int, raw: np.ndarray,
    pending: np.ndarray, head: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, reward: np.ndarray, close: bool,
    tail: int, until: int, mass: float, p: float,
) -> tuple[np.ndarray, int, int]:  # fmt: skip
    """``append``, and the two fields of the rows stored."""
    columns = reward.shape[1]
    put(obs, new_obs, head % rows, rows, columns)
    put(action, new_action, head % rows, rows, columns)
    return append(
        flags, rewards, rows, nstep, nodes, leaves, depth, raw, pending,
        head, first, terminated, truncated, valid, reward, close, tail, until, mass, p,
    )  # fmt: skip
