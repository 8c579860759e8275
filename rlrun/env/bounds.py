"""Bounds of observations: integers outside of their space are refused, floats are reported once.

Many environments of floats exceed the bounds they declare (a lander's speed, an angle), and nothing
computes with these. An integer outside of its space indexes something that does not exist.
"""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_logger = logging.getLogger(__name__)
_TOLERANCE = 1e-6  # relative: float32 rounding at the bounds
_EVERY = 64  # calls of which one compares floats: a warning may come late, a step must not

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
Path = tuple[Any, ...]


class Bounds:
    """Compares the leaves of observations, [*O] or of E environments [E, *O], with their bounds."""

    def __init__(
        self, space: gym.Space[Any], env_id: str, *, batched: bool, floats: bool = True
    ) -> None:
        """``batched``: of E environments; else Discrete is left to ``contract.obs_violation``.

        ``floats``: compare floats too.
        """
        self._env_id = env_id
        leaves = list(_bounded(space, ()))
        integers = [leaf for leaf in leaves if leaf[1].dtype.kind != "f"]
        self._integers = [leaf for leaf in integers if batched or leaf[1].ndim]
        self._floats = [leaf for leaf in leaves if floats and leaf[1].dtype.kind == "f"]
        self._calls = 0

    def violation(self, obs: Any) -> str | None:
        """Describe an integer outside of its bounds; warn once of a float."""
        if self._integers:
            for path, low, high in self._integers:
                if (message := _outside(_leaf(obs, path), path, low, high)) is not None:
                    return message
        if self._floats:
            self._calls += 1
            if self._calls % _EVERY == 1:
                self._warn(obs)
        return None

    def floats_violation(self, obs: Any) -> str | None:
        """Describe a float outside of its bounds."""
        each = (_outside(_leaf(obs, path), path, low, high) for path, low, high in self._floats)
        return next((message for message in each if message is not None), None)

    def _warn(self, obs: Any) -> None:
        if (message := self.floats_violation(obs)) is not None:
            _logger.warning("env.id = %s: %s; it is passed on", self._env_id, message)
            self._floats = []


def _leaf(obs: Any, path: Path) -> np.ndarray:
    for key in path:
        obs = obs[key]
    return np.asarray(obs)


def _outside(x: np.ndarray, path: Path, low: np.ndarray, high: np.ndarray) -> str | None:
    if low.ndim == 0 and not low and x.dtype.kind == "i":  # negative numbers are the largest
        if x.view(_UNSIGNED[x.dtype.itemsize]).max() <= high:
            return None
    elif not ((x < low) | (x > high)).any():
        return None
    bounds = np.broadcast_arrays(x, low, high)
    place = tuple(int(i) for i in np.argwhere((x < low) | (x > high))[0])
    value, least, most = (b[place].item() for b in bounds)
    name = "observation" + "".join(f"[{key!r}]" for key in path)
    where = f" at position {list(place)}" if place else ""
    return f"{name} is {value:g}{where}; allowed is [{least:g}, {most:g}]"


def _bounded(space: gym.Space[Any], path: Path) -> Any:
    """Yield (path, low, high) of the leaves with bounds narrower than their dtype."""
    match space:
        case spaces.Dict():
            for key, part in space.spaces.items():
                yield from _bounded(part, (*path, key))
        case spaces.Tuple():
            for i, part in enumerate(space.spaces):
                yield from _bounded(part, (*path, i))
        case spaces.Discrete():
            yield path, np.asarray(space.start), np.asarray(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            yield path, np.asarray(space.start), space.start + space.nvec - 1
        case spaces.MultiBinary():
            yield path, np.zeros((1,), np.int8), np.ones((1,), np.int8)
        case spaces.Box() if space.dtype.kind == "f":
            slack = _TOLERANCE * np.maximum(1, np.abs(np.nan_to_num(space.low, neginf=0)))
            top = _TOLERANCE * np.maximum(1, np.abs(np.nan_to_num(space.high, posinf=0)))
            if np.isfinite(space.low).any() or np.isfinite(space.high).any():
                dtype = space.dtype
                yield path, (space.low - slack).astype(dtype), (space.high + top).astype(dtype)
        case spaces.Box() if space.dtype.kind in "iu":
            limits = np.iinfo(space.dtype)
            if (space.low > limits.min).any() or (space.high < limits.max).any():
                yield path, space.low, space.high
