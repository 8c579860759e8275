"""Networks and optimisers as the arrays that compiled updates read."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlrun.kernels import off_policy as loops
from rlrun.nets.torso import flatten
from rlrun.policy.base import Part
from rlrun.policy.optim import FlatParameters
from rlrun.types import Segment

_KINDS = {nn.ReLU: loops.RELU, nn.Tanh: loops.TANH, nn.ELU: loops.ELU}
NOTHING = np.empty(0, np.float32)


class Layer(NamedTuple):
    """A row of the table of layers; see ``off_policy``."""

    source: int
    n_in: int
    n_out: int
    weight: int
    bias: int
    turned: int
    norm: int
    activation: int
    out: int


class Table:
    """The table of layers of a network whose parameters are views of one array."""

    def __init__(self, values: np.ndarray) -> None:
        """``values``: the parameters, flat."""
        self.start, self.rows, self.width = values.ctypes.data, list[Layer](), 0

    def offset(self, parameter: torch.Tensor) -> int:
        """Return where a parameter begins in the array."""
        return (parameter.data_ptr() - self.start) // 4

    def add(self, layer: Layer) -> int:
        """Add a layer behind the others. Return its number."""
        self.rows.append(layer._replace(out=self.width))
        self.width += layer.n_out
        return len(self.rows) - 1

    def add_mlp(self, modules: Iterable[nn.Module], source: int) -> int:
        """Add linear layers with normalisations and activations. Return the last one's number.

        ``source``: the layer that they read, -1: the input.
        """
        for module in modules:
            if isinstance(module, nn.Linear):
                offsets = self.offset(module.weight), self.offset(module.bias)
                shape = module.in_features, module.out_features
                source = self.add(Layer(source, *shape, *offsets, 0, -1, loops.NONE, 0))
            elif isinstance(module, nn.LayerNorm):
                norm = self.offset(module.weight)
                assert self.offset(module.bias) == norm + len(module.weight)
                self.rows[-1] = self.rows[-1]._replace(norm=norm)
            else:
                self.rows[-1] = self.rows[-1]._replace(activation=_KINDS[type(module)])
        return source

    def array(self) -> np.ndarray:
        """Return the table as int64 [layers, 9]."""
        return np.array(self.rows, np.int64).reshape(len(self.rows), len(Layer._fields))


class PackedPart:
    """A part whose parameters, and those of its target network, are one array each."""

    def __init__(self, part: Part) -> None:
        """Move the parameters of ``part`` into these arrays."""
        self.adam, self.eps = part.adam, part.adam.eps
        flat = self.adam.flatten()
        self.values, self.grads = flat.values.numpy(), flat.grads.numpy()
        self.mean, self.square = self.adam.flat_moments()
        self.steps = self.adam.steps[0].numpy().reshape(1)
        self.most = np.inf if self.adam.max_grad_norm is None else self.adam.max_grad_norm
        self.target = NOTHING
        if part.target is not None:
            self.target = FlatParameters(part.target.parameters()).values.numpy()

    def step(self, lr: float) -> float:
        """Step with ``grads``. Return their norm before clipping.

        Raises: NumericError before the step if it is not finite.
        """
        norm = loops.step(
            self.values, self.grads, self.mean, self.square, self.steps, self.most, lr, self.eps
        )
        self.adam.require_finite(norm)
        return norm

    def follow(self, tau: float) -> None:
        """Move the target network by ``tau`` towards the network."""
        loops.follow(self.target, self.values, np.float32(tau))


class ReturnConfig(Protocol):
    """Config keys of n-step returns."""

    @property
    def nstep(self) -> int: ...
    @property
    def gamma(self) -> float: ...
    @property
    def reward_scale(self) -> float: ...
    @property
    def reward_clip(self) -> float | None: ...


def reward_rule(config: ReturnConfig) -> tuple[tuple[np.float32, np.float32], np.ndarray]:
    """Return scale and clip of rewards, and gamma^0 .. gamma^n: arguments of ``read_rows``."""
    clip = np.inf if config.reward_clip is None else config.reward_clip
    powers = config.gamma ** torch.arange(config.nstep + 1.0)
    return (np.float32(config.reward_scale), np.float32(clip)), powers.numpy()


def or_else(value: float | None, default: float) -> np.float32:
    """Return a setting as float32; ``default`` if it is None."""
    return np.float32(default if value is None else value)


def window_of(segment: Segment, space: gym.Space[Any]) -> tuple[np.ndarray, ...]:
    """Return the windows that ``read_rows`` reads, with observations of ``space`` flattened."""
    obs = segment.obs
    if not (isinstance(obs, torch.Tensor) and obs.ndim == 3 and obs.dtype == torch.float32):
        obs = flatten(space, obs)
    s = segment
    flags = s.terminated.numpy(), s.truncated.numpy(), s.valid.numpy()
    return obs.numpy(), s.reward.numpy(), *flags


def zeros(sizes: Sequence[int]) -> list[np.ndarray]:
    """Return flat float32 arrays."""
    return [np.zeros(size, np.float32) for size in sizes]
