"""The common addition in one kernel: windows of one learned row, drawn in proportion to priority.

What ``Cells.expire``, ``Ring.write``, ``Cells.extend`` and ``Proportional.exchange`` do one after
the other costs more in calls than in work when a chunk is small.
"""

import numpy as np

from rlrun.buffer.cells import Cells, expire, release
from rlrun.buffer.ring import Ring, note
from rlrun.buffer.sampler import Proportional
from rlrun.buffer.sumtree import exchange
from rlrun.jit import jit
from rlrun.types import Chunk


class Append:
    """Adds chunks to a host ring, its cells and a proportional sampler at once."""

    def __init__(self, ring: Ring, cells: Cells, sampler: Proportional) -> None:
        """``sampler``: without a tree of minima (weight_norm: batch)."""
        self.ring, self.cells, self.sampler = ring, cells, sampler

    def __call__(
        self, chunk: Chunk, given: list[np.ndarray], *, close: bool
    ) -> tuple[np.ndarray, int]:
        """Keys of the new windows, and how many of the rows are steps."""
        ring, cells, sampler = self.ring, self.cells, self.sampler
        tree, tail = sampler.sum, cells.tail
        oldest = ring.head + len(chunk.reward) + 1 - ring.rows
        if oldest > 0:
            cells.tail = oldest + cells.reach
        keys, dead, steps = append(
            ring.flags, ring.reward, ring.head, ring.rows,
            chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward, close,
            tail, cells.tail, cells.pending, cells.nstep,
            tree.nodes, tree.leaves, tree.depth, sampler.raw, sampler.entry(), sampler.largest,
        )  # fmt: skip
        ring.store(chunk, given)
        change = len(keys) - dead
        cells.live += change
        sampler.count += change
        return keys, steps


@jit
def append(
    flags: np.ndarray, rewards: np.ndarray, head: int, rows: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray,
    reward: np.ndarray, close: bool,
    tail: int, until: int, pending: np.ndarray, nstep: int,
    nodes: np.ndarray, leaves: int, depth: int, raw: np.ndarray, mass: float, p: float,
) -> tuple[np.ndarray, int, int]:  # fmt: skip
    """Keys of the windows that became live, how many died, how many rows are steps."""
    steps, columns = reward.shape
    dead = expire(flags, rows, columns, tail, until)
    count = note(flags, rewards, head, rows, first, terminated, truncated, valid, reward, close)
    slots, keys = release(flags, rows, columns, pending, nstep, head, steps)
    exchange(nodes, leaves, depth, dead, slots, mass, False, raw, p, 0.0)
    return keys, len(dead), count
