"""The replay benchmark and the cliffwalk measure what they say."""

import math

import numpy as np
import pytest

from tests.benchmarks import cliffwalk
from tests.benchmarks.product import SumTree
from tests.benchmarks.replay import KINDS, PERIOD, Peer, Stream, compare, filled, open_peers


def test_batches_go_on_where_the_stored_rows_ended():
    stream = Stream(KINDS["vectors"])
    whole, part = stream.chunk(0, 40), stream.chunk(16, 24)
    assert np.array_equal(part.obs, whole.obs[16:])
    assert (whole.first[1:] == ~whole.valid).all()  # behind an end row, nowhere else
    full = filled("vectors", 4096)
    before, batches = len(full.replay), full.batches()
    for _ in range(PERIOD + 3):  # once around and on
        full.replay.add(next(batches))
    full.replay.check()
    assert abs(len(full.replay) - before) < before / 50


def test_peers_are_served_and_compared_or_say_why_not():
    names = {"list": "", "cpprb": "torchrl"}
    with open_peers(names, None, "vectors", 1024) as peers:
        assert isinstance(peers["list"], Peer)
        rows = compare("x", {}, lambda: None, peers, "sample", 8, (2, 0.001), target=1e9)
    assert [(r.against.split()[0], r.missing) for r in rows] == [
        ("list", ""), ("cpprb", "not installed"),
    ]  # fmt: skip
    assert rows[0].ratio > 1
    assert [r.met for r in rows] == [False, False]


@pytest.mark.parametrize("count", [1, 3, 100, 4097])
def test_a_search_visits_as_many_nodes_as_the_logarithm(count):
    tree, g = SumTree(count), np.random.default_rng(count)
    tree.set(np.arange(count), g.integers(1, 9, count).astype(np.float64))  # sums are exact
    mass = g.integers(0, int(tree.root), 20) + 0.5
    visits, found = zip(*(naive_descent(tree, m) for m in mass), strict=True)
    assert np.array_equal(found, tree.find(mass))
    assert set(visits) == {tree.depth} == {math.ceil(math.log2(count))}


def naive_descent(tree: SumTree, mass: float) -> tuple[int, int]:
    """(nodes visited below the root, leaf): halves of the leaves, summed anew at every node."""
    low, high, visits = 0, tree.leaves, 0
    while high - low > 1:
        middle = (low + high) // 2
        left = float(tree.get(np.arange(low, middle)).sum())
        visits += 1
        if mass >= left:
            mass, low = mass - left, middle
        else:
            high = middle
    return visits, low


def test_the_walk_holds_every_sequence_of_actions():
    walk = cliffwalk.make_walk(3, 0)
    s = walk.segment
    assert walk.transitions == 2**4 - 2
    assert int(s.reward.sum()) == 1
    assert int((~s.valid).sum()) == int(s.terminated.sum()) == 2**3
    assert np.bincount(s.obs[:-1][s.valid].numpy()).tolist() == [8, 4, 2]
    assert np.allclose(walk.truth, [[4 / 9, 0], [0, 2 / 3], [1, 0]])


def test_learning_in_the_walk_is_q_learning():
    walk, delta = cliffwalk.make_walk(4, 1), np.empty(2000)
    sample = cliffwalk.make_memory(walk, "uniform", 0).sample(2000, 0)
    fields = cliffwalk.transitions(sample)
    q, wanted = walk.start.copy(), walk.start.copy()
    done = cliffwalk.learn(q, walk.truth, *fields, walk.gamma, delta)
    assert 0 < done < 2000
    for s, a, r, after, end in list(zip(*fields, strict=True))[:done]:
        assert np.mean((wanted - walk.truth) ** 2) >= 1e-3
        wanted[s, a] += (r + (0 if end else 0.75 * wanted[after].max()) - wanted[s, a]) / 4
    assert np.allclose(q, wanted)
    assert np.mean((wanted - walk.truth) ** 2) < 1e-3
