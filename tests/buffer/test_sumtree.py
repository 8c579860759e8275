"""The tree: exact sums, no zero leaf drawn, frequencies as promised, no drift."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.samplers import sumtree
from rlrun.buffer.samplers.proportional import Proportional
from rlrun.buffer.samplers.sumtree import SumTree
from rlrun.errors import NumericError
from tests.buffer.factory import NONE, constant, linear, make_sampler, prioritized

SIZES = [1, 2, 3, 5, 7, 100, 1000, 4097]
TREES = [*range(1, 18), 31, 32, 33, 100, 1000, 4097]
DRAWS, BATCH = 1_000_000, 1000


@pytest.fixture(params=["compiled", "vectorised"])
def way(request, monkeypatch):
    """Both ways a tree is written and searched (the first is interpreted without numba)."""
    for name in ("set", "find"):
        function = getattr(sumtree, f"{name}_{request.param}")
        monkeypatch.setattr(sumtree, f"{name}_compiled", function)
        monkeypatch.setattr(sumtree, f"{name}_vectorised", function)
    return request.param


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1, exclude_max=True))
def test_find_is_the_naive_search(values, place):
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    if tree.root == 0:
        return
    mass = place * tree.root
    got = int(tree.find(np.array([mass]))[0])
    assert values[got] > 0
    below = sum(values[:got])
    slack = 1e-9 * tree.root
    assert below - slack <= mass <= below + values[got] + slack


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", SIZES)
def test_zero_leaves_are_never_sampled(size):
    """Also at 0, just below the total, and where rounding carries a search past the total."""
    tree = SumTree(size)
    edges = lambda: np.array([0.0, np.nextafter(tree.root, 0), tree.root, 2 * tree.root])  # noqa: E731
    for alive in {0, size // 2, size - 1}:
        values = np.zeros(size)
        values[alive] = 1e-300 if size == 3 else 0.7
        tree.set(np.arange(size), values)
        assert (tree.find(edges()) == alive).all()
    rng = np.random.default_rng(size)
    for _ in range(50):
        values = np.where(rng.random(size) < 0.5, 0.0, 10.0 ** rng.uniform(-6, 6, size))
        values[rng.integers(size)] = 0.3
        tree.set(np.arange(size), values)
        mass = np.concatenate([edges(), rng.random(50) * tree.root])
        assert (values[tree.find(mass)] > 0).all()
        positive = np.flatnonzero(values)
        assert tree.find(edges()[:2]).tolist() == [positive[0], positive[-1]]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", TREES)
def test_every_leaf_is_found(size):
    """A tutorial tree stops one level early for odd capacities, and never for capacity 1."""
    tree = SumTree(size)
    values = np.arange(1.0, size + 1)
    tree.set(np.arange(size), values)
    below = np.cumsum(values) - values
    assert tree.find(below).tolist() == list(range(size)), "a border belongs to what follows"
    assert tree.find(below + values / 2).tolist() == list(range(size))
    assert tree.find(below + values - 0.25).tolist() == list(range(size))
    assert tree.root == values.sum()


class Watched(np.ndarray):
    """An array that knows which nodes were read and written."""

    read: set[int]
    written: set[int]

    def __array_finalize__(self, source):
        self.read, self.written = set(), set()

    def __getitem__(self, index):
        self.read |= set(np.ravel(index).tolist())
        return np.asarray(self)[index]

    def __setitem__(self, index, value):
        self.written |= set(np.ravel(index).tolist())
        np.asarray(self)[index] = value


@pytest.mark.parametrize("name", ["compiled", "vectorised"])
@pytest.mark.parametrize("size", SIZES)
def test_a_search_visits_a_node_a_level(size, name, monkeypatch):
    """ceil(log2 N) nodes of which the children are looked at; an update mends as many."""
    for verb in ("set", "find"):
        function = getattr(sumtree, f"{verb}_{name}")
        for which in ("compiled", "vectorised"):
            plain = getattr(function, "py_func", function)
            monkeypatch.setattr(sumtree, f"{verb}_{which}", plain)
    monkeypatch.setattr(
        sumtree, "propagate", getattr(sumtree.propagate, "py_func", sumtree.propagate)
    )
    tree, depth = SumTree(size), math.ceil(math.log2(size))
    tree.fill(np.ones(size))
    tree.nodes = tree.nodes.view(Watched)
    for mass in (0.0, size / 2, size - 0.5):
        tree.nodes.read.clear()
        assert tree.find(np.array([mass]))[0] == int(mass)
        assert len({node >> 1 for node in tree.nodes.read if node > 1}) == depth
    tree.nodes.written.clear()
    tree.set(np.array([size - 1]), np.array([2.0]))
    assert len(tree.nodes.written) == depth + 1
    assert np.asarray(tree.nodes)[1] == size + 1


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("least", [False, True])
def test_batch_update_is_the_sequence_of_single_ones(size, least):
    rng = np.random.default_rng(0)
    one, many, filled = (SumTree(size, minimum=least) for _ in range(3))
    for count in (1, 7, 200):  # with duplicates, of which the last wins
        index, value = rng.integers(size, size=count), 10.0 ** rng.uniform(-6, 6, count)
        many.set(index, value)
        for i, v in zip(index, value, strict=True):
            one.set(np.array([i]), np.array([v]))
        np.testing.assert_array_equal(one.nodes, many.nodes)
        assert many.check() is None
        last = dict(zip(index.tolist(), value.tolist(), strict=True))
        assert many.get(np.array(list(last))).tolist() == list(last.values())
    filled.fill(one.get(np.arange(size)))
    np.testing.assert_array_equal(one.nodes, filled.nodes)


def test_no_updates_are_no_change():
    tree = SumTree(5)
    tree.fill(np.arange(5.0))
    before = tree.nodes.copy()
    tree.set(NONE, np.empty(0))
    np.testing.assert_array_equal(tree.nodes, before)
    assert len(tree.find(np.empty(0))) == 0


@pytest.mark.parametrize("size", [4096, 4097])
def test_sums_do_not_drift(size):
    """|root - sum| / sum < 1e-9 after 1e7 updates over 12 decades."""
    rng = np.random.default_rng(0)
    sampler = make_sampler("prioritized", size, weight_norm="buffer", alpha=constant(1.0))
    sampler.replace_slots(NONE, np.arange(size))
    for _ in range(1000):
        slots = rng.integers(size, size=10_000)
        sampler.update(slots, (10.0 ** rng.uniform(-6, 6, 10_000)).astype(np.float32))
    leaves = sampler.sum_tree.get(np.arange(size))
    total = math.fsum(leaves)
    assert abs(sampler.sum_tree.root - total) / total < 1e-9
    assert sampler.min_tree.root == leaves.min()
    assert sampler.check(np.arange(size)) is None


def chi_square(counts, expected):
    """Pearson's statistic with bins of expected count < 5 pooled, and its degrees of freedom."""
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    return statistic, keep.sum() - 1


def assert_frequencies(sampler, live, alpha):
    """1e6 draws; one-sided: stratified draws vary less than independent ones."""
    counts = np.zeros(sampler.capacity)
    for _ in range(DRAWS // BATCH):
        slots, _ = sampler.draw(None, BATCH, 0)
        counts += np.bincount(slots, minlength=len(counts))
    assert counts[live].sum() == DRAWS, "a slot was drawn that is not live"
    p = sampler.raw[live].astype(float) ** alpha
    statistic, freedom = chi_square(counts[live], DRAWS * p / p.sum())
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_follow_priorities(size, alpha):
    """Partly filled, full, overwritten several times over, and with windows taken away."""
    rng = np.random.default_rng(size)
    sampler = make_sampler("prioritized", size, seed=1, alpha=constant(alpha))

    def learn(slots):
        values = rng.random(len(slots)) ** 4
        sampler.update(slots, values)
        np.testing.assert_allclose(sampler.raw[slots], values + 1e-6, rtol=1e-6)

    part = np.arange(max(1, size - size // 3))
    sampler.replace_slots(NONE, part)
    learn(part)
    assert_frequencies(sampler, part, alpha)
    sampler.replace_slots(NONE, np.arange(len(part), size))
    head = 0
    for _ in range(5):  # the ring of slots, a third at a time, priorities as they come
        slots = (head + np.arange(1 + size // 3)) % size
        sampler.replace_slots(slots, slots)
        assert (sampler.raw[slots] == sampler.largest).all(), "what was overwritten has no say"
        learn(rng.permutation(slots)[: 1 + size // 4])
        head += len(slots)
    assert_frequencies(sampler, np.arange(size), alpha)
    gone = rng.permutation(size)[: size // 2]
    sampler.replace_slots(gone, NONE)
    assert_frequencies(sampler, np.setdiff1d(np.arange(size), gone), alpha)


def test_weights_follow_the_paper():
    sampler = make_sampler("prioritized", 4, alpha=constant(0.7), beta=constant(0.5))
    sampler.replace_slots(NONE, np.arange(4))
    raw = np.array([1.0, 2.0, 3.0, 4.0])
    sampler.update(np.arange(4), raw)
    slots, weight = sampler.draw(None, 64, 0)
    p = (raw + 1e-6) ** 0.7
    expected = (4 * p / p.sum()) ** -0.5
    np.testing.assert_allclose(weight, (expected / expected[slots].max())[slots], rtol=1e-5)
    assert weight.max() == 1
    assert (weight > 0).all()


def test_weights_by_the_whole_buffer():
    sampler = make_sampler("prioritized", 64, weight_norm="buffer", beta=constant(1.0))
    sampler.replace_slots(NONE, np.arange(64))
    raw = np.linspace(0.01, 5, 64)
    sampler.update(np.arange(64), raw)
    slots, weight = sampler.draw(None, 32, 0)
    p = (raw + 1e-6) ** 0.6
    np.testing.assert_allclose(weight, (p.min() / p)[slots], rtol=1e-5)
    sampler.replace_slots(np.array([0]), NONE)
    assert sampler.check(np.arange(1, 64)) is None


def test_new_items_get_the_largest_priority():
    sampler = make_sampler("prioritized", 8)
    sampler.replace_slots(NONE, np.array([0]))
    assert sampler.raw[0] == 1.0
    sampler.update(np.array([0]), np.array([5.0]))
    sampler.replace_slots(NONE, np.array([1]))
    assert sampler.raw[1] == pytest.approx(5.0)
    sampler.update(np.array([0, 1]), np.array([0.1, 0.1]))
    sampler.replace_slots(NONE, np.array([2]))
    assert sampler.raw[2] == pytest.approx(5.0), "the largest seen so far, not the largest now"


def test_a_moving_alpha_rebuilds_the_tree_from_raw_priorities():
    config = prioritized(alpha=linear(1.0, 0.0))
    rng = np.random.default_rng(0)
    sampler = Proportional(config, 16, generator=rng, total_steps=1000)
    sampler.replace_slots(NONE, np.arange(16))
    sampler.update(np.arange(16), np.arange(16.0))
    sampler.draw(None, 4, env_steps=5)
    assert sampler.alpha == 1.0, "a move of less than 0.01 changes nothing"
    sampler.draw(None, 4, env_steps=500)
    assert sampler.alpha == 0.5
    np.testing.assert_allclose(sampler.sum_tree.get(np.arange(16)), (np.arange(16) + 1e-6) ** 0.5)
    assert sampler.metrics(500)["buffer/alpha"] == 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -1e-30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bad_priorities_are_refused(bad, dtype):
    sampler = make_sampler("prioritized", 8, weight_norm="buffer")
    sampler.replace_slots(NONE, np.arange(8))
    before = [array.copy() for array in sampler.arrays()]
    with pytest.raises(
        NumericError, match=r"priority = .*; finite numbers >= 0 are allowed; lower"
    ):
        sampler.update(np.array([1, 3, 4]), np.array([0.5, bad, 2.0], dtype))
    for old, new in zip(before, sampler.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert sampler.largest == 1.0, "a refused batch changes nothing"
    assert sampler.check(np.arange(8)) is None


def test_all_zero_priorities_name_the_remedy():
    sampler = make_sampler("prioritized", 4, priority_eps=0.0)
    sampler.replace_slots(NONE, np.arange(4))
    sampler.update(np.arange(4), np.zeros(4))
    with pytest.raises(NumericError, match=r"buffer\.priority_eps=1e-6"):
        sampler.draw(None, 2, 0)


def test_draws_are_stratified():
    """k equal ranges of the total, one draw each: with k equal priorities every slot once."""
    sampler = make_sampler("prioritized", 8, priority_eps=0.0)
    sampler.replace_slots(NONE, np.arange(8))
    for _ in range(50):
        assert sampler.draw(None, 8, 0)[0].tolist() == list(range(8))


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_one_draw_in_each_range(batch):
    """Draw j lies between j / k and (j + 1) / k of the total: no bound is reversed."""
    sampler = make_sampler("prioritized", 100, alpha=constant(1.0))
    sampler.replace_slots(NONE, np.arange(100))
    sampler.update(np.arange(100), np.random.default_rng(0).exponential(size=100))
    p = sampler.sum_tree.get(np.arange(100)) / sampler.sum_tree.root
    above = np.cumsum(p)
    reached = set()
    for _ in range(100):
        slots, _ = sampler.draw(None, batch, 0)
        low = np.arange(batch) / batch
        assert (above[slots] >= low - 1e-12).all()
        assert (above[slots] - p[slots] <= low + 1 / batch + 1e-12).all()
        reached |= set(slots.tolist())
    assert len(reached) > 50


def test_beta_follows_its_schedule():
    sampler = make_sampler("prioritized", 2, alpha=constant(1.0), beta=linear(0.0, 1.0))
    sampler.replace_slots(NONE, np.arange(2))
    sampler.update(np.arange(2), np.array([1.0, 4.0]))
    for env_steps, beta in ((0, 0.0), (500, 0.5), (1000, 1.0)):
        slots, weight = sampler.draw(None, 200, env_steps)
        np.testing.assert_allclose(weight[slots == 1], 0.25**beta, rtol=1e-5)


# -- what a well-known tutorial tree gets wrong, besides the above ---------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_wrapping_round_stays_within_the_slots(size):
    """Odd capacities too: every total is that of the live slots, nothing lies behind them."""
    sampler = make_sampler("prioritized", size, alpha=constant(1.0))
    rng = np.random.default_rng(0)
    for i in range(5 * size):
        slot = np.array([i % size])
        sampler.replace_slots(slot if i >= size else NONE, slot)
        sampler.update(slot, rng.random(1))
        assert sampler.check(np.arange(min(i + 1, size))) is None
        assert sampler.sum_tree.root == pytest.approx(
            np.nansum(sampler.raw.astype(float)), rel=1e-12
        )
        assert 0 <= sampler.draw(None, 1, 0)[0][0] < min(i + 1, size)


def test_leaves_hold_p_to_the_alpha():
    """Not the raw value: |delta| + eps, to the power alpha."""
    sampler = make_sampler("prioritized", 3, alpha=constant(0.5), priority_eps=0.25)
    sampler.replace_slots(NONE, np.arange(3))
    sampler.update(np.array([0, 2]), np.array([2.0, 0.0]))
    assert sampler.raw.tolist() == [2.25, 1.0, 0.25]
    assert sampler.sum_tree.get(np.arange(3)).tolist() == [1.5, 1.0, 0.5]
    assert sampler.sum_tree.root == 3.0


def test_the_smallest_priority_may_rise():
    """weight_norm: buffer divides by the weight of the least priority there is, not there was."""
    sampler = make_sampler(
        "prioritized", 5, weight_norm="buffer", alpha=constant(1.0), beta=constant(1.0),
        priority_eps=0.0,
    )  # fmt: skip
    sampler.replace_slots(NONE, np.arange(4))
    sampler.update(np.arange(4), np.array([0.001, 0.5, 1.0, 2.0]))
    assert sampler.min_tree.root == pytest.approx(0.001)
    sampler.update(np.array([0]), np.array([4.0]))
    assert sampler.min_tree.root == 0.5
    slots, weight = sampler.draw(None, 50, 0)
    np.testing.assert_allclose(weight, (0.5 / np.array([4.0, 0.5, 1.0, 2.0]))[slots], rtol=1e-6)
    sampler.replace_slots(np.array([1]), NONE)
    assert sampler.min_tree.root == 1.0
    sampler.update(np.array([3]), np.array([0.0]))  # never drawn, so it has no weight
    assert sampler.min_tree.root == 1.0


def test_every_sample_can_be_updated_not_only_the_latest():
    sampler = make_sampler("prioritized", 50)
    sampler.replace_slots(NONE, np.arange(50))
    samples = [sampler.draw(None, 5, 0)[0] for _ in range(6)]
    for i, slots in enumerate(samples):
        sampler.update(slots, np.full(5, float(i)))
    expected = {int(slot): i for i, slots in enumerate(samples) for slot in slots}
    got = sampler.raw[list(expected)]
    np.testing.assert_allclose(got, np.array(list(expected.values())) + 1e-6, rtol=1e-6)


# -- weights ---------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 1e6, width=32) | st.just(3e38), min_size=1, max_size=30),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["batch", "buffer"]),
    st.integers(1, 40),
)
def test_weights_are_within_one(values, alpha, beta, norm, batch):
    sampler = make_sampler(
        "prioritized", len(values), alpha=constant(alpha), beta=constant(beta), weight_norm=norm
    )
    sampler.replace_slots(NONE, np.arange(len(values)))
    sampler.update(np.arange(len(values)), np.array(values, np.float32))
    slots, weight = sampler.draw(None, batch, 0)
    assert weight.dtype == np.float32
    assert slots.dtype == np.int64
    assert len(slots) == len(weight) == batch
    assert (weight > 0).all()
    assert (weight <= 1).all()
    assert norm == "buffer" or weight.max() == 1
    p = sampler.raw.astype(float) ** alpha
    raw = (len(p) * p / p.sum()) ** -beta
    most = raw[slots].max() if norm == "batch" else raw.max()
    np.testing.assert_allclose(weight, raw[slots] / most, rtol=1e-5, atol=1e-44)


# -- life ------------------------------------------------------------------------------------------


def drive(sampler, *, seed, rounds):
    """The results of random exchanges, updates and draws."""
    rng = np.random.default_rng(seed)
    capacity, out = sampler.capacity, []
    for step in range(rounds):
        live = ~np.isnan(sampler.raw)
        dead = rng.permutation(np.flatnonzero(live))[: rng.integers(0, 6)]
        free = np.union1d(np.flatnonzero(~live), dead)
        new = rng.permutation(free)[: 1 + rng.integers(0, 9)]
        sampler.replace_slots(dead, new)
        live = np.flatnonzero(~np.isnan(sampler.raw))
        assert sampler.check(live) is None
        sampler.update(rng.choice(live, 12), 10.0 ** rng.uniform(-6, 3, 12).astype(np.float32))
        assert sampler.count == len(live) <= capacity
        out += sampler.draw(None, 16, 20 * step)
    return np.concatenate([NONE, *out])


@pytest.mark.parametrize("norm", ["batch", "buffer"])
@pytest.mark.parametrize("rounds", [0, 1, 40])
def test_resumed_is_uninterrupted(norm, rounds):
    """Tree, largest, alpha in force and RNG bit for bit, also between two steps of alpha."""
    make = lambda seed: make_sampler(  # noqa: E731
        "prioritized", 61, seed=seed, weight_norm=norm, alpha=linear(0.3, 0.9), beta=linear(0.4, 1)
    )
    whole, resumed = make(1), make(2)
    drive(whole, seed=1, rounds=rounds)
    resumed.replace_slots(NONE, np.arange(9))  # must be forgotten
    resumed.load_state_dict(whole.state_dict())
    for _ in range(2):
        for a, b in zip(whole.arrays(), resumed.arrays(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert (whole.largest, whole.alpha, whole.count) == (
            resumed.largest, resumed.alpha, resumed.count,
        )  # fmt: skip
        expected, got = (drive(s, seed=2, rounds=30) for s in (whole, resumed))
        np.testing.assert_array_equal(expected, got)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: s.raw.__setitem__(3, np.nan), "that have a priority differ"),
        (lambda s: s.raw.__setitem__(12, 1.0), "that have a priority differ"),
        (lambda s: s.sum_tree.set(np.array([12]), np.ones(1)), "without a window has a priority"),
        (lambda s: s.sum_tree.set(np.array([3]), np.ones(1)), "differs from p^alpha"),
        (lambda s: s.raw.__setitem__(3, 9.0), "differs from p^alpha"),
        (lambda s: setattr(s, "count", 11), "count of windows"),
        (lambda s: s.sum_tree.nodes.__setitem__(1, 5.0), "reduction of its children"),
        (lambda s: s.sum_tree.nodes.__setitem__(9, 0.25), "reduction of its children"),
        (lambda s: s.min_tree.nodes.__setitem__(2, 0.25), "reduction of its children"),
    ],
)
def test_check_names_what_is_broken(damage, words):
    sampler = make_sampler("prioritized", 13, weight_norm="buffer")
    sampler.replace_slots(NONE, np.arange(12))
    sampler.update(np.arange(12), np.random.default_rng(0).random(12))
    assert sampler.check(np.arange(12)) is None
    assert "differ" in sampler.check(np.arange(1, 13))
    damage(sampler)
    assert words in sampler.check(np.arange(12))


class Places:
    """An index of places of which some are dead."""

    def __init__(self, live: np.ndarray) -> None:
        self.live, self.num_candidates = live, len(live)

    def candidates(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return number, self.live[number]


@pytest.mark.parametrize("capacity", [1, 7, 64])
def test_uniform_draws_every_live_slot_alike(capacity):
    live = np.ones(capacity, bool)
    live[2:5] = False
    if capacity == 1:
        live[0] = True
    sampler = make_sampler("uniform", capacity)
    counts = np.zeros(capacity)
    for _ in range(100):
        slots, weight = sampler.draw(Places(live), 200, 0)
        counts += np.bincount(slots, minlength=capacity)
        assert (weight == 1).all()
    assert counts[~live].sum() == 0
    statistic, freedom = chi_square(counts[live], np.full(live.sum(), 20_000 / live.sum()))
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1))
