"""Spaces of stacked frames, and what of them convolutions take."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.config import check
from rlrun.env import probe
from rlrun.env.framestack import stack_space
from rlrun.errors import ConfigError
from rlrun.nets.torso import make_torso
from rlrun.schema import TorsoConfig
from tests.compose import config
from tests.env import faulty  # noqa: F401  registers the test/ ids

IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
LOW, HIGH = np.array([-2, -2], np.float32), np.array([0, 3], np.float32)
PAIR = spaces.Tuple((spaces.Box(-1, 1, (), np.float64), spaces.Box(LOW, HIGH)))
NESTED = spaces.Dict({"image": IMAGE, "pair": PAIR})


# -- spaces ----------------------------------------------------------------------------------------


def test_trees_of_boxes_are_stacked_leaf_by_leaf():
    space = stack_space(NESTED, 4)
    assert list(space.spaces) == list(NESTED.spaces)
    assert space["image"] == spaces.Box(0, 255, (4, 2, 3), np.uint8)
    assert space["pair"][0] == spaces.Box(-1, 1, (4,), np.float64)
    assert space["pair"][1] == spaces.Box(np.stack([LOW] * 4), np.stack([HIGH] * 4))
    assert stack_space(NESTED, 1) is NESTED
    for leaf in (spaces.Discrete(3), spaces.MultiBinary(4), spaces.MultiDiscrete([2])):
        parts = spaces.Dict({"a": spaces.Tuple([IMAGE, leaf]), "b": IMAGE})
        with pytest.raises(ConfigError, match=r"env\.frame_stack = 2: observation\['a'\]\[1\] sp"):
            stack_space(parts, 2)
        assert stack_space(parts, 1) is parts


# -- what is checked before a run ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "k", "channels"),  # None: refused
    [
        ("test/Images-v0", 4, 4),  # [84, 84] -> [4, 84, 84]
        ("test/Images-v0", 1, None),  # two dimensions
        ("test/Colour-v0", 1, 3),
        ("test/Colour-v0", 4, None),  # [4, 84, 84, 3]
        ("tests.env.screen:test/FloatScreen-v0", 1, 3),  # as uint8 ones
    ],
)
def test_convolutions_need_images_of_what_the_policy_sees(env_id, k, channels):
    words = "env=gym", "torso=nature_cnn", "torso.hidden=[16]", "env.backend=sync"
    c = config(*words, f"env.id={env_id}", f"env.frame_stack={k}")
    if channels is None:
        with pytest.raises(ConfigError, match="torso = nature_cnn: ") as caught:
            check(c)
        stacked = "with env.frame_stack = 4 it sees Box uint8 [4, 84, 84, 3]" in str(caught.value)
        assert stacked == (k == 4)
        return
    check(c)
    space = stack_space(probe(c.env)[0], k)
    torso = make_torso(TorsoConfig("nature_cnn", (16,), "relu", False), space)
    assert torso.channels_last == (k == 1)
    assert torso.convolutions[0].in_channels == channels
    obs = torch.as_tensor(np.stack([[space.sample()] * 3] * 2))
    assert torso(obs).shape == (2, 3, 16)
    if space.dtype == np.float32:
        assert torch.equal(torso.inputs(obs), obs)
