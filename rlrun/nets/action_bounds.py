"""Units of real actions: the environment's, and that of the networks."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.spaces import bounded
from rlrun.types import Segment


class ActionBounds(nn.Module):
    """Conversion between the actions of a Box and those of a network, flat [A].

    A bounded dimension is [-1, 1] for the network: (action - middle) / half width. One without a
    lower or an upper bound keeps its unit, and its 0 is the allowed number nearest to 0.
    """

    middle_tensor: Tensor
    scale_tensor: Tensor

    def __init__(self, space: gym.Space[np.ndarray], *, rescale: bool = True) -> None:
        """``rescale`` False: the network's unit is the environment's in every dimension."""
        super().__init__()
        assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
        self.space, self.dims = space, len(space.shape)
        self.size = math.prod(space.shape)
        low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
        self.middle, self.half_width = np.zeros(self.size), np.ones(self.size)
        if rescale:
            own = bounded(space)
            self.middle = np.clip(0.0, low, high)
            self.middle[own] = (high[own] + low[own]) / 2
            self.half_width[own] = (high[own] - low[own]) / 2
        # Where low = high the unit action is 0.
        self.scale = np.where(self.half_width > 0, self.half_width, 1.0)
        for name, x in (("middle_tensor", self.middle), ("scale_tensor", self.scale)):
            self.register_buffer(name, torch.from_numpy(x), persistent=False)

    def to_unit(self, action: Tensor) -> Tensor:
        """Return float32 [*, A], in [-1, 1] where bounded, of actions [*, *shape]."""
        flat = action.reshape(*action.shape[: action.ndim - self.dims], self.size)
        flat = flat if flat.dtype == torch.float64 else flat.float()
        middle, scale = self.middle_tensor.to(flat.dtype), self.scale_tensor.to(flat.dtype)
        return ((flat - middle) / scale).float()

    def to_unit_array(self, action: np.ndarray) -> np.ndarray:
        """Return ``to_unit`` of actions [E, *shape] in numpy, the same bits."""
        flat = action.reshape(len(action), self.size)
        flat = flat if flat.dtype == np.float64 else flat.astype(np.float32)
        unit: np.ndarray = (flat - self.middle.astype(flat.dtype)) / self.scale.astype(flat.dtype)
        single: np.ndarray = unit.astype(np.float32, copy=False)
        return single

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        """Return actions [E, *shape] of unit actions [E, A], in the Box's dtype and bounds."""
        action = self.middle + self.half_width * unit
        action = action if self.space.dtype.kind == "f" else np.rint(action)
        action = action.astype(self.space.dtype).reshape(len(unit), *self.space.shape)
        # Rounding may have left the bounds, and samples of a Gaussian do.
        clipped: np.ndarray = np.clip(action, self.space.low, self.space.high)
        return clipped

    def from_unit_tensor(self, unit: Tensor) -> Tensor:
        """Return ``from_unit`` of tensors [E, A] on the CPU."""
        action = torch.from_numpy(self.middle) + torch.from_numpy(self.half_width) * unit.double()
        action = action if self.space.dtype.kind == "f" else action.round()
        action = action.reshape(-1, *self.space.shape)
        low, high = torch.tensor(self.space.low), torch.tensor(self.space.high)
        action = action.to(low.dtype)
        return action.clamp(low, high) if bounded(self.space).any() else action


def unit_actions(segment: Segment, bounds: ActionBounds) -> Segment:
    """Return the segment with its actions, and the one before its first row, as [*, A] in units."""
    extras = {**segment.extras, "prev_action": bounds.to_unit(segment.extras["prev_action"])}
    return replace(segment, action=bounds.to_unit(segment.action), extras=extras)
