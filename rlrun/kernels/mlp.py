"""The chain rule of linear layers and activations in numpy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

from rlrun.acting.mlp import FORWARD

# A run whose loss overflows ends with one error line; numpy's warnings would stand before it.
IGNORE_OVERFLOW = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class LinearLayer(NamedTuple):
    """Views of a layer's parameters and of their gradients."""

    weight: np.ndarray  # [out, in]
    bias: np.ndarray  # [out]
    weight_grad: np.ndarray
    bias_grad: np.ndarray
    activation: type[nn.Module] | None


class DifferentiableMLP:
    """The linear layers of a Sequential and the activations between them, with their gradients.

    Weights are views of the network's own parameters.
    """

    def __init__(self, layers: nn.Sequential, grads: dict[int, np.ndarray] | None) -> None:
        """``grads``: data_ptr of a parameter -> array for its gradient; None: forward only."""
        self.layers: list[LinearLayer] = []
        for module in layers:
            if isinstance(module, nn.Linear):
                weight, bias = module.weight, module.bias
                none = np.zeros(0, np.float32)
                own = (none, none)
                if grads is not None:
                    own = grads[weight.data_ptr()], grads[bias.data_ptr()]
                layer = LinearLayer(weight.detach().numpy(), bias.detach().numpy(), *own, None)
                self.layers.append(layer)
            else:
                self.layers[-1] = self.layers[-1]._replace(activation=type(module))
        self.activations: list[np.ndarray] = []  # input and every layer's output, of the last call
        self.ones = np.ones(0, np.float32)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, in] -> [N, out], a new array; keeps what ``backward`` needs."""
        self.activations = [x]
        for layer in self.layers:
            x = x @ layer.weight.T
            x += layer.bias
            if layer.activation is not None:
                FORWARD[layer.activation](x)
            self.activations.append(x)
        return x

    def backward(self, grad: np.ndarray, *, inputs: bool) -> np.ndarray:
        """Write the gradients of the parameters; return that of the first n inputs.

        ``grad`` [n, out]: d loss / d output of the first n rows of the last call; the loss does
        not depend on the others. ``inputs``: whether the gradient [n, in] is computed; without it
        the return value has no meaning. Overwrites the kept activations.
        """
        count = len(grad)
        if len(self.ones) < count:
            self.ones = np.ones(count, np.float32)
        ones = self.ones[:count]
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            if layer.activation is not None:
                grad = BACKWARD[layer.activation](grad, self.activations[i + 1][:count])
            np.matmul(grad.T, self.activations[i][:count], out=layer.weight_grad)
            np.matmul(ones, grad, out=layer.bias_grad)
            if i or inputs:
                grad = grad @ layer.weight
        return grad


def _relu_backward(grad: np.ndarray, out: np.ndarray) -> np.ndarray:
    masked: np.ndarray = grad * (out > 0)  # half the time of np.where
    return masked


def _tanh_backward(grad: np.ndarray, out: np.ndarray) -> np.ndarray:
    out *= out
    np.subtract(np.float32(1), out, out=out)
    out *= grad
    return out


def _elu_backward(grad: np.ndarray, out: np.ndarray) -> np.ndarray:
    return np.where(out > 0, grad, grad * (out + np.float32(1)))


# (d loss / d output, output) -> d loss / d input; may overwrite the output.
BACKWARD: dict[type[nn.Module], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    nn.ReLU: _relu_backward,
    nn.Tanh: _tanh_backward,
    nn.ELU: _elu_backward,
}
