"""n-step returns, lambda-returns, generalised advantages, V-trace and transitions of rows."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.functional.rows import keep_rows, network_inputs
from rlrun.types import Segment, Tree, tree_map


class NStep(NamedTuple):
    """n-step return of every row t of [T, B]."""

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
    keeps gamma^k. Rewards and flags in rows that are not valid are never read, NaN included;
    obs[t + k] may be an end row or the first null row, which ``network_inputs`` keeps.

    Shapes: all inputs [T, B]; ``reward`` float, the flags bool.
    Source: Sutton & Barto 2018, eq. 7.1; tails have gamma^k with the k used.
    """
    if nstep == 1:
        total = torch.where(valid, reward, 0.0)
        discount = torch.full_like(reward, gamma).masked_fill_(terminated, 0.0)
        return NStep(total, valid.long(), discount.masked_fill_(~valid, 1.0))
    ahead = nstep - 1
    step_reward = _windows(reward, ahead, nstep)
    is_valid = _windows(valid, ahead, nstep)
    end = _windows(terminated | truncated, ahead, nstep)
    # A step counts if it and all before it are valid and none before it ended the episode.
    unbroken, apart = is_valid & ~end, 1
    while apart < nstep:  # of 1, 2, 4, ... steps
        unbroken[..., apart:] &= unbroken[..., :-apart].clone()
        apart *= 2
    used = is_valid.clone()
    used[..., 1:] &= unbroken[..., :-1]
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


def reverse_scan(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1}, y_T = 0, for x, decay [T, B] that are finite everywhere.

    Takes ceil(log2 T) passes over all rows instead of T passes over one: pass i combines rows 2^i
    apart. Source: Hillis & Steele 1986 (data-parallel prefix sums), on the affine maps y -> x +
    decay y.
    """
    ahead, decay = 1, decay[:-1]  # decay[t]: factor of y_{t + ahead} in row t
    while ahead < len(x):
        x = torch.cat([torch.addcmul(x[:-ahead], decay, x[ahead:]), x[-ahead:]])
        decay = decay[:-ahead] * decay[ahead:]
        ahead *= 2
    return x


def trace_continues(terminated: Tensor, truncated: Tensor, valid: Tensor) -> Tensor:
    """bool [T, B]: whether a trace continues from row t into row t + 1 of the data."""
    after = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    return valid & after & ~(terminated | truncated)


class Advantage(NamedTuple):
    """Advantages and value targets; 0 where not valid, detached."""

    advantage: Tensor  # float [T, B]
    target: Tensor  # float [T, B] regression target of the value


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    trace: float,
) -> Advantage:
    """A_t = delta_t + gamma trace A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t; target A_t + V_t.

    terminated[t]: no value after step t, V_{t+1} is not read. truncated[t]: V_{t+1} is that of the
    end row, and the sum ends. After the last row V[T] is the bootstrap. Rows that are not valid
    are never read, NaN included, except for the value after a valid row. ``trace`` 1: return - V;
    0: delta.

    Shapes: value [T+1, B], the others [T, B]. Source: Schulman et al. 2016, eq. 11 and 16.
    """
    value, zero = value.detach(), torch.zeros((), dtype=value.dtype, device=value.device)
    current = torch.where(valid, value[:-1], zero)
    delta = _delta(reward, current, value_after(value, terminated, valid), valid, gamma)
    decay = torch.where(trace_continues(terminated, truncated, valid), gamma * trace, zero)
    advantage = torch.where(valid, reverse_scan(delta, decay), zero)
    return Advantage(advantage, advantage + current)


def lambda_return(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    trace: float,
) -> Tensor:
    """G_t = r_t + gamma ((1 - trace) V_{t+1} + trace G_{t+1}), detached; 0 where not valid.

    With V = max_a Q these are the Q(lambda) returns of Peng & Williams: the trace continues after
    exploratory actions. terminated[t]: G_t = r_t, V_{t+1} is not read. truncated[t] and the last
    row: G_t = r_t + gamma V_{t+1}, with the value of the end row or V[T]. Invalid rows are never
    read, NaN included, except for the value after a valid row. ``trace`` 0: the one-step target; 1:
    the return to the end of the trace.

    Shapes: value [T+1, B], the others [T, B]; returns [T, B]. Source: Sutton & Barto 2018, eq.
    12.18; Gallici et al. 2024 (PQN), section 4.
    """
    value, zero = value.detach(), torch.zeros((), dtype=value.dtype, device=value.device)
    decay = torch.where(trace_continues(terminated, truncated, valid), trace, zero)
    step = reward + gamma * (1 - decay) * value_after(value, terminated, valid)
    return torch.where(valid, reverse_scan(torch.where(valid, step, zero), gamma * decay), zero)


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    trace: float,
    rho_clip: float,
    c_clip: float,
) -> Advantage:
    """V-trace: target v_t and the advantage rho_t (r_t + gamma v_{t+1} - V_t) of the policy.

    v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1}), rho_t = min(rho_clip, ratio_t),
    c_t = trace min(c_clip, ratio_t), with ``log_ratio`` [T, B] = log pi(a_t|s_t) - log mu(a_t|s_t).
    Flags and rows that are not valid as in ``gae``: where the trace ends v_{t+1} is V_{t+1}. On
    policy with trace 1 and clips >= 1 v_t is the n-step return to the end of the trace.

    Source: Espeholt et al. 2018 (IMPALA), eq. 1 and section 4.2.
    """
    value, zero = value.detach(), torch.zeros((), dtype=value.dtype, device=value.device)
    ratio = torch.where(valid, log_ratio.detach(), zero).exp()
    rho = ratio.clamp(max=rho_clip)
    current, next_value = (
        torch.where(valid, value[:-1], zero),
        value_after(value, terminated, valid),
    )
    continues = trace_continues(terminated, truncated, valid)
    delta = rho * _delta(reward, current, next_value, valid, gamma)
    correction = reverse_scan(
        delta, torch.where(continues, gamma * trace * ratio.clamp(max=c_clip), zero)
    )
    next_correction = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    next_target = next_value + torch.where(continues, next_correction, zero)  # v_{t+1}
    advantage = rho * _delta(reward, current, next_target, valid, gamma)
    return Advantage(advantage, torch.where(valid, current + correction, zero))


def value_after(value: Tensor, terminated: Tensor, valid: Tensor) -> Tensor:
    """[T, B] V of the row after t, 0 after a termination and after rows that are not valid."""
    return torch.where(valid & ~terminated, value[1:], torch.zeros_like(value[1:]))


def _delta(
    reward: Tensor, current: Tensor, next_value: Tensor, valid: Tensor, gamma: float
) -> Tensor:
    return torch.where(valid, reward + gamma * next_value - current, torch.zeros_like(current))


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
    """Row 0 and the row from which it bootstraps, k <= nstep later, of every window.

    Padding is not read, NaN included. ``reward`` [T, B]: that of the n-step returns.
    ``prev_inputs``: scale and clip of the previous reward; None: ``previous`` is not read and stays
    empty.
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
        obs = tree_map(lambda x: keep_rows(valid, x[0]), segment.obs)
        alive = valid & (discount > 0)
        next_obs = tree_map(lambda x: keep_rows(alive, bootstrap_row(x)), segment.obs)
    else:
        scale, clip = prev_inputs
        inputs, action, last = network_inputs(segment, scale=scale, clip=clip)
        previous, next_previous = (action[0], last[0]), (bootstrap_row(action), bootstrap_row(last))
        obs, next_obs = tree_map(lambda x: x[0], inputs), tree_map(bootstrap_row, inputs)
    return Transition(
        obs=obs,
        previous=previous,
        action=keep_rows(valid, segment.action[0]),
        reward=n.reward[0],
        discount=discount,
        next_obs=next_obs,
        next_previous=next_previous,
        valid=valid,
    )
