"""The ladder and the schedule of exploration; the entropy of actions by component.

Private: an entropy or a share that is a little wrong is a plausible number.
"""

import gymnasium as gym
import numpy as np
import pytest

from rlrun.pipeline.collector import BINS, MOST_VALUES, ActionCounts, ladder, make_explore
from rlrun.schema import ExploreConfig, ScheduleConfig

spaces = gym.spaces
RNG = np.random.default_rng(0)
ALL = np.ones((6, 4), bool)
WIDEST = np.finfo(np.float64).max


def test_the_ladder_is_that_of_ape_x():
    np.testing.assert_allclose(ladder(0.4, 7, 8), [0.4 ** (1 + i) for i in range(8)], rtol=1e-6)
    assert ladder(0.4, 7, 1).tolist() == pytest.approx([0.4])


def test_a_single_environment_follows_the_schedule():
    epsilon = ScheduleConfig("linear", 1.0, 0.0, None, None)
    config = ExploreConfig("ladder", 0.4, 7.0, epsilon, temperature=None)
    assert make_explore(config, num_envs=1, total_steps=100)(50).tolist() == [0.5]
    fixed = make_explore(config, num_envs=4, total_steps=100)
    assert fixed(0).tolist() == fixed(99).tolist()
    assert len(set(fixed(0).tolist())) == 4


def entropy(space, action, valid=ALL):
    counts = ActionCounts(space)
    counts.add(action, valid)
    return counts.entropy()


def naive(values, size):
    share = [np.mean(values == v) for v in range(size)]
    return -sum(p * np.log(p) for p in share if p) / np.log(size)


def bins(x, low, high):
    """The part of the range that each number is in; the bound belongs to the outer one."""
    return np.clip(((x.astype(float) - low) / (high - low) * BINS).astype(int), 0, BINS - 1)


def box(low, high, dtype=np.float64):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


THREE, MANY = RNG.integers(3, size=(6, 4)), RNG.integers([2, 5], size=(6, 4, 2))
BITS = RNG.integers(2, size=(6, 4, 3)).astype(np.int8)
REAL, FAR = RNG.uniform([-2, 0], [2, 1], size=(6, 4, 2)), np.full((6, 4, 2), 1e30)
REAL[0, 0], FAR[0, :, 0], FAR[1, :, 0] = [2.0, 1.0], -1e30, 2.0
NAN = np.where([False, True], np.nan, REAL)
WIDE = RNG.uniform(-1e30, 1e30, (6, 4, 1)).astype(np.float32)
CASES = {  # space, action, (values, number of values) of each counted component
    "one": (spaces.Discrete(3), THREE, [(THREE, 3)]),
    "from 0 in a space from 5": (spaces.Discrete(3, start=5), THREE, [(THREE, 3)]),
    "always the same": (spaces.Discrete(3), np.full((6, 4), 2), [(np.full((6, 4), 2), 3)]),
    "components": (spaces.MultiDiscrete([2, 5]), MANY, [(MANY[..., 0], 2), (MANY[..., 1], 5)]),
    "bits": (spaces.MultiBinary(3), BITS, [(BITS[..., i], 2) for i in range(3)]),
    "real": (box([-2, 0], [2, 1]), REAL,
             [(bins(REAL[..., i], *b), BINS) for i, b in enumerate(([-2, 2], [0, 1]))]),
    "far outside, and unbounded": (
        box([-2, -np.inf], [2, np.inf]), FAR, [(np.where(FAR[..., 0] < 0, 0, BINS - 1), BINS)],
    ),
    "no number": (box([-2, 0], [2, 1]), NAN, [(bins(NAN[..., 0], -2, 2), BINS)]),
    "wide": (box([-1e30], [1e30], np.float32), WIDE, [(bins(WIDE[..., 0], -1e30, 1e30), BINS)]),
    "nothing but NaN": (box([-1], [1]), np.full((6, 4, 1), np.nan), []),
    "one value": (spaces.Discrete(1), np.zeros((6, 4), int), []),
    "too many values": (spaces.Discrete(MOST_VALUES + 1), np.zeros((6, 4), int), []),
    "unbounded": (box([-np.inf], [np.inf]), np.zeros((6, 4, 1)), []),
    "no range": (box([1], [1]), np.ones((6, 4, 1)), []),
    "the widest range": (box([-WIDEST], [WIDEST]), np.zeros((6, 4, 1)), []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_entropy_is_the_mean_over_the_counted_components(case):
    space, action, components = CASES[case]
    expected = [naive(*component) for component in components]
    found = entropy(space, action)
    assert found == (pytest.approx(np.mean(expected), abs=1e-12) if expected else None)


def test_rows_that_are_no_steps_do_not_count():
    valid = RNG.random((6, 4)) < 0.5
    assert entropy(spaces.Discrete(3), THREE, valid) == pytest.approx(naive(THREE[valid], 3))
    assert entropy(spaces.Discrete(3), THREE, ~ALL) is None


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
