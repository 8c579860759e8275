"""Torsos: an empty batch has the feature sizes of any other."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.nets.torso import flat_size, flatten, make_torso
from rlrun.policy.numpy_net import flatten as flatten_array
from rlrun.schema import ImageAndVectorConfig

BOX = gym.spaces.Box(-1, 1, (2, 3), np.float32)


@pytest.mark.parametrize("lead", [(0,), (3, 0), (2, 4)])
def test_flatten(lead):
    space = gym.spaces.Dict({"x": BOX})
    out = flatten(space, {"x": torch.zeros(*lead, *BOX.shape)})
    assert out.shape == (*lead, flat_size(space)) == (*lead, 6)


@pytest.mark.parametrize(
    ("low", "high", "shape", "scale"),
    [
        (0, 3, (5,), 1),  # codes
        (0, 255, (128,), 1),  # Atari's memory
        (0, 255, (7, 7, 3), 1),  # MiniGrid's view holds 0 to 10
        (0, 1, (84, 84), 1),  # planes
        (0, 255, (84, 84), 255),
        (0, 255, (4, 36, 40), 255),
        (0, 255, (36 * 36,), 255),  # a flattened image
        (0, 127, (84, 84, 3), 127),
    ],
)
def test_pixels_are_scaled_by_their_bounds_whatever_the_dtype(low, high, shape, scale):
    for dtype in (np.uint8, np.int16, np.float32, np.float64):
        space = gym.spaces.Box(low, high, shape, dtype)
        obs = np.full((2, *shape), high, dtype)
        want = np.full((2, flat_size(space)), high, np.float32) / np.float32(scale)
        np.testing.assert_array_equal(flatten(space, torch.from_numpy(obs)), want)
        np.testing.assert_array_equal(flatten_array(space, obs), want)


def test_images_pass_the_convolutions_and_the_rest_the_layers():
    """Each part changes its own features alone; the order is images, then the rest."""
    image, vector = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8), gym.spaces.Box(-1, 1, (4,))
    space = gym.spaces.Dict({
        "a": vector, "b": image, "c": gym.spaces.Tuple([gym.spaces.Discrete(3), image])
    })  # fmt: skip
    config = ImageAndVectorConfig("image_and_vector", (16,), "tanh", False, (5,))
    torso = make_torso(config, space)
    assert torso.size == 16 + 16 + 5
    draws = [space.sample() for _ in range(2)]
    one, two = ({
        "a": torch.from_numpy(x["a"])[None, None], "b": torch.from_numpy(x["b"])[None, None],
        "c": (torch.tensor([[x["c"][0]]]), torch.from_numpy(x["c"][1])[None, None]),
    } for x in draws)  # fmt: skip
    out = torso(one)
    assert out.shape == (1, 1, torso.size)
    for changed, part in (
        (one | {"b": two["b"]}, slice(0, 16)),
        (one | {"c": (one["c"][0], two["c"][1])}, slice(16, 32)),
        (one | {"a": two["a"]}, slice(32, 37)),
        (one | {"c": ((one["c"][0] + 1) % 3, one["c"][1])}, slice(32, 37)),
    ):
        differs = (torso(changed) != out)[0, 0]
        assert differs[part].any()
        differs[part] = False
        assert not differs.any()
    torch.testing.assert_close(out[..., :16], torso.convolutions[0](one["b"]))
