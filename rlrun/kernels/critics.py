"""Several critics in numpy, every layer of all of them one batched product."""

import numpy as np
from torch import Tensor

from rlrun.kernels.mlp import BACKWARD, FORWARD
from rlrun.nets.critics import Critics
from rlrun.nets.torso import ACTIVATIONS


class NumpyCritics:
    """Critics in numpy, every layer of all of them one batched product."""

    def __init__(
        self, net: Critics, places: list[Tensor] | None = None, count: int | None = None
    ) -> None:
        """``places``: where slopes belong, None: nowhere; ``count``: only the first so many."""
        self.weights = [w.detach().numpy()[:count] for w in net.weights]  # [C, in, out] each
        self.biases = [b.detach().numpy()[:count] for b in net.biases]  # [C, 1, out] each
        layers = len(self.weights)
        over = [] if places is None else [p.numpy() for p in places]
        self.over_weights, self.over_biases = over[:layers], [b[:, 0] for b in over[layers:]]
        self.forward = FORWARD[ACTIVATIONS[net.activation]]
        self.backward = BACKWARD[ACTIVATIONS[net.activation]]
        self.kept: list[np.ndarray] = []

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, F + A] -> [C, N]."""
        self.kept = [x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight
            x += bias
            self.forward(x)
            self.kept.append(x)
        q: np.ndarray = x @ self.weights[-1]
        q += self.biases[-1]
        return q[..., 0]

    def back(self, slope: np.ndarray) -> None:
        """The slopes over the parameters, of that [C, N] over the last values, to their places."""
        ones = np.ones(slope.shape[1], np.float32)
        self.over_weights[-1][..., 0] = (slope[:, None] @ self.kept[-1])[:, 0]
        self.over_biases[-1][:, 0] = slope.sum(1)
        d = slope[..., None] * self.weights[-1].mT
        for i in range(len(self.weights) - 2, -1, -1):
            d = self.backward(d, self.kept[i + 1])
            np.matmul(self.kept[i].mT, d, out=self.over_weights[i])
            np.matmul(ones, d, out=self.over_biases[i])
            if i:
                d = d @ self.weights[i].mT

    def over_action(self, slope: np.ndarray, size: int) -> np.ndarray:
        """[N, size]: the slope over the last ``size`` inputs, of that [C, N] over the values."""
        d = slope[..., None] * self.weights[-1].mT
        for i in range(len(self.weights) - 2, 0, -1):
            d = self.backward(d, self.kept[i + 1]) @ self.weights[i].mT
        over = self.backward(d, self.kept[1]) @ self.weights[0][:, -size:].mT
        total: np.ndarray = over.sum(0)
        return total
