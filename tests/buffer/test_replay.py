"""Samples equal the added rows: windows, ring wrap, keys, late priorities, resume."""

import dataclasses
import weakref
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.windows.cutter import Cutter
from rlrun.buffer.windows.gather import Outputs
from rlrun.errors import ConfigError
from rlrun.types import Window, tree_leaves, tree_map
from tests.buffer.factory import make_replay
from tests.buffer.pair import Pair, Setup
from tests.buffer.test_slicing import cases
from tests.reference.streams import make_stream, part
from tests.reference.windows import window_rows


def feed(replay, stream, pieces):
    row = 0
    for n in pieces:
        keys = replay.add(part(stream.segment, row, row + n))
        assert np.isin(keys, live(replay)).all()
        replay.check()
        row += n


def live(replay):
    return replay.windows.keys(replay.windows.all())


def assert_window(replay, segment, i, episodes):
    """Column i of ``segment`` is one window of one of ``episodes``, position by position."""
    w = replay.window
    own = np.flatnonzero(segment.valid[:, i].numpy())
    c, number, t0 = (int(x) for x in segment.obs[own[0], i])
    episode = next(e for e in episodes if (e.column, e.number) == (c, number))
    learn = t0 + w.burnin - int(own[0])
    rows, state, previous = window_rows(episode, learn, w)
    for p, row in enumerate(rows):
        if row is None:
            assert not segment.valid[p, i]
            continue
        if p < w.rows - 1:
            for name in ("reward", "terminated", "truncated", "valid", "action", "first"):
                assert getattr(segment, name)[p, i].item() == row[name], (name, p)
        if row["valid"] or rows[p - 1]["valid"]:
            assert tuple(segment.obs[p, i].tolist()) == row["obs"]
    assert segment.state[0][i, 0] == state
    got = (segment.extras["prev_action"][i].item(), segment.extras["prev_reward"][i].item())
    assert got == previous
    return (c, number, learn, min(learn + w.learned, episode.length))


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 40))
def test_every_live_window_is_true(case, slack):
    """Invariants 1-3 and 5 through wrap: rows in = rows out, no mixed episodes, no torn window."""
    stream, pieces, window = case
    replay = make_replay(stream.segment, rows=window.rows + 1 + slack, window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlrun.buffer.windows.table.SCAN", 2)  # many blocks, as in a large buffer
        feed(replay, stream, pieces)
    valid = int(stream.segment.valid.sum())
    assert replay.counts["rows"] == valid
    assert replay.ring.head == sum(pieces)
    keys = live(replay)
    if not len(keys):
        return
    segment = replay.get(keys, 0).segment
    spans = [assert_window(replay, segment, i, stream.episodes) for i in range(len(keys))]
    learned = [(c, n, t) for c, n, a, b in spans for t in range(a, b)]
    assert len(learned) == len(set(learned)), "a step is learned twice"


@settings(max_examples=100, deadline=None)
@given(cases())
def test_every_step_of_finished_episodes_is_learned_once(case):
    """Invariant 1 and 2 on a ring that holds everything."""
    stream, pieces, window = case
    replay = make_replay(stream.segment, rows=sum(pieces) + window.rows + 2, window=window)
    feed(replay, stream, pieces)
    keys = live(replay)
    counts: dict = {}
    ends: dict = {}
    if len(keys):
        segment = replay.get(keys, 0).segment
        for i in range(len(keys)):
            c, number, start, stop = assert_window(replay, segment, i, stream.episodes)
            for t in range(start, stop):
                counts[c, number, t] = counts.get((c, number, t), 0) + 1
            positions = range(window.burnin, window.burnin + stop - start)
            dead = segment.terminated[:, i].numpy()
            ends[c, number] = ends.get((c, number), 0) + sum(
                bool(dead[p : p + window.nstep].any()) for p in positions
            )
    for e in stream.episodes:
        if e.complete:
            assert all(counts.get((e.column, e.number, t)) == 1 for t in range(e.length))
            expected = min(window.nstep, e.length) if e.terminated else 0
            assert ends[e.column, e.number] == expected
    assert replay.counts["learned"] == len(counts)


@pytest.mark.parametrize("rows", [200, 30])
def test_learned_fraction_is_one_for_lossless_and_less_for_plain(rows):
    """Plain tiling never learns the first bs and the last n rows of a window; also through wrap."""
    stream = make_stream([[7]], [[True]], 8 * 10)
    replay = make_replay(stream.segment, rows=rows, window=Window(2, 3, 1))
    feed(replay, stream, [16] * 5)
    assert replay.metrics(0)["buffer/learned_fraction"] == 1.0
    window = Window(1, 2, 1)
    plain = make_replay(stream.segment, rows=rows, window=window)
    plain.windows.cutter = Cutter(window, columns=1, overlap=0, residual="last", plain=True)
    feed(plain, stream, [16] * 5)
    assert plain.metrics(0)["buffer/learned_fraction"] == pytest.approx(4 / 7)  # steps 1 2 4 5


@pytest.mark.parametrize("close", [False, True])
def test_a_chunk_longer_than_the_ring_is_stored_in_pieces(close):
    """Only the chunk's end closes a trajectory, not the piece's."""
    stream = make_stream([[50]], [[True]], 100)
    window = Window(1, 3, 2)
    whole = make_replay(stream.segment, rows=40, window=window, close=close)
    single = make_replay(stream.segment, rows=40, window=window, close=close)
    whole.add(part(stream.segment, 0, 70))
    for row in range(70):
        single.close = close and row == 69
        single.add(part(stream.segment, row, row + 1))
    keys = live(whole)
    assert len(keys) > 8
    assert np.array_equal(keys, live(single))
    a, b = whole.get(keys, 0).segment, single.get(keys, 0).segment
    assert torch.equal(a.obs, b.obs)
    assert torch.equal(a.state[0], b.state[0])
    whole.check()


@pytest.mark.parametrize("size", [1, 3, 12])
def test_a_window_whose_burn_in_is_overwritten_is_dropped(size):
    """Of every size of chunk the same windows are alive: those whose first row is still stored."""
    stream, window = make_stream([[60]], [[True]], 90), Window(6, 2, 2)
    replay = make_replay(stream.segment, rows=14, window=window)
    every = make_replay(stream.segment, rows=200, window=window)
    replay.max_steps = 13  # in one write, the longest that the ring takes
    for start in range(0, 56, size):
        chunk = part(stream.segment, start, start + size)
        replay.add(chunk)
        every.add(chunk)
        table, oldest = replay.windows, replay.ring.oldest or -1  # 0: all rows are stored
        first = (table.columns["learn"] - table.columns["burnin"])[table.alive]
        assert (first - table.rows_before >= oldest).all()
        made = every.windows
        first = (made.columns["learn"] - made.columns["burnin"])[made.alive]
        assert len(live(replay)) == int((first - table.rows_before >= oldest).sum())
        replay.check()


def test_what_acting_wrote_down_comes_back_with_its_row():
    stream = make_stream([[5, 3]], [[True]], 60)
    noted = replace(stream.segment, extras={"log_prob": stream.segment.obs[:-1, :, 2].clone()})
    replay = make_replay(noted, rows=80, window=Window(1, 3, 1))
    segment = replay.get(replay.add(noted), 0).segment
    got, t = segment.extras["log_prob"], segment.obs[:-1, :, 2]
    assert torch.equal(got[segment.valid], t[segment.valid])


def test_histories_reach_back_to_the_episodes_start():
    stream = make_stream([[30, 12]], [[True]], 200)
    replay = make_replay(stream.segment, rows=60, window=Window(2, 4, 1))
    feed(replay, stream, [10] * 20)
    windows, history = replay.histories(64, np.random.default_rng(0))
    assert windows.valid.shape[1] > 3
    assert history.valid.any(0).all(), "a window that opens its episode needs no history"
    for i in range(windows.valid.shape[1]):
        steps = int(history.valid[:, i].sum())
        t = history.obs[:steps, i, 2].int().tolist()
        assert t == list(range(steps)), "the history does not start with the episode"
        own = int(windows.valid[:, i].int().argmax())
        assert windows.obs[own, i, 2] == steps
        assert torch.equal(windows.obs[own, i], history.obs[steps, i])


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_only_live_windows_are_drawn_through_wrap(kind):
    stream = make_stream([[5, 3, 9], [1, 2]], [[True, False], [True]], 300)
    replay = make_replay(stream.segment, rows=30, window=Window(2, 3, 2), capacity=64, kind=kind)
    drawn = 0
    for row in range(0, 300, 6):
        replay.add(part(stream.segment, row, row + 6))
        replay.check()
        if len(replay):
            sample = replay.sample(16, env_steps=row)
            assert np.isin(sample.key, live(replay)).all()
            for i in range(16):
                assert_window(replay, sample.segment, i, stream.episodes)
            drawn += 1
    assert drawn > 30


def test_late_priorities_are_ignored_and_counted():
    stream = make_stream([[4]], [[True]], 200)
    replay = make_replay(
        stream.segment, rows=20, window=Window(0, 2, 1), capacity=32, kind="prioritized"
    )
    replay.add(part(stream.segment, 0, 15))
    sample = replay.sample(8, 0)
    before = replay.sampler.largest
    replay.add(part(stream.segment, 15, 34))
    replay.add(part(stream.segment, 34, 53))
    replay.prioritize(sample.key, np.full(8, 1e6))
    assert replay.counts["late"] == 8
    assert replay.sampler.largest == before
    replay.check()
    fresh = replay.sample(8, 0)
    replay.prioritize(fresh.key, np.full(8, 7.0))
    assert replay.sampler.largest == np.float32(7.0 + 1e-6)
    assert replay.counts["late"] == 8


def test_a_full_window_table_drops_the_oldest_and_counts_them():
    stream = make_stream([[1]], [[True]], 100)
    replay = make_replay(stream.segment, rows=90, window=Window(0, 2, 1), capacity=10)
    feed(replay, stream, [7] * 14)
    assert len(replay) == 10
    made = replay.windows.head
    assert replay.windows.early == made - 10, "the table, not the ring, dropped them"
    segment = replay.get(live(replay), 0).segment
    for i in range(10):
        assert_window(replay, segment, i, stream.episodes)


def test_collect_trajectories_bootstrap_from_the_next_chunks_first_observation():
    stream = make_stream([[40]], [[True]], 40)
    replay = make_replay(stream.segment, rows=60, window=Window(1, 3, 2), close=True)
    feed(replay, stream, [5] * 8)
    segment = replay.get(live(replay), 0).segment
    starts = []
    for i in range(segment.reward.shape[1]):
        own = np.flatnonzero(segment.valid[:, i].numpy())
        times = segment.obs[own, i, 2].int().tolist()
        assert times == list(range(times[0], times[-1] + 1))
        assert times[0] // 5 == times[-1] // 5, "a window crosses a collect call"
        behind = segment.obs[own[-1] + 1, i, 2].item()
        assert behind == times[-1] + 1
        assert not segment.terminated[own[-1], i] or times[-1] == 39
        if times[0]:
            assert segment.extras["prev_reward"][i] == times[0]  # reward_of(0, 0, t - 1) = t
        starts.append(times[0])
    assert 5 in starts


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_resume_equals_uninterrupted(kind):
    """Contents, tree, RNG and counters come back: sampling after load = sampling without it."""
    stream = make_stream([[5, 3, 9], [1, 12]], [[True, False], [True]], 240)
    make = lambda: make_replay(  # noqa: E731
        stream.segment, rows=40, window=Window(2, 3, 2), capacity=48, kind=kind
    )
    one, two = make(), make()
    rng = np.random.default_rng(1)
    for row in range(0, 120, 8):
        one.add(part(stream.segment, row, row + 8))
        if len(one):
            s = one.sample(4, row)
            one.prioritize(s.key, rng.random(4))
    saved = tree_map(lambda x: x.copy() if hasattr(x, "copy") else x, one.state_dict())
    two.load_state_dict(saved)
    two.check()
    for row in range(120, 240, 8):
        samples = []
        for replay in (one, two):
            replay.add(part(stream.segment, row, row + 8))
            s = replay.sample(4, row)
            replay.prioritize(s.key, np.arange(4.0))
            samples.append(s)
        a, b = samples
        assert (a.key == b.key).all()
        assert torch.equal(a.weight, b.weight)
        assert torch.equal(a.segment.obs, b.segment.obs)
        assert torch.equal(a.segment.state[0], b.segment.state[0])
    assert one.counts == two.counts


def test_sizes_are_exact():
    stream = make_stream([[5]], [[True]], 20)
    replay = make_replay(stream.segment, rows=40, window=Window(2, 3, 2), capacity=48)
    row = 3 * 4 + 8 + 4 + 1  # obs, action, reward, flags
    assert replay.nbytes == 40 * row + 48 * (7 * 8 + 1 + 2 * 4)
    assert replay.nbytes == replay.layout.nbytes


def test_the_smallest_ring_still_holds_a_window():
    """Capacity of S + 1 rows a column, the least allowed: a whole window and the row before."""
    from rlrun.build.plan import make_plan
    from rlrun.build.replay import make_replay as build_replay
    from tests.compose import config

    c = config(
        "policy=r2d2", "env=cartpole", "debug=smoke", "policy.burnin_step=4", "policy.nstep=5",
        "policy.learn_unroll_len=20", "memory=gru", "memory.hidden=2", "buffer.capacity=100",
    )  # fmt: skip
    spaces = gym.spaces.Box(-1, 200, (3,), np.float32), gym.spaces.Discrete(10), 1
    plan = make_plan(c, spaces)
    assert plan.window == Window(4, 15, 5)
    assert c.buffer.capacity == (plan.window.rows + 1) * plan.columns
    stream = make_stream([[200]] * 4, [[True]] * 4, 150)
    replay = build_replay(plan)
    held = []
    for row in range(150):
        replay.add(part(stream.segment, row, row + 1))
        replay.check()
        held.append(len(replay))
    assert max(held[60:]) > 0, "after the first wrap no window is ever whole"


def test_keys_given_are_alive_even_of_a_chunk_longer_than_the_ring():
    stream = make_stream([[9]], [[True]], 400)
    for capacity in (6, 512):
        replay = make_replay(stream.segment, rows=30, window=Window(1, 3, 2), capacity=capacity)
        keys = replay.add(stream.segment)
        replay.check()
        assert sorted(keys) == list(live(replay))
        assert len(keys) > 0
        replay.get(keys, 0)


def test_histories_of_cut_trajectories_start_with_an_episode():
    """trajectory: collect opens windows in the middle of episodes: their past is not all there."""
    stream = make_stream([[40]], [[True]], 200)
    replay = make_replay(stream.segment, rows=220, window=Window(1, 3, 1), close=True)
    feed(replay, stream, [13] * 15)
    windows, history = replay.histories(64, np.random.default_rng(0))
    assert windows.valid.shape[1] > 0
    assert history.first[0].all()


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_one_add_may_overfill_the_table(kind):
    """More windows in one add than the table holds: counts, tail and sampler stay right."""
    stream = make_stream([[1]], [[True]], 400)
    window = Window(0, 2, 1)
    replay = make_replay(stream.segment, rows=120, window=window, capacity=10, kind=kind)
    for row in range(0, 240, 60):
        keys = replay.add(part(stream.segment, row, row + 60))
        replay.check()
        assert list(keys) == list(live(replay))
        sample = replay.sample(8, 0)
        assert torch.isfinite(sample.weight).all()
    assert len(replay) == 10


# -- what is handed out stays as it is -------------------------------------------------------------

KEPT = {
    "the sample": lambda s: s,
    "the segment": lambda s: s.segment,
    "a leaf": lambda s: s.segment.obs["a"],
    "a slice": lambda s: s.segment.obs["b"][1:],
    "one number": lambda s: s.segment.reward[0, 0],
    "another shape": lambda s: s.segment.action.reshape(-1),
    "no gradient": lambda s: s.segment.reward.detach(),
    "an array": lambda s: s.segment.obs["a"].numpy(),
    "an array of a slice": lambda s: s.segment.valid[1:].numpy(),
    "first": lambda s: s.segment.first,
    "terminated": lambda s: s.segment.terminated,
    "truncated": lambda s: s.segment.truncated,
    "an extra": lambda s: s.segment.extras["log_prob"],
    "what came before": lambda s: (
        s.segment.extras["prev_action"],
        s.segment.extras["prev_reward"],
    ),
    "the state": lambda s: s.segment.state,
    "the weights": lambda s: s.weight,
    "the keys": lambda s: s.key,
}


def frozen(x):
    """Bytes of all that can be reached from what was kept."""
    if dataclasses.is_dataclass(x):
        return [frozen(getattr(x, f.name)) for f in dataclasses.fields(x)]
    if isinstance(x, torch.Tensor | np.ndarray):
        return np.ascontiguousarray(x).tobytes()
    return [frozen(leaf) for leaf in tree_leaves(x)] if isinstance(x, dict | tuple) else x


def busy(stack=1, table=200):
    window = Window(2, 3, 2) if table else Window(0, 1, 2)
    setup = Setup(window=window, slack=60, table=table, stack=stack, lengths=((5, 19, 2), (30,)))
    pair = Pair(replace(setup, obs="dict", kind="prioritized"))
    pair.add(120)
    keys = pair.replay.windows.keys(pair.replay.windows.all())
    pair.prioritize(keys, np.random.default_rng(0).random(len(keys)).astype(np.float32))
    return pair


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize(("stack", "table"), [(1, None), (1, 200), (3, None)])
def test_what_is_kept_of_a_sample_is_never_written_to(keep, stack, table):
    """A learner may hold any part of any number of samples, views included."""
    pair = busy(stack, table)
    held = []
    for i in range(12):
        part_of = keep(pair.replay.sample(16, i))
        held.append((part_of, frozen(part_of)))
        pair.add(3)
        for _ in range(3):
            pair.replay.sample(16, i)
        assert all(frozen(kept) == before for kept, before in held)
    different = {str(before) for _, before in held}
    assert len(different) > 1 or different == {"[]"}, "the samples are all the same"


def test_what_a_gradient_needs_is_not_written_to():
    pair = busy()
    sample = pair.replay.sample(16, 0)
    weight = torch.ones(16, requires_grad=True)
    loss = (sample.segment.reward.nan_to_num() * weight).sum()
    expected = sample.segment.reward.nan_to_num().sum(0)
    del sample
    for i in range(20):
        pair.replay.sample(16, i)
    loss.backward()
    assert torch.equal(weight.grad, expected)


@pytest.mark.parametrize("batch", [1, 16])
def test_arrays_are_used_again_once_nobody_holds_them(batch, monkeypatch):
    """Fresh arrays of images would cost more than the copy: the same few go round."""
    pair, made = busy(), []

    class Counted(Outputs):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("rlrun.buffer.windows.gather.Outputs", Counted)
    where = lambda s: [x.data_ptr() for x in (*tree_leaves(s.segment.obs), s.segment.reward)]  # noqa: E731
    sample = pair.replay.sample(batch, 0)
    first = where(sample)
    other = pair.replay.sample(batch, 0)
    assert not set(first) & set(where(other))
    view = sample.segment.obs["a"][1:]
    del sample
    assert not set(first) & set(where(pair.replay.sample(batch, 0)))
    assert len(made) == 3
    del view, other
    for i in range(10):
        sample = pair.replay.sample(batch, i)  # while the one before is held
    assert len(made) == 3, "arrays are fresh though nobody holds the old ones"
    assert sample.segment.reward.data_ptr() in {x.reward.ctypes.data for x in made}


def test_few_arrays_are_kept_however_many_samples_are_held():
    pair = busy()
    held = [pair.replay.sample(16, i) for i in range(50)]
    pointers = {s.segment.obs["a"].data_ptr() for s in held}
    assert len(pointers) == 50, "two samples share an array"
    watched = [weakref.ref(s.segment.obs["a"].numpy().base) for s in held]
    kept = sum(len(sets) for sets in pair.replay.reader.gather.sets.values())
    assert kept <= 4
    del held
    assert sum(ref() is not None for ref in watched) <= kept


@pytest.mark.parametrize("table", [None, 200])
def test_few_arrays_are_kept_whatever_sizes_are_asked_for(table):
    """Batch sizes, numbers of new windows, lengths of histories: all vary without an end."""
    pair, rng = busy(table=table), np.random.default_rng(0)
    replay = pair.replay
    for batch in range(1, 200):
        replay.sample(batch, 0)
        keys = replay.windows.keys(replay.windows.all())
        replay.get(keys[: batch % len(keys)], 0)
        replay.histories(1 + batch % 5, rng)
    sets = replay.reader.gather.sets
    known = list(sets)
    replay.sample(0, 0)
    list(replay.stored(7))
    replay.get(keys[:77], 0)
    replay.histories(77, rng)
    assert list(sets) == known, "what is asked for once is kept instead of samples"
    kept = [leaf for group in sets.values() for s in group for leaf in s.leaves]
    leaves = len(tree_leaves(replay.ring.obs))
    assert len(kept) <= 16 * leaves
    a_row = sum(b.nbytes for b in tree_leaves(replay.layout.row.obs))
    assert sum(leaf.nbytes for leaf in kept) <= 16 * 200 * replay.window.rows * a_row


# -- priorities, names, accounts -------------------------------------------------------------------


@pytest.mark.parametrize("table", [None, 300])
def test_overwriting_a_window_drops_its_priority(table):
    """The sampler's total is that of the live windows."""
    window = Window(1, 2, 1) if table else Window(0, 1, 2)
    pair = Pair(Setup(window=window, slack=25, table=table, kind="prioritized", lengths=((6, 3),)))
    pair.add(20)
    replay = pair.replay
    doomed = replay.windows.keys(replay.windows.all())[:2]
    pair.prioritize(doomed, np.full(2, 1e6, np.float32))
    sampler = replay.sampler
    assert sampler.sum_tree.root > 2 * 1e6**0.6
    for _ in range(30):
        pair.add(5)
        pair.agree()
        keys = replay.windows.keys(replay.windows.all())
        pair.prioritize(keys, np.full(len(keys), 0.5, np.float32))
    assert sampler.sum_tree.root == pytest.approx(len(replay) * (0.5 + 1e-6) ** 0.6)
    assert sampler.largest == pytest.approx(1e6)
    assert not replay.windows.find(doomed)[1].any()


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_older_samples_can_be_updated_too(kind):
    """Not only the latest: a key is enough, in any order, until its window is overwritten."""
    pair = Pair(Setup(window=Window(0, 1, 1), slack=60, kind=kind, lengths=((7,), (9,))))
    pair.add(50)
    samples = [pair.replay.sample(6, i) for i in range(5)]
    for i in (3, 0, 4, 1, 2):
        pair.prioritize(samples[i].key, np.full(6, 1.0 + i, np.float32))
        pair.agree()


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_a_sample_of_size_0_is_the_whole_buffer(kind):
    """On-policy use: all windows, oldest first, weight 1; nothing random happens."""
    setup = Setup(window=Window(0, 3, 1), slack=30, table=90, kind=kind, lengths=((4,), (5,)))
    pair = Pair(setup)
    assert pair.replay.sample(0, 0).segment.obs.shape == (4, 0, 3), "also of an empty one"
    pair.add(25)
    before = pair.replay.sampler.state_dict()["rng"]
    pair.agree_on_all()
    sample = pair.replay.sample(0, 7)
    assert sample.env_steps == 7
    assert pair.replay.sampler.state_dict()["rng"] == before
    learned = sample.segment.valid[: setup.window.learned].sum()
    assert learned == len(pair.model.learned)


def test_stored_rows_make_the_same_replay():
    """Rows read back in pieces, written to another replay: the same windows from what is whole."""
    setup = Setup(window=Window(1, 2, 2), slack=60, table=300, lengths=((5, 1, 9), (3, 20)))
    pair = Pair(setup)
    for _ in range(9):
        pair.add(17)
    chunks = list(pair.replay.stored(13))
    assert sum(len(c.reward) for c in chunks) == pair.replay.ring.head - pair.replay.ring.oldest
    other = Pair(replace(setup, states=False)).replay
    for chunk in chunks:
        other.add(chunk)
        other.check()
    behind = 20  # rows of the episode whose start is gone
    mine, theirs = (
        {where for where in located(*r) if where[2] > behind}
        for r in ((pair.replay, pair.replay.ring.oldest), (other, 0))
    )
    assert len(mine) > 20
    assert mine == theirs


def located(replay, oldest):
    s = replay.windows.spans(replay.windows.all())
    rows = [(x - oldest).tolist() for x in (s.first, s.learn, s.stop, s.last)]
    return zip(s.column.tolist(), *rows, strict=True)


BROKEN = [
    (lambda w: setattr(w, "live", w.live + 1), "the count of live windows is wrong"),
    (lambda w: setattr(w, "tail", w.tail + 5), "a live window is older than the tail"),
    (lambda w: w.columns["learn"].__isub__(9), "a window needs an overwritten row"),
    (lambda w: w.columns["last"].__iadd__(99), "a window reads ahead"),
    (lambda w: setattr(w.cutter, "row", 3), "cutter and ring count different rows"),
]


@pytest.mark.parametrize(("damage", "words"), BROKEN)
def test_check_names_what_is_broken(damage, words):
    pair = Pair(Setup(window=Window(1, 2, 1), slack=12, table=30, lengths=((7,),)))
    pair.add(60)
    pair.replay.check()
    damage(pair.replay.windows)
    with pytest.raises(AssertionError, match=words):
        pair.replay.check()


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
@pytest.mark.parametrize("window", [Window(0, 1, 2), Window(2, 3, 2)])
def test_a_wrapped_replay_goes_on_in_a_fresh_one(kind, window):
    """The tail, the open windows' states and what is pending are in the state."""
    stream = make_stream([[25, 3, 9], [31, 12]], [[True, False], [True]], 300)
    capacity = None if window.learned == 1 else 64
    chunk = stream.segment
    if capacity is None:
        chunk = dataclasses.replace(chunk, states=(), state=())

    def cut(start, stop):
        piece = part(stream.segment, start, stop)
        return dataclasses.replace(piece, states=(), state=()) if capacity is None else piece

    def make():
        return make_replay(chunk, rows=40, window=window, capacity=capacity, kind=kind)

    one = make()
    for row in range(0, 150, 6):
        one.add(cut(row, row + 6))
    two = make()
    two.load_state_dict(tree_map(lambda x: x.copy() if hasattr(x, "copy") else x, one.state_dict()))
    for row in range(150, 300, 6):
        for replay in (one, two):
            replay.add(cut(row, row + 6))
            replay.check()
        assert np.array_equal(live(one), live(two))
        a, b = one.get(live(one), 0).segment, two.get(live(two), 0).segment
        assert torch.equal(a.obs, b.obs)
        if capacity is not None:
            assert torch.equal(a.state[0], b.state[0])
            assert (a.state[0] == a.state[0].round()).all()
            first = a.valid.int().argmax(0)
            own = a.obs[first, torch.arange(len(first))]
            where = 1000 * own[:, 0] + 100 * own[:, 1] + own[:, 2]
            assert torch.equal(a.state[0][:, 0], where), "a state of another row"


@pytest.mark.parametrize("stack", [1, 4])
def test_columns_too_short_for_a_window_are_refused(stack):
    """A window, the rows read before it, and the observation behind it."""
    stream, window = make_stream([[9]], [[True]], 9), Window(burnin=2, learned=3, nstep=1)
    least = 6 + max(1, stack - 1) + 1
    make_replay(stream.segment, rows=least, window=window, stack=stack)
    with pytest.raises(ConfigError) as caught:
        make_replay(stream.segment, rows=least - 1, window=window, stack=stack)
    wrong = f"1 columns of {least - 1} rows hold no window of 6 rows"
    assert str(caught.value).startswith(f"buffer.capacity = {least - 1}: {wrong}; ")
    assert f"give {least} or more" in str(caught.value)
