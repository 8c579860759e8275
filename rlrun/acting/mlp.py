"""Linear layers, layer normalisation and activations in numpy; forward only."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from rlrun.nets.noisy import NoisyLinear


class NumpyNorm(NamedTuple):
    """Layer normalisation over the last axis: (x - mean) / sqrt(var + eps) * weight + bias.

    Source: Ba et al. 2016, eq. 4.
    """

    weight: np.ndarray  # [N]
    bias: np.ndarray  # [N]
    eps: np.float32

    def normalise(self, x: np.ndarray) -> np.ndarray:
        """Standardise ``x`` [*, N] in place; return 1 / sqrt(var + eps) [*, 1]."""
        scale = np.float32(1 / x.shape[-1])
        x -= x.sum(-1, keepdims=True) * scale
        inverse: np.ndarray = np.vecdot(x, x)[..., None]
        inverse *= scale
        inverse += self.eps
        np.sqrt(inverse, out=inverse)
        np.reciprocal(inverse, out=inverse)
        x *= inverse
        return inverse

    def __call__(self, x: np.ndarray) -> None:
        """Normalise ``x`` [*, N] in place."""
        self.normalise(x)
        x *= self.weight
        x += self.bias


def make_norm(module: nn.LayerNorm, *, copy: bool) -> NumpyNorm:
    """Return the normalisation with the parameters of ``module``, or with copies of them."""
    weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
    eps = np.float32(module.eps)
    return NumpyNorm(weight.copy(), bias.copy(), eps) if copy else NumpyNorm(weight, bias, eps)


class ForwardMLP:
    """Copies of linear layers (noisy ones: the mean weights) and what stands between them.

    ``refresh`` copies the current weights.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """``modules``: linear layers, each followed by a layer normalisation or not, and by an
        activation or not."""
        self.sources: list[nn.Linear | NoisyLinear] = []
        self.norm_sources: list[nn.LayerNorm | None] = []
        self.activations: list[Callable[[np.ndarray], None] | None] = []
        for module in modules:
            if isinstance(module, (nn.Linear, NoisyLinear)):
                self.sources.append(module)
                self.activations.append(None)
                self.norm_sources.append(None)
            elif isinstance(module, nn.LayerNorm):
                self.norm_sources[-1] = module
            else:
                self.activations[-1] = FORWARD[type(module)]
        self.weights = [copy_parameter(m.weight).T for m in self.sources]  # [in, out]
        self.biases = [copy_parameter(m.bias) for m in self.sources]
        self.norms = [m if m is None else make_norm(m, copy=True) for m in self.norm_sources]
        parts = self.weights, self.biases, self.norms, self.activations
        self.layers = list(zip(*parts, strict=True))

    def refresh(self) -> None:
        for source, weight, bias in zip(self.sources, self.weights, self.biases, strict=True):
            np.copyto(weight, source.weight.detach().numpy().T)
            np.copyto(bias, source.bias.detach().numpy())
        for module, norm in zip(self.norm_sources, self.norms, strict=True):
            if module is not None and norm is not None:
                np.copyto(norm.weight, module.weight.detach().numpy())
                np.copyto(norm.bias, module.bias.detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[*, in] -> [*, out], a new array."""
        for weight, bias, norm, activation in self.layers:
            x = x @ weight
            x += bias
            if norm is not None:
                norm(x)
            if activation is not None:
                activation(x)
        return x


def copy_parameter(parameter: Tensor) -> np.ndarray:
    """Return a copy of the parameter as an array."""
    return parameter.detach().numpy().copy()


def _relu(x: np.ndarray) -> None:
    np.maximum(x, np.float32(0), out=x)


def _tanh(x: np.ndarray) -> None:
    np.tanh(x, out=x)


def _elu(x: np.ndarray) -> None:
    np.expm1(x, out=x, where=x <= 0)


FORWARD: dict[type[nn.Module], Callable[[np.ndarray], None]] = {  # in place
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.ELU: _elu,
}
