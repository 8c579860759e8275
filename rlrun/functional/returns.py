"""n-step returns on rows, semantics section 2."""

from typing import NamedTuple

import torch
from torch import Tensor


class NStep(NamedTuple):
    """What ``nstep_return`` finds for every row t of [T, B]."""

    reward: Tensor  # float [T, B]: R_t = sum_{j<k} gamma^j r_{t+j}
    steps: Tensor  # int64 [T, B]: k, the steps actually used (0 where not valid)
    discount: Tensor  # float [T, B]: gamma^k, 0 if a step among them terminated


def nstep_return(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    nstep: int,
    gamma: float,
) -> NStep:
    """R_t, k and gamma^k (0 | 1) such that the target of row t is R_t + discount * V(obs[t + k]).

    k is the largest number <= nstep of consecutive valid rows from t on, up to and including the
    first one that is terminated or truncated, and never past the data's end (then the last
    observation, obs[T], is the bootstrap). A terminated step gives discount 0, a truncated one
    keeps gamma^k. Values in rows that are not valid are never read, NaN included.

    Shapes: all inputs [T, B]; ``reward`` float, the flags bool.
    Source: Sutton & Barto 2018, eq. 7.1; tails as in semantics section 2 (gamma^k with the k used).
    """
    if nstep == 1:
        total = torch.where(valid, reward, 0.0)
        discount = torch.where(valid, torch.where(terminated, 0.0, gamma), 1.0)
        return NStep(total, valid.long(), discount.to(reward.dtype))
    ahead = nstep - 1
    step_reward = _windows(reward, ahead, nstep)
    is_valid = _windows(valid, ahead, nstep)
    end = _windows(terminated | truncated, ahead, nstep)
    # A step is used when it and all before it are valid and none before it ended the episode.
    goes_on = (is_valid & ~end).cumprod(-1).bool()
    used = is_valid.clone()
    used[..., 1:] &= goes_on[..., :-1]
    power = gamma ** torch.arange(nstep, device=reward.device, dtype=reward.dtype)
    zero = torch.zeros((), dtype=reward.dtype, device=reward.device)
    total = (torch.where(used, step_reward, zero) * power).sum(-1)
    steps = used.sum(-1)
    dead = (used & _windows(terminated, ahead, nstep)).any(-1)
    discount = torch.where(dead, zero, gamma ** steps.to(reward.dtype))
    return NStep(total, steps, discount)


def _windows(x: Tensor, ahead: int, nstep: int) -> Tensor:
    """[T, B] -> [T, B, nstep]: x[t], ..., x[t + nstep - 1], zero (False) past the end."""
    if ahead:
        x = torch.cat([x, x.new_zeros(ahead, *x.shape[1:])])
    return x.unfold(0, nstep, 1)
