"""Sequential comparison: decisions, looks, budget. Its error rates: test_coverage.py."""

import itertools

import numpy as np
import pytest

from rlrun.reports.comparison import Comparison, _PairTest


def test_clear_difference_is_decided_at_the_first_look():
    """Five against five, fully apart: p = 2/252 = 0.0079 <= 0.05 / 5."""
    got = Comparison(["r2d2", "dqn"]).update([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
    assert (got.status, got.look, got.winners, got.active) == ("decided", 1, {(0, 1): 1}, ())
    assert "dqn > r2d2" in got.why


def test_fewer_than_five_seeds_are_not_tested():
    got = Comparison(looks=1).update([1, 2, 3, 4], [11, 12, 13, 14])  # p = 2/70 < 0.05
    assert got.status == "budget spent"
    comparison = Comparison(looks=2)
    assert comparison.update([1, 2, 3], [11, 12, 13]).status == "undecided"
    assert comparison.update([4, 5, 3, 2], [14, 15, 11, 12]).status == "decided"
    uneven = Comparison(looks=2)
    assert uneven.update([1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17]).active == (0, 1)
    assert uneven.update([2], []).seeds == {(0, 1): 5}


def test_scores_without_spread():
    assert Comparison().update([1.0] * 5, [1.0] * 5).winners == {(0, 1): None}
    assert Comparison().update([0.1] * 5, [0.2] * 5).winners == {(0, 1): 1}


def test_only_the_pairs_asked_for_share_the_error():
    names = ["base", "x", "y", "z"]
    one = Comparison(names, pairs=[(0, 1)], looks=1)
    got = one.update(*(np.arange(5) + shift for shift in (0, 10, 0, 0)))
    assert got.winners == {(0, 1): 1}
    ten = Comparison(6, looks=1)  # 0.05 / 15 = 0.0033 < 0.0079: none can be decided
    got = ten.update(*(np.arange(5) + 10 * i for i in range(6)))
    assert set(got.winners.values()) == {None}


def test_holm_gives_the_error_of_decided_pairs_to_the_others():
    """Three pairs of 8 seeds, one look: the clear two at 0.05 / 3 and / 2, the third at 0.05."""
    a, b = np.arange(8.0), np.arange(8.0) + 3
    alone = Comparison(2, looks=1).update(a, b)
    assert alone.winners == {(0, 1): 1}  # p = 0.0375
    strict = Comparison(2, looks=1, level=1 - 0.05 / 3).update(a, b)
    assert strict.winners == {(0, 1): None}
    got = Comparison(3, looks=1).update(a, b, a + 100)
    assert got.winners == {(0, 1): 1, (0, 2): 2, (1, 2): 2}


@pytest.mark.parametrize("digits", [1, 9])  # many ties, none
def test_levels_are_those_of_a_test_of_each(digits):
    """Private: a level that is kept too high or too low shows in rare looks alone.

    Against one boolean for each level and permutation, with a sort of all of them.
    """
    for trial in range(20):
        rng = np.random.default_rng(trial)
        budgets = np.array([30, 11, 4, 1, 0])
        test, rejected = _PairTest(budgets), np.zeros((5, 300), bool)
        d = np.zeros(300)
        for look in range(1, 6):
            d = np.round(d + rng.normal(size=300), digits)
            test.add(d, look)
            for row, budget in zip(rejected, budgets, strict=True):
                at_least = (np.abs(d[~row]) >= np.abs(d)[:, None] * (1 - 1e-9)).sum(1)
                row |= (at_least <= budget) & (d != 0)
            levels = np.zeros(300, int)
            levels[test.rows] = test.levels
            np.testing.assert_array_equal(levels, rejected.sum(0))


def test_the_better_agent_is_that_of_the_look_that_rejected():
    """a > b rejects at look 1 at 0.05 / 2 alone: it counts once the other pair is decided.

    p = 4/252 at look 1, between 0.05 / 4 and 0.05 / 2. By look 2 the mean of b is higher, which no
    test supports.
    """
    a, b = np.array([6.0, 7, 8, 9, 4]), np.array([0.0, 1, 2, 3, 5])
    comparison = Comparison(["a", "b", "x"], looks=2, pairs=[(0, 1), (0, 2)])
    first = comparison.update(a, b, a)
    assert first.winners == {(0, 1): None, (0, 2): None}
    got = comparison.update(np.linspace(-8, 3, 5), b, a + 200)
    assert np.mean([*a, *np.linspace(-8, 3, 5)]) < b.mean()
    assert got.winners == {(0, 1): 0, (0, 2): 2}
    assert (got.looks, got.seeds) == ({(0, 1): 1, (0, 2): 2}, {(0, 1): 5, (0, 2): 10})


def test_many_pairs_have_permutations_enough_to_be_decided():
    comparison = Comparison(5, pairs=[(0, i) for i in range(1, 5)], looks=200)  # 0.05 / 800
    got = comparison.update(np.arange(12.0) + 99, *[np.arange(12.0)] * 4)
    assert got.status == "decided"


def test_blocks_of_unequal_numbers_of_seeds():
    """p is the share of labelings within blocks, by enumeration.

    Decided exactly where the error of the look is at least that share.
    """
    rng = np.random.default_rng(5)
    blocks = [(rng.normal(3, 1, 1), rng.normal(size=5)), (rng.normal(3, 1, 4), rng.normal(size=2))]
    x, y = (np.concatenate(side) for side in zip(*blocks, strict=True))
    pools, every = [np.concatenate(block) for block in blocks], []
    for first in itertools.combinations(range(6), 1):
        for second in itertools.combinations(range(6), 4):
            masks = [np.isin(np.arange(6), chosen) for chosen in (first, second)]
            ours = np.concatenate([z[m] for z, m in zip(pools, masks, strict=True)])
            theirs = np.concatenate([z[~m] for z, m in zip(pools, masks, strict=True)])
            every.append(ours.mean() - theirs.mean())
    assert every[0] == pytest.approx(x.mean() - y.mean())
    p = np.mean(np.abs(every) >= abs(every[0]) * (1 - 1e-9))
    for factor, winner in ((1.3, 0), (0.7, None)):  # of the second look: the first tests nothing
        given = {"looks": 2, "level": 1 - 2 * p * factor, "permutations": 20_000}
        comparison = Comparison(**given)
        for a, b in blocks:
            got = comparison.update(a, b)
        assert got.winners == {(0, 1): winner}
