"""Linear layers and activations in numpy; forward only."""

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor, nn

from rlrun.nets.noisy import NoisyLinear


class ForwardMLP:
    """Copies of linear layers (noisy ones: the mean weights) and the activations between them.

    ``refresh`` copies the current weights.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """``modules``: linear layers, each followed by an activation or not."""
        self.sources: list[nn.Linear | NoisyLinear] = []
        self.activations: list[Callable[[np.ndarray], None] | None] = []
        for module in modules:
            if isinstance(module, (nn.Linear, NoisyLinear)):
                self.sources.append(module)
                self.activations.append(None)
            else:
                self.activations[-1] = FORWARD[type(module)]
        self.weights = [copy_parameter(m.weight).T for m in self.sources]  # [in, out]
        self.biases = [copy_parameter(m.bias) for m in self.sources]
        self.layers = list(zip(self.weights, self.biases, self.activations, strict=True))

    def refresh(self) -> None:
        for source, weight, bias in zip(self.sources, self.weights, self.biases, strict=True):
            np.copyto(weight, source.weight.detach().numpy().T)
            np.copyto(bias, source.bias.detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[*, in] -> [*, out], a new array."""
        for weight, bias, activation in self.layers:
            x = x @ weight
            x += bias
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
