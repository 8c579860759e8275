"""Scripted actions: tables and sine waves."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np


def outside(actions: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """bool [N]: True where ``actions`` [N, *A] (any number type) are not in ``space``.

    Discrete actions count from 0: environments add their ``start``. NaN is no action.
    """
    low: Any
    high: Any
    match space:
        case gym.spaces.Discrete():
            low, high, whole = 0, int(space.n) - 1, True
        case gym.spaces.MultiDiscrete():
            low, high, whole = 0, space.nvec - 1, True
        case gym.spaces.MultiBinary():
            low, high, whole = 0, 1, True
        case gym.spaces.Box():
            low, high, whole = space.low, space.high, space.dtype.kind != "f"
        case _:
            raise AssertionError(f"checked in rlrun.config: {space}")
    x = actions.astype(np.float64) if whole else actions.astype(space.dtype)
    wrong = ~((x >= low) & (x <= high)) | (whole & (x != np.floor(x)))
    some: np.ndarray = wrong.reshape(len(actions), -1).any(-1)
    return some


def action_table(choices: Sequence[float | tuple[float, ...]], space: gym.Space[Any]) -> np.ndarray:
    """The actions [K, *A] of ``choices``, in the dtype of ``space``.

    A number is the action, or each of its components; a list has one number per component.

    Raises: ValueError naming a choice that is not an action of ``space``.
    """
    shape = space.shape or ()
    size = int(np.prod(shape))
    rows = []
    for choice in choices:
        several = isinstance(choice, tuple)
        if several and len(choice) != size:  # type: ignore[arg-type]
            numbers = "a bare number" if size == 1 else f"one number or a list of {size}"
            raise ValueError(f"{list(choice)} is no action, {numbers} is")  # type: ignore[arg-type]
        row = np.broadcast_to(np.asarray(choice, np.float64), (size,)).reshape(shape)
        if outside(row[None], space).any():
            text = list(choice) if several else f"{choice:g}"  # type: ignore[arg-type]
            raise ValueError(f"{text} is no action of {space}")
        rows.append(row)
    return np.stack(rows).astype(space.dtype)


def sine(
    space: gym.Space[Any], steps: np.ndarray, *, period: float, amplitude: float, phase: float
) -> np.ndarray:
    """middle + amplitude * half * sin(2 pi (step / period + phase k)) for number k of an action.

    ``steps`` [E] -> [E, *A] in the dtype of the bounded float Box ``space``, whose middle and half
    width these are.
    """
    assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    index = np.arange(low.size).reshape(low.shape)
    turns = steps.reshape(-1, *[1] * low.ndim) / period + phase * index
    wave = (low + high) / 2 + amplitude * (high - low) / 2 * np.sin(2 * np.pi * turns)
    inside: np.ndarray = np.clip(wave.astype(space.dtype), space.low, space.high)
    return inside
