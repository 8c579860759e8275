"""The sum tree alone: a search that rounding carries past the total cannot be drawn on purpose."""

import math

import numpy as np
import pytest

from rlrun.buffer.samplers import SumTree

SIZES = [1, 2, 3, 5, 7, 127, 128, 129, 1000, 128**2 + 1]


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_is_found_and_none_of_zero(size):
    """Also at 0, just below the total, and where rounding carries a search past the total.

    A tutorial tree stops one level early for odd capacities, and never for capacity 1.
    """
    tree, values = SumTree(size), np.arange(1.0, size + 1)
    tree.set(np.arange(size), values)
    below = np.cumsum(values) - values
    for inside in (0, values / 2, values - 0.25):  # a border belongs to what follows
        assert tree.find(below + inside).tolist() == list(range(size))
    assert tree.root == values.sum()
    rng = np.random.default_rng(size)
    for _ in range(5):
        values = np.where(rng.random(size) < 0.6, 0.0, 10.0 ** rng.uniform(-6, 6, size))
        values[rng.integers(size)] = 0.7
        tree.set(np.arange(size), values)
        positive = np.flatnonzero(values)
        edges = np.array([0.0, np.nextafter(tree.root, 0), tree.root, 2 * tree.root])
        found = tree.find(edges)
        assert (values[found] > 0).all()
        assert found.tolist() == [positive[0], *[positive[-1]] * 3]
    values = np.zeros(size)
    values[size // 2] = 1e-300
    tree.set(np.arange(size), values)
    assert (tree.find(np.array([0.0, tree.root, 1.0])) == size // 2).all()


@pytest.mark.parametrize("least", [False, True])
def test_reductions_stay_exact(least):
    """|root - sum| / sum < 1e-9 after 1e6 updates over 12 decades; filling gives the same nodes."""
    size, rng = 4097, np.random.default_rng(0)
    tree, leaves = SumTree(size, minimum=least), np.full(size, np.inf if least else 0.0)
    for _ in range(100):
        index, value = rng.integers(size, size=10_000), 10.0 ** rng.uniform(-6, 6, 10_000)
        leaves[index] = value
        tree.set(index, leaves[index])
    assert tree.check() is None
    assert tree.get(np.arange(size)).tolist() == leaves.tolist()
    exact = leaves.min() if least else math.fsum(leaves)
    assert abs(tree.root - exact) <= (0 if least else 1e-12 * exact)
    other = SumTree(size, minimum=least)
    other.fill(leaves)
    assert other.root == pytest.approx(tree.root, rel=1e-14)
    tree.set(np.empty(0, np.int64), np.empty(0))
    assert tree.check() is None


def test_a_wrong_parent_is_seen():
    tree = SumTree(9)
    tree.nodes[-1] = 3.0
    assert tree.check() is not None
