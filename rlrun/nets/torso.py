"""Torsos: observations [*, *O] to feature vectors [*, F]."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.schema import ImageAndVectorConfig, TorsoConfig
from rlrun.spaces import CNN_SIDE, CNN_SIDES, image_scale, is_image, leaf_of, leaf_spaces
from rlrun.types import Tree

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


def mlp(
    sizes: list[int],
    activation: str,
    *,
    last: bool,
    layer_norm: bool = False,
    first: type[nn.Linear] = nn.Linear,
) -> Stack:
    """Return linear layers sizes[0] -> ... -> sizes[-1] with activations between them.

    ``last``: also an activation after the last layer. ``layer_norm``: layer normalisation before
    every activation. ``first``: the class of the first layer.
    """
    layers: list[nn.Module] = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        layers.append((nn.Linear if i else first)(n_in, n_out))
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


def one_hot(index: Tensor, size: int) -> Tensor:
    """Return float32 [*, size]; an index outside [0, size) gives zeros."""
    return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).float()


class Arrays(NamedTuple):
    """The functions of an array library that ``make_flatten`` uses."""

    one_hot: Callable[[Any, int], Any]
    concatenate: Callable[[list[Any], int], Any]
    float32: Callable[[Any], Any]


TENSORS = Arrays(one_hot, torch.cat, Tensor.float)


def make_flatten(space: gym.Space[Any], arrays: Arrays = TENSORS) -> Callable[[Tree], Any]:
    """Return what makes float32 vectors [*, flat_size] of observations [*, *O].

    Discrete spaces become one-hot, images are divided by their largest bound (255), dicts and
    tuples are concatenated.
    """
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return partial(_flatten_part, space, arrays, flat_size(space), image_scale(space))
    parts = [(path, make_flatten(part, arrays)) for path, part in leaf_spaces(space)]
    return lambda obs: arrays.concatenate([flat(leaf_of(obs, path)) for path, flat in parts], -1)


def _flatten_part(space: gym.Space[Any], arrays: Arrays, size: int, scale: float, obs: Any) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return arrays.one_hot(obs - int(space.start), int(space.n))
    lead = obs.shape[: obs.ndim - len(space.shape or ())]
    if isinstance(space, gym.spaces.MultiDiscrete):
        index, start, sizes = obs.reshape(*lead, space.nvec.size), space.start.flat, space.nvec.flat
        each = enumerate(zip(start, sizes, strict=True))
        parts = [arrays.one_hot(index[..., i] - int(low), int(n)) for i, (low, n) in each]
        return arrays.concatenate(parts, -1)
    x = arrays.float32(obs.reshape(*lead, size))  # -1 needs an element
    return x if scale == 1 else x / scale


class MLP(nn.Module):
    """Linear layers of ``config.hidden`` sizes with activations on flattened observations."""

    def __init__(self, config: TorsoConfig, space: gym.Space[Any]) -> None:
        super().__init__()
        self.space, self.flatten = space, make_flatten(space)
        sizes = [flat_size(space), *config.hidden]
        self.layers = mlp(sizes, config.activation, last=True, layer_norm=config.layer_norm)
        self.size = sizes[-1]

    def inputs(self, obs: Tree) -> Tensor:
        """Return the first layer's inputs, float32 [*, F]."""
        inputs: Tensor = self.flatten(obs)
        return inputs

    def features(self, inputs: Tensor) -> Tensor:
        """Return features [*, size] of ``inputs``."""
        features: Tensor = self.layers(inputs)
        return features

    def forward(self, obs: Tree) -> Tensor:
        features: Tensor = self.layers(self.flatten(obs))
        return features


class Blocks(nn.Module):
    """Images as blocks of stride x stride pixels, over which a convolution has stride 1.

    A block becomes C stride^2 channels, of which tensor cores compute a product, while few channels
    are slow.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, images: Tensor) -> Tensor:
        """Return [N, H / stride, W / stride, C stride^2] of ``images`` [N, C, H, W].

        float32, or the dtype of autocast on a GPU: bfloat16 represents uint8 exactly.
        """
        n, channels, height, width = images.shape
        rows, columns = height // self.stride, width // self.stride
        x = images[..., : rows * self.stride, : columns * self.stride].contiguous()
        x = x.reshape(n, channels, rows, self.stride, columns, self.stride)
        compiled = torch.compiler.is_compiling()  # into one kernel
        if images.dtype == torch.uint8 and self.stride == 4 and not compiled:
            x = x.view(torch.int32)  # four bytes move as one number
            x = torch.movedim(x, (2, 4), (1, 2)).contiguous().view(torch.uint8)
        else:
            x = torch.movedim(x, (2, 4), (1, 2))
        dtype = torch.float32
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
        x = x.to(dtype, memory_format=torch.contiguous_format)
        return x.reshape(n, rows, columns, -1)


def block_weight(weight: Tensor, stride: int) -> Tensor:
    """Return weights [F, C stride^2, K / stride, K / stride] over ``Blocks`` from [F, C, K, K].

    K is a multiple of ``stride``.
    """
    filters, channels, side, _ = weight.shape
    w = weight.reshape(filters, channels, side // stride, stride, side // stride, stride)
    return torch.movedim(w, (2, 4), (-2, -1)).reshape(filters, -1, side // stride, side // stride)


@torch.library.custom_op("rlrun::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A convolution without padding, and its ReLU; on a GPU one kernel of cuDNN.

    Inputs and outputs have channels last in memory. An operator of its own, because torch.compile
    would store for the backward pass where outputs are 0, which the outputs tell.
    """
    if x.is_cuda and torch.version.cuda is not None:
        return torch.cudnn_convolution_relu(x, weight, bias, (stride,) * 2, (0, 0), (1, 1), 1)
    return F.conv2d(x, weight, bias, stride).relu_()


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    height, width = (
        (n - k) // stride + 1 for n, k in zip(x.shape[2:], weight.shape[2:], strict=True)
    )
    return torch.movedim(x.new_empty(len(x), height, width, len(weight)), -1, 1)


@torch.library.custom_op("rlrun::conv_relu_backward", mutates_args=())
def _conv_relu_backward(
    grad: Tensor, x: Tensor, weight: Tensor, y: Tensor, stride: int, with_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (empty unless ``with_x``), weight and bias."""
    g = torch.ops.aten.threshold_backward(grad, y, 0)
    pixels = torch.movedim(g, 1, -1).reshape(-1, len(weight))
    d_bias = (pixels.new_ones(1, len(pixels)) @ pixels)[0]  # faster than their sum
    dx, d_weight, _ = torch.ops.aten.convolution_backward(
        g, x, weight, None, (stride,) * 2, (0, 0), (1, 1), False, (0, 0), 1, (with_x, True, False)
    )
    return dx if with_x else x.new_empty(0), d_weight, d_bias


@_conv_relu_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, y: Tensor, stride: int, with_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x) if with_x else x.new_empty(0)
    return dx, torch.empty_like(weight), weight.new_empty(len(weight))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    x, weight, _, ctx.stride = inputs
    ctx.save_for_backward(x, weight, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
    with_x = ctx.needs_input_grad[0]
    dx, *others = _conv_relu_backward(grad, *ctx.saved_tensors, ctx.stride, with_x)
    return dx if with_x else None, *others, None


conv_relu.register_autograd(_gradients, setup_context=_keep)


class Conv(nn.Conv2d):
    """A convolution and, on a GPU, the ReLU behind it, unless a layer norm comes between them."""

    rectified = True

    def forward(self, x: Tensor) -> Tensor:
        return self.on_gpu(x, self.weight, self.stride[0]) if x.is_cuda else super().forward(x)

    def on_gpu(self, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Return outputs for ``x`` [N, C, H, W], both with channels last in memory."""
        bias = self.bias
        assert bias is not None
        weight = weight.to(x.dtype, memory_format=torch.channels_last)
        if not self.rectified:
            return F.conv2d(x, weight, bias.to(x.dtype), stride)
        out: Tensor = conv_relu(x, weight, bias.to(x.dtype), stride)
        return out


class FirstConv(Conv):
    """The convolution that reads images; on a GPU ``Blocks`` of images not divided by ``scale``."""

    scale: float = 1

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return super().forward(x)
        return self.on_gpu(x, block_weight(self.weight / self.scale, self.stride[0]), 1)


class ReLU(nn.ReLU):
    """The ReLU behind a ``Conv``, which on a GPU has applied it."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_cuda else super().forward(x)


class Pixels(nn.Flatten):
    """Outputs of convolutions as vectors; on a GPU ``PixelLinear`` reads them as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_cuda else super().forward(x)


class PixelLinear(nn.Linear):
    """A linear layer that also reads [N, C, H, W] with channels last in memory."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return super().forward(x)
        weight = torch.movedim(self.weight.reshape(-1, *x.shape[1:]), 1, -1).flatten(1)
        return F.linear(torch.movedim(x, 1, -1).flatten(1), weight, self.bias)


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
        self.bytes = space.dtype == np.uint8
        channels, height, width = (shape[-1], *shape[:2]) if self.channels_last else shape
        layers: list[nn.Module] = []
        for n_out, side, stride in CONVOLUTIONS.get(config.name, NATURE):
            conv = (Conv if layers else FirstConv)(channels, n_out, side, stride)
            height, width = ((x - side) // stride + 1 for x in (height, width))
            channels = n_out
            if config.layer_norm:
                conv.rectified = False
                norm = nn.LayerNorm([channels, height, width])
                layers += [conv, norm, nn.ReLU(inplace=True)]
            else:
                layers += [conv, ReLU(inplace=True)]
        first = layers[0]
        assert isinstance(first, FirstConv)
        first.scale = self.scale
        self.blocks = Blocks(first.stride[0])
        linear = bool(config.hidden)
        self.convolutions = Stack(*layers, Pixels() if linear else nn.Flatten())
        sizes = [channels * height * width, *config.hidden]
        self.layers = mlp(
            sizes, config.activation, last=True, layer_norm=config.layer_norm, first=PixelLinear
        )
        self.size = sizes[-1]

    def inputs(self, obs: Tensor) -> Tensor:
        """Return images [*, *O] as float32, divided by their largest bound."""
        return obs.float() if self.scale == 1 else obs.float() / self.scale

    def features(self, inputs: Tensor) -> Tensor:
        """Return features [*, size] of ``inputs``."""
        lead = inputs.shape[:-3]
        if not inputs.is_cuda:
            return self._features(self._images(inputs), lead)
        pixels = inputs if self.scale == 1 else inputs * self.scale
        return self._of_blocks(self._blocks(pixels))

    def prepared(self, obs: Tensor) -> Tensor:
        """Return what networks with this torso can share: bytes on a GPU as blocks of pixels."""
        return self._blocks(obs) if obs.is_cuda and obs.dtype == torch.uint8 else obs

    def forward(self, obs: Tensor) -> Tensor:
        """Return features [*, size] of observations [*, *O], ``prepared`` or not."""
        if obs.is_cuda and self.bytes:
            return self._of_blocks(self.prepared(obs))
        return self.features(self.inputs(obs))

    def _images(self, x: Tensor) -> Tensor:
        """Return [N, C, H, W] of [*, *O]."""
        x = x.reshape(-1, *x.shape[-3:])
        return torch.movedim(x, -1, 1) if self.channels_last else x

    def _blocks(self, pixels: Tensor) -> Tensor:
        """Return ``Blocks`` [*, H / stride, W / stride, C stride^2] of [*, *O]."""
        blocks: Tensor = self.blocks(self._images(pixels))
        return blocks.reshape(*pixels.shape[:-3], *blocks.shape[1:])

    def _of_blocks(self, blocks: Tensor) -> Tensor:
        x = torch.movedim(blocks.reshape(-1, *blocks.shape[-3:]), -1, 1)
        return self._features(x, blocks.shape[:-3])

    def _features(self, x: Tensor, lead: torch.Size) -> Tensor:
        features: Tensor = self.layers(self.convolutions(x)).reshape(*lead, self.size)
        return features


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
        self.space, self.size, self.flatten = space, flat_size(space), make_flatten(space)

    def forward(self, obs: Tree) -> Tensor:
        flat: Tensor = self.flatten(obs)
        return flat


Torso = MLP | CNN | ImageAndVector | FlatObs  # ``size``: the width of its features


def make_torso(config: TorsoConfig, space: gym.Space[Any]) -> MLP | CNN | ImageAndVector:
    """Return the configured torso; ``size`` is the width of its features."""
    if isinstance(config, ImageAndVectorConfig) and not isinstance(space, gym.spaces.Box):
        return ImageAndVector(config, space)
    return MLP(config, space) if config.name == "mlp" else CNN(config, space)
