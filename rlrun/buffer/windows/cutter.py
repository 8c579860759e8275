"""Slicing of trajectories into windows, as their rows arrive in chunks.

A window has S = burnin + learned + nstep positions; position p holds row ``learn + p - burnin``
of its column where such a row exists in the trajectory, and is filler (left) or null (right)
where it does not. Row numbers are absolute: counted per column since the run began.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.types import Chunk, Window, tree_leaves, tree_map


@dataclass(frozen=True, slots=True)
class Windows:
    """N windows in the order they became complete; int64 [N] unless noted."""

    column: np.ndarray
    learn: np.ndarray  # row of the first learned position
    burnin: np.ndarray  # own rows before it; the stored state is the one before row learn - burnin
    last: np.ndarray  # last row shown at a position
    ended: np.ndarray  # bool: only the observation of ``last`` is used (end row, or end of a chunk)
    release: np.ndarray  # row that completed the window; never decreases
    origin: np.ndarray  # first row of the trajectory

    def __len__(self) -> int:
        return len(self.learn)


def _none() -> Windows:
    """No windows."""
    empty = np.empty(0, np.int64)
    return Windows(empty, empty, empty, empty, np.empty(0, bool), empty, empty)


class Cutter:
    """Cuts windows out of columns of rows that arrive chunk by chunk.

    Plain windows of a trajectory of T steps start at 0, S - m, 2 (S - m), ... while start + S <= T,
    m = ``overlap``. If steps remain, ``residual: last`` adds T - S, ``null_padding`` adds the next
    grid start, ``drop`` adds nothing; T < S is always one padded window. Lossless spans of L
    learned steps start L - m apart until one reaches the last step. Any partition of a trajectory
    into chunks gives the same windows, each as soon as its last row is known, so endless episodes
    are learned from.

    Source: DI-engine's documented ``get_train_sample``; rlrun/buffer/README.md, Windows.
    """

    def __init__(
        self, window: Window, *, columns: int, overlap: int, residual: str | None, plain: bool
    ) -> None:
        """``overlap``: of learned spans (lossless) or of whole windows (plain)."""
        self.window, self.plain, self.residual = window, plain, residual
        self.stride = (window.rows if plain else window.learned) - overlap
        self.origin = np.zeros(
            columns, np.int64
        )  # row of an open trajectory that is its first, or 0
        self.row = 0  # rows received

    def cut(self, first: np.ndarray, valid: np.ndarray, *, close: bool = False) -> Windows:
        """Return the windows completed by the next T rows; ``first``/``valid`` bool [T, B].

        ``close`` ends every open trajectory after the last row (its last observation is row T's).
        """
        rows = self.row + np.arange(len(first) + close, dtype=np.int64)[:, None]
        if close:
            first = np.concatenate([first, np.zeros_like(first[:1])])
            ended = np.concatenate([~valid, valid[-1:]])
            first[-1] = ~valid[-1]  # no trajectory is open after an end row: one of 0 steps
        else:
            ended = ~valid
        opened = np.where(first, rows, -1)
        opened[0] = np.where(first[0], rows[0], self.origin)
        opened = np.maximum.accumulate(opened, axis=0)
        windows = self._release(rows - opened, opened, ended)
        self.row += len(valid)
        self.origin = np.where(ended[-1], self.row, opened[-1]) if close else opened[-1]
        return windows

    def count(self, first: np.ndarray, valid: np.ndarray) -> int:
        """Return the number of windows the next row completes; ``first``/``valid`` bool [B]."""
        if valid.all() and not first.any():
            since = self.row - self._complete - self.origin  # rows since the first release
            if not ((since >= 0) & (since % self.stride == 0)).any():
                self.row += 1  # the common case: no episode begins or ends, no window is complete
                return 0
        return len(self.cut(first[None], valid[None]))

    @property
    def _complete(self) -> int:
        """Row of a trajectory, from 0, that completes its first window."""
        return self.window.rows - 1 - (0 if self.plain else self.window.burnin)

    def _release(self, index: np.ndarray, opened: np.ndarray, ended: np.ndarray) -> Windows:
        """``index`` [T, B]: number of each row in its trajectory, from 0."""
        complete = self._complete
        grid = (index >= complete) & ((index - complete) % self.stride == 0)
        if self.plain:
            grid &= ~ended  # a plain window is complete with its last step, not with an end row
        if not grid.any() and not ended.any():
            return _none()
        t, b = np.nonzero(grid)
        start = index[t, b] - complete
        tail_t, tail_b, tail_start = self._tails(index, ended)
        t, b = np.concatenate([t, tail_t]), np.concatenate([b, tail_b])
        start = np.concatenate([start, tail_start])
        order = np.lexsort((start, b, t))
        t, b, start = t[order], b[order], start[order]
        return self._windows(start, index[t, b], opened[t, b], b, ended[t, b])

    def _tails(
        self, index: np.ndarray, ended: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(t, b, start) of the windows completed by the end of their trajectory."""
        t, b = np.nonzero(ended & (index > 0))
        length = index[t, b]
        rows, stride = self.window.rows, self.stride
        if not self.plain:
            horizon = rows - self.window.burnin - 1
            out = np.maximum((length - horizon) // stride + 1, 0)  # released by the grid
            out = np.where(length >= horizon, out, 0)
            count = 1 + -(-np.maximum(length - self.window.learned, 0) // stride)
            left = count - out
            which = np.repeat(np.arange(len(t)), left)
            rank = np.arange(len(which)) - np.repeat(np.cumsum(left) - left, left)
            return t[which], b[which], (out[which] + rank) * stride
        last_grid = (length - rows) // stride * stride
        remain = (length >= rows) & (last_grid + rows < length)
        start = {"last": length - rows, "null_padding": last_grid + stride}.get(
            self.residual or "", length
        )
        keep = (length < rows) | (remain & (self.residual != "drop"))
        start = np.where(length < rows, 0, start)
        return t[keep], b[keep], start[keep]

    def _windows(
        self,
        start: np.ndarray,
        index: np.ndarray,
        opened: np.ndarray,
        column: np.ndarray,
        ended: np.ndarray,
    ) -> Windows:
        bs, rows = self.window.burnin, self.window.rows
        learn = start + bs if self.plain else start
        burnin = np.full_like(start, bs) if self.plain else np.minimum(bs, start)
        reach = learn - bs + rows - 1
        last = np.where(ended, np.minimum(reach, index), reach)
        return Windows(
            column=column.astype(np.int64),
            learn=opened + learn,
            burnin=burnin,
            last=opened + last,
            ended=ended & (last == index),
            release=opened + index,
            origin=opened,
        )

    def state_dict(self) -> dict[str, Any]:
        """The open trajectories and the number of rows received."""
        return {"origin": self.origin.copy(), "row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved.check_cutter(self, state["origin"], state["row"])
        self.origin, self.row = np.array(state["origin"]), int(state["row"])


class StateFilter:
    """Zeros the recurrent states of collected rows that no window starts from (they compress well).

    Which rows those are follows from their index in the trajectory. All states are kept where it is
    unknown: with ``residual: last``, and in a trajectory whose first row was not seen.
    """

    def __init__(
        self,
        window: Window,
        *,
        columns: int,
        overlap: int,
        residual: str | None,
        plain: bool,
        close: bool,
    ) -> None:
        """``close``: the end of a chunk ends its trajectories; the rest as in ``Cutter``."""
        self.window, self.plain, self.close = window, plain, close
        self.stride = (window.rows if plain else window.learned) - overlap
        self.keep_all = plain and residual == "last"
        self.index = np.full(
            columns, -1, np.int64
        )  # of the next row in its trajectory; -1: unknown

    def forget(self) -> None:
        """Begin anew: the next rows follow others, or go to a replay that lacks the ones before."""
        self.index[:] = -1

    def filter(self, chunk: Chunk) -> Chunk:
        """Return the chunk with unused states zeroed; its arrays are not changed."""
        if self.keep_all or not tree_leaves(chunk.states):
            return chunk
        keep = self.may_start(chunk.first[: len(chunk.reward)])

        def blank(x: np.ndarray) -> np.ndarray:
            filtered: np.ndarray = np.where(keep[..., *(None,) * (x.ndim - 2)], x, 0).astype(
                x.dtype
            )
            return filtered

        return replace(chunk, states=tree_map(blank, chunk.states))

    def may_start(self, first: np.ndarray) -> np.ndarray:
        """Return whether a window may start at each of the next rows: bool [T, B], as ``first``."""
        rows = np.arange(len(first), dtype=np.int64)[:, None]
        opened = np.maximum.accumulate(np.where(first, rows, -1), axis=0)
        known = (opened >= 0) | (self.index >= 0)
        index = np.where(opened >= 0, rows - opened, rows + self.index)
        self.index = np.where(known[-1], index[-1] + 1, -1)
        if self.close:
            self.index[:] = 0
        learn = (
            index + self.window.burnin
        )  # of a window that starts at the row, with its full burn-in
        if self.plain:
            starts = index % self.stride == 0
        else:
            starts = (learn % self.stride == 0) | (index == 0)
        keep: np.ndarray = starts | ~known
        return keep
