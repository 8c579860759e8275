"""RND: running moments, whitening, prediction error, discounted sums of intrinsic rewards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlrun.functional.rows import masked_mean

VARIANCE_EPS = 1e-8  # below the variance of any feature that changes


@dataclass(frozen=True, slots=True)
class SampleMoments:
    """Count, mean and variance of all values seen so far."""

    count: float
    mean: Tensor  # float64 [*F]
    var: Tensor  # float64 [*F], divided by the count (not by count - 1)


def empty_moments(shape: tuple[int, ...], device: torch.device) -> SampleMoments:
    """Moments of no values: count 0, mean 0, variance 0."""
    zero = torch.zeros(shape, dtype=torch.float64, device=device)
    return SampleMoments(0.0, zero, zero.clone())


def merge_moments(moments: SampleMoments, x: Tensor) -> SampleMoments:
    """The moments of all values so far and of ``x`` [N, *F]; N = 0 changes nothing.

    With n values so far and m new ones, d = mean(x) - mean: mean + d m / (n + m), (n var + m var(x)
    + d^2 n m / (n + m)) / (n + m). Source: Chan, Golub & LeVeque 1979, the pairwise update.
    """
    new = len(x)
    if not new:
        return moments
    x = x.double()
    mean, total = x.mean(0), moments.count + new
    delta = mean - moments.mean
    squares = moments.var * moments.count + ((x - mean) ** 2).sum(0)
    squares = squares + delta**2 * (moments.count * new / total)
    return SampleMoments(total, moments.mean + delta * (new / total), squares / total)


def whiten(x: Tensor, moments: SampleMoments, clip: float) -> Tensor:
    """(x - mean) / std within [-clip, clip], float32, the shape of ``x`` [*, *F].

    A feature that was constant so far gives 0, and +-``clip`` at its first change. Source: Burda et
    al. 2018 (RND), section 2.4 (clip 5).
    """
    scaled = (x - moments.mean) / (moments.var + VARIANCE_EPS).sqrt()
    return scaled.clamp(-clip, clip).float()


def prediction_error(prediction: Tensor, target: Tensor) -> Tensor:
    """mean_k (prediction_k - target_k)^2 over features k: [*, K] -> [*]; the target is detached.

    Source: Burda et al. 2018, section 2.2 (their sum over k, divided by K).
    """
    return ((prediction - target.detach()) ** 2).mean(-1)


def discounted_sums(
    novelty: Tensor, valid: Tensor, carried: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """([T, B] s_t = gamma s_{t-1} + novelty_t, [B] the last of them); s_{-1} is ``carried`` [B].

    Ends of episodes do not reset the sums. Rows that are not ``valid`` are skipped and repeat the
    sum so far. Source: Burda et al. 2018, section 2.4 (the running standard deviation of the
    returns).
    """
    sums = torch.empty_like(novelty)
    for t in range(len(novelty)):
        carried = torch.where(valid[t], gamma * carried + novelty[t], carried)
        sums[t] = carried
    return sums, carried


def bonus_reward(
    reward: Tensor, novelty: Tensor, gets_bonus: Tensor, *, factor: float | Tensor
) -> tuple[Tensor, Tensor]:
    """([T, B] reward + factor * novelty where ``gets_bonus``, mean of the added part there, 0-d).

    ``gets_bonus`` [T, B] bool; ``novelty`` elsewhere is not read, NaN included.
    """
    added = torch.where(gets_bonus, novelty * factor, 0.0).to(reward.dtype)
    return reward + added, masked_mean(added, gets_bonus)
