"""The gap between the values of all actions and of those taken, as the sentence has it."""

import math

import torch
from torch import Tensor


def naive_gap(q: Tensor, log_density: Tensor, taken: Tensor) -> Tensor:
    """log of the mean over samples of exp(Q) / density, less the taken action's value.

    q [C, I, L, B], log_density [I, L, B], taken [C, L, B].
    """
    out = torch.zeros_like(taken)
    critics, samples, rows, columns = q.shape
    for c in range(critics):
        for t in range(rows):
            for b in range(columns):
                total = 0.0
                for i in range(samples):
                    total += math.exp(q[c, i, t, b]) / math.exp(log_density[i, t, b])
                out[c, t, b] = math.log(total / samples) - taken[c, t, b]
    return out
