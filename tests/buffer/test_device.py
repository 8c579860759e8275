"""The replay on a device: what ``Replay`` hands out, drawn and weighed without the host.

On CPU tensors, where its ops are the same; what only a GPU can show runs where there is one.
"""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves as all_leaves

from rlrun.buffer.device.layout import FAN, host_bytes, tree_levels, with_device
from rlrun.buffer.device.proportional import (
    DeviceProportional,
    DeviceSampler,
    DeviceUniform,
    last_wins,
)
from rlrun.buffer.device.rank import DeviceRank
from rlrun.buffer.device.replay import device_replay
from rlrun.buffer.device.sumtree import DeviceSumTree
from rlrun.buffer.replay import Replay
from rlrun.buffer.storage.layout import total
from rlrun.buffer.windows.cutter import Cutter
from rlrun.errors import NumericError
from rlrun.rundir import checkpoint
from rlrun.types import Segment, Window, tree_leaves
from tests.buffer.factory import (
    NONE,
    constant,
    linear,
    make_layout,
    make_sampler,
    prioritized,
    rank,
)
from tests.buffer.pair import Pair, Setup, make_pair_replay, poison, setups
from tests.buffer.test_sumtree import chi_square
from tests.reference.replay_model import Tiling, World, spoil
from tests.reference.streams import make_stream, part

KINDS = ("uniform", "prioritized", "rank")
CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def make_device_sampler(
    kind: str, slots: int, *, device: torch.device = CPU, seed: int = 0, **changes: Any
) -> DeviceSampler:
    random = torch.Generator(CPU if device.type == "meta" else device).manual_seed(seed)
    if kind == "uniform":
        return DeviceUniform(slots, generator=random, device=device)
    with_priority: dict[str, Any] = {"generator": random, "total_steps": 1000, "device": device}
    if kind == "rank":
        return DeviceRank(rank(**changes), slots, **with_priority)
    return DeviceProportional(prioritized(**changes), slots, **with_priority)


def make_device_replay(
    s: Setup, example: Segment, device: torch.device = CPU, **changes: Any
) -> Replay:
    """The replay of a setup, its arrays full of poison."""
    norm = {} if s.kind == "uniform" else {"weight_norm": s.weight_norm}
    layout = make_layout(example, rows=s.rows, window=s.window, capacity=s.table)
    layout = with_device(layout, s.kind, s.weight_norm)
    overlap, residual = s.tiling.overlap, s.tiling.residual
    cutter = Cutter(
        s.window, columns=layout.columns, overlap=overlap, residual=residual, plain=s.tiling.plain
    )
    sampler = make_device_sampler(
        s.kind, layout.slots, device=device, seed=s.seed, **(norm | changes)
    )
    replay = device_replay(
        layout, window=s.window, cutter=cutter, close=s.close, sampler=sampler, stack=s.stack
    )
    noted = [field.array for field in replay.ring.step_fields.values()]
    states = replay.reader.states.arrays()
    for x in (*tree_leaves(replay.ring.obs), *noted, *states, replay.ring.rewards):
        x.fill_(poison(np.dtype(str(x.dtype).removeprefix("torch."))))
    replay.reader.index.fill_(-1)
    return replay


def tensors(segment: Segment) -> dict[str, torch.Tensor]:
    """Every tensor of a segment by name."""
    names = ("first", "action", "reward", "terminated", "truncated", "valid")
    named = {name: getattr(segment, name) for name in names} | segment.extras
    for name in ("obs", "state"):
        leaves = tree_leaves(getattr(segment, name))
        named |= {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}
    return named


def assert_same(a: Segment, b: Segment) -> None:
    """The same bits, names, shapes and dtypes."""
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        assert (x.dtype, x.shape) == (y.dtype, y.shape), name
        assert x.numpy(force=True).tobytes() == y.numpy(force=True).tobytes(), name


class Twins:
    """A replay and one on a device, to which the same happens."""

    def __init__(self, s: Setup, device: torch.device = CPU) -> None:
        lists = [list(x) for x in s.lengths], [list(x) for x in s.ends]
        self.setup = s
        self.world = World(*lists, obs=s.obs, states=s.states and s.table is not None)
        self.host: Replay = make_pair_replay(s, self.world.chunk(0))
        self.device = make_device_replay(s, self.world.chunk(0), device)
        self.keys = NONE  # all that were ever given

    def add(self, steps: int) -> None:
        chunk = self.world.chunk(steps)
        keys = self.host.add(chunk)
        np.testing.assert_array_equal(self.device.add(chunk), keys)
        spoil(chunk)
        self.keys = np.concatenate([self.keys, keys])

    def prioritize(self, rng: np.random.Generator) -> None:
        """Of windows alive and dead, some of them several times."""
        if not len(self.keys):
            return
        keys = rng.choice(self.keys, 12)
        priority = (10.0 ** rng.uniform(-6, 6, 12)).astype(np.float32)
        self.host.prioritize(keys, priority)
        there = self.device.ring.device
        self.device.prioritize(
            torch.from_numpy(keys).to(there), torch.from_numpy(priority).to(there)
        )

    def agree(self) -> None:
        host, device = self.host, self.device
        device.check()
        assert device.nbytes == device.layout.nbytes
        assert len(device) == len(host)
        assert device.windows.early == host.windows.early
        keys = host.windows.keys(host.windows.all())
        np.testing.assert_array_equal(device.windows.keys(device.windows.all()), keys)
        everything, ours = host.sample(0, 7), device.sample(0, 7)
        assert_same(ours.segment, everything.segment)
        assert set(everything.segment.partial) <= set(ours.segment.partial)
        assert ours.key.tolist() == everything.key.tolist()
        assert (ours.weight == 1).all()
        self.agree_on_priorities()
        metrics, expected = device.metrics(0), host.metrics(0)
        if self.setup.kind == "rank":  # the host's ranks are a heap's, between two sorts
            metrics.pop("buffer/sample_age", None)
            expected.pop("buffer/sample_age", None)
        assert metrics == pytest.approx(expected, rel=1e-6)
        assert device.counts == host.counts

    def agree_on_priorities(self) -> None:
        host: Any = self.host.sampler
        ours: Any = self.device.sampler
        slots = self.host.windows.all()
        if self.setup.kind == "uniform":
            return
        theirs = host.raw if self.setup.kind == "prioritized" else host.priority
        raw = ours.raw.numpy(force=True)
        np.testing.assert_array_equal(raw[slots], theirs[slots])
        assert ours.largest.item() == host.largest
        assert (ours.last == -1).all(), "the scratch for duplicates was left behind"

    def agree_on_the_rest(self) -> None:
        """Values that are read rarely."""
        host, device = self.host, self.device
        a, b = (r.histories(5, np.random.default_rng(3)) for r in (host, device))
        for ours, theirs in zip(b, a, strict=True):
            assert_same(ours, theirs)
        for skip in (0, 5):
            pieces = (r.stored(7, skip=skip) for r in (device, host))
            for ours, theirs in zip(*pieces, strict=True):
                assert_same(ours, theirs)
        for ours, theirs in zip(device.stored_states(), host.stored_states(), strict=True):
            for x, y in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
                np.testing.assert_array_equal(x, y)


@settings(max_examples=400, deadline=None)
@given(setups(), st.lists(st.integers(1, 25), min_size=1, max_size=5), st.integers(0, 99))
def test_it_is_the_replay(s, pieces, seed):
    """Fed the same chunks: the same windows under the same keys, bit for bit, and priorities."""
    twins, rng = Twins(s), np.random.default_rng(seed)
    for steps in pieces:
        twins.add(steps)
        twins.prioritize(rng)
        twins.agree()
    twins.agree_on_the_rest()
    if len(twins.device):
        sample = twins.device.sample(9, 0)
        expected = twins.host.get(sample.key.numpy(), 0)
        assert_same(sample.segment, expected.segment)
        assert_same(twins.device.get(sample.key, 0).segment, expected.segment)


SETUPS = {
    "rows": Setup(Window(0, 1, 3), slack=20, lengths=((5, 3), (9,)), ends=((0,), (1,))),
    "frames": Setup(Window(0, 1, 2), slack=20, lengths=((5, 3), (9,)), stack=4, obs="dict"),
    "windows": Setup(Window(5, 2, 2), slack=20, table=64, lengths=((5, 13), (9,)), stack=1),
}


def setup_of(shape: str, kind: str, **changes: Any) -> Setup:
    return replace(SETUPS[shape], kind=kind, **changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_only_live_windows_are_drawn_through_wrap(shape, kind):
    twins, rng = Twins(setup_of(shape, kind)), np.random.default_rng(0)
    drawn = set()
    for step in range(40):
        twins.add(5)
        if not len(twins.device):
            continue
        sample = twins.device.sample(16, step)
        twins.device.prioritize(sample.key, torch.from_numpy(rng.random(16)))
        assert twins.host.windows.find(sample.key.numpy())[1].all()
        assert_same(sample.segment, twins.host.get(sample.key.numpy(), 0).segment)
        assert (sample.weight > 0).all()
        assert sample.weight.max() <= 1
        drawn |= set(sample.key.tolist())
    twins.device.check()
    assert len(drawn) > 100


def test_partial_names_every_length_there_can_be():
    twins = Twins(setup_of("windows", "uniform"))
    twins.add(40)
    assert twins.device.sample(3, 0).segment.partial == (2, 4)  # of 5 burn-in rows, 2 apart
    plain = replace(twins.setup, tiling=Tiling(True, 8, "last"))
    assert Twins(plain).device.reader.partial == (), (
        "windows one row apart, each with all of its burn-in"
    )


# -- the tree ------------------------------------------------------------------------------------

SIZES = [1, 2, 5, FAN - 1, FAN, FAN + 1, 1000, FAN**2, FAN**2 + 1]


@pytest.mark.parametrize("size", SIZES)
def test_sums_do_not_drift(size):
    """Every level is the exact sum of the one below after updates over 12 decades."""
    rng = np.random.default_rng(size)
    tree, leaves = DeviceSumTree(size, device=CPU), np.zeros(size)
    for _ in range(60):
        index, value = rng.integers(size, size=300), 10.0 ** rng.uniform(-6, 6, 300)
        leaves[index] = value
        tree.set(torch.from_numpy(index), torch.from_numpy(leaves[index]))
    np.testing.assert_array_equal(tree.leaves[:size], leaves)
    assert tree.check() is None
    assert tree.root.item() == pytest.approx(leaves.sum(), rel=1e-14)
    filled = DeviceSumTree(size, device=CPU)
    filled.fill(torch.from_numpy(leaves))
    torch.testing.assert_close(filled.nodes, tree.nodes, rtol=1e-14, atol=0)
    tree.nodes[-1] *= 1 + 1e-12
    assert tree.check() is not None


def test_minima_are_exact():
    rng, leaves = np.random.default_rng(0), np.full(300, np.inf)
    tree = DeviceSumTree(300, minimum=True, device=CPU)
    for _ in range(20):
        index = rng.choice(300, 40, replace=False)
        leaves[index] = rng.random(40)
        tree.set(torch.from_numpy(index), torch.from_numpy(leaves[index]))
        assert tree.root.item() == leaves.min()
    assert tree.check() is None


def test_levels_are_as_few_as_can_be():
    assert tree_levels(1) == [FAN, 1]
    assert tree_levels(FAN) == [FAN, 1]
    assert tree_levels(FAN + 1) == [2 * FAN, FAN, 1]
    assert len(tree_levels(1_000_001)) == 4
    assert sum(tree_levels(1_000_000)) < 1.01e6


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=3 * FAN), st.floats(0, 1, exclude_max=True))
def test_find_is_the_naive_search(values, place):
    tree = DeviceSumTree(len(values), device=CPU)
    tree.fill(torch.tensor(values, dtype=torch.float64))
    if tree.root == 0:
        return
    mass = place * tree.root
    got, value = (x.item() for x in tree.find(mass))
    assert value == values[got]
    assert value > 0
    below, slack = sum(values[:got]), 1e-9 * tree.root.item()
    assert below - slack <= mass.item() <= below + value + slack


@pytest.mark.parametrize("size", SIZES)
def test_zero_leaves_are_never_sampled(size):
    tree, values = DeviceSumTree(size, device=CPU), torch.zeros(size, dtype=torch.float64)
    values[size // 2] = 1e-300 if size == 5 else 0.7
    tree.fill(values)
    root = tree.root.item()
    edges = torch.tensor([0.0, np.nextafter(root, 0), root, root * 2], dtype=torch.float64)
    assert (tree.find(edges)[0] == size // 2).all()


# -- the samplers --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 100, FAN**2 + 3])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_are_as_promised(kind, size):
    """One-sided: stratified draws vary less than independent ones."""
    rng = np.random.default_rng(size)
    sampler = make_device_sampler(kind, size, seed=1)
    filled = np.arange(max(1, size - size // 3))  # a partly filled buffer
    sampler.replace_slots(NONE, np.arange(size))
    sampler.replace_slots(np.arange(len(filled), size), NONE)
    raw = rng.random(len(filled)) ** 4
    sampler.update(torch.from_numpy(filled), torch.from_numpy(raw))
    counts, batch = np.zeros(size), 20_000
    for _ in range(5):
        counts += np.bincount(sampler.draw(None, batch, 0)[0].numpy(), minlength=size)
    assert counts[len(filled) :].sum() == 0
    p = np.ones(len(filled))
    if kind == "prioritized":
        p = (raw + 1e-6) ** 0.6
    elif kind == "rank":
        p = (1.0 + np.argsort(np.argsort(-raw))) ** -0.7
    statistic, freedom = chi_square(counts[filled], 5 * batch * p / p.sum())
    assert statistic <= freedom + 5 * np.sqrt(2 * max(freedom, 1))
    assert sampler.check(filled) is None


def test_draws_are_stratified():
    """k equal ranges of the total, one draw each: with k equal priorities every slot once."""
    for kind in ("prioritized", "rank"):
        sampler = make_device_sampler(kind, 8, alpha=constant(0.0))
        sampler.replace_slots(NONE, np.arange(8))
        for _ in range(30):
            assert sorted(sampler.draw(None, 8, 0)[0].tolist()) == list(range(8))


@pytest.mark.parametrize("norm", ["batch", "buffer"])
def test_weights_follow_the_paper(norm):
    sampler = make_device_sampler("prioritized", 80, weight_norm=norm, beta=constant(0.5))
    sampler.replace_slots(NONE, np.arange(70))
    raw = np.linspace(0.01, 5, 70)
    sampler.update(torch.arange(70), torch.from_numpy(raw))
    slots, weight = sampler.draw(None, 64, 0)
    p = (raw + 1e-6) ** 0.6
    expected = (70 * p / p.sum()) ** -0.5
    most = expected[slots].max() if norm == "batch" else expected.max()
    np.testing.assert_allclose(weight, expected[slots] / most, rtol=1e-5)
    assert weight.dtype == torch.float32
    if norm == "batch":
        assert weight.max() == 1


@pytest.mark.parametrize("norm", ["batch", "buffer"])
def test_ranks_and_weights_are_those_of_a_sorted_heap(norm):
    host = make_sampler("rank", 300, weight_norm=norm)
    ours = make_device_sampler("rank", 300, weight_norm=norm)
    rng = np.random.default_rng(0)
    for sampler in (host, ours):
        sampler.replace_slots(NONE, np.arange(250))
    slots, priority = rng.integers(250, size=100), rng.integers(5, size=100).astype(np.float32)
    host.update(slots, priority)
    ours.update(torch.from_numpy(slots), torch.from_numpy(priority))
    ours.update(torch.tensor([3]), torch.tensor([-0.0]))
    host.update(np.array([3]), np.array([-0.0]))
    host.replace_slots(np.array([7, 8]), np.array([8, 260]))
    ours.replace_slots(np.array([7, 8]), np.array([8, 260]))
    host.resort(0)
    assert not torch.signbit(ours.raw[3]), "it would come behind 0 where bits are sorted"
    drawn, weight = ours.draw(None, 64, 0)
    assert ours.count == host.count
    np.testing.assert_array_equal(ours.order[: ours.count], host.heap[: host.count])
    ranks = host.position[drawn.numpy()] + 1
    most = host.count if norm == "buffer" else ranks.max()
    np.testing.assert_allclose(weight, (ranks / most) ** (0.7 * 0.5), rtol=1e-6)


def test_a_rank_is_exact_at_every_draw(monkeypatch):
    sampler = make_device_sampler("rank", 5, alpha=constant(0.0))
    sampler.replace_slots(NONE, np.arange(4))
    edges = torch.tensor([0.0, np.nextafter(1, 0), 1.0, 3.5, 4.0], dtype=torch.float64)
    monkeypatch.setattr(sampler, "_stratified", lambda batch, total: edges)
    assert sampler.draw(None, 5, 0)[0].tolist() == [0, 0, 1, 3, 3]
    sampler.update(torch.tensor([0, 2]), torch.tensor([0.5, 3.0]))
    assert sampler.draw(None, 5, 0)[0].tolist() == [2, 2, 1, 0, 0]


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_alpha_and_beta_follow_their_schedules(kind):
    changes = {"alpha": linear(1.0, 0.0), "beta": linear(0.0, 1.0)}
    ours = make_device_sampler(kind, 100, **changes)
    ours.replace_slots(NONE, np.arange(100))
    ours.update(torch.arange(100), torch.arange(100.0))
    ours.draw(None, 4, 5)
    assert ours.alpha == 1.0, "a move of less than 0.01 changes nothing"
    _, weight = ours.draw(None, 1000, 500)
    assert ours.alpha == 0.5
    if kind == "prioritized":
        expected = (np.arange(100) + 1e-6) ** 0.5
        np.testing.assert_allclose(ours.sum_tree.leaves[:100], expected, rtol=1e-6)
    else:
        np.testing.assert_allclose(ours.cdf, np.cumsum(np.arange(1.0, 101) ** -0.5), rtol=1e-12)
        least = 100**-0.25  # weight of rank 1: rank^(alpha beta) of rank 100 is the largest
        assert weight.min().item() == pytest.approx(least, rel=1e-5)
    metrics = ours.metrics(500)
    assert (metrics["buffer/alpha"], metrics["buffer/beta"]) == (0.5, 0.5)
    assert ours.check(np.arange(100)) is None


class Unambiguous(TorchDispatchMode):
    """Fails where several values are written to one place: on a GPU any of them may stay."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == "aten::index_copy_":
            index, value = args[2].numpy(), args[3].numpy()
            last = {int(i): value[at].tobytes() for at, i in enumerate(index)}
            assert all(last[int(i)] == value[at].tobytes() for at, i in enumerate(index))
        assert func.name() not in ("aten::index_put_", "aten::scatter_", "aten::scatter_.src")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_no_write_is_ambiguous(shape, kind):
    twins, rng = Twins(setup_of(shape, kind, weight_norm="buffer")), np.random.default_rng(0)
    with Unambiguous():
        for _ in range(12):
            twins.add(6)
            twins.prioritize(rng)
        twins.device.sampler.update(torch.tensor([0, 1, 0]), torch.tensor([1.0, 2.0, 3.0]))
        live = twins.device.windows.all()
        free = np.setdiff1d(np.arange(twins.device.layout.slots), live)[:3]
        twins.device.sampler.replace_slots(live[:3], np.concatenate([live[1:2], free]))
        with pytest.raises(AssertionError):
            torch.zeros(3).index_copy_(0, torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


def test_entries_of_one_slot_get_the_last_value():
    last = torch.full((5,), -1, dtype=torch.int32)
    slots, values = torch.tensor([4, 2, 4, 0, 2, 4]), torch.arange(6.0)
    assert last_wins(slots, values, last).tolist() == [5, 4, 5, 3, 4, 5]
    assert (last == -1).all()


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_huge_priorities_stay_finite(kind):
    sampler = make_device_sampler(kind, 4)
    sampler.replace_slots(NONE, np.arange(4))
    sampler.update(torch.tensor([1]), torch.tensor([1e300], dtype=torch.float64))
    assert sampler.metrics(0)["buffer/priority_max"] == np.finfo(np.float32).max
    assert torch.isfinite(sampler.draw(None, 8, 0)[1]).all()
    assert sampler.check(np.arange(4)) is None


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_of_duplicates_the_last_wins(kind):
    rng = np.random.default_rng(0)
    one, many = (make_device_sampler(kind, 10) for _ in range(2))
    for sampler in (one, many):
        sampler.replace_slots(NONE, np.arange(9))
    slots, priority = torch.from_numpy(rng.integers(9, size=500)), torch.from_numpy(rng.random(500))
    there = torch.from_numpy(rng.random(500) < 0.7)
    many.update_found(slots, priority, there)
    for i in range(500):
        one.update_found(slots[i : i + 1], priority[i : i + 1], there[i : i + 1])
    assert torch.equal(one.raw, many.raw)
    assert one.largest == many.largest
    assert one.synchronize() == many.synchronize() == int((~there).sum())
    assert many.check(np.arange(9)) is None


def test_a_slot_that_dies_and_is_filled_at_once_is_new():
    for kind in KINDS:
        sampler = make_device_sampler(kind, 6)
        sampler.replace_slots(NONE, np.arange(4))
        sampler.update(torch.arange(4), torch.full((4,), 0.1))
        sampler.replace_slots(np.array([1, 2]), np.array([2, 5]))
        assert sampler.check(np.array([0, 2, 3, 5])) is None
        if kind != "uniform":
            assert sampler.raw[2] == sampler.raw[5] == 1.0


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("kind", ["prioritized", "rank"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, -np.inf])
def test_bad_priorities_are_dropped_and_raised_when_next_read(kind, alpha, bad):
    sampler = make_device_sampler(kind, 8, alpha=constant(alpha))
    sampler.replace_slots(NONE, np.arange(8))
    sampler.update(torch.tensor([3, 4]), torch.tensor([bad, 2.0]))
    sampler.update(torch.tensor([5]), torch.tensor([2.0]))
    assert sampler.raw[3] == 1.0
    assert sampler.raw[4] == sampler.raw[5]
    assert sampler.check(np.arange(8)) is None
    for _ in range(2):
        with pytest.raises(NumericError, match="priority = "):
            sampler.synchronize()


def test_late_priorities_are_looked_at_too():
    sampler = make_device_sampler("prioritized", 8)
    sampler.replace_slots(NONE, np.arange(8))
    sampler.update_found(
        torch.tensor([3, 4]), torch.tensor([2.0, 3.0]), torch.tensor([False, True])
    )
    assert sampler.synchronize() == 1
    assert sampler.synchronize() == 0
    assert (sampler.raw[3].item(), sampler.largest.item()) == (1.0, pytest.approx(3.0))
    sampler.update_found(torch.tensor([3]), torch.tensor([np.nan]), torch.tensor([False]))
    with pytest.raises(NumericError, match="priority = nan"):
        sampler.synchronize()


def test_all_zero_priorities_name_the_remedy():
    sampler = make_device_sampler("prioritized", 4, priority_eps=0.0)
    sampler.replace_slots(NONE, np.arange(4))
    sampler.update(torch.arange(4), torch.zeros(4))
    sampler.synchronize()
    sampler.draw(None, 2, 0)
    with pytest.raises(NumericError, match=r"buffer\.priority_eps=1e-6"):
        sampler.synchronize()


# -- the replay ----------------------------------------------------------------------------------


def test_late_priorities_are_ignored_and_counted():
    stream = make_stream([[4]], [[True]], 200)
    s = Setup(Window(0, 2, 1), slack=12, table=32, kind="prioritized", lengths=((4,),))
    replay = make_device_replay(s, stream.segment)
    replay.add(part(stream.segment, 0, 12))
    sample = replay.sample(8, 0)
    for row in range(12, 60, 12):
        replay.add(part(stream.segment, row, row + 12))
    replay.prioritize(sample.key, torch.full((8,), 1e6))
    assert replay.metrics(0)["buffer/late_priorities"] == 8
    assert replay.metrics(0)["buffer/late_priorities"] == 8
    assert replay.metrics(0)["buffer/priority_max"] == 1
    replay.check()
    fresh = replay.sample(8, 0)
    replay.prioritize(fresh.key, np.full(8, 7.0))
    assert replay.metrics(0)["buffer/priority_max"] == np.float32(7.0 + 1e-6)
    assert replay.counts["late"] == 8
    replay.prioritize(fresh.key, torch.full((8,), torch.nan))
    for read in (lambda: replay.metrics(0), replay.state_dict):
        with pytest.raises(NumericError, match="priority = nan"):
            read()


@pytest.mark.parametrize("norm", ["batch", "buffer"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_resume_equals_uninterrupted(shape, kind, norm, tmp_path):
    """Contents, sums, generator and counters come back through a checkpoint, bit for bit."""
    if kind == "uniform" and norm == "buffer":
        return
    s = setup_of(shape, kind, weight_norm=norm)
    twins, rng = Twins(s), np.random.default_rng(1)
    one = twins.device
    for step in range(30):
        twins.add(4)
        if len(one):
            one.prioritize(one.sample(6, step).key, torch.from_numpy(rng.random(6)))
    checkpoint.save(tmp_path, one.state_dict(), env_steps=1, keep=1)
    two = make_device_replay(replace(s, seed=99), twins.world.chunk(0))
    two.load_state_dict(checkpoint.load_newest(tmp_path)[0])
    two.check()
    for step in range(30, 50):
        chunk = twins.world.chunk(3)
        a, b = (replay.add(chunk) for replay in (one, two))
        np.testing.assert_array_equal(a, b)
        x, y = (replay.sample(6, step) for replay in (one, two))
        assert torch.equal(x.key, y.key)
        assert torch.equal(x.weight, y.weight)
        assert_same(x.segment, y.segment)
        priority = torch.from_numpy(rng.random(6))
        for replay, sample in ((one, x), (two, y)):
            replay.prioritize(sample.key, priority)
    assert one.metrics(0) == two.metrics(0)
    assert one.counts == two.counts


def test_sums_come_back_as_they_were():
    """Also where a pass over all leaves would round otherwise, as it may on a GPU."""
    one, two = (make_device_sampler("prioritized", 300, seed=seed) for seed in (0, 1))
    one.replace_slots(NONE, np.arange(300))
    one.sum_tree.nodes.copy_(torch.nextafter(one.sum_tree.nodes, torch.tensor(np.inf).double()))
    two.load_state_dict(one.state_dict())
    two.set_live(np.arange(300))
    assert torch.equal(one.sum_tree.nodes, two.sum_tree.nodes)
    assert torch.equal(one.draw(None, 50, 0)[0], two.draw(None, 50, 0)[0])


def test_a_sample_from_before_a_load_is_found_by_name():
    twins = Twins(setup_of("windows", "prioritized"))
    twins.add(30)
    saved = copy.deepcopy(twins.device.state_dict())
    for _ in range(5):
        twins.add(30)
    sample = twins.device.sample(4, 0)
    twins.device.load_state_dict(saved)
    twins.device.prioritize(sample.key, torch.full((4,), 9.0))
    assert twins.device.metrics(0)["buffer/late_priorities"] == 4


@pytest.mark.parametrize("shape", SETUPS)
def test_rows_and_windows_are_saved_as_replay_saves_them(shape):
    """The one's rows, windows and states are the other's; only how they are drawn is not."""
    twins = Twins(setup_of(shape, "uniform"))
    twins.add(30)
    ours, theirs = twins.device.state_dict(), twins.host.state_dict()
    other = Twins(twins.setup)
    for name in ("ring", "windows"):
        getattr(other.host, name).load_state_dict(ours[name])
    other.device.load_state_dict(theirs | {"sampler": ours["sampler"]})
    other.device.check()
    for replay in (other.host, other.device):
        assert_same(replay.sample(0, 0).segment, twins.host.sample(0, 0).segment)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_sizes_are_exact(shape, kind):
    twins = Twins(setup_of(shape, kind))
    layout = twins.device.layout
    assert twins.device.nbytes == layout.nbytes
    on_host = twins.device.ring.flags.nbytes + total(layout.table())
    assert host_bytes(layout) == on_host


def test_what_comes_too_early_or_does_not_fit_is_refused_as_by_replay():
    twins = Twins(setup_of("windows", "prioritized"))
    chunk = twins.world.chunk(3)
    for replay in (twins.host, twins.device):
        with pytest.raises(ValueError, match="batch = 4: no window"):
            replay.sample(4, 0)
        assert replay.sample(0, 0).segment.reward.shape[1] == 0
        with pytest.raises(ValueError, match="action = "):
            replay.add(replace(chunk, action=chunk.action.int()))
        assert len(replay.add(twins.world.chunk(0))) == 0
    twins.add(30)
    for replay in (twins.host, twins.device):
        with pytest.raises(ValueError, match="priority = shape"):
            replay.prioritize(twins.keys[:3], np.ones(2))
    with pytest.raises(ValueError, match="priority = shape"):
        twins.device.prioritize(twins.device.sample(3, 0).key, torch.ones(2))
    twins.agree()


def test_a_chunk_longer_than_the_ring_is_stored_in_pieces():
    for shape in SETUPS:
        twins = Twins(setup_of(shape, "prioritized"))
        twins.add(100)
        assert len(twins.device)
        twins.agree()
        twins.agree_on_the_rest()


# -- nothing waits for the device ----------------------------------------------------------------

WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "is_nonzero", "item")


class Guard(TorchDispatchMode):
    """Fails on ops that read from ``device`` or whose shapes depend on data, and on copies off it.

    Host numbers may go in as arguments, tensors may not: an op with one on another device copies.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.ops = device, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::").split(".")[0]
        assert not any(name.startswith(wait) for wait in WAITS), f"{func} waits for the device"
        given = [x for x in all_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [x for x in all_leaves(args[1]) if isinstance(x, torch.Tensor)]
            assert not any(x.dtype == torch.bool for x in indices), f"{func} by a mask"
        out = func(*args, **kwargs)
        given += [x for x in all_leaves(out) if isinstance(x, torch.Tensor)]
        assert all(x.device == self.device for x in given), f"{func} takes or gives host tensors"
        self.ops += 1
        return out


def filled(shape: str, kind: str, device: torch.device, **changes: Any) -> Replay:
    s = setup_of(shape, kind, weight_norm="buffer")
    lists = [list(x) for x in s.lengths], [list(x) for x in s.ends]
    world = World(*lists, obs=s.obs, states=s.states and s.table is not None)
    replay = make_device_replay(s, world.chunk(0), device, **changes)
    for _ in range(8):
        replay.add(world.chunk(6))
    return replay


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_sample_and_prioritize_wait_for_nothing(shape, kind, device):
    """On ``meta`` tensors there is nothing to read, and every host tensor shows."""
    where = torch.device(device)
    # alpha of ranks moves a table that is computed on the host; it goes over without waiting
    changes = {"alpha": linear(0.9, 0.1)} if kind == "prioritized" else {}
    replay = filled(shape, kind, where, **changes)
    priority = torch.ones(8, device=where)
    with Guard(where) as guard:
        sample = replay.sample(8, 0)
        replay.prioritize(sample.key, priority)  # the shortcut
        replay.prioritize(sample.key.clone(), priority)
        replay.sample(8, 500)
    assert guard.ops > 50
    assert sample.segment.reward.device.type == device


@pytest.mark.parametrize(
    ("device", "wait"),
    [
        ("cpu", lambda x: x.sum().item()),
        ("cpu", lambda x: bool(x[0] > 0)),
        ("cpu", lambda x: x[x > 0]),
        ("cpu", lambda x: (x > 0).nonzero()),
        ("cpu", lambda x: torch.equal(x, x)),
        ("cpu", lambda x: x.index_put_((x > 0,), torch.ones(()))),
        ("meta", lambda x: x + torch.ones(3)),
        ("meta", lambda x: x.copy_(torch.ones(3))),
        ("meta", lambda x: torch.ones(3).to("meta")),
    ],
)
def test_the_guard_sees_what_waits(device, wait):
    x = torch.ones(3, device=device)
    with pytest.raises(AssertionError), Guard(x.device):
        wait(x)


@CUDA
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_a_gpu_is_not_waited_for(shape, kind):
    device = torch.device("cuda")
    replay = filled(
        shape, kind, device, **({"alpha": linear(0.9, 0.1)} if kind != "uniform" else {})
    )
    priority = torch.rand(8, device=device)
    replay.prioritize(replay.sample(8, 0).key, priority)  # kernels are loaded with a sync
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(0, 1000, 50):
            sample = replay.sample(8, step)
            replay.prioritize(sample.key, priority)
            replay.prioritize(sample.key.clone(), priority)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert replay.metrics(0)["buffer/late_priorities"] == 0
    replay.check()


@CUDA
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SETUPS)
def test_a_gpu_holds_the_same_windows(shape, kind):
    twins, rng = Twins(setup_of(shape, kind), torch.device("cuda")), np.random.default_rng(0)
    for _ in range(12):
        twins.add(6)
        twins.prioritize(rng)
        twins.agree()
    twins.agree_on_the_rest()
    sample = twins.device.sample(16, 0)
    assert_same(sample.segment, twins.host.get(sample.key.cpu().numpy(), 0).segment)


def test_leaves_are_stored_by_name():
    """Another order of a dict's keys is the same observation."""
    s = Setup(window=Window(0, 1, 1), kind="uniform", table=None, lengths=((5,),), obs="dict")
    pair = Pair(s)
    chunk = pair.world.chunk(9)
    replay = make_device_replay(s, chunk)
    turned = replace(chunk, obs=dict(reversed(list(chunk.obs.items()))))
    keys = replay.add(turned)
    host = Pair(s).replay
    host.add(chunk)
    assert_same(replay.get(keys, 0).segment, host.get(keys, 0).segment)
