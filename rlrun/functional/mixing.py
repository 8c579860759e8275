"""The value of a team as a function of its agents' values."""

import torch
from torch import Tensor
from torch.nn.functional import elu


def vdn_total(q: Tensor) -> Tensor:
    """Q_tot = sum_i Q_i: [*, N] -> [*]. Source: Sunehag et al. 2018 (VDN), section 3."""
    return q.sum(-1)


def qmix_total(q: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Q_tot = |w2| elu(|w1| q + b1) + b2: dQ_tot / dQ_i >= 0 whatever the weights are.

    ``q`` [*, N], ``w1`` [*, N, H], ``b1`` and ``w2`` [*, H], ``b2`` [*] -> [*]; weights and biases
    are functions of the global state. Source: Rashid et al. 2018 (QMIX), section 4 and figure 2a.
    """
    hidden = elu((q.unsqueeze(-1) * w1.abs()).sum(-2) + b1)
    return (hidden * w2.abs()).sum(-1) + b2


def mask_left_agents(q: Tensor, alive: Tensor) -> Tensor:
    """Q_i where the agent is ``alive``, else 0. Both [*, N]."""
    return torch.where(alive, q, torch.zeros_like(q))


def team_greedy(q: Tensor, allowed: Tensor) -> Tensor:
    """argmax_a Q_i over ``allowed`` actions, detached: [*, N, A] -> int64 [*, N].

    The team's best joint action where Q_tot is monotonic. Source: Rashid et al. 2018, eq. 4 and 5.
    """
    return torch.where(allowed, q.detach(), -torch.inf).argmax(-1)
