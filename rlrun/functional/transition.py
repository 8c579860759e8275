"""A window of one learned row as a transition (s, a, R, gamma^k, s')."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import network_inputs
from rlrun.types import Segment, Tree, tree_map


class Transition(NamedTuple):
    """Row 0 of every window; padding is zero in it, and not ``valid``."""

    obs: Tree  # [B, *O]
    previous: tuple[Tensor, Tensor]  # action [B, *A] and reward [B] of the row before
    action: Tensor  # [B, *A]
    reward: Tensor  # [B] n-step return
    discount: Tensor  # [B] gamma^k, 0 where a step among them terminated
    next_obs: Tree  # [B, *O] k rows later; zeros after a termination
    next_previous: tuple[Tensor, Tensor]  # as ``previous``, of the row k rows later
    valid: Tensor  # [B] bool


def transition(
    segment: Segment,
    reward: Tensor,
    *,
    nstep: int,
    gamma: float,
    prev_inputs: tuple[float, float | None] | None = None,
) -> Transition:
    """Row 0 and the row it bootstraps from, k <= nstep later, of every window.

    Padding is not read, NaN included. ``reward`` [T, B]: that of the n-step returns.
    ``prev_inputs``: scale and clip of the previous reward; None: ``previous`` is not read, and
    holds nothing.
    """
    ends = (segment.terminated, segment.truncated, segment.valid)
    n = nstep_return(reward, *ends, nstep=nstep, gamma=gamma)
    steps, discount, valid = n.steps[0], n.discount[0], segment.valid[0]
    column = torch.arange(len(steps), device=steps.device)

    def bootstrap_row(x: Tensor) -> Tensor:
        return x[1] if nstep == 1 else x[steps, column]

    nothing = reward.new_empty(0)
    previous = next_previous = (nothing, nothing)
    if prev_inputs is None:
        obs = tree_map(lambda x: _keep(valid, x[0]), segment.obs)
        alive = valid & (discount > 0)
        next_obs = tree_map(lambda x: _keep(alive, bootstrap_row(x)), segment.obs)
    else:
        scale, clip = prev_inputs
        inputs, action, last = network_inputs(segment, scale=scale, clip=clip)
        previous, next_previous = (action[0], last[0]), (bootstrap_row(action), bootstrap_row(last))
        obs, next_obs = tree_map(lambda x: x[0], inputs), tree_map(bootstrap_row, inputs)
    return Transition(
        obs=obs,
        previous=previous,
        action=_keep(valid, segment.action[0]),
        reward=n.reward[0],
        discount=discount,
        next_obs=next_obs,
        next_previous=next_previous,
        valid=valid,
    )


def _keep(mask: Tensor, x: Tensor) -> Tensor:
    """``x`` [B, ...] where ``mask`` [B], else zeros."""
    return torch.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, torch.zeros_like(x))
