"""Proof by simulation: what the statistics claim holds on skewed and bimodal scores.

Seeds are fixed. ``error(share, n)`` is three standard deviations of a simulated share: a bound is
tested with it where the share it bounds lies at the bound itself.
"""

import math

import numpy as np
import pytest

from rlrun.reports.comparison import Comparison, difference
from rlrun.reports.intervals import mean_band
from tests.reports.forge import permutation_p


def bimodal(share, apart):
    """Scores near 0, or near ``apart`` for a ``share`` of seeds; sd 1 around either."""
    return lambda rng, shape: rng.normal(size=shape) + apart * (rng.random(shape) < share)


SKEWED = {
    "exponential": (lambda rng, shape: rng.exponential(size=shape), 1.0),
    "few fail": (lambda rng, shape: -rng.exponential(size=shape), -1.0),
    "gamma": (lambda rng, shape: rng.gamma(2.0, size=shape), 2.0),
    "lognormal": (lambda rng, shape: rng.lognormal(0.0, 0.5, shape), math.exp(0.125)),
    "beta": (lambda rng, shape: rng.beta(5.0, 1.0, shape), 5 / 6),
}
BIMODAL = {
    "half, 3 sd": (bimodal(0.5, 3), 1.5), "half, 4 sd": (bimodal(0.5, 4), 2.0),
    "70 %, 4 sd": (bimodal(0.7, 4), 2.8), "80 %, 4 sd": (bimodal(0.8, 4), 3.2),
}  # fmt: skip
SHAPES = {**SKEWED, **BIMODAL}


def error(share, n):
    return 3 * math.sqrt(share * (1 - share) / n)


def coverage(name, n, samples=10000):
    draw, mean = SHAPES[name]
    _, low, high = mean_band(draw(np.random.default_rng([n, len(name)]), (n, samples)))
    return np.mean((low <= mean) & (mean <= high))


@pytest.mark.parametrize("n", [20, 30])
def test_mean_interval_covers_93_to_97_percent(n):
    """From 20 seeds on both kinds; 10000 samples, error 0.0065, which no share here needs."""
    for name in SHAPES:
        assert 0.93 <= coverage(name, n) <= 0.97, name


def test_mean_interval_below_20_seeds():
    """10 seeds: still 93-97 % on skewed scores, at least 92 % on bimodal ones (up to 98.5 %).

    5 seeds: no method measured reaches 93 %; at least 90 %. Error 0.0077.
    """
    for name in SKEWED:
        assert 0.93 <= coverage(name, 10) <= 0.97, name
    assert min(coverage(name, 10) for name in BIMODAL) > 0.92
    assert min(coverage(name, 5) for name in SHAPES) > 0.90 - error(0.90, 10000)


def test_null_comparisons():
    """400 comparisons of equal groups, four shapes, 5 to 8 seeds: at most 5 % "differ".

    1500 p values of the same test narrow that.
    """
    rng, shapes = np.random.default_rng(0), list(SHAPES.values())[::2]

    def groups(i):
        draw, n = shapes[i % len(shapes)][0], 5 + i % 4
        return draw(rng, n), draw(rng, n)

    false = sum(difference(*groups(i), permutations=300, seed=i).decided for i in range(400))
    assert 5 < false <= 400 * (0.05 + error(0.05, 400))
    p = np.array([permutation_p(*groups(i), permutations=300, seed=i) for i in range(1500)])
    assert 0.05 - error(0.05, 1500) < np.mean(p <= 0.05) <= 0.05 + error(0.05, 1500)
    assert np.mean(p <= 0.01) <= 0.01 + error(0.01, 1500)


def sequential_study(draw, rng, agents, seed):
    comparison = Comparison(agents, looks=5, permutations=500 * (agents - 1), seed=seed)
    for _ in range(5):
        got = comparison.update(*draw(rng, (agents, 5)))
    return got


def test_sequential_null_comparisons():
    """300 studies of two equal agents, 5 looks of 5 seeds each: at most 5 % decide anything.

    A plain test at every look decides more than twice as many.
    """
    rng, shapes, false = np.random.default_rng(0), list(SHAPES.values()), 0
    for i in range(300):
        got = sequential_study(shapes[i % len(shapes)][0], rng, 2, i)
        false += any(winner is not None for winner in got.winners.values())
    assert false / 300 <= 0.05 + error(0.05, 300)
    naive = 0
    for i in range(300):
        x, y = shapes[i % len(shapes)][0](rng, (2, 25))
        looks = range(5, 30, 5)
        naive += any(permutation_p(x[:n], y[:n], permutations=200) <= 0.05 for n in looks)
    assert naive / 300 > 0.10
