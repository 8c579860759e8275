"""Intervals of one quantity and of aggregates, against hand-worked, tabulated and other numbers.

Private: an interval that is a little wrong is a plausible one.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rlrun.reports.findings import normalised
from rlrun.reports.intervals import (
    aggregate_iqm,
    aggregate_optimality_gap,
    balanced,
    improvement,
    mean_band,
    mean_interval,
    performance_profile,
    resampled,
    stratified_bootstrap,
    success_interval,
    tolerance_interval,
)
from rlrun.reports.runs import mean_over_steps
from rlrun.reports.sections import success_rate

RECORDED = json.loads((Path(__file__).parent / "rliable.json").read_text(encoding="utf-8"))


# -- one setting in one environment ----------------------------------------------------------------


def test_symmetric_scores_get_students_interval():
    got = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert (got.value, got.low, got.high) == pytest.approx((3, 3 - half, 3 + half))


def test_hall_by_hand():
    """g at the ends of the interval gives back the quantiles of t."""
    got = mean_interval(np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    k = 1.5 / math.sqrt(5)  # skewness of one success in five: (1 - 2p) / sqrt(p (1 - p)) = 1.5

    def g(t):
        return t + k * t * t / 3 + k * k * t**3 / 27 + k / 6

    error = math.sqrt(0.16 / 4)
    assert g((0.2 - got.low) / error) == pytest.approx(2.7764451)
    assert g((0.2 - got.high) / error) == pytest.approx(-2.7764451)


@pytest.mark.parametrize("function", [mean_interval, tolerance_interval])
def test_few_or_equal_scores_claim_nothing(function):
    for n in (1, 2, 4):
        got = function(np.arange(n))
        assert (got.low, got.high, got.claimed, got.value) == (None, None, False, (n - 1) / 2)
    assert function(np.arange(5)).claimed
    equal = function([500.1] * 10)
    assert not equal.claimed
    assert equal.value == pytest.approx(500.1)
    assert "26%" in equal.why  # of further seeds may differ: 1 - 0.05 ** (1 / 10)


def test_band_is_the_interval_of_every_column():
    scores = np.random.default_rng(0).exponential(size=(8, 3))
    scores[:, 1] = 7
    mean, low, high = mean_band(scores)
    for k in (0, 2):
        one = mean_interval(scores[:, k])
        assert (mean[k], low[k], high[k]) == pytest.approx((one.value, one.low, one.high))
    assert (mean[1], math.isnan(low[1]), math.isnan(high[1])) == (7, True, True)
    assert np.isnan(mean_band(scores[:4])[1]).all()


@pytest.mark.parametrize("function", [mean_interval, tolerance_interval])
def test_scores_of_any_magnitude(function):
    scores = np.array([1.0, 2.0, 2.0, 4.0, 7.0])
    plain = function(scores)
    for scale in (1e-120, 1e200, 1e300):
        got = function(scale * scores)
        expected = (plain.value, plain.low, plain.high)
        assert np.array([got.value, got.low, got.high]) / scale == pytest.approx(expected)
        _, low, high = mean_band(scale * np.stack([scores, np.ones(5)], axis=1))
        assert np.isfinite([low[0], high[0]]).all()
        assert np.isnan([low[1], high[1]]).all()


def test_tolerance_factors():
    """Howe's k = 1.644854 sqrt((n - 1) (1 + 1/n) / chi2), with chi2 = 0.7107 at n = 5 etc. from a
    table; tests/reports/test_coverage.py shows that they hold.
    """
    for n, exact in ((5, 4.275), (10, 2.839), (30, 2.140)):
        got = tolerance_interval(np.arange(n))
        half = (got.high - got.low) / 2
        assert half / np.arange(n).std(ddof=1) == pytest.approx(exact, rel=1e-3)


def test_tolerance_by_order_statistics_from_46_seeds():
    """Of 500 seeds 18 may be dropped at each end: P(Beta(463, 38) >= 0.9) = 0.9726, but 0.9450
    with 19 (scipy 1.17, beta.sf).
    """
    scores = np.random.default_rng(0).permutation(93).astype(float)
    at_45, at_46 = tolerance_interval(scores[:45]), tolerance_interval(scores[:46])
    assert at_45.low != scores[:45].min()  # the normal one
    assert (at_46.low, at_46.high) == (scores[:46].min(), scores[:46].max())
    got = tolerance_interval(np.arange(500.0))
    assert (got.low, got.high) == (18, 481)
    assert tolerance_interval([1.0] * 9 + [-5.0]).low <= -5, "it holds every score seen"


def test_success_interval():
    """Clopper-Pearson limits as printed by scipy 1.17, binomtest(k, n).proportion_ci()."""
    for k, n, low, high in [
        (0, 10, 0.0, 0.30849710781876294),
        (3, 10, 0.06673951117773447, 0.652452850060008),
        (10, 10, 0.6915028921812371, 1.0),
        (45, 50, 0.7818646335657977, 0.9667249064109785),
    ]:
        got = success_interval(k, n)
        assert (got.value, got.low, got.high) == pytest.approx((k / n, low, high), rel=1e-9)


def test_shares_of_episodes_have_the_interval_of_a_mean_within_0_to_1():
    shares = np.array([0.9, 1.0, 1.0, 0.95, 0.6])
    rate, _ = success_rate(shares)
    free = mean_interval(shares)
    assert free.high > 1.0
    assert (rate.value, rate.low, rate.high) == (free.value, free.low, 1.0)
    assert np.isnan(success_rate(shares[:3])[0].low)


# -- the area under a curve ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "returns", "end", "expected"),
    [([1000], [7.0], 1000, 7.0), ([0, 1000], [0.0, 10.0], 1000, 5.0),
     ([500, 1000], [0.0, 500.0], 10_000, (0 * 500 + 250 * 500 + 500 * 9000) / 10_000),
     ([0], [3.0], 0, 3.0)],
)  # fmt: skip
def test_the_area_by_hand(steps, returns, end, expected):
    """Before the first evaluation its value counts, after the last one that of the last."""
    got = mean_over_steps(np.array(steps, float), np.array(returns), end)
    assert got == pytest.approx(expected)


# -- several environments --------------------------------------------------------------------------


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(np.shape(case["a"])))
def test_agrees_with_rliable(case):
    """rliable.json: rliable 1.2.0, scipy 1.17.1, numpy 2.4.6, recorded by

        from rliable import library, metrics
        rng = numpy.random.default_rng(2021)
        for ra, rb, t in ((5, 5, 3), (7, 4, 2), (10, 10, 6), (3, 6, 1)):
            a = numpy.round(rng.gamma(2, 0.4, (ra, t)), 2)
            b = numpy.round(rng.gamma(2, 0.35, (rb, t)), 2)
            metrics.aggregate_iqm(a), metrics.aggregate_optimality_gap(a),
            [library.run_score_deviation(a, x) for x in thresholds],
            metrics.probability_of_improvement(a, b)

    with b[0] = a[0] in the third, for ties.
    """
    a, b = np.array(case["a"]), np.array(case["b"])
    ours = {
        "iqm": aggregate_iqm(a),
        "optimality_gap": aggregate_optimality_gap(a),
        "probability_of_improvement": improvement(a, b),
        "profile": performance_profile(a, case["thresholds"])[0],
    }
    for name, value in ours.items():
        assert value == pytest.approx(case[name], abs=1e-12), name


def test_resampling_keeps_environments_apart_and_has_the_variance_of_the_mean():
    scores = np.random.default_rng(1).normal(size=(5, 4)) + 100 * np.arange(4)
    drawn = resampled(lambda x: x, scores, resamples=40000)
    assert drawn.shape == (40000, 4, 4)
    assert (np.round(drawn / 100) == np.arange(4)).all()
    variance = drawn.mean(1).var(0) / (scores.var(0, ddof=1) / 5)
    assert variance == pytest.approx(np.ones(4), abs=0.04)  # 5 sd: sqrt(2 / 40000) each, and tails
    again = resampled(lambda x: x, scores, resamples=3)
    assert np.array_equal(again, resampled(lambda x: x, scores, resamples=3))
    assert not np.array_equal(again, resampled(lambda x: x, scores, resamples=3, seed=1))


def test_aggregates_claim_nothing_from_fewer_than_five_seeds():
    scores = np.random.default_rng(0).random((4, 30))
    assert not stratified_bootstrap(aggregate_iqm, scores).claimed
    assert not stratified_bootstrap(aggregate_optimality_gap, scores).claimed
    assert np.isnan(performance_profile(scores, [0.5])[1:]).all()
    mixed = stratified_bootstrap(improvement, np.ones((9, 3)), np.zeros((4, 3)))
    assert (mixed.value, mixed.claimed) == (1, False)


def test_gap_and_profile_have_ordered_intervals():
    scores = np.random.default_rng(0).random((6, 9))
    gap = stratified_bootstrap(aggregate_optimality_gap, scores)
    assert gap.value == aggregate_optimality_gap(scores)
    assert gap.low < gap.value < gap.high
    assert gap == stratified_bootstrap(aggregate_optimality_gap, scores)
    value, low, high = performance_profile(scores, [0.2, 0.5, 0.9])
    assert (low <= value).all()
    assert (value <= high).all()
    assert (np.diff(value) < 0).all()
    narrow = "50 scores"  # below them an IQM's interval is too narrow, which is said
    whys = [stratified_bootstrap(aggregate_iqm, x).why for x in (scores[:5], np.tile(scores, 2))]
    assert [narrow in why for why in whys] == [True, False]


def test_balanced():
    matrix, note = balanced([[1, 2, 3], [4, 5], [6, 7, 8]])
    assert matrix.tolist() == [[1, 4, 6], [2, 5, 7]]
    assert "2 runs" in note
    assert balanced([[1, 2], [3, 4]])[1] == ""


def test_a_scale_without_length_is_the_middle():
    """All settings score the same there: no one is best or worst."""
    assert [*normalised(np.array([3.0, 3.0]), (3.0, 3.0))] == [0.5, 0.5]
    assert [*normalised(np.array([1.0, 4.0]), (0.0, 4.0))] == [0.25, 1.0]
