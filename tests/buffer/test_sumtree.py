"""The tree: exact sums, no zero leaf drawn, frequencies as promised, no drift."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.sampler import Proportional
from rlrun.buffer.sumtree import Tree
from rlrun.errors import NumericError
from tests.buffer.factory import constant, linear, make_sampler, prioritized

SIZES = [1, 2, 3, 5, 7, 100, 1000, 4097]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1, exclude_max=True))
def test_find_is_the_naive_search(values, place):
    tree = Tree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    if tree.root == 0:
        return
    mass = place * tree.root
    got = int(tree.find(np.array([mass]))[0])
    assert values[got] > 0
    below = sum(values[:got])
    slack = 1e-9 * tree.root
    assert below - slack <= mass <= below + values[got] + slack


@pytest.mark.parametrize("size", SIZES)
def test_zero_leaves_are_never_drawn(size):
    tree = Tree(size)
    values = np.zeros(size)
    values[size // 2] = 1e-300 if size == 3 else 0.7
    tree.set(np.arange(size), values)
    edges = np.array([0.0, np.nextafter(tree.root, 0), tree.root, tree.root * 2])
    assert (tree.find(edges) == size // 2).all()


def test_batch_update_is_the_sequence_of_single_ones():
    rng = np.random.default_rng(0)
    one, many = Tree(37), Tree(37)
    index, value = rng.integers(37, size=200), rng.random(200)
    many.set(index, value)
    for i, v in zip(index, value, strict=True):
        one.set(np.array([i]), np.array([v]))
    np.testing.assert_array_equal(one.nodes, many.nodes)
    assert many.check() is None
    filled = Tree(37)
    filled.fill(one.get(np.arange(37)))
    np.testing.assert_array_equal(one.nodes, filled.nodes)


def test_sums_do_not_drift():
    """Semantics section 6: |root - sum| / sum < 1e-9 after 1e7 updates over 12 decades."""
    rng = np.random.default_rng(0)
    tree = Tree(4097)
    for _ in range(1000):
        tree.set(rng.integers(4097, size=10_000), 10.0 ** rng.uniform(-6, 6, 10_000))
    total = tree.get(np.arange(4097)).sum()
    assert abs(tree.root - total) / total < 1e-9


def chi_square(counts, expected):
    """Pearson's statistic with bins of expected count < 5 pooled, and its degrees of freedom."""
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    return statistic, keep.sum() - 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_follow_priorities(size, alpha):
    """One-sided: stratified draws vary less than independent ones."""
    rng = np.random.default_rng(size)
    sampler = make_sampler("prioritized", size, seed=1, alpha=constant(alpha))
    filled = np.arange(max(1, size - size // 3))  # a partly filled buffer
    sampler.insert(filled)
    raw = rng.random(len(filled)) ** 4
    sampler.update(filled, raw)
    counts = np.zeros(size)
    for _ in range(200):
        slots, _ = sampler.draw(500, 0)
        counts += np.bincount(slots, minlength=size)
    assert counts[len(filled) :].sum() == 0
    p = (raw + 1e-6) ** alpha
    statistic, freedom = chi_square(counts[filled], 100_000 * p / p.sum())
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1))


def test_weights_follow_the_paper():
    sampler = make_sampler("prioritized", 4, alpha=constant(0.7), beta=constant(0.5))
    sampler.insert(np.arange(4))
    raw = np.array([1.0, 2.0, 3.0, 4.0])
    sampler.update(np.arange(4), raw)
    slots, weight = sampler.draw(64, 0)
    p = (raw + 1e-6) ** 0.7
    expected = (4 * p / p.sum()) ** -0.5
    np.testing.assert_allclose(weight, (expected / expected[slots].max())[slots], rtol=1e-5)
    assert weight.max() == 1
    assert (weight > 0).all()


def test_weights_by_the_whole_buffer():
    sampler = make_sampler("prioritized", 64, weight_norm="buffer", beta=constant(1.0))
    sampler.insert(np.arange(64))
    raw = np.linspace(0.01, 5, 64)
    sampler.update(np.arange(64), raw)
    slots, weight = sampler.draw(32, 0)
    p = (raw + 1e-6) ** 0.6
    np.testing.assert_allclose(weight, (p.min() / p)[slots], rtol=1e-5)
    sampler.remove(np.array([0]))
    assert sampler.check(np.arange(1, 64)) is None


def test_new_items_get_the_largest_priority():
    sampler = make_sampler("prioritized", 8)
    sampler.insert(np.array([0]))
    assert sampler.raw[0] == 1.0
    sampler.update(np.array([0]), np.array([5.0]))
    sampler.insert(np.array([1]))
    assert sampler.raw[1] == pytest.approx(5.0)
    sampler.update(np.array([0, 1]), np.array([0.1, 0.1]))
    sampler.insert(np.array([2]))
    assert sampler.raw[2] == pytest.approx(5.0), "the largest seen so far, not the largest now"


def test_a_moving_alpha_rebuilds_the_tree_from_raw_priorities():
    config = prioritized(alpha=linear(1.0, 0.0))
    rng = np.random.default_rng(0)
    sampler = Proportional(config, 16, generator=rng, total_steps=1000)
    sampler.insert(np.arange(16))
    sampler.update(np.arange(16), np.arange(16.0))
    sampler.draw(4, env_steps=5)
    assert sampler.alpha == 1.0, "a move of less than 0.01 changes nothing"
    sampler.draw(4, env_steps=500)
    assert sampler.alpha == 0.5
    np.testing.assert_allclose(sampler.sum.get(np.arange(16)), (np.arange(16) + 1e-6) ** 0.5)
    assert sampler.metrics(500)["buffer/alpha"] == 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_bad_priorities_are_refused(bad):
    sampler = make_sampler("prioritized", 8)
    sampler.insert(np.arange(8))
    with pytest.raises(NumericError, match="priority = "):
        sampler.update(np.array([3]), np.array([bad]))
    assert sampler.raw[3] == 1.0
    assert sampler.check(np.arange(8)) is None


def test_all_zero_priorities_name_the_remedy():
    sampler = make_sampler("prioritized", 4, priority_eps=0.0)
    sampler.insert(np.arange(4))
    sampler.update(np.arange(4), np.zeros(4))
    with pytest.raises(NumericError, match=r"buffer\.priority_eps=1e-6"):
        sampler.draw(2, 0)


def test_draws_are_stratified():
    """k equal ranges of the total, one draw each: with k equal priorities every slot once."""
    sampler = make_sampler("prioritized", 8, priority_eps=0.0)
    sampler.insert(np.arange(8))
    for _ in range(50):
        assert sorted(sampler.draw(8, 0)[0]) == list(range(8))


def test_beta_follows_its_schedule():
    sampler = make_sampler("prioritized", 2, alpha=constant(1.0), beta=linear(0.0, 1.0))
    sampler.insert(np.arange(2))
    sampler.update(np.arange(2), np.array([1.0, 4.0]))
    for env_steps, beta in ((0, 0.0), (500, 0.5), (1000, 1.0)):
        slots, weight = sampler.draw(200, env_steps)
        np.testing.assert_allclose(weight[slots == 1], 0.25**beta, rtol=1e-5)


@pytest.mark.parametrize("capacity", [1, 7, 64])
def test_uniform_draws_every_live_slot_alike_through_wrap(capacity):
    sampler = make_sampler("uniform", capacity)
    live: list[int] = []
    for key in range(5 * capacity):
        slot = key % capacity
        if slot in live:
            sampler.remove(np.array([slot]))
            live.remove(slot)
        sampler.insert(np.array([slot]))
        live.append(slot)
    if capacity > 4:
        dead = np.array(live[1:3])  # not the oldest: a hole within the span
        sampler.remove(dead)
        live = [s for s in live if s not in dead]
    assert sampler.check(np.array(live)) is None
    counts = np.zeros(capacity)
    for _ in range(100):
        slots, weight = sampler.draw(200, 0)
        counts += np.bincount(slots, minlength=capacity)
        assert (weight == 1).all()
    expected = np.zeros(capacity)
    expected[live] = 20_000 / len(live)
    assert counts[expected == 0].sum() == 0
    statistic, freedom = chi_square(counts[live], expected[live])
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1))
