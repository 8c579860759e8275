"""The cut of episodes into windows, whose positions ``replay`` describes."""

from typing import Any

import numpy as np

from rlrun.buffer import kernels, saved
from rlrun.types import Window

_RESIDUALS = {"last": 1, "null_padding": 2, "drop": 3}


class Cutter:
    """Cuts columns of rows, which arrive chunk by chunk, into windows.

    Plain windows of a trajectory of T steps start at 0, d, 2 d, ... while start + S <= T, with
    d = ``stride``. If steps remain, ``residual: last`` adds a window at T - S,
    ``null_padding`` one at the next grid start, ``drop`` none. T < S always gives one padded
    window. Lossless spans of learned steps start d apart until one reaches the last step. The
    windows do not depend on how a trajectory is split into chunks. Each is cut as soon as its last
    row is known, so endless episodes are learned from.

    Source: DI-engine's documented ``get_train_sample``; rlrun/buffer/README.md, Windows.
    """

    def __init__(
        self, window: Window, *, columns: int, stride: int, residual: str | None, plain: bool
    ) -> None:
        """``stride``: rows from the start of one window to that of the next."""
        self.window, self.stride, self.plain, self.residual = window, stride, plain, residual
        self.shape = (*window, self.stride, _RESIDUALS[residual or "drop"] if plain else 0)
        self.origin = np.zeros(columns, np.int64)  # first row of each column's trajectory
        self.row = 0  # rows received

    def cut(self, first: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Return the windows that the next T rows complete; ``first``/``valid`` bool [T, B].

        int64 [N, 7]: the numbers ``TABLE`` of every window, in order of completion.
        """
        lines: np.ndarray = kernels.cut(first, valid, self.origin, self.row, self.shape)
        self.row += len(valid)
        return lines

    def count(self, first: np.ndarray, valid: np.ndarray) -> int:
        """Return the number of windows that a row, ``first``/``valid`` bool [B], completes."""
        return len(self.cut(first[None], valid[None]))

    def state_dict(self) -> dict[str, Any]:
        """Return the open trajectories and the number of rows received."""
        return {"origin": self.origin.copy(), "row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved.check_cutter(self, state["origin"], state["row"])
        self.origin, self.row = np.array(state["origin"]), int(state["row"])
