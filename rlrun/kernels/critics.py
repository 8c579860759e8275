"""Several critics in numpy, every layer of all of them one batched product."""

import numpy as np
from torch import Tensor

from rlrun.acting.mlp import FORWARD
from rlrun.kernels.mlp import BACKWARD
from rlrun.nets.critics import Critics
from rlrun.nets.torso import ACTIVATIONS


class NumpyCritics:
    """Forward and backward passes of ``Critics``; weights are views of the network's own."""

    def __init__(
        self, net: Critics, grads: list[Tensor] | None = None, count: int | None = None
    ) -> None:
        """``grads``: for the parameters' gradients, None: not computed.

        ``count``: number of critics evaluated, the first ones; None: all.
        """
        self.weights = [w.detach().numpy()[:count] for w in net.weights]  # [C, in, out] each
        self.biases = [b.detach().numpy()[:count] for b in net.biases]  # [C, 1, out] each
        layers = len(self.weights)
        arrays = [] if grads is None else [grad.numpy() for grad in grads]
        self.weight_grads, self.bias_grads = arrays[:layers], [b[:, 0] for b in arrays[layers:]]
        self.activate = FORWARD[ACTIVATIONS[net.activation]]
        self.activation_backward = BACKWARD[ACTIVATIONS[net.activation]]
        self.activations: list[np.ndarray] = []  # input and hidden layers' outputs

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return Q [C, N] of features and actions [N, F + A]; keeps what ``backward`` needs."""
        self.activations = [x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight
            x += bias
            self.activate(x)
            self.activations.append(x)
        q: np.ndarray = x @ self.weights[-1]
        q += self.biases[-1]
        return q[..., 0]

    def backward(self, grad: np.ndarray) -> None:
        """Write the gradients of the parameters; ``grad`` [C, N]: d loss / d Q of the last call."""
        ones = np.ones(grad.shape[1], np.float32)
        self.weight_grads[-1][..., 0] = (grad[:, None] @ self.activations[-1])[:, 0]
        self.bias_grads[-1][:, 0] = grad.sum(1)
        d = grad[..., None] * self.weights[-1].mT
        for i in range(len(self.weights) - 2, -1, -1):
            d = self.activation_backward(d, self.activations[i + 1])
            np.matmul(self.activations[i].mT, d, out=self.weight_grads[i])
            np.matmul(ones, d, out=self.bias_grads[i])
            if i:
                d = d @ self.weights[i].mT

    def action_grad(self, grad: np.ndarray, size: int) -> np.ndarray:
        """Return d loss / d action [N, size], the last inputs; ``grad`` [C, N]: d loss / d Q."""
        d = grad[..., None] * self.weights[-1].mT
        for i in range(len(self.weights) - 2, 0, -1):
            d = self.activation_backward(d, self.activations[i + 1]) @ self.weights[i].mT
        d = self.activation_backward(d, self.activations[1]) @ self.weights[0][:, -size:].mT
        total: np.ndarray = d.sum(0)
        return total
