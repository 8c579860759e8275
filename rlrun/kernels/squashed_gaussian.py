"""The squashed Gaussian of ``functional/continuous.py`` in numpy, with its gradient."""

import math
from typing import NamedTuple

import numpy as np

from rlrun.functional.continuous import LOG_STD_BOUNDS

_LOW, _HIGH = (np.float32(x) for x in LOG_STD_BOUNDS)
_LOG_2, _HALF, _TWO = (np.float32(x) for x in (math.log(2.0), 0.5, 2.0))
_LOG_ROOT = np.float32(0.5 * math.log(2 * math.pi))


class SquashedActions(NamedTuple):
    """Samples of tanh(Normal), and the factors of their gradient."""

    action: np.ndarray  # [N, A] in [-1, 1]
    log_prob: np.ndarray  # [N]
    std_noise: np.ndarray  # [N, A] std x noise: d u / d log std
    in_bounds: np.ndarray  # bool [N, A]: log std within its bounds, both included


def squashed(outputs: np.ndarray, noise: np.ndarray) -> SquashedActions:
    """Return ``squashed_gaussian`` of ``outputs`` [N, 2 A] (means, then log standard deviations).

    ``noise`` float32 [N, A], standard normal. Source: Haarnoja et al. 2018a, appendix C, eq. 21.
    """
    size = noise.shape[1]
    mean, raw = outputs[:, :size], outputs[:, size:]
    log_std = np.clip(raw, _LOW, _HIGH)
    std_noise = np.exp(log_std) * noise
    u = mean + std_noise
    log_prob = noise * noise
    log_prob *= -_HALF
    log_prob -= log_std
    log_prob -= _LOG_ROOT
    log_prob -= _TWO * (_LOG_2 - u - np.logaddexp(np.float32(0), -_TWO * u))
    return SquashedActions(np.tanh(u), log_prob.sum(1), std_noise, raw == log_std)


def squashed_grad(samples: SquashedActions, action: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
    """Return d loss / d outputs [n, 2 A] of the first n samples.

    ``action`` [n, A], ``log_prob`` [n]: d loss / d action and d loss / d log pi. With a = tanh u:
    da/du = 1 - a^2, and the derivative of -log(1 - a^2) with respect to u is 2 a. The noise is
    constant.
    """
    count, size = action.shape
    a = samples.action[:count]
    u_grad = action * (np.float32(1) - a * a)
    u_grad += _TWO * log_prob[:, None] * a
    grad = np.empty((count, 2 * size), np.float32)
    grad[:, :size] = u_grad
    log_std_grad = u_grad * samples.std_noise[:count]
    log_std_grad -= log_prob[:, None]
    grad[:, size:] = log_std_grad * samples.in_bounds[:count]
    return grad
