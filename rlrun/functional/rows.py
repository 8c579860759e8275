"""Network inputs, sums and means over the rows of a window, with padding masked out."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.types import Segment, Tree, tree_map

A = TypeVar("A", np.ndarray, Tensor)
RAW_REWARD = (
    "bonus.raw_reward"  # key in extras [T, B]: the environment's reward, if learning uses another
)


def readable(valid: Tensor, terminated: Tensor) -> Tensor:
    """bool [T+1, B]: valid rows, and the observation after a valid row that did not terminate.

    Everything else (filler, null rows, the end row of a terminated episode) must not reach a
    network: a zero gradient times NaN is NaN.
    """
    read = valid.new_zeros(len(valid) + 1, *valid.shape[1:])
    read[:-1] = valid
    read[1:] |= valid & ~terminated
    return read


def shape_reward(reward: A, scale: float, clip: float | None) -> A:
    """scale * reward, then clipped to [-clip, clip]. Buffers hold raw rewards."""
    scaled = reward if scale == 1 else reward * scale
    return scaled if clip is None else scaled.clip(-clip, clip)


def network_inputs(
    segment: Segment, *, scale: float, clip: float | None
) -> tuple[Tree, Tensor, Tensor]:
    """(obs [T+1, B, *O], prev_action [T+1, B, *A], prev_reward [T+1, B]) of a window.

    Position t has action and reward of row t - 1. A window's first row has those of the row before
    the window (``extras``). An episode's first row has action -1 (real actions: 0) and reward 0.
    Positions that are not ``readable`` have no action, and floats are zero there.
    """
    valid, none = segment.valid, torch.zeros_like(segment.valid[:1])
    read = readable(valid, segment.terminated)
    own_first = torch.cat([valid & ~torch.cat([none, valid[:-1]]), none])
    has = read & ~segment.first

    def previous(name: str, value: Tensor, missing: float) -> Tensor:
        before = segment.extras[name].unsqueeze(0)
        shifted = torch.where(_over(own_first, value), before, torch.cat([before, value]))
        return torch.where(_over(has, value), shifted, torch.full_like(shifted, missing))

    none_taken = 0 if segment.action.is_floating_point() else -1
    action = previous("prev_action", segment.action, none_taken)
    acted_on = segment.extras.get(RAW_REWARD, segment.reward)
    reward = previous("prev_reward", acted_on, 0)
    obs = _finite_obs(read, segment.obs)
    return obs, action, shape_reward(reward, scale, clip)


def _over(mask: Tensor, x: Tensor) -> Tensor:
    """``mask`` [*] expanded to the dimensions of ``x`` [*, ...]."""
    missing = x.ndim - mask.ndim
    return mask.reshape(*mask.shape, *[1] * missing) if missing else mask


def keep_rows(mask: Tensor, x: Tensor) -> Tensor:
    """``x`` [*, ...] where ``mask`` [*], else zeros."""
    return torch.where(_over(mask, x), x, x.new_zeros(()))


def readable_obs(segment: Segment) -> Tree:
    """Observations [T+1, B, *O]; floats are zero where they are not ``readable``.

    There whole numbers stay as they are, because they cannot be NaN.
    """
    return _finite_obs(readable(segment.valid, segment.terminated), segment.obs)


def _finite_obs(read: Tensor, obs: Tree) -> Tree:
    return tree_map(lambda x: keep_rows(read, x) if x.is_floating_point() else x, obs)


def rows(tree: Tree, start: int, stop: int | None) -> Tree:
    """Rows [start, stop) of every leaf."""
    return tree_map(lambda x: x[start:stop], tree)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of ``x`` where ``mask``, over ``dim`` or all; an empty mask gives 0.

    NaN and inf elsewhere are ignored.
    """
    kept = torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))
    return kept.sum(dim) / mask.sum(dim).clamp(min=1)


def weighted_row_mean(x: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
    """mean_b(w_b sum_t valid x_t / L), 0-d; ``x`` and ``valid`` [L, B] or [B], ``weight`` [B].

    The divisor is the constant number L of learned positions, so every row has the same weight and
    padding does not raise that of the others.
    """
    kept = torch.where(valid, x, torch.zeros((), dtype=x.dtype, device=x.device))
    return (kept * weight).sum() / valid.numel()
