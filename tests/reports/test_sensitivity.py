"""Main effects and the share of the variance of each."""

from pathlib import Path

import numpy as np
import pytest

from rlrun.reports.groups import group_runs
from rlrun.reports.runs import read_runs
from rlrun.reports.sensitivity import MAX_LEVELS, effects, explained
from tests.reports.forge import forge


def test_shares_of_a_grid(tmp_path: Path) -> None:
    """score = 2 a + b on a balanced grid: variances 4 and 1, shares 0.8 and 0.2."""
    for a in (-1, 1):
        for b in (-1, 1):
            forge(tmp_path / f"{a}{b}", policy__a=a, policy__b=b, returns=(2.0 * a + b,))
    first, second = effects(group_runs(read_runs([str(tmp_path)])))
    assert (first.keys, second.keys) == (("policy.a",), ("policy.b",))
    assert (first.share, second.share) == (pytest.approx(0.8), pytest.approx(0.2))
    assert first.values == ["-1", "1"]
    np.testing.assert_array_equal(first.levels[1].scores, [1, 3])


def test_seeds_are_the_rest(tmp_path: Path) -> None:
    for a in (0, 1):
        for seed in (0, 1):
            forge(tmp_path / f"{a}{seed}", policy__a=a, seed=seed, returns=(float(seed),))
    (effect,) = effects(group_runs(read_runs([str(tmp_path)])))
    assert effect.share == 0


def test_keys_that_vary_together_are_one(tmp_path: Path) -> None:
    for i, name in enumerate(("dqn", "r2d2")):
        forge(tmp_path / name, policy__name=name, policy__lr=float(i), returns=(float(i),))
    (effect,) = effects(group_runs(read_runs([str(tmp_path)])))
    assert effect.name == "policy.name (and 1 with it)"
    assert effect.share == 1


def test_numbers_are_in_order(tmp_path: Path) -> None:
    for value in (0.01, 0.001, 0.1, None):
        forge(tmp_path / str(value), policy__lr=value, returns=(1.0,))
    (effect,) = effects(group_runs(read_runs([str(tmp_path)])))
    assert effect.values == ["0.001", "0.01", "0.1", "null"]
    np.testing.assert_array_equal(effect.numbers, [0.001, 0.01, 0.1, np.nan])


def test_a_sampled_number_is_cut_into_ranges(tmp_path: Path) -> None:
    """Two sampled keys have a value for every setting, yet do not vary together."""
    for i in range(10):
        forge(tmp_path / str(i), policy__a=i, policy__b=(7 * i) % 10, returns=(float(i // 2),))
    first, second = effects(group_runs(read_runs([str(tmp_path)])))
    assert (first.keys, second.keys) == (("policy.a",), ("policy.b",))
    assert [level.name for level in first.levels] == [f"{i} to {i + 1}" for i in range(0, 10, 2)]
    assert (first.share, second.share < 0.9) == (1, True)


def test_eight_values_are_not_cut_into_ranges(tmp_path: Path) -> None:
    for i in range(MAX_LEVELS):
        forge(tmp_path / str(i), policy__a=i, returns=(float(i),))
    (effect,) = effects(group_runs(read_runs([str(tmp_path)])))
    assert [level.name for level in effect.levels] == [str(i) for i in range(MAX_LEVELS)]


def test_equal_scores_explain_nothing() -> None:
    assert explained([np.ones(2), np.ones(3)]) == 0
    for value in (97.1, 0.1, 0.2, 0.7):  # whose means are rounded
        assert explained([np.full(3, value)] * 2) == 0


def test_the_share_is_at_most_1_at_any_magnitude() -> None:
    for scale in (1e-200, 0.1, 97.1, 1e200):
        assert explained([np.full(3, scale), np.full(3, 3 * scale)]) == pytest.approx(1)
        assert explained([np.full(3, scale), np.full(3, 3 * scale)]) <= 1
