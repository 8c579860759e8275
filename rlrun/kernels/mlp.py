"""Backpropagation through linear layers, layer normalisation and activations in numpy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

from rlrun.jit import COMPILED, jit_ieee
from rlrun.policy.base import Part
from rlrun.policy.numpy_net import FORWARD, NumpyNorm, make_norm

_ZERO, _ONE = np.float32(0), np.float32(1)


def flat_gradients(part: Part) -> dict[int, np.ndarray]:
    """Flatten the parameters. Return data_ptr of each -> array of its gradient."""
    flat, _ = part.flatten()
    pairs = zip(part.params, flat.grad_views, strict=True)
    return {p.data_ptr(): grad.numpy() for p, grad in pairs}


class LinearLayer(NamedTuple):
    """Views of a layer's parameters and their gradients, for C networks with a first axis C."""

    weight: np.ndarray  # [out, in] or [C, out, in]
    bias: np.ndarray  # [out] or [C, 1, out]
    weight_grad: np.ndarray | None  # like the weight; None: not computed
    bias_grad: np.ndarray | None  # [out] or [C, out]
    activation: type[nn.Module] | None
    norm: "NormLayer | None" = None  # between the layer and its activation


class NormLayer(NamedTuple):
    """A layer normalisation with views of its gradients [N]; None: not computed."""

    forward: NumpyNorm
    weight_grad: np.ndarray | None
    bias_grad: np.ndarray | None

    def backward(
        self, grad: np.ndarray, unit: np.ndarray, inverse: np.ndarray, ones: np.ndarray
    ) -> np.ndarray:
        """Write the gradients of the parameters. Return d loss / d input [n, N].

        ``grad`` [n, N]: of the output. ``unit`` [n, N]: standardised inputs u. ``inverse`` [n, 1]:
        1 / sqrt(var + eps). With g = grad * weight: inverse (g - mean g - u mean(g u)).
        """
        if self.weight_grad is not None:
            np.matmul(ones, grad * unit, out=self.weight_grad)
            np.matmul(ones, grad, out=self.bias_grad)
        scale = np.float32(1 / grad.shape[-1])
        grad = grad * self.forward.weight
        along = np.vecdot(grad, unit)[..., None] * scale
        grad -= grad.sum(-1, keepdims=True) * scale
        grad -= unit * along
        grad *= inverse
        return grad


class DifferentiableMLP:
    """Linear layers and activations with their gradients.

    For one network, or for several with one batched product per layer.
    """

    def __init__(
        self, layers: nn.Sequential | list[LinearLayer], grads: dict[int, np.ndarray] | None = None
    ) -> None:
        """``grads``: data_ptr of a parameter of a Sequential -> array for its gradient.

        None: forward only. Weights of a Sequential are views of its own parameters.
        """
        if isinstance(layers, nn.Sequential):
            layers = linear_layers(layers, grads)
        self.layers = layers
        self.transposed = [layer.weight.mT for layer in layers]
        self.activations: list[np.ndarray] = []  # input and layer outputs of the last call
        self.norms: list[tuple[np.ndarray, np.ndarray] | None] = []  # (unit, inverse) of each layer
        self.ones = np.ones(0, np.float32)
        # Shape of the input -> arrays of each layer: its products, d loss / d its input.
        self.products: dict[tuple[int, ...], list[np.ndarray | None]] = {}
        self.input_grads: dict[tuple[int, ...], list[np.ndarray | None]] = {}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map [N, in] to [N, out] or [C, N, out]. Keeps what ``backward`` needs.

        The result is a new array if the last layer has no activation. If it has one, the next call
        with as many rows and ``backward`` overwrite it.
        """
        self.activations, self.norms = [x], []
        products = _arrays(self.products, x.shape, len(self.layers))
        for i, layer in enumerate(self.layers):
            reused = layer.activation is not None and layer.norm is None
            x = products[i] = np.matmul(x, self.transposed[i], out=products[i])
            kept = None
            if reused and layer.activation is nn.ReLU and COMPILED:
                size = x.shape[-1]
                _add_bias_relu(x.reshape(-1, size), layer.bias.reshape(-1, size))
            else:
                x += layer.bias
                if layer.norm is not None:
                    norm, unit = layer.norm.forward, x
                    kept = unit, norm.normalise(unit)
                    x = unit * norm.weight
                    x += norm.bias
                if layer.activation is not None:
                    FORWARD[layer.activation](x)
            if not reused:
                products[i] = None
            self.norms.append(kept)
            self.activations.append(x)
        return x

    def backward(self, grad: np.ndarray, *, inputs: bool | slice) -> np.ndarray:
        """Write the gradients of the parameters. Return that of the first n inputs.

        ``grad`` [n, out]: d loss / d output of the first n rows of the last call, the only ones on
        which the loss depends; of several networks [C, N, out]. ``inputs``: whether, or for which
        columns, the gradient [n, in] (or [C, N, in]) is computed; if not, the return value has no
        meaning. Overwrites the kept activations. The next call overwrites the result.
        """
        count = grad.shape[-2]
        if len(self.ones) < count:
            self.ones = np.ones(count, np.float32)
        ones = self.ones[:count]
        input_grads = _arrays(self.input_grads, grad.shape, len(self.layers))
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            if layer.activation is not None:
                grad = BACKWARD[layer.activation](grad, self.activations[i + 1][..., :count, :])
            if (kept := self.norms[i]) is not None:
                assert layer.norm is not None
                unit, inverse = (x[:count] for x in kept)
                grad = layer.norm.backward(grad, unit, inverse, ones)
            if layer.weight_grad is not None:
                np.matmul(grad.mT, self.activations[i][..., :count, :], out=layer.weight_grad)
                np.matmul(ones, grad, out=layer.bias_grad)
            if i or inputs:
                columns = isinstance(inputs, slice) and not i
                weight = layer.weight[..., inputs] if columns else layer.weight
                # One output: an outer product, for which numpy has no fast product.
                product = np.multiply if grad.shape[-1] == 1 else np.matmul
                grad = input_grads[i] = product(grad, weight, out=input_grads[i])
        return grad


_KEPT = 8  # shapes whose arrays are kept; more are rare (minibatches of several sizes)


def _arrays(
    arrays: dict[tuple[int, ...], list[np.ndarray | None]], shape: tuple[int, ...], layers: int
) -> list[np.ndarray | None]:
    """Return the arrays kept for ``shape``, one per layer, at first None."""
    if shape not in arrays:
        if len(arrays) == _KEPT:
            arrays.clear()
        arrays[shape] = [None] * layers
    return arrays[shape]


@jit_ieee
def _add_bias_relu(x: np.ndarray, bias: np.ndarray) -> None:
    """Replace ``x`` [C N, H] by max(x + bias, 0), NaN for NaN; ``bias`` [C, H]."""
    networks, units = bias.shape
    rows = len(x) // networks
    for c in range(networks):
        offset = bias[c]
        for i in range(c * rows, (c + 1) * rows):
            row = x[i]
            for j in range(units):
                y = row[j] + offset[j]
                row[j] = _ZERO if y < _ZERO else y


def linear_layers(
    sequential: nn.Sequential, grads: dict[int, np.ndarray] | None
) -> list[LinearLayer]:
    """Return the layers of ``sequential``; ``grads``: see ``DifferentiableMLP``."""
    layers: list[LinearLayer] = []
    for module in sequential:
        if isinstance(module, nn.Linear):
            weight, bias = module.weight, module.bias
            layer = LinearLayer(weight.detach().numpy(), bias.detach().numpy(), None, None, None)
            if grads is not None:
                layer_grads = grads[weight.data_ptr()], grads[bias.data_ptr()]
                layer = layer._replace(weight_grad=layer_grads[0], bias_grad=layer_grads[1])
            layers.append(layer)
        elif isinstance(module, nn.LayerNorm):
            norm = NormLayer(make_norm(module, copy=False), None, None)
            if grads is not None:
                layer_grads = grads[module.weight.data_ptr()], grads[module.bias.data_ptr()]
                norm = norm._replace(weight_grad=layer_grads[0], bias_grad=layer_grads[1])
            layers[-1] = layers[-1]._replace(norm=norm)
        else:
            layers[-1] = layers[-1]._replace(activation=type(module))
    return layers


def _relu_backward(grad: np.ndarray, out: np.ndarray) -> np.ndarray:
    if COMPILED:
        _mask(grad.reshape(-1), out.reshape(-1))
    else:
        np.multiply(grad, out > 0, out=out)  # half the time of np.where
    return out


@jit_ieee
def _mask(grad: np.ndarray, out: np.ndarray) -> None:
    """Replace ``out`` [N] by ``grad`` where it is positive, elsewhere by 0 (NaN for NaN)."""
    for i in range(len(out)):
        out[i] = grad[i] * (_ONE if out[i] > _ZERO else _ZERO)


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
