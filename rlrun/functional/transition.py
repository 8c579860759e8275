"""A window of one learned row as a transition: now, what came of it, and k rows later."""

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
    later: Tree  # [B, *O] k rows later; zeros where that may not be read
    later_previous: tuple[Tensor, Tensor]  # as ``previous``, of the row k rows later
    valid: Tensor  # [B] bool


def transition(
    segment: Segment, *, nstep: int, gamma: float, scale: float, clip: float | None
) -> Transition:
    """Row 0 and the row it bootstraps from, k <= nstep later, of every window.

    Nothing that padding holds is read, NaN included. Source: semantics sections 2 and 3.
    """
    obs, prev_action, prev_reward = network_inputs(segment, scale=scale, clip=clip)
    reward = segment.reward * scale
    reward = reward if clip is None else reward.clamp(-clip, clip)
    ends = (segment.terminated, segment.truncated, segment.valid)
    n = nstep_return(reward, *ends, nstep=nstep, gamma=gamma)
    column, valid = torch.arange(segment.reward.shape[1], device=reward.device), segment.valid[0]

    def now(x: Tensor) -> Tensor:
        return x[0]

    def later(x: Tensor) -> Tensor:
        return x[n.steps[0], column]

    action = segment.action[0]
    keep = valid.reshape(-1, *[1] * (action.ndim - 1))
    return Transition(
        obs=tree_map(now, obs),
        previous=(prev_action[0], prev_reward[0]),
        action=torch.where(keep, action, torch.zeros_like(action)),
        reward=n.reward[0],
        discount=n.discount[0],
        later=tree_map(later, obs),
        later_previous=(later(prev_action), later(prev_reward)),
        valid=valid,
    )
