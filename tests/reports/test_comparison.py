"""Differences of groups of runs, against enumeration by hand and tabulated p values.

Private: a p value that is a little wrong is a plausible one.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from rlrun.reports.comparison import (
    aggregate_difference,
    difference,
    holm,
    probability_of_improvement,
)
from rlrun.reports.groups import group_runs
from rlrun.reports.intervals import aggregate_iqm
from rlrun.reports.runs import read_runs
from rlrun.reports.versus import corrected, versus
from tests.reports.forge import forge_seeds, permutation_p

TEN = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 8.0, 7.0]


def welch(x, y):
    return (x.mean() - y.mean()) / np.sqrt(x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y))


def naive_p(x, y):
    pooled, at_least, count = np.concatenate([x, y]), 0, 0
    for chosen in itertools.combinations(range(len(pooled)), len(x)):
        rest = [i for i in range(len(pooled)) if i not in chosen]
        t = welch(pooled[list(chosen)], pooled[rest])
        at_least += abs(t) >= abs(welch(x, y)) * (1 - 1e-9)
        count += 1
    return at_least / count


def test_p_is_the_share_of_relabelings():
    rng = np.random.default_rng(0)
    for n, m, shift in ((5, 5, 0.0), (5, 6, 1.0), (6, 5, 1.5)):
        x, y = rng.exponential(size=n) + shift, rng.exponential(size=m)
        assert permutation_p(x, y) == pytest.approx(naive_p(x, y), abs=1e-12)
        assert difference(x, y).p == permutation_p(x, y)
        assert difference(1000 + 7 * x, 1000 + 7 * y).p == permutation_p(x, y)


def test_p_of_pairs_is_the_share_of_signs():
    d = np.array([0.3, 1.0, -0.2, 2.0, 1.1, 0.9, 0.4])
    signs = np.array(list(itertools.product([1, -1], repeat=7)))
    naive = np.mean(abs(signs @ d) >= d.sum() - 1e-9)
    base = np.random.default_rng(0).normal(size=7) * 10
    assert difference(base + d, base, paired=True).p == pytest.approx(naive)
    assert difference(base + d, base).p > 0.5  # the pairs are what shows it


def test_p_of_drawn_permutations_is_near_the_exact_one():
    """12 against 12: more labelings than are drawn; 4 sd of sqrt(p (1 - p) / 4000)."""
    x, y = np.random.default_rng(3).normal(size=(2, 8)) + np.array([[0.9], [0]])
    exact = naive_p(x, y)
    got = permutation_p(x, y, permutations=4000)
    assert got == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))
    assert got != exact


def test_the_interval_is_what_the_test_does_not_reject():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=6) + 2, rng.normal(size=5)
    got = difference(x, y)
    assert got.value == pytest.approx(x.mean() - y.mean())
    width = got.high - got.low
    for end, side in ((got.low, -1), (got.high, 1)):
        assert permutation_p(x - end + side * 1e-4 * width, y) > 0.05
        assert permutation_p(x - end - side * 1e-4 * width, y) <= 0.05


@pytest.mark.parametrize("paired", [False, True])
def test_exchanged_sides_have_the_same_difference(paired):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=15), rng.normal(1.0, size=15)  # more permutations than are drawn
    one, other = difference(a, b, paired=paired), difference(b, a, paired=paired)
    assert (one.value, one.low, one.high) == (-other.value, -other.high, -other.low)
    assert one.p == other.p == difference(a, b, paired=paired).p
    assert one.p != difference(a, b, paired=paired, seed=1).p


@pytest.mark.parametrize("paired", [False, True])
def test_interval_and_p_agree_about_zero(paired):
    rng = np.random.default_rng(2)
    decided = 0
    for seed in range(60):
        x, y = np.round(rng.normal(size=(2, 7)), 1) + np.array([[0.8], [0]])
        got = difference(x, y, paired=paired, seed=seed, permutations=300)
        assert (got.p <= 0.05) == (not got.low <= 0 <= got.high) == got.decided
        decided += got.decided
    assert 5 < decided < 55


def test_fewer_than_five_seeds_claim_nothing():
    got = difference([1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 14.0, 15.0])
    assert (got.low, got.high, got.p, got.decided) == (None, None, None, False)
    assert got.value == 2.5 - 13


def test_five_pairs_are_compared_as_unpaired():
    x, y = np.arange(5.0), np.arange(5.0) + 10
    assert difference(x, y, paired=True).p == pytest.approx(2 / 252)
    assert difference([*x, 5.5], [*y, 14], paired=True).p == pytest.approx(2 / 2**6)


def test_groups_without_spread_have_p_but_no_interval():
    got = difference([500.0] * 5, [9.0] * 5)
    assert (got.value, got.low, got.p) == (491, None, pytest.approx(2 / 252))
    assert got.decided
    same = difference([500.0] * 5, [500.0] * 5)
    assert (same.value, same.low, same.p, same.decided) == (0, None, 1, False)


def test_success_rates_keep_differences_that_only_ties_allow():
    """All seeds of a succeed, two of five of b: 0.6 itself is not rejected."""
    got = difference([1.0] * 5, [1.0, 1.0, 0.0, 0.0, 0.0])
    assert got.low <= 0 < 0.6 < got.high
    assert got.high >= 1.0


def test_probability_of_improvement():
    got = probability_of_improvement([2.0, 3, 4, 5, 6], [1.0, 2, 3, 4, 5])
    assert got.value == pytest.approx((0.5 * 4 + 15) / 25)
    assert got.low < 0.5 < got.value < got.high
    apart = probability_of_improvement(np.arange(5) + 9.0, np.arange(5.0))
    assert (apart.value, apart.high) == (1, 1)
    assert 0.5 < apart.low < 0.8  # five against five prove no certainty
    matrix = np.random.default_rng(0).random((6, 4))
    tasks = probability_of_improvement(matrix + 0.2, matrix)
    assert tasks.low < tasks.value < tasks.high
    assert apart.low < probability_of_improvement(matrix + 2, matrix).low < 1
    assert not probability_of_improvement([1.0, 2], [1.0, 2]).claimed


def test_newcombe_limits_solve_their_equation():
    got = probability_of_improvement([2.0, 3, 4, 5, 6, 7], [1.0, 2, 3, 4, 5])
    for theta in (got.low, got.high):
        spread = 1 + 4.5 * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        variance = theta * (1 - theta) * spread / 30
        assert (got.value - theta) ** 2 == pytest.approx(1.959963985**2 * variance)


def test_aggregate_difference():
    rng = np.random.default_rng(0)
    a, b = rng.random((6, 8)), rng.random((6, 8)) - 0.6
    got = aggregate_difference(a, b)
    assert got.value == pytest.approx(aggregate_iqm(a) - aggregate_iqm(b))
    assert got.low < got.value < got.high
    assert got.decided
    assert got.p == 1 / 2000  # the identity alone
    assert not aggregate_difference(a, a[::-1]).decided
    assert aggregate_difference(a[:4], b).p is None


def test_holm():
    """Hand-worked: 4 * 0.01, 3 * 0.02, 2 * 0.022 raised to 0.06, 0.5."""
    assert holm([0.5, 0.01, 0.022, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


# -- of groups of runs -----------------------------------------------------------------------------


def test_settings_are_paired_by_seed_where_all_seeds_are_on_both_sides(tmp_path):
    """Ten pairs reach p = 1/512; pairs that are not used are counted."""
    forge_seeds(tmp_path / "a", [*TEN, 4.5], policy__lr=0.1)
    forge_seeds(tmp_path / "b", TEN[::-1], policy__lr=0.2)
    a, b = group_runs(read_runs([str(tmp_path)]))
    unpaired = versus(a, b)
    assert not unpaired.paired
    assert "10 pairs" in unpaired.gap.why
    whole = replace(a, runs=a.runs[:10])
    got = versus(whole, b)
    assert got.paired
    assert got.gap == difference(TEN[::-1], TEN, paired=True)
    assert not versus(replace(whole, runs=whole.runs[:5]), replace(b, runs=b.runs[:5])).paired


def test_comparisons_without_a_test_are_not_in_the_family(tmp_path):
    """Few seeds, or seeds=auto: their p is unknown and costs the others nothing."""
    for lr in (1, 2):
        forge_seeds(tmp_path / str(lr), TEN, policy__lr=lr)
    one = versus(*group_runs(read_runs([str(tmp_path)])))
    first, untested, last = corrected([replace(one, adjusted=p) for p in (0.03, math.nan, 0.01)])
    assert (first.adjusted, last.adjusted) == (0.03, 0.02)
    assert (first.family, last.family) == (2, 2)
    assert math.isnan(untested.adjusted)
