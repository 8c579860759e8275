"""Appending a chunk in one kernel: windows of one learned row, proportional sampling.

For small chunks the calls of ``SingleRowWindows.expire``, ``Ring.write``,
``SingleRowWindows.extend`` and ``Proportional.replace_slots`` cost more than their work. Where a
row is one observation and one action, the same call stores those too.
"""

from typing import Any

import numpy as np

from rlrun.buffer.samplers.proportional import Proportional
from rlrun.buffer.samplers.sumtree import replace_leaves
from rlrun.buffer.storage.ring import Ring, write_flags, write_rows
from rlrun.buffer.windows.single_row import SingleRowWindows, expire, release
from rlrun.jit import jit
from rlrun.types import Chunk


class FusedAppend:
    """Adds chunks to a host ring, its windows and a proportional sampler at once."""

    def __init__(self, ring: Ring, windows: SingleRowWindows, sampler: Proportional) -> None:
        """``sampler``: without a tree of minima (``weight_norm: batch``)."""
        self.ring, self.windows, self.sampler = ring, windows, sampler
        tree = sampler.sum_tree
        self.fixed: tuple[Any, ...] = (
            ring.flags, ring.reward, ring.rows, windows.nstep,
            tree.nodes, tree.leaves, tree.depth, sampler.raw,
        )  # fmt: skip

    def __call__(
        self, chunk: Chunk, given: list[np.ndarray], *, close: bool
    ) -> tuple[np.ndarray, int]:
        """Returns the keys of the new windows and the number of valid rows."""
        ring, windows, sampler = self.ring, self.windows, self.sampler
        head, tail = ring.head, windows.tail
        oldest = head + len(chunk.reward) + 1 - ring.rows
        if oldest > 0:
            windows.tail = oldest + windows.rows_before
        rows: tuple[Any, ...] = (
            windows.pending, head,
            chunk.first, chunk.terminated, chunk.truncated, chunk.valid, chunk.reward, close,
            tail, windows.tail, sampler.initial_mass(), sampler.largest,
        )  # fmt: skip
        if ring.obs_action_only:
            keys, dead, steps = fused_append_pair(*ring.entries(given), *self.fixed, *rows)
            ring.head = head + len(chunk.reward)
        else:
            keys, dead, steps = fused_append(*self.fixed, *rows)
            ring.store(chunk, given)
        change = len(keys) - dead
        windows.live += change
        sampler.count += change
        return keys, steps


@jit
def fused_append(
    flags: np.ndarray, rewards: np.ndarray, rows: int, nstep: int,
    nodes: np.ndarray, leaves: int, depth: int, raw: np.ndarray,
    pending: np.ndarray, head: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, reward: np.ndarray, close: bool,
    tail: int, until: int, mass: float, p: float,
) -> tuple[np.ndarray, int, int]:  # fmt: skip
    """Returns the keys of new windows, the number of dropped windows and of valid rows."""
    steps, columns = reward.shape
    dead = expire(flags, rows, columns, tail, until)
    count = write_flags(
        flags, rewards, head, rows, first, terminated, truncated, valid, reward, close
    )
    slots, keys = release(flags, rows, columns, pending, nstep, head, steps)
    replace_leaves(nodes, leaves, depth, dead, slots, mass, False, raw, p, 0.0)
    return keys, len(dead), count


@jit
def fused_append_pair(
    obs: np.ndarray, new_obs: np.ndarray, action: np.ndarray, new_action: np.ndarray,
    flags: np.ndarray, rewards: np.ndarray, rows: int, nstep: int,
    nodes: np.ndarray, leaves: int, depth: int, raw: np.ndarray,
    pending: np.ndarray, head: int,
    first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, reward: np.ndarray, close: bool,
    tail: int, until: int, mass: float, p: float,
) -> tuple[np.ndarray, int, int]:  # fmt: skip
    """``fused_append`` that also stores observation and action."""
    columns = reward.shape[1]
    write_rows(obs, new_obs, head % rows, rows, columns)
    write_rows(action, new_action, head % rows, rows, columns)
    return fused_append(
        flags, rewards, rows, nstep, nodes, leaves, depth, raw, pending,
        head, first, terminated, truncated, valid, reward, close, tail, until, mass, p,
    )  # fmt: skip
