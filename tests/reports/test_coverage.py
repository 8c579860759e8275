"""Proof by simulation: what the statistics claim holds on skewed and bimodal scores.

Seeds are fixed. ``error(share, n)`` is three standard deviations of a simulated share: a bound is
tested with it where the share it bounds lies at the bound itself.

Private: an interval that is a little wrong is a plausible one.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest

from rlrun.reports.comparison import Comparison, aggregate_difference, difference
from rlrun.reports.intervals import (
    aggregate_iqm,
    mean_band,
    stratified_bootstrap,
    tolerance_interval,
)
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


def test_normal_tolerance_interval():
    """Normal scores: 90 % inside with 95 % confidence. Any shape here: the next seed inside with
    P >= 0.9. 2000 samples: errors 0.015 and, of the mean share, below 0.01.
    """
    cdf, rng = NormalDist().cdf, np.random.default_rng(0)
    for n in (5, 12):
        got = [tolerance_interval(x) for x in rng.normal(size=(2000, n))]
        inside = np.array([cdf(e.high) - cdf(e.low) for e in got])
        assert np.mean(inside >= 0.9) == pytest.approx(0.95, abs=error(0.95, 2000))
    for draw, _ in SHAPES.values():
        samples, following = draw(rng, (2000, 10)), draw(rng, 2000)
        got = [tolerance_interval(x) for x in samples]
        inside = [e.low <= x <= e.high for e, x in zip(got, following, strict=True)]
        assert np.mean(inside) > 0.92


@pytest.mark.parametrize("name", ["exponential", "80 %, 4 sd"])
def test_iqm_interval_covers(name):
    """5 seeds on 10 environments of different levels; 400 samples, error 0.033.

    With R draws instead of R - 1 the coverage is 0.88 to 0.91.
    """
    draw, _ = SHAPES[name]
    rng, levels = np.random.default_rng(0), np.linspace(0, 4, 10)
    truth = float(aggregate_iqm(draw(rng, (40000, 10)) + levels))
    got = [
        stratified_bootstrap(aggregate_iqm, draw(rng, (5, 10)) + levels, resamples=400, seed=i)
        for i in range(400)
    ]
    assert 0.90 <= np.mean([e.low <= truth <= e.high for e in got]) <= 0.98


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


def test_null_aggregate_comparisons():
    """300 comparisons of the IQM of 5 seeds on 6 environments."""
    rng, draw = np.random.default_rng(0), SHAPES["70 %, 4 sd"][0]
    false = 0
    for i in range(300):
        a, b = draw(rng, (2, 5, 6)) + np.arange(6)
        false += aggregate_difference(a, b, resamples=300, seed=i).decided
    assert false / 300 <= 0.05 + error(0.05, 300)


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
