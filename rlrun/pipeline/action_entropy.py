"""Entropy of the actions taken between two records."""

import gymnasium as gym
import numpy as np

BINS = 16  # equal parts of the range of a real action
MOST_VALUES = 4096  # of a discrete action; more are not counted


class ActionCounts:
    """Counts the values of every component of the actions since the last ``entropy``.

    Components: the action itself (Discrete), its entries (MultiDiscrete, MultiBinary), its
    dimensions in ``BINS`` equal parts (Box with finite bounds; actions beyond them belong to the
    outer parts, NaN to none). A component with one value only, or too many, or unbounded, is not
    counted.
    """

    def __init__(self, space: gym.Space[np.ndarray]) -> None:
        """``space``: of one environment's actions; discrete ones are numbered from 0."""
        self.low, self.per_unit = np.zeros(1), np.ones(1)
        sizes = np.zeros(0, np.int64)
        if isinstance(space, gym.spaces.Discrete):
            sizes = np.array([space.n])
        elif isinstance(space, gym.spaces.MultiDiscrete):
            sizes = space.nvec.reshape(-1).astype(np.int64)
        elif isinstance(space, gym.spaces.MultiBinary):
            sizes = np.full(int(np.prod(space.shape)), 2)
        elif isinstance(space, gym.spaces.Box):
            low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
            with np.errstate(over="ignore", invalid="ignore"):
                span = high - low
            bounded = np.isfinite(span) & (span > 0)
            self.low, self.per_unit = low[bounded], BINS / span[bounded]
            sizes = np.where(bounded, BINS, 0)
        self.kept = (sizes > 1) & (sizes <= MOST_VALUES)
        self.sizes = sizes[self.kept]
        self.starts = np.cumsum(self.sizes) - self.sizes  # of the components in ``counts``
        self.counts = np.zeros(int(self.sizes.sum()), np.int64)
        self.single = len(sizes) == 1 and isinstance(space, gym.spaces.Discrete)
        self.binned = isinstance(space, gym.spaces.Box)

    def add(self, action: np.ndarray, valid: np.ndarray) -> None:
        """Count the actions [T, E, *A] of the rows that are ``valid`` [T, E]."""
        if not len(self.counts):
            return
        taken = action[valid]
        if not self.single:
            taken = taken.reshape(len(taken), -1)[:, self.kept]
            if self.binned:
                part = np.clip((taken - self.low) * self.per_unit, 0, BINS - 1)
                counted = ~np.isnan(part)
                part = np.where(counted, part, 0).astype(np.int64)  # no number is no NaN
                taken = (part + self.starts)[counted]
            else:
                taken = np.clip(taken, 0, self.sizes - 1) + self.starts
        self.counts += np.bincount(taken.reshape(-1), minlength=len(self.counts))

    def entropy(self) -> float | None:
        """Return the share in [0, 1] of the largest possible entropy, mean over the components.

        Of the empirical distribution of each counted one: -sum_a f(a) log f(a) / log n. None: no
        action was counted. Begins anew.
        """
        if not self.counts.any():
            return None
        shares = []
        for start, size in zip(self.starts, self.sizes, strict=True):
            count = self.counts[start : start + size]
            if not count.any():
                continue
            f = count[count > 0] / count.sum()
            shares.append(-float((f * np.log(f)).sum()) / np.log(size))
        self.counts = np.zeros_like(self.counts)
        return float(np.clip(np.mean(shares), 0.0, 1.0))

    def load(self, counts: np.ndarray | None) -> None:
        """Continue from saved ``counts``; None, or those of another space: from none."""
        known = counts is not None and counts.shape == self.counts.shape
        self.counts = np.array(counts, np.int64) if known else np.zeros_like(self.counts)
