"""Several replays sampled as one: demonstrations beside own rows, columns of several collectors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.mixed import Mixed, Streams
from rlrun.errors import CheckpointError
from rlrun.types import Window, tree_leaves
from tests.buffer.make import far_from, live, make_replay, priorities, same_samples, same_segments
from tests.buffer.pair import copied, setups
from tests.buffer.test_compressed import screens
from tests.buffer.test_hindsight import relabelling
from tests.buffer.test_hindsight import rows as goal_rows
from tests.reference.streams import make_stream

WINDOW = Window(2, 4, 2)


def filled(lengths, kind, shift, rows=60):
    """A counter stream whose rewards are moved by ``shift``."""
    segment = make_stream(lengths, [[True, False]] * len(lengths), rows).segment
    segment = replace(segment, reward=segment.reward + shift)
    replay = make_replay(segment, rows=120, window=WINDOW, kind=kind)
    replay.add(segment)
    return replay


def mixed(ratio=0.4, kind="prioritized", seed=0, demos=([12, 7],), rows=60) -> Mixed:
    parts = filled(([9, 14], [5, 8]), kind, 0.0), filled(demos, kind, 1e6, rows)
    return Mixed(*parts, ratio=ratio, generator=np.random.default_rng(seed))


def test_every_window_is_a_demonstration_with_the_given_probability():
    buffer, shares = mixed(0.4), []
    for _ in range(200):
        sample = buffer.sample(10, 0)
        demos = sample.key < 0
        rewards = sample.segment.reward.amax(0) > 1e5
        np.testing.assert_array_equal(rewards.numpy(), demos)
        shares.append(demos.mean())
    assert np.mean(shares) == pytest.approx(0.4, abs=0.04)
    assert np.var(shares) == pytest.approx(0.4 * 0.6 / 10, rel=0.4), "one coin per window"
    found = buffer.metrics(0)
    assert found["buffer/demo_fraction"] == pytest.approx(np.mean(shares))
    assert found["buffer/demo_windows"] == len(buffer.demos)
    assert found["buffer/windows"] == len(buffer) == len(buffer.own)
    for ratio in (1e-9, 1 - 1e-9):  # batches of one kind
        sample = mixed(ratio).sample(6, 0)
        assert (sample.key < 0).all() == (ratio > 0.5)
        assert sample.segment.reward.shape == (WINDOW.rows - 1, 6)


def test_joined_windows_are_the_windows():
    """Every field of a mixed batch, column by column, is that of its own replay; own ones first."""
    sample = (buffer := mixed(0.5)).sample(12, 0)
    own, demos = sample.key[sample.key >= 0], -1 - sample.key[sample.key < 0]
    assert (np.sort(sample.key < 0) == (sample.key < 0)).all()
    parts = [buffer.own.get(own, 0).segment, buffer.demos.get(demos, 0).segment]
    for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid"):
        beside = torch.cat([getattr(p, name) for p in parts], 1)
        assert torch.equal(getattr(sample.segment, name), beside), name
    for name, x in sample.segment.extras.items():
        assert torch.equal(x, torch.cat([p.extras[name] for p in parts], 0)), name
    state = torch.cat([tree_leaves(p.state)[0] for p in parts])
    assert torch.equal(tree_leaves(sample.segment.state)[0], state)
    assert sample.segment.partial == tuple(sorted({*parts[0].partial, *parts[1].partial}))


@pytest.mark.parametrize("as_drawn", [True, False])
def test_priorities_go_back_to_where_windows_came_from(as_drawn):
    buffer = mixed(0.5)
    sample = buffer.sample(16, 0)
    key = sample.key if as_drawn else sample.key[::-1].copy()
    value = {k: 2.0 + abs(int(k)) / 8 + (50 if k < 0 else 0) for k in key}
    buffer.prioritize(key, torch.tensor([value[k] for k in key]))
    for replay, sign in ((buffer.own, 1), (buffer.demos, -1)):
        every = replay.sample(0, 0).key.tolist()
        want = [value.get(k if sign > 0 else -1 - k, 1.0) for k in every]
        np.testing.assert_allclose(priorities(replay), want, rtol=1e-6)
    buffer.check()
    for replay in (buffer.own, buffer.demos):
        largest, replay.sampler.largest = replay.sampler.largest, 0.5
        with pytest.raises(AssertionError):
            buffer.check()
        replay.sampler.largest = largest
    with pytest.raises(ValueError):  # noqa: PT011
        buffer.prioritize(key, torch.ones(3))


def test_other_demonstrations_are_refused():
    other = mixed(demos=([12, 8],), rows=40)
    with pytest.raises(CheckpointError, match=r"buffer\.demos = "):
        other.load_state_dict(mixed().state_dict())


# -- the columns of several collectors -------------------------------------------------------------

LENGTHS = ([[9, 14]], [[5, 8]], [[21]])


def streams(kind="prioritized", **changes) -> Streams:
    """A replay of three collectors that have collected 60 rows each."""
    rows = [make_stream(lengths, [[True, False]], 60).segment for lengths in LENGTHS]
    buffer = make_replay(rows[0], rows=120, window=WINDOW, kind=kind, count=3, **changes)
    for number in (2, 0, 1):
        buffer.add([(number, rows[number])])
    return buffer


@given(setups(), st.booleans(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_rows_of_every_collector_are_those_of_a_replay_of_its_own(s, compress, seed):
    """Whatever the others have collected: keys, windows, flags of dropped windows, saved state."""
    rng, worlds = np.random.default_rng(seed), [s.world() for _ in range(3)]
    if compress:
        s = replace(s, device=None, obs="box")
        worlds = [s.world() for _ in range(3)]
    given = {"compress": compress}

    def chunk(number: int, steps: int):
        rows = worlds[number].chunk(steps)
        return screens(rows) if compress else rows

    example = chunk(0, 0)
    own = [s.replay(example, **given) for _ in range(3)]
    whole, again = (s.replay(example, count=3, **given) for _ in range(2))
    named: dict[int, tuple[int, int]] = {}  # key -> collector, key in its own replay
    for _ in range(8):
        number, steps = int(rng.integers(3)), int(rng.integers(1, 2 * s.rows))
        rows = chunk(number, steps)
        keys, wanted = whole.add([(number, rows)]), own[number].add(rows)
        assert not set(keys.tolist()) & set(named), "a key is used again"
        named |= zip(keys.tolist(), ((number, key) for key in wanted.tolist()), strict=True)
        same_segments(whole.get(keys, 0).segment, own[number].get(wanted, 0).segment)
        whole.check()
        assert len(whole) == sum(map(len, own))
        assert whole.steps == sum(replay.steps for replay in own)
        if not len(whole):
            continue
        sample = whole.sample(6, 0)
        whole.prioritize(sample.key, rng.exponential(size=6).astype(np.float32))
        parts = [own[j].get(np.array([key]), 0) for j, key in map(named.get, sample.key.tolist())]
        same_segments(sample.segment, whole.get(sample.key, 0).segment)
        for i, part in enumerate(parts):
            same_segments(whole.get(sample.key[i : i + 1], 0).segment, part.segment)
        every = [named[key] for key in whole.sample(0, 0).key.tolist()]
        stored = [(j, key) for j, replay in enumerate(own) for key in live(replay).tolist()]
        assert sorted(every) == sorted(stored)
    again.load_state_dict(copied(whole.state_dict()))
    again.check()
    if len(whole):
        same_samples(whole.sample(6, 1), again.sample(6, 1))
        assert whole.metrics(1) == again.metrics(1)


def test_windows_are_drawn_and_weighed_as_from_one_replay_with_all_rows():
    buffer = streams()
    keys = buffer.sample(0, 0).key
    priority = np.random.default_rng(0).uniform(0.1, 4.0, len(keys)).astype(np.float32)
    buffer.prioritize(keys, priority)
    mass = dict(zip(keys.tolist(), (priority.astype(np.float64) + 1e-6) ** 0.6, strict=True))
    counts = dict.fromkeys(keys.tolist(), 0)
    for _ in range(400):
        sample = buffer.sample(16, 0)
        for key in sample.key.tolist():
            counts[key] += 1
    assert far_from(np.array([*counts.values()]), np.array([*mass.values()])) < 4
    p = np.array([mass[key] for key in sample.key.tolist()])
    np.testing.assert_allclose(sample.weight.numpy(), (p / p.min()) ** -0.4, rtol=1e-5)
    assert sample.segment.reward.shape[1] == 16


@pytest.mark.parametrize("kind", ["uniform", "rank"])
def test_other_samplers_draw_from_the_windows_of_all(kind):
    buffer = streams(kind)
    keys = buffer.sample(0, 0).key
    drawn = np.concatenate([buffer.sample(20, 0).key for _ in range(200)])
    if kind == "uniform":
        assert far_from((drawn[:, None] == keys).sum(0), np.ones(len(keys))) < 4
    else:  # of all together
        best = keys[7]
        buffer.prioritize(keys, np.where(keys == best, 9, 1).astype(np.float32))
        drawn = np.concatenate([buffer.sample(20, 1).key for _ in range(200)])
        share = 1 / (np.arange(1, len(keys) + 1) ** -0.7).sum()
        assert (drawn == best).mean() == pytest.approx(share, rel=0.1)


def test_new_windows_of_any_collector_get_the_largest_priority_of_all():
    buffer = streams()
    keys = buffer.sample(0, 0).key
    buffer.prioritize(keys[keys % 3 == 0][:1], np.array([100.0], np.float32))
    new = buffer.add([(2, make_stream([[21]], [[True]], 30).segment)])
    assert len(new) > 2
    every = dict(zip(live(buffer).tolist(), priorities(buffer).tolist(), strict=True))
    assert {every[key] for key in new.tolist()} == {max(every.values())}


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_a_collector_without_windows_is_never_drawn(kind):
    rows = make_stream([[30]], [[True]], 40).segment
    buffer = make_replay(rows, rows=120, window=WINDOW, kind=kind, count=2)
    keys = buffer.add([(1, rows)])
    assert set(buffer.sample(64, 0).key.tolist()) <= set(keys.tolist())


def test_hindsight_goals_come_from_the_windows_own_episode():
    rows = goal_rows(60)
    buffer = relabelling(rows, rows=70, count=2)
    buffer.add([(1, goal_rows(10))])
    buffer.add([(0, rows)])
    for _ in range(20):
        sample = buffer.sample(32, 0)
        obs = sample.segment.obs
        row, column = obs["observation"][0].numpy().astype(int).T
        goal, goal_column = obs["desired_goal"][0].numpy().astype(int).T
        np.testing.assert_array_equal(goal_column, column)
        assert (goal > row).all()
        assert (goal[sample.key % 6 >= 3] <= 10).all()


def test_a_restored_buffer_goes_on_with_the_same_draws():
    one, two = streams(), streams()
    one.prioritize(one.sample(4, 0).key, np.full(4, 3, np.float32))
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        np.testing.assert_array_equal(one.sample(8, 0).key, two.sample(8, 0).key)
    one.check()
    two.sampler.largest = 0.5
    with pytest.raises(AssertionError):
        two.check()
    rows = make_stream([[9, 14]] * 3, [[True, False]] * 3, 60).segment
    with pytest.raises(CheckpointError, match="3 collectors"):
        make_replay(rows, rows=120, window=WINDOW, kind="prioritized").load_state_dict(
            one.state_dict()
        )
    with pytest.raises(CheckpointError, match="pipeline=ray"):  # what an earlier version saved
        two.load_state_dict({"streams": [], "generator": {}})
