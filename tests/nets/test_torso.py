"""Torsos: an empty batch has the feature sizes of any other."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.nets.torso import flat_size, flatten

BOX = gym.spaces.Box(-1, 1, (2, 3), np.float32)
SPACES = [BOX, gym.spaces.Box(0, 255, (), np.uint8), gym.spaces.Dict({"x": BOX})]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("lead", [(0,), (3, 0), (2, 4)])
def test_flatten(space, lead):
    inner = space["x"] if isinstance(space, gym.spaces.Dict) else space
    x = torch.zeros(*lead, *inner.shape)
    out = flatten(space, {"x": x} if inner is not space else x)
    assert out.shape == (*lead, flat_size(space))
