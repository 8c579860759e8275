"""Compiled n-step returns of sampled windows, and the value rescaling; for DQN, R2D2, SAC, TD3."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.jit import inner, jit_ieee
from rlrun.kernels.layers import ONE, ZERO, F
from rlrun.schema import ControlConfig, ValueConfig
from rlrun.types import Segment, Tree

TWO, FOUR = F(2), F(4)
Rows = tuple[np.ndarray, ...]  # reward, terminated, truncated, valid [T, B]
TD_METRICS = tuple(  # as ``functional.value.td_metrics``
    f"train/{name}" for name in ("loss", "td_abs", "q_taken", "target", "valid_fraction")
)


@inner
@jit_ieee
def clamp(x: np.float32, limit: np.float32) -> np.float32:
    """Return ``x`` clipped to +-limit, NaN for NaN."""
    x = -limit if x < -limit else x
    return limit if x > limit else x


@inner
@jit_ieee
def rescale(x: np.float32, eps: np.float32) -> np.float32:
    """Return h(x), see functional.value.rescale."""
    size = abs(x)
    h: np.float32 = size / (np.sqrt(size + ONE) + ONE) + eps * size
    return -h if x < ZERO else h


@inner
@jit_ieee
def unrescale(x: np.float32, eps: np.float32) -> np.float32:
    """Return the inverse of h, see functional.value.unrescale."""
    size = abs(x)
    root = np.sqrt(ONE + FOUR * eps * (size + ONE + eps))
    u = TWO * size / (root + ONE + TWO * eps)
    h: np.float32 = u * (u + TWO)
    return -h if x < ZERO else h


@jit_ieee
def read_rows(
    window: Any, rewards: Any, x: np.ndarray, next_x: np.ndarray, reward: np.ndarray,
    discount: np.ndarray,
) -> None:  # fmt: skip
    """Read row 0 of every window with its n-step return (functional.returns.nstep_return).

    ``window``: obs float32 [T+1, B, F], and ``Rows``. ``rewards``: see ``reward_rule``. Fills ``x``
    and ``next_x``, flat [B, F], with the row's observation and the one from which its target
    bootstraps, 0 where there is none, and the return and gamma^k, 0 after a termination, [B]. A
    function of a row's arrays would count references to them, five times the time of the loop.
    """
    obs, (raw, terminated, truncated, valid) = window
    (scale, clip), powers = rewards
    batch, size = obs.shape[1], obs.shape[2]
    for b in range(batch):
        total, k, dead = ZERO, 0, False
        while k < len(powers) - 1 and k < len(valid) and valid[k, b]:
            total += powers[k] * clamp(raw[k, b] * scale, clip)
            k += 1
            if terminated[k - 1, b] or truncated[k - 1, b]:
                dead = terminated[k - 1, b]
                break
        reward[b], discount[b] = total, (ZERO if dead else powers[k])
        real, bootstraps = valid[0, b], valid[0, b] and not dead
        for j in range(size):
            x[b * size + j] = obs[0, b, j] if real else ZERO
            next_x[b * size + j] = obs[k, b, j] if bootstraps else ZERO


def or_else(value: float | None, default: float) -> np.float32:
    """Return a setting as float32; ``default`` if it is None."""
    return F(default if value is None else value)


def reward_rule(
    config: ValueConfig | ControlConfig,
) -> tuple[tuple[np.float32, np.float32], np.ndarray]:
    """Return (scale and clip of rewards, gamma^0 .. gamma^n)."""
    powers = config.gamma ** torch.arange(config.nstep + 1.0)
    return (F(config.reward_scale), or_else(config.reward_clip, np.inf)), powers.numpy()


def window_of(segment: Segment, flatten: Callable[[Tree], Tensor]) -> tuple[np.ndarray, Rows]:
    """Return the windows that ``read_rows`` reads, with observations flattened."""
    obs = segment.obs
    if not (isinstance(obs, Tensor) and obs.ndim == 3 and obs.dtype == torch.float32):
        obs = flatten(obs)
    return obs.numpy(), rows_of(segment)


def rows_of(segment: Segment) -> Rows:
    """Return the rows of a segment that n-step returns read."""
    s = segment
    return s.reward.numpy(), s.terminated.numpy(), s.truncated.numpy(), s.valid.numpy()
