"""Linear layers and activations in numpy; forward only."""

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn


class ForwardMLP:
    """Copies of the linear layers of a Sequential and the activations between them.

    ``refresh`` copies the current weights.
    """

    def __init__(self, layers: nn.Module) -> None:
        assert isinstance(layers, nn.Sequential)
        self.sources = [m for m in layers if isinstance(m, nn.Linear)]
        self.weights = [(copy_parameter(m.weight), copy_parameter(m.bias)) for m in self.sources]
        kinds = [type(m) for m in layers if not isinstance(m, nn.Linear)]
        self.activations: list[Callable[[np.ndarray], None] | None] = [
            FORWARD[kind] for kind in kinds
        ]
        self.activations += [None] * (len(self.sources) - len(kinds))  # none after the last

    def refresh(self) -> None:
        for source, (weight, bias) in zip(self.sources, self.weights, strict=True):
            np.copyto(weight, source.weight.detach().numpy())
            np.copyto(bias, source.bias.detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[E, in] -> [E, out], a new array."""
        for (weight, bias), activation in zip(self.weights, self.activations, strict=True):
            x = x @ weight.T
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
