"""Checks of recorded rows against the spaces of their environment. Does not import torch.

Compiled code and one-hot encodings index by actions and discrete observations without bounds
checks. So every row that this process did not collect is checked once: rows of datasets, of
checkpoints, and from other processes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.functional.masks import MASK, allowed_actions, has_mask
from rlrun.spaces import JointSpace, Tree, leaf_name, leaf_of, leaf_spaces, value_range

ROW_AXES = ("row", "column")

_Leaf = tuple[str, np.ndarray, Any, Any]  # name, values [*, *, *O], lowest, highest


@dataclass(frozen=True, slots=True)
class RowSpaces:
    """The spaces of one row. ``masked``: its action must be one that its ``action_mask`` allows."""

    obs: gym.Space[Any]
    action: gym.Space[Any]
    masked: bool = False

    def violation(
        self, obs: Tree, action: Any, valid: Any, *, axes: tuple[str, str] = ROW_AXES
    ) -> str | None:
        """Describe the first value outside its space; None: there is none.

        ``obs`` [N+1 or N, M, *O] (None: not checked), ``action`` [N, M, *A], ``valid`` [N, M]:
        arrays or tensors with their dtypes and shapes. ``axes``: names of the two leading axes.
        Discrete actions count from 0, whatever the ``start`` of their space.
        """
        start = np.asarray(getattr(self.action, "start", 0))
        shifted = "action (counted from 0)" if start.any() else "action"
        leaves = list(_leaf(shifted, self.action, np.asarray(action), start))
        for path, space in () if obs is None else leaf_spaces(self.obs):
            leaves += _leaf(leaf_name(path), space, leaf_of(obs, path))
        for name, x, low, high in leaves:
            if (fault := _outside(name, x, low, high, axes)) is not None:
                return fault
        if not self.masked or obs is None:
            return None
        return _forbidden(self.obs, obs, np.asarray(action), np.asarray(valid), axes)


def from_zero(space: gym.Space[Any], action: Any) -> np.ndarray:
    """Return actions [*, *A] in the numbering of ``space`` as counted from 0.

    Discrete and MultiDiscrete spaces number from their ``start``; their actions become int64.
    Others are returned unchanged.
    """
    actions: np.ndarray = np.asarray(action)
    start = np.asarray(getattr(space, "start", 0))
    if not start.any() or actions.dtype.kind not in "iu":
        return actions
    shifted: np.ndarray = actions.astype(np.int64) - start
    return shifted


def _leaf(name: str, space: gym.Space[Any], x: Any, start: Any = 0) -> Iterator[_Leaf]:
    """Yield an array with the range of its values, counted from ``start``."""
    if not isinstance(space, spaces.Box):
        low, high = value_range(space)
        yield name, np.asarray(x), low - start, high - start
    elif getattr(x, "dtype", None) is not None:  # compressed images have none
        yield from _finite(name, np.asarray(x))


def _finite(name: str, x: np.ndarray) -> Iterator[_Leaf]:
    if x.dtype.kind == "f":
        most = np.finfo(x.dtype).max
        yield name, x, -most, most


def _outside(name: str, x: np.ndarray, low: Any, high: Any, axes: tuple[str, str]) -> str | None:
    if not x.size:
        return None
    parts = (0, 1) if np.ndim(low) else None  # smallest and largest of each part: no temporaries
    with np.errstate(invalid="ignore"):
        if np.all((x.min(parts) >= low) & (x.max(parts) <= high)):  # False for NaN
            return None
        wrong: np.ndarray = ~((x >= low) & (x <= high))
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    value, least, most = (b[place].item() for b in np.broadcast_arrays(x, low, high))
    at = f" at position {list(place[2:])}" if len(place) > 2 else ""
    allowed = "a finite number" if x.dtype.kind == "f" else f"[{least}, {most}]"
    return f"{_place(place, axes)}: its {name} is {value}{at}; allowed is {allowed}"


def _place(place: tuple[int, ...], axes: tuple[str, str]) -> str:
    by_axis = dict(zip(axes, place, strict=False))
    return f"row {by_axis['row']} of column {by_axis['column']}"


def _forbidden(
    space: gym.Space[Any], obs: Any, action: np.ndarray, valid: np.ndarray, axes: tuple[str, str]
) -> str | None:
    """Describe a valid row whose action its mask forbids."""
    joint = isinstance(space, JointSpace)
    if isinstance(space, JointSpace):
        space, obs = space.agent, obs["agents"]
    shape = action.shape[:2]
    if not has_mask(space) or action.ndim != 2 + joint or obs[MASK].ndim != 3 + joint:
        return None
    mask = np.asarray(obs[MASK])[: shape[0], : shape[1]]
    allowed = allowed_actions({MASK: mask})
    chosen = np.take_along_axis(allowed, action[..., None].astype(np.int64), -1)[..., 0]
    wrong = ~chosen & valid.reshape(*shape, *[1] * joint).astype(bool)
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    value = int(action[place])
    options = np.flatnonzero(allowed[place]).tolist()
    text = ", ".join(map(str, options[:9])) + (", ..." if len(options) > 9 else "")
    return f"{_place(place, axes)}: its action is {value}; its {MASK} allows {text}"
