"""``functional/continuous.py``'s squashed Gaussian in numpy, with its slopes written down."""

import math
from typing import NamedTuple

import numpy as np

from rlrun.functional.continuous import LOG_STD_BOUNDS

_LOW, _HIGH = (np.float32(x) for x in LOG_STD_BOUNDS)
_LOG_2, _HALF, _TWO = (np.float32(x) for x in (math.log(2.0), 0.5, 2.0))
_LOG_ROOT = np.float32(0.5 * math.log(2 * math.pi))


class SquashedActions(NamedTuple):
    """Samples of tanh(Normal), and what their slopes need."""

    action: np.ndarray  # [N, A] in [-1, 1]
    log_prob: np.ndarray  # [N]
    swing: np.ndarray  # [N, A] std x noise: d u / d log std
    free: np.ndarray  # bool [N, A]: log std within its bounds, both included


def squashed(head: np.ndarray, noise: np.ndarray) -> SquashedActions:
    """``squashed_gaussian`` of ``head`` [N, 2 A] (means, then log standard deviations).

    ``noise`` float32 [N, A], standard normal. Source: Haarnoja et al. 2018a, appendix C, eq. 21.
    """
    size = noise.shape[1]
    mean, raw = head[:, :size], head[:, size:]
    log_std = np.clip(raw, _LOW, _HIGH)
    swing = np.exp(log_std) * noise
    u = mean + swing
    log_prob = noise * noise
    log_prob *= -_HALF
    log_prob -= log_std
    log_prob -= _LOG_ROOT
    log_prob -= _TWO * (_LOG_2 - u - np.logaddexp(np.float32(0), -_TWO * u))
    return SquashedActions(np.tanh(u), log_prob.sum(1), swing, raw == log_std)


def squashed_grad(drawn: SquashedActions, action: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
    """The slope over ``head`` [n, 2 A] of one over actions [n, A] and log pi [n].

    Of the first n samples. With a = tanh u: da/du = 1 - a^2, and log pi falls by log(1 - a^2),
    whose derivative is -2 a; noise stays as it is.
    """
    count, size = action.shape
    a = drawn.action[:count]
    over_u = action * (np.float32(1) - a * a)
    over_u += _TWO * log_prob[:, None] * a
    slope = np.empty((count, 2 * size), np.float32)
    slope[:, :size] = over_u
    over_std = over_u * drawn.swing[:count]
    over_std -= log_prob[:, None]
    slope[:, size:] = over_std * drawn.free[:count]
    return slope
