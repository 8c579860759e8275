"""Aggregates over several environments, against recorded outputs of rliable."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlrun.errors import ConfigError
from rlrun.reports.across import normalised
from rlrun.reports.aggregates import (
    aggregate_iqm,
    aggregate_optimality_gap,
    balanced,
    improvement,
    iqm,
    optimality_gap,
    performance_profile,
    resampled,
    stratified_bootstrap,
)

RECORDED = json.loads((Path(__file__).parent / "rliable.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(np.shape(case["a"])))
def test_agrees_with_rliable(case):
    """rliable.json: rliable 1.2.0, scipy 1.17.1, numpy 2.4.6, recorded by

        from rliable import library, metrics
        rng = numpy.random.default_rng(2021)
        for ra, rb, t in ((5, 5, 3), (7, 4, 2), (10, 10, 6), (3, 6, 1)):
            a = numpy.round(rng.gamma(2, 0.4, (ra, t)), 2)
            b = numpy.round(rng.gamma(2, 0.35, (rb, t)), 2)
            metrics.aggregate_iqm(a), metrics.aggregate_optimality_gap(a, gamma=0.5),
            [library.run_score_deviation(a, x) for x in thresholds],
            metrics.probability_of_improvement(a, b)

    with b[0] = a[0] in the third, for ties.
    """
    a, b = np.array(case["a"]), np.array(case["b"])
    ours = {
        "iqm": aggregate_iqm(a),
        "optimality_gap": aggregate_optimality_gap(a),
        "optimality_gap_0.5": aggregate_optimality_gap(a, gamma=0.5),
        "probability_of_improvement": improvement(a, b),
    }
    for name, value in ours.items():
        assert value == pytest.approx(case[name], abs=1e-12), name
    profile = performance_profile(a, case["thresholds"], resamples=10)
    assert profile.value == pytest.approx(case["profile"], abs=1e-12)


def test_interval_is_rliables_with_the_variance_of_small_strata():
    """rliable's own interval of the third case's IQM, 20000 draws: 0.5143 to 0.7387. Drawing R - 1
    of R = 10 seeds widens it by sqrt(10 / 9), 5.4 %; the bootstrap's own noise is below 2 %.
    """
    got = stratified_bootstrap(aggregate_iqm, RECORDED[2]["a"], resamples=20000)
    assert got.value == pytest.approx(RECORDED[2]["iqm"])
    assert (got.high - got.low) / (0.73867 - 0.51433) == pytest.approx(1.054, abs=0.025)
    assert "10 seeds on each of 6 environments" in got.why


def test_statistics_take_stacks_of_matrices():
    rng = np.random.default_rng(0)
    a, b = rng.random((4, 5, 3)), rng.random((4, 6, 3))
    for statistic in (
        aggregate_iqm,
        partial(aggregate_optimality_gap, gamma=0.5),
    ):
        assert statistic(a).tolist() == [float(statistic(x)) for x in a]
    pairs = zip(a, b, strict=True)
    assert improvement(a, b).tolist() == [float(improvement(x, y)) for x, y in pairs]


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


def test_fewer_than_five_seeds_claim_nothing():
    scores = np.random.default_rng(0).random((4, 30))
    for got in (iqm(scores), optimality_gap(scores)):
        assert not got.claimed
        assert "4 seeds are fewer than 5" in got.why
    profile = performance_profile(scores, [0.5])
    assert (profile.low, profile.high) == (None, None)
    mixed = stratified_bootstrap(improvement, np.ones((9, 3)), np.zeros((4, 3)))
    assert (mixed.value, mixed.claimed) == (1, False)


def test_gap_and_profile_have_ordered_intervals():
    scores = np.random.default_rng(0).random((6, 9))
    gap = optimality_gap(scores, gamma=0.8)
    assert gap.value == aggregate_optimality_gap(scores, 0.8)
    assert gap.low < gap.value < gap.high
    assert gap == optimality_gap(scores, gamma=0.8)
    profile = performance_profile(scores, [0.2, 0.5, 0.9])
    assert (profile.low <= profile.value).all()
    assert (profile.value <= profile.high).all()
    assert (np.diff(profile.value) < 0).all()


def test_few_scores_are_told():
    scores = np.random.default_rng(0).random((5, 9))
    assert "too narrow below 50 scores (here 45)" in iqm(scores).why
    assert "too narrow" not in iqm(np.tile(scores, 2)).why


def test_matrices_of_other_environments_are_an_error():
    with pytest.raises(ConfigError, match=r"\[3, 2\] environments"):
        stratified_bootstrap(improvement, np.ones((5, 3)), np.ones((5, 2)))
    with pytest.raises(ConfigError, match="allowed"):
        iqm([1.0, 2.0])


def test_balanced():
    matrix, note = balanced([[1, 2, 3], [4, 5], [6, 7, 8]])
    assert matrix.tolist() == [[1, 4, 6], [2, 5, 7]]
    assert note == "The first 2 seeds of each environment; 2 runs are left out."
    assert balanced([[1, 2], [3, 4]])[1] == ""


def test_a_scale_without_length_is_the_middle():
    """All settings score the same there: no one is best or worst."""
    assert [*normalised(np.array([3.0, 3.0]), (3.0, 3.0))] == [0.5, 0.5]
    assert [*normalised(np.array([1.0, 4.0]), (0.0, 4.0))] == [0.25, 1.0]
