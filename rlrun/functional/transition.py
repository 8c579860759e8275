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
    segment: Segment, *, nstep: int, gamma: float, scale: float, clip: float | None
) -> Transition:
    """Row 0 and the row it bootstraps from, k <= nstep later, of every window.

    Padding is not read, NaN included.
    """
    obs, prev_action, prev_reward = network_inputs(segment, scale=scale, clip=clip)
    reward = segment.reward * scale
    reward = reward if clip is None else reward.clamp(-clip, clip)
    ends = (segment.terminated, segment.truncated, segment.valid)
    n = nstep_return(reward, *ends, nstep=nstep, gamma=gamma)
    column, valid = torch.arange(segment.reward.shape[1], device=reward.device), segment.valid[0]

    def bootstrap_row(x: Tensor) -> Tensor:
        return x[n.steps[0], column]

    action = segment.action[0]
    keep = valid.reshape(-1, *[1] * (action.ndim - 1))
    return Transition(
        obs=tree_map(lambda x: x[0], obs),
        previous=(prev_action[0], prev_reward[0]),
        action=torch.where(keep, action, torch.zeros_like(action)),
        reward=n.reward[0],
        discount=n.discount[0],
        next_obs=tree_map(bootstrap_row, obs),
        next_previous=(bootstrap_row(prev_action), bootstrap_row(prev_reward)),
        valid=valid,
    )
