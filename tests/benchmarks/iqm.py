"""The interquartile mean and its stratified bootstrap (Agarwal et al. 2021)."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000


def iqm(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half of ``scores`` [..., N]: floor(N / 4) left out at either end; [...].

    5 scores: the mean of the middle 3; 3 or fewer: their mean.
    """
    cut = scores.shape[-1] // 4
    middle: np.ndarray = np.sort(scores, -1)[..., cut : scores.shape[-1] - cut].mean(-1)
    return middle


def interval(strata: Sequence[Sequence[float]], *, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of the IQM of all scores, every stratum resampled by itself.

    A stratum holds the scores of one task, one per seed. The same scores give the same interval.
    """
    draws, parts = np.random.default_rng(0), [np.asarray(s, float) for s in strata]
    drawn = [p[draws.integers(len(p), size=(RESAMPLES, len(p)))] for p in parts]
    tail = (1 - level) / 2
    low, high = np.quantile(iqm(np.concatenate(drawn, -1)), [tail, 1 - tail])
    return float(low), float(high)
