"""Conversion between an environment's Box of actions and the flat [-1, 1]^A of policies."""

import math

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor


class ActionBounds:
    """Low and high of every dimension of a bounded Box; unit actions are flat, [*, A]."""

    def __init__(self, space: gym.Space[np.ndarray], device: torch.device) -> None:
        """``space``: a Box with finite bounds (checked in ``rlrun.config``)."""
        assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
        self.space, self.dims = space, len(space.shape)
        self.size = math.prod(space.shape)
        low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
        self.middle, self.half = (high + low) / 2, (high - low) / 2
        scale = np.where(self.half > 0, self.half, 1.0)  # where low = high the unit action is 0
        self._middle_array, self._scale_array = self.middle.astype("f4"), scale.astype("f4")
        self._middle = torch.tensor(self.middle, dtype=torch.float32, device=device)
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device)

    def to_unit(self, action: Tensor) -> Tensor:
        """Return float32 [*, A] in [-1, 1] of the environment's actions [*, *shape]."""
        flat = action.reshape(*action.shape[: action.ndim - self.dims], self.size)
        return (flat.float() - self._middle) / self._scale

    def to_unit_array(self, action: np.ndarray) -> np.ndarray:
        """Return ``to_unit`` of actions [E, *shape] in numpy, the same bits."""
        flat = action.reshape(len(action), self.size).astype(np.float32)
        unit: np.ndarray = (flat - self._middle_array) / self._scale_array
        return unit

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        """Return actions [E, *shape] of unit actions [E, A], in the Box's dtype and bounds."""
        action = self.middle + self.half * unit
        action = action if self.space.dtype.kind == "f" else np.rint(action)
        action = action.astype(self.space.dtype).reshape(len(unit), *self.space.shape)
        # Rounding may have left the bounds.
        clipped: np.ndarray = np.clip(action, self.space.low, self.space.high)
        return clipped
