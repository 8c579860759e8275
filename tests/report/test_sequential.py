"""Sequential comparison: decisions, looks, budget. Its error rates: test_coverage.py."""

import itertools

import numpy as np
import pytest

from rlrun.errors import ConfigError
from rlrun.report.sequential import Comparison, _PairTest


def test_clear_difference_is_decided_at_the_first_look():
    """Five against five, fully apart: p = 2/252 = 0.0079 <= 0.05 / 5."""
    got = Comparison(["r2d2", "dqn"]).update([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
    assert (got.status, got.look, got.winners, got.active) == ("decided", 1, {(0, 1): 1}, ())
    assert got.why.startswith("Look 1 of 5: dqn > r2d2; chance of any false difference")
    assert "at most 5%" in got.why


def test_ten_looks_leave_too_little_for_the_first():
    comparison = Comparison(looks=10)  # 0.05 / 10 < 0.0079
    first = comparison.update([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
    assert (first.status, first.active) == ("undecided", (0, 1))
    assert comparison.update([1, 2, 3, 4, 5], [11, 12, 13, 14, 15]).status == "decided"


def test_equal_agents_spend_the_budget():
    rng = np.random.default_rng(1)
    comparison = Comparison(looks=3, permutations=1000)
    got = [comparison.update(rng.normal(size=5), rng.normal(size=5)) for _ in range(3)]
    assert [d.status for d in got] == ["undecided", "undecided", "budget spent"]
    assert got[-1].winners == {(0, 1): None}
    assert "agent 0 and agent 1 undecided" in got[-1].why
    with pytest.raises(ConfigError, match=r"look 4 = .* 3 looks of 2 agents are allowed"):
        comparison.update([1.0], [2.0])


def test_agents_leave_when_their_pairs_are_decided():
    comparison, eight = Comparison(["a", "b", "far"], looks=4), np.arange(8.0)
    got = comparison.update(eight, eight + 0.5, eight + 20)
    assert got.winners == {(0, 1): None, (0, 2): 2, (1, 2): 2}
    assert got.active == (0, 1)
    got = comparison.update(eight, eight + 0.5, [])
    assert got.winners[0, 2] == 2
    assert len(comparison.scores[2]) == 8
    assert len(comparison.scores[0]) == 16


def test_fewer_than_five_seeds_are_not_tested():
    got = Comparison(looks=1).update([1, 2, 3, 4], [11, 12, 13, 14])  # p = 2/70 < 0.05
    assert got.status == "budget spent"
    comparison = Comparison(looks=2)
    assert comparison.update([1, 2, 3], [11, 12, 13]).status == "undecided"
    assert comparison.update([4, 5, 3, 2], [14, 15, 11, 12]).status == "decided"


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


def test_same_blocks_give_the_same_decision():
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(3, 2, 6)) + np.array([[0.9], [0]])
    first, again = Comparison(permutations=2000), Comparison(permutations=2000)
    assert [first.update(*x) for x in blocks] == [again.update(*x) for x in blocks]


def test_permutations_stay_in_their_block_and_are_followed_through_looks():
    """Against enumeration: the share of permutations that reject by look 2 and their sums."""
    blocks = [([3.0, 1.0], [0.0, -1.0]), ([2.0, 5.0], [1.0, 0.5])]
    test = _PairTest(1, 2, 0.5, 20000, [0])
    for a, b in blocks:
        test.add(np.array(a), np.array(b), test=True)
    sums = []
    for rows in itertools.product(itertools.combinations(range(4), 2), repeat=2):
        chosen = [np.array(a + b)[list(r)].sum() for (a, b), r in zip(blocks, rows, strict=True)]
        sums.append(sum(chosen))
    assert set(np.round(test.sums[0], 6)) == set(np.round(sums, 6))
    assert test.sums[0].mean() == pytest.approx(np.mean(sums), abs=0.1)
    # At most a quarter of the permutations at each of the two looks; here sums 4 / -1 first.
    first = np.abs(np.array([3, 2, 4, -1, 1, 0]) * 2 - 3.0)  # sums of a; total 3
    assert np.sum(first >= first[2]) == 2  # 4 and -1: 2/6 > 1/4, so the first look rejects none
    assert 0.2 < test.crossed.mean() <= 0.25


def test_each_look_spends_its_error_on_permutations_that_did_not_reject_before():
    """3 looks at alpha = 0.3: a tenth of the permutations each, 0.3 in all; without ties."""
    rng, test = np.random.default_rng(0), _PairTest(2, 3, 0.3, 3000, [0])
    for look in range(1, 4):
        test.add(rng.normal(size=12), rng.normal(size=12), test=True)
        shares = test.crossed.mean(1)
        assert shares == pytest.approx([0.1 * look, 0.05 * look], abs=0.001)
        assert (test.crossed[0] >= test.crossed[1]).all()


def test_many_pairs_have_permutations_enough_to_be_decided():
    comparison = Comparison(5, pairs=[(0, i) for i in range(1, 5)], looks=200)  # 0.05 / 800
    got = comparison.update(np.arange(12.0) + 99, *[np.arange(12.0)] * 4)
    assert got.status == "decided"


def test_misuse():
    with pytest.raises(ConfigError, match="1 agents"):
        Comparison(["only"])
    with pytest.raises(ConfigError, match="0 looks"):
        Comparison(looks=0)
    with pytest.raises(ConfigError, match="scores of 1 agents"):
        Comparison().update([1.0])
