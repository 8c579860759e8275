"""Checks of a user's arguments to an agent: observations, rewards and flags of n environments."""

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.errors import ConfigError
from rlrun.tree import Tree

_LONGEST = 200  # characters of what was found


def read_obs(space: gym.Space[Any], obs: Any) -> tuple[Tree, int]:
    """Return observations as arrays [n, *O] in the dtypes of ``space``, and n.

    A single observation, of the shape of the space, becomes a batch of one; n is 0 then. Numbers
    are cast where that keeps their kind: float64 to float32, integers to floats, never floats to
    integers.

    Raises: ConfigError.
    """
    found: set[int] = set()
    tree = _read(space, obs, "obs", found)
    if len(found) > 1:
        counts = ", ".join("one" if n == 0 else str(n) for n in sorted(found))
        raise ConfigError(
            f"obs: its parts are of {counts} environments; one number of them for all parts is "
            "allowed; stack every part, or none"
        )
    return tree, found.pop()


def _read(space: gym.Space[Any], obs: Any, path: str, found: set[int]) -> Tree:
    match space:
        case spaces.Dict():
            names = sorted(space.spaces)
            if not isinstance(obs, dict) or set(obs) != set(names):
                got = sorted(map(str, obs)) if isinstance(obs, dict) else type(obs).__name__
                _refuse(path, f"{got}", f"a dict with the keys {names}")
            return {k: _read(space[k], obs[k], f"{path}[{k!r}]", found) for k in space.spaces}
        case spaces.Tuple():
            if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
                got = type(obs).__name__
                _refuse(path, f"a {got}", f"a tuple of {len(space.spaces)} parts")
            parts = zip(space.spaces, obs, strict=True)
            return tuple(_read(s, o, f"{path}[{i}]", found) for i, (s, o) in enumerate(parts))
    return _read_array(space, obs, path, found)


def _read_array(space: gym.Space[Any], obs: Any, path: str, found: set[int]) -> np.ndarray:
    shape, dtype = space.shape, space.dtype
    assert shape is not None
    assert dtype is not None
    batch = ", ".join(["n", *map(str, shape)])
    allowed = f"{dtype} {list(shape)}, or [{batch}] of n environments"
    try:
        x = np.asarray(obs)
    except ValueError:  # lists of different lengths
        _refuse(path, "no array", allowed)
    single = x.shape == shape
    if x.dtype.kind not in "biuf" or not (single or (x.ndim and x.shape[1:] == shape)):
        _refuse(path, f"{x.dtype} {list(x.shape)}", allowed)
    if isinstance(obs, int | list | tuple) and x.dtype.kind == "i" and dtype.kind == "u":
        fits = not x.size or (x.min() >= 0 and x.max() <= np.iinfo(dtype).max)  # Python's integers
    else:
        fits = bool(np.can_cast(x.dtype, dtype, "same_kind"))
    if not fits:
        _refuse(path, f"{x.dtype} {list(x.shape)}", allowed)
    if dtype.kind == "f" and not np.isfinite(x).all():
        _refuse(path, "not finite", "finite numbers")
    if (limits := _limits(space)) is not None and not (x >= limits[0]).all() & (
        x < limits[1]
    ).all():
        _refuse(path, f"{x.tolist()}", f"an integer within [{limits[0]}, {limits[1]})")
    found.add(0 if single else len(x))
    return x.astype(dtype, copy=False)[None] if single else x.astype(dtype, copy=False)


def _limits(space: gym.Space[Any]) -> tuple[Any, Any] | None:
    """The lowest value, and the first beyond the highest, of a space of choices."""
    match space:
        case spaces.Discrete():
            return space.start, space.start + space.n
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec
    return None


def read_rewards(reward: Any, n: int) -> np.ndarray:
    """Return rewards as float32 [n]; a number is allowed where n is 1. Raises: ConfigError."""
    x = np.asarray(reward)
    fits = x.dtype.kind in "biuf" and (x.shape == (n,) or (n == 1 and x.shape == ()))
    if not fits or not np.isfinite(x).all():
        _refuse("reward", f"{x.dtype} {list(x.shape)}", f"finite numbers [{n}]")
    return x.astype(np.float32).reshape(n)


def read_flags(first: Any, n: int) -> np.ndarray:
    """Return flags as bool [n]; one flag is allowed where n is 1. Raises: ConfigError."""
    x = np.asarray(first)
    if x.dtype.kind != "b" or not (x.shape == (n,) or (n == 1 and x.shape == ())):
        _refuse("first", f"{x.dtype} {list(x.shape)}", f"bool [{n}]")
    return x.reshape(n)


def _refuse(path: str, found: str, allowed: str) -> NoReturn:
    shown = found if len(found) <= _LONGEST else f"{found[:_LONGEST]} ..."
    fix = "pass what the environment returned"
    raise ConfigError(f"{path}: is {shown}; {allowed} is allowed; {fix}")
