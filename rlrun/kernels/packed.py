"""Networks and optimisers as the arrays that compiled code reads; see ``layers``."""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from rlrun.kernels import layers
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP
from rlrun.policy.base import Part
from rlrun.policy.optim import RAdam

_KINDS = {nn.ReLU: layers.RELU, nn.Tanh: layers.TANH, nn.ELU: layers.ELU}


class Layer(NamedTuple):
    """A row of the table of layers."""

    source: int
    n_in: int
    n_out: int
    weight: int
    bias: int
    norm: int
    activation: int
    out: int
    shared: int = 0


class PackedNet:
    """A part's optimiser as flat arrays, and the table of its network's layers."""

    def __init__(self, part: Part) -> None:
        """Move the parameters of ``part``, and those of its target network, into one array each."""
        self.adam, (flat, target) = part.adam, part.flatten()
        self.values, self.grads, self.target = (
            x.numpy() for x in (flat.values, flat.grads, target)
        )
        steps = self.adam.counted[0].numpy().reshape(1)
        (group,) = self.adam.groups  # all parameters have one learning rate
        moments = group.mean[0].numpy(), group.square[0].numpy()
        self.state = self.values, self.grads, *moments, steps
        self.kind = layers.RADAM if isinstance(self.adam, RAdam) else layers.ADAM
        most = self.adam.max_grad_norm
        self.most, self.eps = np.inf if most is None else float(most), float(self.adam.eps)
        self.rows, self.width = list[Layer](), 0

    def offset(self, parameter: Tensor) -> int:
        """Return where a parameter begins in the array."""
        return (parameter.data_ptr() - self.values.ctypes.data) // 4

    def add(self, modules: Iterable[nn.Module], source: int) -> int:
        """Add linear layers with normalisations and activations. Return the last one's number.

        ``source``: the layer that they read, -1: the input; it is returned if there are none.
        """
        for module in modules:
            if isinstance(module, nn.Linear):
                n_out, n_in = module.weight.shape
                offsets = self.offset(module.weight), self.offset(module.bias)
                self.rows.append(Layer(source, n_in, n_out, *offsets, -1, layers.NONE, self.width))
                self.width += n_out
                source = len(self.rows) - 1
            elif isinstance(module, nn.LayerNorm):
                norm = self.offset(module.weight)
                assert self.offset(module.bias) == norm + len(module.weight)
                self.rows[-1] = self.rows[-1]._replace(norm=norm)
            else:
                self.rows[-1] = self.rows[-1]._replace(activation=_KINDS[type(module)])
        return source

    def add_action_values(self, net: QNet) -> tuple[int, int]:
        """Add the layers of a ``QNet`` without a memory. Return ``heads`` of its action values."""
        features = self.add(cast("MLP", net.torso).layers, -1)
        advantage = self.add(cast("nn.Sequential", net.advantage), features)
        value = -1 if net.value is None else self.add(cast("nn.Sequential", net.value), features)
        return advantage, value

    def table(self) -> np.ndarray:
        """Return the table of layers, int64 [layers, 9]."""
        sources = [row.source for row in self.rows]
        shared = (source in sources[i + 1 :] for i, source in enumerate(sources))
        rows = zip(self.rows, shared, strict=True)
        return np.array([row._replace(shared=x) for row, x in rows], np.int64)

    @property
    def inputs(self) -> int:
        """The number of inputs of the first layers."""
        return next(row.n_in for row in self.rows if row.source < 0)

    def optimiser(self, lr: float) -> tuple[Any, ...]:
        """Return the arguments of ``layers.step``."""
        return self.kind, self.state, self.most, lr, self.eps

    def step(self, lr: float) -> float:
        """Step with ``grads``. Return their norm before clipping.

        Raises: NumericError before the step if it is not finite.
        """
        norm: float = layers.step(*self.optimiser(lr))
        self.adam.require_finite(norm)
        return norm

    def work(self, rows: int) -> tuple[np.ndarray, ...]:
        """Return arrays for ``rows`` rows: h, unit, inverse and d of the passes; see ``layers``."""
        sizes = *[rows * self.width] * 2, rows * len(self.rows), rows * self.width
        return tuple(np.zeros(size, np.float32) for size in sizes)
