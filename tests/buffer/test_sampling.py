"""Draws and importance weights of every sampler.

Ranks are those at a draw that sorts: ``buffer.resort_every`` env steps after the last that did.
"""

import numpy as np
import pytest
import torch

from rlrun.buffer.kernels import find_leaves, set_leaves
from rlrun.buffer.samplers import SumTree
from rlrun.errors import NumericError
from rlrun.run import checkpoint
from rlrun.types import Window
from tests.buffer.make import KINDS, constant, counts, far_from, flat, live, make_replay, priorities
from tests.buffer.pair import copied
from tests.compose import linear
from tests.reference.replay_model import World
from tests.run.forge import save

PRIORITIZED = pytest.mark.parametrize("kind", ["prioritized", "rank"])
SIZES = [1, 2, 7, 100, 16_387]


def set_priorities(replay, keys, values):
    replay.prioritize(np.asarray(keys, np.int64), np.asarray(values))


def mass_of(kind, raw, alpha):
    """P(i) up to a factor by the definitions, for distinct priorities."""
    if kind == "uniform":
        return np.ones(len(raw))
    if kind == "rank":
        return (1.0 + np.argsort(np.argsort(-raw))) ** -alpha
    return (raw + 1e-6) ** alpha


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_are_as_promised(kind, size):
    """Partly filled, then overwritten with other priorities; never a window that is gone."""
    rng, alpha = np.random.default_rng(size), {"prioritized": 0.6, "rank": 0.7}.get(kind, 0)
    world = World([[10**6]], [[0]], states=False)
    replay = make_replay(
        world.chunk(0), rows=size + 4, window=Window(0, 1, 1), capacity=None, kind=kind,
        seed=size,
    )  # fmt: skip
    for step, rows in enumerate((1 + (size + 1) // 2, size + 3, 1 + size // 3), 1):
        replay.add(world.chunk(rows))
        keys = live(replay)
        raw = rng.permutation(len(keys)) / len(keys) + 0.01
        if kind != "uniform":
            set_priorities(replay, keys, raw)
        found = counts(replay, 25, 1000, env_steps=step)
        assert far_from(found, mass_of(kind, raw, alpha)) < 5
        replay.check()


@PRIORITIZED
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_one_draw_in_each_range(kind, batch):
    """Draw j lies between j / k and (j + 1) / k of the total: no bound is reversed."""
    replay, keys = flat(kind, 100, alpha=constant(1.0))
    raw = np.random.default_rng(0).permutation(np.geomspace(0.01, 3, 100))
    set_priorities(replay, keys, raw)
    mass = mass_of(kind, raw, 1.0)
    if kind == "rank":  # ranges over ranks, not over keys
        keys, mass = keys[np.argsort(-raw)], np.sort(mass)[::-1]
    place = {int(k): i for i, k in enumerate(keys)}
    p, above, reached = mass / mass.sum(), np.cumsum(mass) / mass.sum(), set()
    for step in range(1, 40):
        at = np.array([place[int(k)] for k in replay.sample(batch, step).key])
        low = np.arange(batch) / batch
        assert (above[at] >= low - 1e-12).all()
        assert (above[at] - p[at] <= low + 1 / batch + 1e-12).all()
        reached |= set(at.tolist())
    assert len(reached) > 15
    even, keys = flat(kind, 8, alpha=constant(0.0))
    for _ in range(20):
        assert sorted(even.sample(8, 0).key.tolist()) == keys.tolist(), "each of equal ones once"


def test_between_sorts_ranks_stay_and_new_windows_come_first():
    """Whatever was dropped meanwhile is drawn again from the rest; through a saved state, too."""
    world = World([[10**6]], [[0]], states=False)
    given_ = {"resort_every": 100, "alpha": constant(0.7)}
    replay = make_replay(
        world.chunk(0), rows=104, window=Window(0, 1, 1), capacity=None, kind="rank", **given_
    )
    replay.add(world.chunk(104))
    keys, rng = live(replay), np.random.default_rng(0)
    raw = dict(zip(keys.tolist(), rng.permutation(len(keys)) / len(keys), strict=True))
    set_priorities(replay, keys, list(raw.values()))
    replay.sample(1, 100)  # sorts
    ranked = sorted(raw, key=lambda key: -raw[key])
    set_priorities(replay, keys[10:16], list(raw.values())[:6])  # seen at the next sort
    for _ in range(3):
        new = replay.add(world.chunk(1)).tolist()
        ranked = new + ranked
    other = make_replay(
        world.chunk(0), rows=104, window=Window(0, 1, 1), capacity=None, kind="rank", **given_
    )
    other.load_state_dict(copied(replay.state_dict()))
    rank = {key: 1.0 + i for i, key in enumerate(ranked)}  # of the dropped ones, too
    p = np.array([rank[key] for key in live(replay).tolist()]) ** -0.7
    for one in (replay, other):
        one.check()
        assert far_from(counts(one, 60, 500, env_steps=199), p) < 5
        sample = one.sample(64, 199)
        drawn = np.array([rank[key] for key in sample.key.tolist()])
        np.testing.assert_allclose(sample.weight, (drawn / drawn.max()) ** (0.7 * 0.5), rtol=1e-6)
        slots, share = one.sampler.probe(one.windows)
        at = live(one).searchsorted(one.windows.keys(slots))
        np.testing.assert_allclose(share, len(p) * p[at] / p.sum(), rtol=1e-9)
        stored = one.sampler.priorities(one.windows.find(live(one))[0])
        assert stored.tolist() == priorities(one).tolist()
    for step in (200, 201):  # after resort_every steps; after more than a sixteenth is new
        raw = rng.permutation(len(live(replay))) / 100
        set_priorities(replay, live(replay), raw)
        assert far_from(counts(replay, 60, 500, env_steps=step), mass_of("rank", raw, 0.7)) < 5
    for _ in range(30):  # more new windows than there are ranks: it sorts sooner
        replay.add(world.chunk(2))
        replay.check()


# -- weights ---------------------------------------------------------------------------------------


@PRIORITIZED
def test_alpha_and_beta_follow_their_schedules(kind):
    """Alpha moves in steps of 0.01 from raw priorities; the metric tells the one in force."""
    given_ = {"alpha": linear(1.0, 0.0), "beta": linear(0.0, 1.0)}
    replay, keys = flat(kind, 100, **given_)
    raw = np.random.default_rng(0).permutation(np.geomspace(0.1, 10, 100))
    set_priorities(replay, keys, raw)
    for step, alpha in ((5, 1.0), (500, 0.5), (515, 0.485), (519, 0.485), (1000, 0.0)):
        beta = step / 1000
        sample = replay.sample(50, step)
        metrics = replay.metrics(step)
        in_force = metrics["buffer/alpha"]
        assert in_force == pytest.approx(alpha), "a move of less than 0.01 changes nothing"
        assert metrics["buffer/beta"] == pytest.approx(beta)
        p = mass_of(kind, raw, alpha)
        at = np.asarray(keys).searchsorted(np.asarray(sample.key))
        np.testing.assert_allclose(sample.weight, (p[at] / p[at].min()) ** -beta, rtol=1e-4)
        assert far_from(counts(replay, 20, 1000, env_steps=step), p) < 5


# -- priorities ------------------------------------------------------------------------------------


@PRIORITIZED
def test_new_windows_get_the_largest_priority_seen(kind):
    """1 at first; the largest ever, not the largest now; eps is added to what is given."""
    world = World([[10**6]], [[0]], states=False)
    replay = make_replay(world.chunk(0), rows=99, window=Window(0, 1, 1), capacity=None, kind=kind)
    replay.add(world.chunk(3))
    assert priorities(replay).tolist() == [1.0, 1.0]
    eps = np.float32(1e-6) if kind == "prioritized" else 0
    set_priorities(replay, live(replay)[:1], [5.0])
    replay.add(world.chunk(1))
    assert priorities(replay).tolist() == [np.float32(5 + eps), 1.0, np.float32(5 + eps)]
    set_priorities(replay, live(replay), [0.1] * 3)
    replay.add(world.chunk(1))
    found = replay.metrics(0)
    assert priorities(replay)[-1] == found["buffer/priority_max"] == np.float32(5 + eps)
    assert found["buffer/priority_mean"] == pytest.approx(5.3 / 4, rel=1e-4)


@PRIORITIZED
def test_a_priority_beyond_float32_is_the_largest_there_is(kind):
    replay, keys = flat(kind, 4)
    set_priorities(replay, keys[:2], [1e300, -0.0])
    most = float(np.finfo(np.float32).max)
    assert priorities(replay)[0] == most == replay.metrics(0)["buffer/priority_max"]
    sample = replay.sample(40, 1)
    assert torch.isfinite(sample.weight).all()
    assert int(keys[0]) in sample.key.tolist()
    assert not np.signbit(priorities(replay)[1]), "it would come behind 0 where bits are sorted"
    replay.check()


def test_all_zero_priorities_name_the_remedy():
    replay, keys = flat("prioritized", 4, priority_eps=0.0)
    replay.prioritize(keys, np.zeros(4))
    assert "buffer/sample_age" not in replay.metrics(0)
    with pytest.raises(NumericError, match=r"buffer\.priority_eps=1e-6"):
        replay.sample(2, 0)


@PRIORITIZED
def test_peek_draws_as_the_sampler_does_and_changes_nothing(kind):
    replay, keys = flat(kind, 40)
    twin, _ = flat(kind, 40)
    raw = np.random.default_rng(1).pareto(1.5, 40) + 0.01
    for one in (replay, twin):
        set_priorities(one, keys, raw)
        one.sample(4, 1)  # sorts
    found = replay.peek(5000, np.random.default_rng(3), 1)
    at = np.asarray(keys).searchsorted(np.asarray(found.sample.key))
    mass = mass_of(kind, raw, 0.7 if kind == "rank" else 0.6)
    assert far_from(np.bincount(at, minlength=40), mass) < 5
    assert found.priority == pytest.approx(raw[at], rel=1e-4)
    assert found.stored == pytest.approx(raw, rel=1e-4)
    assert (found.sample.weight == 1).all()
    own = replay.get(found.sample.key, 0).segment
    assert torch.equal(found.sample.segment.obs, own.obs)
    assert replay.sample(9, 1).key.tolist() == twin.sample(9, 1).key.tolist()
    empty = make_replay(
        World([[9]], [[0]], states=False).chunk(0), rows=9, window=Window(0, 1, 1), kind=kind
    )
    assert empty.peek(4, np.random.default_rng(0), 0) is None
    uniform = flat("uniform", 9)[0].peek(4, np.random.default_rng(0), 0)
    assert uniform.priority is uniform.stored is None


# -- life ------------------------------------------------------------------------------------------


@PRIORITIZED
def test_sums_do_not_drift(kind, tmp_path):
    """After many updates over 12 decades draws and weights are those of sums made anew.

    Through a checkpoint, which keeps priorities; between two steps of alpha.
    """
    size, rng = 1001, np.random.default_rng(0)
    given_ = {"alpha": linear(0.3, 0.9), "beta": linear(0.4, 1.0)}
    one, keys = flat(kind, size, seed=1, **given_)
    for step in range(200):
        values = 10.0 ** rng.uniform(-6, 6, 2000)
        one.prioritize(rng.choice(keys, 2000), values.astype(np.float32))
        one.sample(16, 2 * step)
    one.check()
    save(tmp_path, one.state_dict(), env_steps=1, keep=1)
    two, _ = flat(kind, size, seed=2, **given_)
    two.load_state_dict(checkpoint.load_newest(tmp_path)[0])
    two.check()
    assert two.metrics(400) == one.metrics(400)
    for step in range(200, 230):
        a, b = (replay.sample(64, 2 * step) for replay in (one, two))
        assert a.key.tolist() == b.key.tolist()
        assert torch.equal(a.weight, b.weight)
        values = rng.random(64)
        for replay in (one, two):
            replay.prioritize(a.key, torch.from_numpy(values))


# -- the sum tree alone: a search that rounding carries past the total cannot be drawn on purpose

LEAVES = [1, 2, 3, 5, 7, 127, 128, 129, 1000, 128**2 + 1]


@pytest.mark.parametrize("size", LEAVES)
def test_every_leaf_is_found_and_none_of_zero(size):
    """Also at 0, just below the total, and where rounding carries a search past the total.

    A tutorial tree stops one level early for odd capacities, and never for capacity 1.
    """
    tree, values = SumTree(size), np.arange(1.0, size + 1)
    set_leaves(tree.arrays, np.arange(size), values)
    below = np.cumsum(values) - values
    for inside in (0, values / 2, values - 0.25):  # a border belongs to what follows
        assert find_leaves(tree.arrays, below + inside).tolist() == list(range(size))
    assert tree.root == values.sum()
    rng = np.random.default_rng(size)
    for _ in range(5):
        values = np.where(rng.random(size) < 0.6, 0.0, 10.0 ** rng.uniform(-6, 6, size))
        values[rng.integers(size)] = 0.7
        set_leaves(tree.arrays, np.arange(size), values)
        positive = np.flatnonzero(values)
        edges = np.array([0.0, np.nextafter(tree.root, 0), tree.root, 2 * tree.root])
        found = find_leaves(tree.arrays, edges)
        assert (values[found] > 0).all()
        assert found.tolist() == [positive[0], *[positive[-1]] * 3]
    values = np.zeros(size)
    values[size // 2] = 1e-300
    set_leaves(tree.arrays, np.arange(size), values)
    assert (find_leaves(tree.arrays, np.array([0.0, tree.root, 1.0])) == size // 2).all()
