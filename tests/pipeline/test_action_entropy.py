"""Entropy of actions by component, against the definition."""

import gymnasium as gym
import numpy as np
import pytest

from rlrun.pipeline.collector import BINS, MOST_VALUES, ActionCounts

spaces = gym.spaces
RNG = np.random.default_rng(0)
ALL = np.ones((6, 4), bool)


def entropy(space, action, valid=ALL):
    counts = ActionCounts(space)
    counts.add(action, valid)
    return counts.entropy()


def naive(values, size):
    share = [np.mean(values == v) for v in range(size)]
    return -sum(p * np.log(p) for p in share if p) / np.log(size)


def test_one_discrete_action():
    action = RNG.integers(3, size=(6, 4))
    assert entropy(spaces.Discrete(3), action) == pytest.approx(naive(action, 3))
    assert entropy(spaces.Discrete(3, start=5), action) == pytest.approx(naive(action, 3))
    assert entropy(spaces.Discrete(3), np.full((6, 4), 2)) == 0
    even = np.arange(24).reshape(6, 4) % 3
    assert entropy(spaces.Discrete(3), even) == pytest.approx(1)


def test_rows_that_are_no_steps_do_not_count():
    action, valid = RNG.integers(3, size=(6, 4)), RNG.random((6, 4)) < 0.5
    assert entropy(spaces.Discrete(3), action, valid) == pytest.approx(naive(action[valid], 3))
    assert entropy(spaces.Discrete(3), action, ~ALL) is None


def test_components_are_averaged():
    action = np.stack([RNG.integers(2, size=(6, 4)), RNG.integers(5, size=(6, 4))], -1)
    expected = (naive(action[..., 0], 2) + naive(action[..., 1], 5)) / 2
    assert entropy(spaces.MultiDiscrete([2, 5]), action) == pytest.approx(expected)
    bits = RNG.integers(2, size=(6, 4, 3)).astype(np.int8)
    expected = np.mean([naive(bits[..., i], 2) for i in range(3)])
    assert entropy(spaces.MultiBinary(3), bits) == pytest.approx(expected)


def test_real_actions_are_counted_in_equal_parts_of_their_range():
    space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    action = RNG.uniform([-2, 0], [2, 1], size=(6, 4, 2))
    action[0, 0] = [2.0, 1.0]  # the upper bounds belong to the last part
    parts = np.minimum(((action - [-2, 0]) / [4, 1] * BINS).astype(int), BINS - 1)
    expected = np.mean([naive(parts[..., i], BINS) for i in range(2)])
    assert entropy(space, action) == pytest.approx(expected)
    assert entropy(space, np.full((6, 4, 2), 0.3)) == 0


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(1), spaces.Discrete(MOST_VALUES + 1),
     spaces.Box(-np.inf, np.inf, (1,), np.float64), spaces.Box(1.0, 1.0, (1,), np.float64)],
)  # fmt: skip
def test_what_has_no_largest_entropy_is_not_counted(space):
    shape = (6, 4, *(space.shape or ()))
    assert entropy(space, np.zeros(shape, space.dtype)) is None


def test_counts_are_since_the_last_entropy_and_can_be_saved():
    counts, other = (ActionCounts(spaces.Discrete(3)) for _ in range(2))
    counts.add(np.zeros((6, 4), int), ALL)
    assert counts.entropy() == 0
    assert counts.entropy() is None
    first, second = RNG.integers(3, size=(2, 6, 4))
    counts.add(first, ALL)
    other.load(counts.counts.copy())
    counts.add(second, ALL)
    other.add(second, ALL)
    whole = naive(np.concatenate([first, second]), 3)
    assert counts.entropy() == other.entropy() == pytest.approx(whole)
    other.load(None)
    assert other.entropy() is None, "of an earlier version"


def test_actions_far_outside_of_a_box_are_in_its_outer_parts():
    space = spaces.Box(np.array([-2.0, -np.inf]), np.array([2.0, np.inf]), dtype=np.float64)
    action = np.full((6, 4, 2), 1e30)
    action[..., 0] = np.where(np.arange(24).reshape(6, 4) % 3, 2.0, 1e30)
    assert entropy(space, action) == 0, "2 and 1e30 are in the last part"
    action[0, :, 0] = -1e30
    parts = np.where(action[..., 0] < 0, 0, BINS - 1)
    assert entropy(space, action) == pytest.approx(naive(parts, BINS))


def test_a_component_that_is_no_number_or_of_the_widest_range_is_left_out():
    space = spaces.Box(-1.0, 1.0, (2,), np.float64)
    action = RNG.uniform(-1, 1, (6, 4, 2))
    expected = entropy(spaces.Box(-1.0, 1.0, (1,), np.float64), action[..., :1])
    action[..., 1] = np.nan
    assert entropy(space, action) == pytest.approx(expected)
    assert entropy(space, np.full((6, 4, 2), np.nan)) is None
    action = RNG.uniform(-1e30, 1e30, (6, 4, 1)).astype(np.float32)
    parts = ((action[..., 0].astype(float) + 1e30) / 2e30 * BINS).astype(int)
    found = entropy(spaces.Box(-1e30, 1e30, (1,), np.float32), action)
    assert found == pytest.approx(naive(parts, BINS))
    widest = np.finfo(np.float64).max
    assert entropy(spaces.Box(-widest, widest, (1,), np.float64), np.zeros((6, 4, 1))) is None
