"""Intervals of one quantity, against hand-worked and tabulated numbers."""

import math

import numpy as np
import pytest

from rlrun.errors import ConfigError
from rlrun.reports.intervals import (
    mean_band,
    mean_interval,
    missed_share,
    success_interval,
    tolerance_interval,
)
from rlrun.reports.quantiles import beta_cdf, beta_quantile, chi2_quantile, gamma_cdf, t_quantile


def test_quantiles_agree_with_tables():
    """Values printed by scipy 1.17 (t.ppf, chi2.ppf, beta.ppf)."""
    assert t_quantile(0.975, 4) == pytest.approx(2.7764451051977934, rel=1e-9)
    assert t_quantile(0.9995, 3.7) == pytest.approx(9.474240137124664, rel=1e-9)
    assert t_quantile(0.025, 1e5) == pytest.approx(-1.95998770753461, rel=1e-9)
    assert t_quantile(1 - 2**-20, 1) == pytest.approx(1 / math.tan(math.pi * 2**-20), rel=1e-9)
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)
    assert chi2_quantile(0.05, 4) == pytest.approx(0.7107230213973244, rel=1e-9)
    assert chi2_quantile(0.95, 100) == pytest.approx(124.34211340400407, rel=1e-9)
    assert beta_quantile(0.025, 3, 8) == pytest.approx(0.06673951117773447, rel=1e-9)


def test_distribution_functions_in_closed_form():
    for x in (0.1, 0.5, 0.9):
        assert beta_cdf(x, 1, 3) == pytest.approx(1 - (1 - x) ** 3, rel=1e-12)
        assert beta_cdf(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)))
        assert gamma_cdf(x, 1) == pytest.approx(1 - math.exp(-x), rel=1e-12)
    assert (beta_cdf(-1, 2, 2), beta_cdf(2, 2, 2), gamma_cdf(0, 2)) == (0, 1, 0)


def test_symmetric_scores_get_students_interval():
    scores = [1.0, 2.0, 3.0, 4.0, 5.0]
    got = mean_interval(scores)
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert (got.value, got.low, got.high) == pytest.approx((3, 3 - half, 3 + half))


def test_a_tail_stretches_its_own_side_and_shifts_follow():
    scores = np.array([9.0, 10.0, 10.0, 11.0, 11.0, 2.0])
    got = mean_interval(scores)
    assert got.value - got.low > 1.3 * (got.high - got.value)
    mirrored = mean_interval(5 - 3 * scores)
    assert (mirrored.low, mirrored.high) == pytest.approx((5 - 3 * got.high, 5 - 3 * got.low))


def test_hall_by_hand():
    """g at the ends of the interval gives back the quantiles of t."""
    scores = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    got = mean_interval(scores)
    k = 1.5 / math.sqrt(5)  # skewness of one success in five: (1 - 2p) / sqrt(p (1 - p)) = 1.5

    def g(t):
        return t + k * t * t / 3 + k * k * t**3 / 27 + k / 6

    error = math.sqrt(0.16 / 4)
    assert g((0.2 - got.low) / error) == pytest.approx(2.7764451)
    assert g((0.2 - got.high) / error) == pytest.approx(-2.7764451)


@pytest.mark.parametrize("function", [mean_interval, tolerance_interval])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_fewer_than_five_seeds_claim_nothing(function, n):
    got = function(np.arange(n))
    assert (got.low, got.high, got.claimed, got.method) == (None, None, False, "points")
    assert got.value == (n - 1) / 2
    assert "fewer than 5" in got.why


@pytest.mark.parametrize("function", [mean_interval, tolerance_interval])
def test_equal_scores_claim_nothing(function):
    got = function([500.1] * 10)
    assert not got.claimed
    assert got.value == pytest.approx(500.1)
    assert "up to 26% of further seeds" in got.why  # 1 - 0.05 ** (1 / 10)
    assert (1 - missed_share(7)) ** 7 == pytest.approx(0.05)


def test_band_is_the_interval_of_every_column():
    scores = np.random.default_rng(0).exponential(size=(8, 3))
    scores[:, 1] = 7
    mean, low, high = mean_band(scores)
    for k in (0, 2):
        one = mean_interval(scores[:, k])
        assert (mean[k], low[k], high[k]) == pytest.approx((one.value, one.low, one.high))
    assert mean[1] == 7
    assert math.isnan(low[1])
    assert math.isnan(high[1])
    assert np.isnan(mean_band(scores[:4])[1]).all()


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [math.inf, 1, 2, 3, 4], [[1.0, 2.0]]])
def test_scores_must_be_finite(scores):
    for function in (mean_interval, tolerance_interval):
        with pytest.raises(ConfigError, match=r"scores = .*; .* allowed; "):
            function(scores)


@pytest.mark.parametrize("scale", [1e-120, 1e200, 1e300])
def test_scores_of_any_magnitude(scale):
    scores = np.array([1.0, 2.0, 2.0, 4.0, 7.0])
    for function in (mean_interval, tolerance_interval):
        got, plain = function(scale * scores), function(scores)
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
        assert "normal" in got.method


def test_tolerance_by_order_statistics_from_46_seeds():
    scores = np.random.default_rng(0).permutation(93).astype(float)
    assert "normal" in tolerance_interval(scores[:45]).method
    at_46 = tolerance_interval(scores[:46])
    assert "order statistics" in at_46.method
    assert (at_46.low, at_46.high) == (scores[:46].min(), scores[:46].max())
    full = tolerance_interval(scores, content=0.95)  # Wilks: 93 seeds for 95 % / 95 %
    assert (full.low, full.high) == (0, 92)
    assert "normal" in tolerance_interval(scores[:92], content=0.95).method


def test_tolerance_drops_what_it_may():
    """Of 500 seeds 18 may be dropped at each end: P(Beta(463, 38) >= 0.9) = 0.9726, but 0.9450
    with 19 (scipy 1.17, beta.sf).
    """
    got = tolerance_interval(np.arange(500.0))
    assert (got.low, got.high) == (18, 481)
    assert 1 - beta_cdf(0.9, 463, 38) == pytest.approx(0.9725699162159801)
    assert 1 - beta_cdf(0.9, 461, 40) == pytest.approx(0.9449845007101643)


def test_tolerance_holds_every_score_seen():
    scores = [1.0] * 9 + [-5.0]
    assert tolerance_interval(scores).low <= -5


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
    for k, n in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ConfigError, match="allowed"):
            success_interval(k, n)
