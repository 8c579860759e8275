"""Exploration on top of action values."""

import numpy as np
import torch
from torch import Tensor


def epsilon_greedy(q: Tensor, epsilon: np.ndarray | None, generator: np.random.Generator) -> Tensor:
    """argmax_a q, replaced by a uniform action with probability ``epsilon``; int64 [E].

    One coin per environment (``epsilon`` [E]); None draws nothing. ``q`` [E, A].
    """
    greedy = q.argmax(-1)
    if epsilon is None:
        return greedy
    coin = torch.from_numpy(generator.random(len(epsilon)) < epsilon)
    uniform = torch.from_numpy(generator.integers(q.shape[-1], size=len(epsilon)))
    return torch.where(coin.to(q.device), uniform.to(q.device), greedy)
