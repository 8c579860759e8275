"""Between an environment's Box of actions and the flat [-1, 1]^A that policies think in."""

import math

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor


class ActionBounds:
    """Low and high of every dimension of a bounded Box; actions are flat [*, A] on this side."""

    def __init__(self, space: gym.Space[np.ndarray], device: torch.device) -> None:
        """``space``: a Box of floats with finite bounds (checked in ``rlrun.config``)."""
        assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
        self.space, self.dims = space, len(space.shape)
        self.size = math.prod(space.shape)
        low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
        self.middle, self.half = (high + low) / 2, (high - low) / 2
        usable = np.where(self.half > 0, self.half, 1.0)  # a dimension without room stays 0
        self._middle_array, self._usable_array = self.middle.astype("f4"), usable.astype("f4")
        self._middle = torch.tensor(self.middle, dtype=torch.float32, device=device)
        self._usable = torch.tensor(usable, dtype=torch.float32, device=device)

    def unit(self, action: Tensor) -> Tensor:
        """float32 [*, A] in [-1, 1] of the environment's own actions [*, *shape]."""
        flat = action.reshape(*action.shape[: action.ndim - self.dims], self.size)
        return (flat.float() - self._middle) / self._usable

    def unit_array(self, action: np.ndarray) -> np.ndarray:
        """``unit`` in numpy, the same bits."""
        flat = action.reshape(len(action), self.size).astype(np.float32)
        unit: np.ndarray = (flat - self._middle_array) / self._usable_array
        return unit

    def own(self, unit: np.ndarray) -> np.ndarray:
        """The environment's actions [E, *shape], in its dtype and within its bounds; [E, A]."""
        action = (self.middle + self.half * unit).astype(self.space.dtype)
        action = action.reshape(len(unit), *self.space.shape)
        # Rounding may have stepped outside.
        within: np.ndarray = np.clip(action, self.space.low, self.space.high)
        return within
