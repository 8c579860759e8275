"""Torsos: an empty batch has the feature sizes of any other."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.nets.torso import Blocks, block_weight, conv_relu, flat_size, make_flatten, make_torso
from rlrun.policy.compute import tensor_cores
from rlrun.policy.numpy_net import ARRAYS
from rlrun.schema import ImageAndVectorConfig
from tests.compose import config

BOX = gym.spaces.Box(-1, 1, (2, 3), np.float32)


@pytest.mark.parametrize("lead", [(0,), (3, 0), (2, 4)])
def test_flatten(lead):
    space = gym.spaces.Dict({"x": BOX})
    out = make_flatten(space)({"x": torch.zeros(*lead, *BOX.shape)})
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
        np.testing.assert_array_equal(make_flatten(space)(torch.from_numpy(obs)), want)
        np.testing.assert_array_equal(make_flatten(space, ARRAYS)(obs), want)


def test_a_small_picture_passes_one_convolution():
    torso = make_torso(config("torso=small_cnn").torso, gym.spaces.Box(0, 1, (4, 10, 10), np.uint8))
    obs = torch.from_numpy(np.random.default_rng(0).integers(2, size=(2, 3, 4, 10, 10), dtype="u1"))
    weights, bias, linear, offset = torso.parameters()
    assert (weights.shape, linear.shape) == ((16, 4, 3, 3), (128, 16 * 8 * 8))
    windows = obs.float().unfold(-2, 3, 1).unfold(-2, 3, 1)  # [2, 3, 4, 8, 8, 3, 3]
    planes = torch.einsum("tbcyxij,fcij->tbfyx", windows, weights) + bias[:, None, None]
    want = torch.relu(torch.relu(planes).flatten(2) @ linear.T + offset)
    torch.testing.assert_close(torso(obs), want)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        *[((4, 10, 10), 4), ((10, 10, 4), 4), ((4, 84, 80), 4), ((84, 80, 4), 4)],
        *[((20, 10, 10), 20), ((7, 7, 20), 20), ((10, 10, 10), 10)],
    ],
)
def test_channels_are_beside_the_sides_of_a_square(shape, channels):
    image = gym.spaces.Box(0, 1, shape, np.uint8)
    torso = make_torso(config("torso=small_cnn").torso, image)
    assert next(torso.parameters()).shape[1] == channels
    assert torso(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 128)


def test_without_layers_the_features_are_the_convolutions_outputs():
    image = gym.spaces.Box(0, 1, (4, 10, 10), np.uint8)
    torso = make_torso(config("torso=small_cnn", "torso.hidden=[]").torso, image)
    assert torso.size == torso(torch.zeros(2, 3, 4, 10, 10, dtype=torch.uint8)).shape[-1] == 1024
    space = gym.spaces.Dict({
        "a": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), "b": gym.spaces.Box(-1, 1, (4,))
    })  # fmt: skip
    torso = make_torso(ImageAndVectorConfig("image_and_vector", (), "relu", False, ()), space)
    obs = {"a": torch.zeros(2, 36, 36, 3, dtype=torch.uint8), "b": torch.zeros(2, 4)}
    assert torso(obs).shape == (2, torso.size) == (2, 64 + 4)


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 37, 46), (1, 12, 20)])
def test_a_convolution_over_blocks(shape, dtype):
    """A private part, because only a GPU uses it."""
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, *shape), generator=g).to(dtype)
    weight, bias = torch.randn(6, shape[0], 8, 8, generator=g), torch.randn(6, generator=g)
    want = torch.nn.functional.conv2d(images.float(), weight, bias, stride=4)
    blocks = torch.movedim(Blocks(4)(images), -1, 1)
    got = torch.nn.functional.conv2d(blocks, block_weight(weight, 4), bias)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-2)


def test_a_convolution_with_its_relu():
    """A private part, because only a GPU uses it."""
    g = torch.Generator().manual_seed(0)
    shapes = (2, 3, 9, 8), (4, 3, 3, 3), (4,)
    x, weight, bias = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    for values in (x, weight, bias):
        values.requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: conv_relu(*given, 2), (x, weight, bias))


def outputs_and_gradients(torso, obs):
    out = torso(obs)
    return [out, *torch.autograd.grad(out.square().mean(), list(torso.parameters()))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("words", [(), ("torso.layer_norm=true",), ("torso.hidden=[]",)])
@pytest.mark.parametrize("name", ["nature_cnn", "small_cnn"])
def test_images_on_a_gpu(name, words, last):
    shape = (84, 84, 4) if last else (4, 84, 84)
    for high, dtype in ((255, np.uint8), (127, np.uint8), (255, np.float32)):
        space = gym.spaces.Box(0, high, shape, dtype)
        torch.manual_seed(0)
        torso = make_torso(config(f"torso={name}", *words).torso, space)
        obs = torch.from_numpy(np.random.default_rng(0).integers(high + 1, size=(3, 2, *shape)))
        obs = obs.to(torch.from_numpy(np.zeros(1, dtype)).dtype)

        with tensor_cores("float32"):
            want = outputs_and_gradients(torso, obs)
            torso.cuda()
            found = [
                outputs_and_gradients(torso, x) for x in (obs.cuda(), torso.prepared(obs.cuda()))
            ]
        for got in found:
            for a, b in zip(got, want, strict=True):
                assert (a.cpu() - b).norm() < 1e-2 * b.norm() + 1e-6
