"""Rank-based draws: exact frequencies over ranks, a heap that is always one, exact resume."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.samplers import heap as heaps
from rlrun.buffer.samplers.rank import Rank
from rlrun.buffer.storage.layout import rank_arrays
from rlrun.errors import NumericError
from rlrun.jit import COMPILED
from rlrun.schema import Invalid
from tests.buffer.factory import NONE, constant, linear, rank
from tests.buffer.test_sumtree import SIZES, chi_square


def make_rank(capacity: int, seed: int = 0, **changes) -> Rank:
    generator = np.random.default_rng(seed)
    config = rank(**({"resort_every": 10**9} | changes))
    return Rank(config, capacity, generator=generator, total_steps=1000)


def filled(size: int, seed: int = 0, **changes) -> Rank:
    """All slots live, with distinct priorities in random order, sorted."""
    sampler = make_rank(size, seed, **changes)
    sampler.replace_slots(NONE, np.arange(size))
    sampler.update(np.arange(size), np.random.default_rng(seed).permutation(size) / size)
    sampler.resort(0)
    return sampler


def true_ranks(priority: np.ndarray) -> np.ndarray:
    """Rank of every slot from 1, largest priority first, lower slots first among equals."""
    ordered = sorted(range(len(priority)), key=lambda slot: (-priority[slot], slot))
    ranks = np.empty(len(priority), np.int64)
    ranks[ordered] = np.arange(1, len(priority) + 1)
    return ranks


def same(one: Rank, other: Rank) -> bool:
    alike = zip(one.arrays(), other.arrays(), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in alike) and (
        (one.count, one.largest, one.alpha, one.sorted_at)
        == (other.count, other.largest, other.alpha, other.sorted_at)
    )


def drive(sampler: Rank, *, seed: int, rounds: int) -> list[np.ndarray]:
    """The results of random inserts, removals, updates and draws."""
    rng = np.random.default_rng(seed)
    capacity = len(sampler.heap)
    live = list(np.flatnonzero(sampler.position >= 0))
    out = []
    for step in range(rounds):
        dead = np.setdiff1d(np.arange(capacity), live)
        fresh = rng.permutation(dead)[: rng.integers(1, 9)]
        sampler.replace_slots(NONE, fresh)
        live = list(rng.permutation([*live, *fresh]))
        gone = np.array([live.pop() for _ in range(min(len(live) - 1, rng.integers(0, 7)))], int)
        sampler.replace_slots(gone, NONE)
        slots = rng.choice(live, 12)
        sampler.update(slots, rng.choice([rng.exponential(size=12), rng.integers(4, size=12)]))
        out += sampler.draw(None, 16, 10 * step)
    return out


# -- draws and weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_frequencies_follow_ranks(size):
    """1e6 draws; one-sided: stratified draws vary less than independent ones."""
    rng = np.random.default_rng(size)
    sampler = make_rank(size, seed=1)
    live = rng.permutation(size)[: max(1, size - size // 3)]  # a partly filled buffer
    sampler.replace_slots(NONE, live)
    raw = rng.permutation(len(live)) / len(live)
    sampler.update(live, raw)
    sampler.resort(0)
    counts = np.zeros(size)
    for _ in range(5000):
        slots, _ = sampler.draw(None, 200, 0)
        counts += np.bincount(slots, minlength=size)
    p = true_ranks(raw) ** -0.7
    statistic, freedom = chi_square(counts[live], 1e6 * p / p.sum())
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1))
    assert counts[live].sum() == 1e6, "a dead slot was drawn"


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_frequencies_at_the_ends_of_alpha(alpha):
    sampler = filled(100, alpha=constant(alpha))
    counts = np.zeros(100)
    for _ in range(2000):
        counts += np.bincount(sampler.draw(None, 100, 0)[0], minlength=100)
    p = true_ranks(sampler.priority) ** -alpha
    statistic, freedom = chi_square(counts, 2e5 * p / p.sum())
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_one_draw_in_each_segment(batch):
    """Every draw overlaps its own k-th part of the cumulative distribution, in order."""
    sampler = filled(100)
    p = np.arange(1, 101) ** -0.7
    above = np.cumsum(p) / p.sum()
    for _ in range(50):
        slots, _ = sampler.draw(None, batch, 0)
        at = true_ranks(sampler.priority)[slots] - 1
        segment = np.arange(batch) / batch
        assert (above[at] >= segment - 1e-12).all()
        assert (above[at] - p[at] / p.sum() <= segment + 1 / batch + 1e-12).all()


def test_equal_segments_of_a_uniform_distribution_draw_every_slot_once():
    sampler = filled(8, alpha=constant(0.0))
    for _ in range(50):
        assert sorted(sampler.draw(None, 8, 0)[0]) == list(range(8))


@pytest.mark.parametrize("live", [1, 3, 8])
def test_the_ends_of_the_distribution(live):
    """A place of 0 is the first rank; one carried to the very end by rounding is the last."""
    sampler = filled(8)
    sampler.replace_slots(sampler.heap[live:].copy(), NONE)

    class Edge:
        def __init__(self, place):
            self.place = place

        def random(self, batch):
            return np.full(batch, self.place)

    sampler.generator = Edge(0.0)
    assert sampler.draw(None, 1, 0)[0] == sampler.heap[0]
    sampler.generator = Edge(1.0)
    assert sampler.draw(None, 1, 0)[0] == sampler.heap[live - 1]
    flat = filled(2, alpha=constant(0.0))
    flat.generator = Edge(0.5)
    assert flat.draw(None, 1, 0)[0] == flat.heap[1], "a border belongs to what follows"


def test_weights_follow_the_paper():
    sampler = filled(50, beta=constant(0.6))
    sampler.replace_slots(np.arange(7, 20), NONE)
    sampler.resort(0)
    slots, weight = sampler.draw(None, 64, 0)
    ranks = true_ranks(np.nan_to_num(sampler.priority, nan=-1.0))[slots]
    p = ranks**-0.7 / (np.arange(1, 38) ** -0.7).sum()
    expected = (37 * p) ** -0.6
    np.testing.assert_allclose(weight, expected / expected.max(), rtol=1e-6)
    assert slots.dtype == np.int64
    assert weight.dtype == np.float32
    assert weight.max() == 1


def test_weights_by_the_whole_buffer():
    sampler = filled(64, weight_norm="buffer", beta=constant(1.0))
    slots, weight = sampler.draw(None, 4, 0)
    np.testing.assert_allclose(weight, (true_ranks(sampler.priority)[slots] / 64) ** 0.7, rtol=1e-6)
    sampler.replace_slots(sampler.heap[32:].copy(), NONE)
    slots, weight = sampler.draw(None, 4, 0)
    np.testing.assert_allclose(weight, ((sampler.position[slots] + 1) / 32) ** 0.7, rtol=1e-6)


def test_beta_follows_its_schedule():
    sampler = filled(2, alpha=constant(1.0), beta=linear(0.0, 1.0))
    for env_steps, beta in ((0, 0.0), (500, 0.5), (1000, 1.0)):
        slots, weight = sampler.draw(None, 200, env_steps)
        np.testing.assert_allclose(weight[slots == sampler.heap[0]], 0.5**beta, rtol=1e-6)
        assert sampler.metrics(env_steps)["buffer/beta"] == beta


def test_a_moving_alpha_changes_only_the_cumulative_table():
    sampler = filled(16, alpha=linear(1.0, 0.0))
    before = [array.copy() for array in sampler.arrays()]
    sampler.draw(None, 4, 5)
    assert sampler.alpha == 1.0, "a move of less than 0.01 changes nothing"
    sampler.draw(None, 4, 500)
    assert sampler.metrics(500)["buffer/alpha"] == 0.5
    np.testing.assert_allclose(sampler.cdf, np.cumsum(np.arange(1, 17) ** -0.5), rtol=1e-12)
    for old, new in zip(before[:3], sampler.arrays()[:3], strict=True):
        np.testing.assert_array_equal(old, new)
    slots, weight = sampler.draw(None, 64, 500)
    ranks = sampler.position[slots] + 1
    np.testing.assert_allclose(weight, (ranks / ranks.max()) ** 0.25, rtol=1e-6)


# -- heap ----------------------------------------------------------------------------------------

CAPACITY = 13
OPERATION = st.tuples(
    st.sampled_from(["insert", "remove", "update", "resort"]),
    st.lists(st.integers(0, CAPACITY - 1), min_size=1, max_size=6),
    st.lists(
        st.sampled_from([0.0, -0.0, 1e-30, 0.5, 1.0, 2.0, 1e300]) | st.floats(0, 10),
        min_size=6,
        max_size=6,
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=25))
def test_any_sequence_of_operations_is_that_of_a_plain_list(operations):
    sampler = make_rank(CAPACITY)
    model: list[float | None] = [None] * CAPACITY
    largest = 1.0
    for operation, slots, values in operations:
        if operation == "insert":
            slots = [s for s in dict.fromkeys(slots) if model[s] is None]
            sampler.replace_slots(NONE, np.array(slots, np.int64))
            for slot in slots:
                model[slot] = largest
        elif operation == "remove":
            slots = [s for s in dict.fromkeys(slots) if model[s] is not None]
            sampler.replace_slots(np.array(slots, np.int64), NONE)
            for slot in slots:
                model[slot] = None
        elif operation == "update":
            slots = [s for s in slots if model[s] is not None]
            sampler.update(np.array(slots, np.int64), np.array(values[: len(slots)]))
            for slot, value in zip(slots, values, strict=False):
                model[slot] = float(np.float32(min(value, heaps.LARGEST)))
                largest = max(largest, model[slot])
        else:
            sampler.resort(0)
            live = [s for s in range(CAPACITY) if model[s] is not None]
            ordered = sorted(live, key=lambda s: (-model[s], s))
            assert sampler.heap[: len(live)].tolist() == ordered
        live = [s for s in range(CAPACITY) if model[s] is not None]
        assert sampler.check(np.array(live, np.int64)) is None
        assert sampler.priority[live].tolist() == [model[s] for s in live]
        assert sampler.largest == largest
        if live:
            assert set(sampler.draw(None, 4, 0)[0].tolist()) <= set(live)


def test_a_batch_is_the_sequence_of_single_operations():
    rng = np.random.default_rng(0)
    one, many = make_rank(37), make_rank(37)
    order = rng.permutation(37)
    slots, values = rng.integers(37, size=200), rng.random(200)
    many.replace_slots(NONE, order)
    many.update(slots, values)
    many.replace_slots(order[5:9], NONE)
    for slot in order:
        one.replace_slots(NONE, np.array([slot]))
    for slot, value in zip(slots, values, strict=True):
        one.update(np.array([slot]), np.array([value]))
    for slot in order[5:9]:
        one.replace_slots(np.array([slot]), NONE)
    assert same(one, many)


def test_of_duplicates_the_last_wins():
    sampler = filled(5)
    sampler.update(np.array([3, 1, 3]), np.array([9.0, 0.5, 0.25], np.float32))
    assert sampler.priority[3] == 0.25
    assert sampler.largest == 9.0, "seen, if only for a moment"


def test_equal_priorities_keep_their_places():
    sampler = make_rank(3)
    sampler.replace_slots(NONE, np.arange(3))
    sampler.update(np.array([0, 0]), np.array([3.0, 1.0]))
    assert sampler.heap.tolist() == [0, 1, 2]
    sampler.update(np.array([0]), np.array([0.5]))
    assert sampler.heap.tolist() == [1, 0, 2], "of equal children the left one rises"


def test_a_negative_zero_is_a_zero():
    """Its bits would sort before those of every positive priority."""
    sampler = make_rank(3)
    sampler.replace_slots(NONE, np.arange(3))
    sampler.update(np.arange(3), np.array([-0.0, 0.0, 1.0]))
    sampler.resort(0)
    assert sampler.heap.tolist() == [2, 0, 1]


def test_a_removal_can_lift_a_slot_of_another_branch():
    """The last slot is larger than the parent of the place that it fills."""
    sampler = make_rank(7)
    sampler.replace_slots(NONE, np.arange(7))
    order = np.array([3, 4, 5, 6, 1, 2, 0])  # leaves first, so that no slot moves
    sampler.update(order, np.array([0.05, 0.04, 0.8, 0.7, 0.1, 0.9, 1.0]))
    assert sampler.heap.tolist() == list(range(7))
    sampler.replace_slots(np.array([3]), NONE)
    assert sampler.heap.tolist() == [0, 6, 2, 1, 4, 5, -1]
    assert sampler.check(np.array([0, 1, 2, 4, 5, 6])) is None


def test_without_a_sort_the_heap_approximates_and_a_sort_makes_ranks_exact():
    size = 1000
    sampler = make_rank(size, resort_every=100)
    sampler.replace_slots(NONE, np.arange(size))
    rng = np.random.default_rng(0)
    for _ in range(50):
        sampler.update(rng.integers(size, size=100), rng.exponential(size=100))
        assert sampler.check(np.arange(size)) is None
    exact = true_ranks(sampler.priority)
    rough = sampler.position + 1
    assert not np.array_equal(exact, rough)
    assert np.corrcoef(np.log(exact), np.log(rough))[0, 1] > 0.7
    sampler.draw(None, 4, 99)
    np.testing.assert_array_equal(sampler.position + 1, rough)
    sampler.draw(None, 4, 100)
    np.testing.assert_array_equal(sampler.position + 1, exact)
    assert sampler.sorted_at == 100
    assert sampler.check(np.arange(size)) is None
    sampler.update(np.array([17]), np.array([50.0]))
    rough = sampler.position.copy()
    sampler.draw(None, 4, 199)
    np.testing.assert_array_equal(sampler.position, rough)


def test_new_slots_get_the_largest_priority():
    sampler = make_rank(8)
    sampler.replace_slots(NONE, np.array([0]))
    assert sampler.priority[0] == 1.0
    sampler.update(np.array([0]), np.array([5.0]))
    sampler.replace_slots(NONE, np.array([1]))
    assert sampler.priority[1] == 5.0
    sampler.update(np.array([0, 1]), np.array([0.1, 0.1]))
    sampler.replace_slots(NONE, np.array([2]))
    assert sampler.priority[2] == 5.0, "the largest seen so far, not the largest now"
    assert sampler.heap[0] == 2
    metrics = sampler.metrics(0)
    assert metrics["buffer/priority_max"] == 5.0
    assert metrics["buffer/priority_mean"] == pytest.approx(5.2 / 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_bad_priorities_are_refused(bad):
    sampler = make_rank(8)
    sampler.replace_slots(NONE, np.arange(8))
    with pytest.raises(NumericError, match=f"priority = {bad}: .* lower policy.lr"):
        sampler.update(np.array([1, 3]), np.array([0.5, bad]))
    assert (sampler.priority == 1.0).all(), "a refused batch changes nothing"
    assert sampler.check(np.arange(8)) is None


def test_no_slots_are_no_change():
    sampler = filled(4)
    before = [array.copy() for array in sampler.arrays()]
    none = np.zeros(0, np.int64)
    sampler.replace_slots(NONE, none)
    sampler.replace_slots(none, NONE)
    sampler.update(none, np.zeros(0))
    for old, new in zip(before, sampler.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_misuse_is_an_assertion():
    sampler = make_rank(4)
    with pytest.raises(AssertionError):
        sampler.draw(None, 1, 0)
    sampler.replace_slots(NONE, np.array([2]))
    with pytest.raises(AssertionError, match="inserted again"):
        sampler.replace_slots(NONE, np.array([2]))
    with pytest.raises(AssertionError, match="dead slot is removed"):
        sampler.replace_slots(np.array([1]), NONE)
    with pytest.raises(AssertionError, match="dead slot is updated"):
        sampler.update(np.array([1]), np.array([1.0]))


def swap(array, i, j):
    array[[i, j]] = array[[j, i]]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: s.priority.__setitem__(s.heap[9], 1.0), "larger priority than its parent"),
        (lambda s: s.priority.__setitem__(3, np.nan), "that have a priority"),
        (lambda s: s.priority.__setitem__(s.heap[11], -1.0), "negative or infinite"),
        (lambda s: swap(s.position, 0, 1), "a position is not where"),
        (lambda s: s.heap.__setitem__(4, s.heap[5]), "slots in the heap differ"),
        (lambda s: s.heap.__setitem__(12, 2), "slots in the heap differ"),
        (lambda s: s.position.__setitem__(12, 2), "without a window has a position"),
        (lambda s: s.cdf.__imul__(1.01), "cumulative table"),
        (lambda s: setattr(s, "count", 11), "count of live slots"),
        (lambda s: setattr(s, "largest", 0.5), "largest seen"),
    ],
)
def test_check_names_what_is_broken(damage, words):
    sampler = make_rank(13)
    sampler.replace_slots(NONE, np.arange(12))
    sampler.update(np.arange(12), np.random.default_rng(0).permutation(12) / 12)
    assert sampler.check(np.arange(12)) is None
    assert "count" in sampler.check(np.arange(13))
    assert "differ" in sampler.check(np.arange(1, 13))
    damage(sampler)
    assert words in sampler.check(np.arange(12))


# -- state, memory, compiler ---------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 1, 40])
def test_resumed_is_uninterrupted(rounds):
    changes = {"alpha": linear(0.7, 0.3), "beta": linear(0.5, 1.0), "resort_every": 150}
    whole = make_rank(64, **changes)
    drive(whole, seed=1, rounds=rounds)
    resumed = make_rank(64, seed=9, **changes)
    resumed.replace_slots(NONE, np.arange(5))  # must be forgotten
    resumed.load_state_dict(whole.state_dict())
    assert same(whole, resumed)
    expected, got = (drive(s, seed=2, rounds=30) for s in (whole, resumed))
    np.testing.assert_array_equal(np.concatenate(expected), np.concatenate(got))
    assert same(whole, resumed)


def test_its_bytes_follow_from_capacity():
    sampler = make_rank(1000)
    stated = [(shape, np.dtype(dtype)) for shape, dtype in rank_arrays(1000).values()]
    assert [(array.shape, array.dtype) for array in sampler.arrays()] == stated
    own = [value for value in vars(sampler).values() if isinstance(value, np.ndarray)]
    assert {id(array) for array in own} == {id(array) for array in sampler.arrays()}
    assert sum(array.nbytes for array in own) == 20 * 1000
    assert rank_arrays(2**31)["heap"][1] == "int64"


@pytest.mark.skipif(not COMPILED, reason="numba is not there or switched off")
def test_compiled_and_interpreted_are_identical(monkeypatch):
    compiled = make_rank(97, resort_every=200)
    expected = drive(compiled, seed=3, rounds=60)
    for name in ("sift_up", "sift_down", "push", "remove", "update"):
        monkeypatch.setattr(heaps, name, getattr(heaps, name).py_func)
    interpreted = make_rank(97, resort_every=200)
    got = drive(interpreted, seed=3, rounds=60)
    assert same(compiled, interpreted)
    np.testing.assert_array_equal(np.concatenate(expected), np.concatenate(got))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"alpha": constant(1.1)}, "alpha = 1.1"),
        ({"beta": linear(-0.1, 1.0)}, "beta = -0.1"),
        ({"beta": linear(1.0, 0.5)}, "must not decrease"),
        ({"resort_every": 0}, "resort_every = 0: must be > 0"),
    ],
)
def test_config_out_of_range(changes, text):
    with pytest.raises(Invalid, match=text):
        rank(**changes)
