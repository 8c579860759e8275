"""Torsos: observations [*, *O] to feature vectors [*, F]."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.schema import ImageAndVectorConfig, TorsoConfig
from rlrun.spaces import CNN_SIDE, CNN_SIDES, image_scale, is_image, leaf_of, leaf_spaces
from rlrun.types import Tree, moved

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class Stack(nn.Sequential):
    """``nn.Sequential`` with its own ``forward``.

    torch.compile does not trace into methods of torch's own modules.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's output."""
        for layer in self:
            x = layer(x)
        return x


def mlp(sizes: list[int], activation: str, *, last: bool, layer_norm: bool = False) -> Stack:
    """Return linear layers sizes[0] -> ... -> sizes[-1] with activations between them.

    ``last``: also an activation after the last layer. ``layer_norm``: layer normalisation before
    every activation.
    """
    layers: list[nn.Module] = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(n_in, n_out))
        if last or i < len(sizes) - 2:
            layers += [nn.LayerNorm(n_out)] if layer_norm else []
            layers.append(make_activation(activation))
    return Stack(*layers)


def make_activation(name: str) -> nn.Module:
    """Return the activation after a linear layer, in place if torch supports that.

    A new array for a batch costs more than its maximum with 0.
    """
    return nn.Tanh() if name == "tanh" else ACTIVATIONS[name](inplace=True)


def flat_size(space: gym.Space[Any]) -> int:
    """Return the number of floats of a flattened observation."""
    return int(gym.spaces.flatdim(space))


def flatten(space: gym.Space[Any], obs: Tree) -> Tensor:
    """Return observations [*, *O] as float32 vectors [*, flat_size].

    Discrete spaces become one-hot, images are divided by their largest bound (255), dicts and
    tuples are concatenated.
    """
    match space:
        case gym.spaces.Discrete():
            return one_hot(obs - int(space.start), int(space.n))
        case gym.spaces.MultiDiscrete():
            index = obs - moved(torch.as_tensor(space.start), obs.device)
            index = index.flatten(obs.ndim - space.nvec.ndim)
            parts = [one_hot(index[..., i], int(n)) for i, n in enumerate(space.nvec.reshape(-1))]
            return torch.cat(parts, -1)
        case gym.spaces.Dict():
            return torch.cat([flatten(s, obs[k]) for k, s in space.spaces.items()], -1)
        case gym.spaces.Tuple():
            return torch.cat([flatten(s, o) for s, o in zip(space.spaces, obs, strict=True)], -1)
        case _:
            lead = obs.shape[: obs.ndim - len(space.shape or ())]
            x: Tensor = obs.reshape(*lead, flat_size(space)).float()  # -1 needs an element
            scale = image_scale(space)
            return x if scale == 1 else x / scale


def one_hot(index: Tensor, size: int) -> Tensor:
    """Return float32 [*, size]; an index outside [0, size) gives zeros."""
    return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).float()


class MLP(nn.Module):
    """Linear layers of ``config.hidden`` sizes with activations on flattened observations."""

    def __init__(self, config: TorsoConfig, space: gym.Space[Any]) -> None:
        super().__init__()
        self.space = space
        sizes = [flat_size(space), *config.hidden]
        self.layers = mlp(sizes, config.activation, last=True, layer_norm=config.layer_norm)
        self.size = sizes[-1]

    def inputs(self, obs: Tree) -> Tensor:
        """Return the first layer's inputs, float32 [*, F]."""
        return flatten(self.space, obs)

    def features(self, inputs: Tensor) -> Tensor:
        """Return features [*, size] of ``inputs``."""
        features: Tensor = self.layers(inputs)
        return features

    def forward(self, obs: Tree) -> Tensor:
        features: Tensor = self.layers(flatten(self.space, obs))
        return features


class FirstConv(nn.Conv2d):
    """The convolution that reads the images; on a GPU ``block_conv``.

    ``scale``: there it reads uint8 images too, and divides them by it.
    """

    scale: float = 1

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return super().forward(x)
        dtype = torch.float32
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
        weight = self.weight / self.scale if x.dtype == torch.uint8 else self.weight
        return block_conv(x, weight, self.bias, self.stride[0], dtype)


def block_conv(
    images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, dtype: torch.dtype
) -> Tensor:
    """Return the convolution of ``images`` [N, C, H, W] as one of stride 1 over blocks of pixels.

    ``weight`` [F, C, K, K] with K a multiple of ``stride``. A block of stride x stride pixels
    becomes C stride^2 channels, of which tensor cores compute a product, while few channels are
    slow: the three convolutions of 84 x 84 x 4 take a quarter of the time in bfloat16, in which
    uint8 is exact. The sums are the same in another order.
    """
    n, channels, height, width = images.shape
    filters, side = len(weight), weight.shape[-1] // stride
    rows, columns = height // stride, width // stride
    x = images[..., : rows * stride, : columns * stride].contiguous()
    x = x.reshape(n, channels, rows, stride, columns, stride)
    if images.dtype == torch.uint8 and stride == 4:  # four bytes move as one number
        x = torch.movedim(x.view(torch.int32), (2, 4), (1, 2)).contiguous().view(torch.uint8)
    else:
        x = torch.movedim(x, (2, 4), (1, 2))
    blocks = x.to(dtype, memory_format=torch.contiguous_format)
    blocks = torch.movedim(blocks.reshape(n, rows, columns, -1), -1, 1)  # channels last in memory
    w = weight.reshape(filters, channels, side, stride, side, stride)
    w = torch.movedim(w, (2, 4), (-2, -1)).reshape(filters, -1, side, side)
    return F.conv2d(blocks, w, bias)


NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""(filters, side, stride) of the convolutions of Mnih et al. 2015, methods."""
CONVOLUTIONS = {"small_cnn": ((16, 3, 1),)}
"""The same of torsos that have others; Young and Tian 2019, section 3."""


def channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether images are [H, W, C], not [C, H, W].

    Two equal sides beside another one are those of a square. Else there are fewer channels than
    rows or columns.
    """
    first, second, third = shape
    if (first == second) != (second == third):
        return first == second
    return third < first


class CNN(nn.Module):
    """Convolutions and linear layers on images, channels first or last.

    ``layer_norm`` normalises a convolution's outputs over channels and pixels together.
    """

    def __init__(self, config: TorsoConfig, space: gym.Space[Any]) -> None:
        super().__init__()
        shape = space.shape or ()
        assert len(shape) == 3, "checked in rlrun.config"
        self.scale = image_scale(space, CNN_SIDES.get(config.name, CNN_SIDE))
        self.channels_last = channels_last(shape)
        channels, height, width = (shape[-1], *shape[:2]) if self.channels_last else shape
        layers: list[nn.Module] = []
        for n_out, side, stride in CONVOLUTIONS.get(config.name, NATURE):
            conv = nn.Conv2d if layers else FirstConv
            layers.append(conv(channels, n_out, side, stride))
            height, width = ((x - side) // stride + 1 for x in (height, width))
            channels = n_out
            if config.layer_norm:
                layers.append(nn.LayerNorm([channels, height, width]))
            layers.append(nn.ReLU(inplace=True))
        assert isinstance(layers[0], FirstConv)
        layers[0].scale = self.scale
        self.convolutions = Stack(*layers, nn.Flatten())
        sizes = [channels * height * width, *config.hidden]
        self.layers = mlp(sizes, config.activation, last=True, layer_norm=config.layer_norm)
        self.size = sizes[-1]

    def inputs(self, obs: Tensor) -> Tensor:
        """Return images [*, *O] as float32, divided by their largest bound."""
        return obs.float() if self.scale == 1 else obs.float() / self.scale

    def features(self, inputs: Tensor) -> Tensor:
        """Return features [*, size] of ``inputs``."""
        lead = inputs.shape[:-3]
        x = inputs.reshape(-1, *inputs.shape[-3:])
        if self.channels_last:
            x = torch.movedim(x, -1, 1)
        features: Tensor = self.layers(self.convolutions(x)).reshape(*lead, self.size)
        return features

    def forward(self, obs: Tensor) -> Tensor:
        raw = obs.is_cuda and obs.dtype == torch.uint8  # the convolution converts its blocks
        return self.features(obs if raw else self.inputs(obs))


class ImageAndVector(nn.Module):
    """A ``CNN`` for every image of an observation and an ``MLP`` for the rest, concatenated.

    Source: Stable-Baselines3's CombinedExtractor, which passes the rest on unchanged.
    """

    def __init__(self, config: ImageAndVectorConfig, space: gym.Space[Any]) -> None:
        super().__init__()
        leaves = list(leaf_spaces(space))
        self.images = [path for path, leaf in leaves if is_image(leaf)]
        self.others = [path for path, leaf in leaves if not is_image(leaf)]
        cnns = [CNN(config, leaf) for _, leaf in leaves if is_image(leaf)]
        self.convolutions = nn.ModuleList(cnns)
        rest = gym.spaces.Tuple([leaf for _, leaf in leaves if not is_image(leaf)])
        self.vector = MLP(replace(config, hidden=config.vector_hidden), rest)
        self.size = sum(cnn.size for cnn in cnns) + self.vector.size

    def forward(self, obs: Tree) -> Tensor:
        """Return features [*, size] of observations [*, *O]."""
        parts: list[Tensor] = [
            cnn(leaf_of(obs, path))
            for cnn, path in zip(self.convolutions, self.images, strict=True)
        ]
        if self.others:
            parts.append(self.vector(tuple(leaf_of(obs, path) for path in self.others)))
        return torch.cat(parts, -1)


class FlatObs(nn.Module):
    """The flattened observation. The layers of an MLP torso are part of the heads instead."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.space, self.size = space, flat_size(space)

    def forward(self, obs: Tree) -> Tensor:
        return flatten(self.space, obs)


Torso = MLP | CNN | ImageAndVector | FlatObs  # ``size``: the width of its features


def make_torso(config: TorsoConfig, space: gym.Space[Any]) -> MLP | CNN | ImageAndVector:
    """Return the configured torso; ``size`` is the width of its features."""
    if isinstance(config, ImageAndVectorConfig) and not isinstance(space, gym.spaces.Box):
        return ImageAndVector(config, space)
    return MLP(config, space) if config.name == "mlp" else CNN(config, space)
