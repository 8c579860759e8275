"""Linear layers and activations in numpy, forward and backward."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn


class ForwardMLP:
    """The linear layers of a Sequential and the activations between them."""

    def __init__(self, layers: nn.Module) -> None:
        assert isinstance(layers, nn.Sequential)
        self.sources = [m for m in layers if isinstance(m, nn.Linear)]
        self.weights = [(copy_parameter(m.weight), copy_parameter(m.bias)) for m in self.sources]
        kinds = [type(m) for m in layers if not isinstance(m, nn.Linear)]
        self.activations: list[Callable[[np.ndarray], None] | None] = [
            FORWARD[kind] for kind in kinds
        ]
        self.activations += [None] * (len(self.sources) - len(kinds))  # none behind the last

    def refresh(self) -> None:
        for source, (weight, bias) in zip(self.sources, self.weights, strict=True):
            np.copyto(weight, source.weight.detach().numpy())
            np.copyto(bias, source.bias.detach().numpy())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[E, in] -> [E, out], fresh."""
        for (weight, bias), activation in zip(self.weights, self.activations, strict=True):
            x = x @ weight.T
            x += bias
            if activation is not None:
                activation(x)
        return x


def copy_parameter(parameter: Tensor) -> np.ndarray:
    """Return the parameter as an array of its own."""
    return parameter.detach().numpy().copy()


# A learner that diverges ends its run with one line; numpy's own warnings would come before it.
IGNORE_OVERFLOW = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class LinearLayer(NamedTuple):
    weight: np.ndarray  # [out, in]
    bias: np.ndarray  # [out]
    over_weight: np.ndarray  # their slopes
    over_bias: np.ndarray
    activation: type[nn.Module] | None


class DifferentiableMLP:
    """The linear layers of a Sequential and the activations between them."""

    def __init__(self, layers: nn.Sequential, places: dict[int, np.ndarray] | None) -> None:
        """``places``: address of a parameter -> where its slope belongs; None: it has none."""
        self.layers: list[LinearLayer] = []
        for module in layers:
            if isinstance(module, nn.Linear):
                weight, bias = module.weight, module.bias
                none = np.zeros(0, np.float32)
                over = (none, none)
                if places is not None:
                    over = places[weight.data_ptr()], places[bias.data_ptr()]
                layer = LinearLayer(weight.detach().numpy(), bias.detach().numpy(), *over, None)
                self.layers.append(layer)
            else:
                self.layers[-1] = self.layers[-1]._replace(activation=type(module))
        self.kept: list[np.ndarray] = []
        self.ones = np.ones(0, np.float32)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, in] -> [N, out], fresh."""
        self.kept = [x]
        for layer in self.layers:
            x = x @ layer.weight.T
            x += layer.bias
            if layer.activation is not None:
                FORWARD[layer.activation](x)
            self.kept.append(x)
        return x

    def back(self, slope: np.ndarray, *, inputs: bool) -> np.ndarray:
        """The slope over the input (where asked for), of that [n, out] over the first n outputs.

        Those over the parameters go to their places. What activations gave is overwritten.
        """
        count = len(slope)
        if len(self.ones) < count:
            self.ones = np.ones(count, np.float32)
        ones = self.ones[:count]
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            if layer.activation is not None:
                slope = BACKWARD[layer.activation](slope, self.kept[i + 1][:count])
            np.matmul(slope.T, self.kept[i][:count], out=layer.over_weight)
            np.matmul(ones, slope, out=layer.over_bias)
            if i or inputs:
                slope = slope @ layer.weight
        return slope


def _relu(x: np.ndarray) -> None:
    np.maximum(x, np.float32(0), out=x)


def _tanh(x: np.ndarray) -> None:
    np.tanh(x, out=x)


def _elu(x: np.ndarray) -> None:
    np.expm1(x, out=x, where=x <= 0)


def _relu_back(slope: np.ndarray, out: np.ndarray) -> np.ndarray:
    passed: np.ndarray = slope * (out > 0)  # half the time of np.where
    return passed


def _tanh_back(slope: np.ndarray, out: np.ndarray) -> np.ndarray:
    out *= out
    np.subtract(np.float32(1), out, out=out)
    out *= slope
    return out


def _elu_back(slope: np.ndarray, out: np.ndarray) -> np.ndarray:
    return np.where(out > 0, slope, slope * (out + np.float32(1)))


FORWARD: dict[type[nn.Module], Callable[[np.ndarray], None]] = {  # in place
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.ELU: _elu,
}

BACKWARD: dict[type[nn.Module], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    nn.ReLU: _relu_back,  # (slope, output)
    nn.Tanh: _tanh_back,
    nn.ELU: _elu_back,
}
