"""Own rows and demonstrations in one batch: shares, keys, priorities, joined windows, resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.buffer.mixed import Mixed, join
from rlrun.errors import CheckpointError
from rlrun.types import Window, tree_leaves
from tests.buffer.factory import make_replay
from tests.policy.factory import r2d2, states_like
from tests.reference.streams import make_stream

WINDOW = Window(2, 4, 2)


def replays(kind="prioritized"):
    """(own, demos): counter streams whose demonstrations have rewards of their own."""
    policy, made = r2d2(), []
    for lengths, seed, shift in (([[9, 14], [5, 8]], 0, 0.0), ([[12, 7]], 1, 1e6)):
        stream = make_stream(lengths, [[True, False]] * len(lengths), 60)
        segment = states_like(policy, stream, seed)
        segment = replace(segment, reward=segment.reward + shift)
        replay = make_replay(segment, rows=120, window=WINDOW, kind=kind)
        replay.add(segment)
        made.append(replay)
    return made


def mixed(ratio=0.4, kind="prioritized", seed=0) -> Mixed:
    return Mixed(*replays(kind), ratio=ratio, generator=np.random.default_rng(seed))


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
    assert buffer.metrics(0)["buffer/demo_fraction"] == pytest.approx(np.mean(shares))
    assert buffer.metrics(0)["buffer/demo_windows"] == len(buffer.demos)


@pytest.mark.parametrize("ratio", [1e-9, 1 - 1e-9])
def test_batches_of_one_kind(ratio):
    sample = mixed(ratio).sample(6, 0)
    assert (sample.key < 0).all() == (ratio > 0.5)
    assert sample.segment.reward.shape == (WINDOW.rows - 1, 6)


def test_joined_windows_are_the_windows():
    """Every field of a mixed batch, column by column, is that of its own replay."""
    buffer = mixed(0.5)
    sample = buffer.sample(12, 0)
    own, demos = sample.key[sample.key >= 0], -1 - sample.key[sample.key < 0]
    parts = [buffer.own.get(own, 0).segment, buffer.demos.get(demos, 0).segment]
    want = join(parts)
    for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid"):
        assert torch.equal(getattr(sample.segment, name), getattr(want, name)), name
        beside = torch.cat([getattr(p, name) for p in parts], 1)
        assert torch.equal(getattr(want, name), beside)
    for name, x in sample.segment.extras.items():
        assert torch.equal(x, torch.cat([p.extras[name] for p in parts], 0)), name
    for i, x in enumerate(tree_leaves(sample.segment.state)):
        assert torch.equal(x, torch.cat([tree_leaves(p.state)[i] for p in parts]))
    assert sample.segment.partial == tuple(sorted({*parts[0].partial, *parts[1].partial}))


@pytest.mark.parametrize("as_drawn", [True, False])
def test_priorities_go_back_to_where_windows_came_from(as_drawn):
    buffer = mixed(0.5)
    sample = buffer.sample(16, 0)
    key = sample.key if as_drawn else sample.key[::-1].copy()
    value = {k: 1.0 + abs(int(k)) / 8 + (50 if k < 0 else 0) for k in key}
    buffer.prioritize(key, torch.tensor([value[k] for k in key]))
    for replay, sign in ((buffer.own, 1), (buffer.demos, -1)):
        mine = [k for k in value if (k >= 0) == (sign > 0)]
        names = np.array([k if k >= 0 else -1 - k for k in mine])
        slots, there = replay.windows.find(names)
        assert there.all()
        np.testing.assert_allclose(replay.sampler.raw[slots], [value[k] for k in mine], rtol=1e-6)
    buffer.check()


def test_as_many_priorities_as_keys():
    buffer = mixed()
    key = buffer.sample(4, 0).key
    with pytest.raises(ValueError, match="one number per sampled window"):
        buffer.prioritize(key, torch.ones(3))


def test_collecting_leaves_demonstrations_alone():
    buffer = mixed()
    before, own = len(buffer.demos), buffer.own.rows
    stream = make_stream([[30], [30]], [[True], [True]], 31)
    for _ in range(6):  # more rows than the ring has
        buffer.add(states_like(r2d2(), stream))
    assert (len(buffer.demos), buffer.demos.counts["late"]) == (before, 0)
    assert buffer.rows == buffer.own.rows > own
    assert len(buffer) == len(buffer.own)


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_resume_draws_the_same_windows(kind):
    buffer = mixed(kind=kind)
    for _ in range(3):
        sample = buffer.sample(8, 0)
        buffer.prioritize(sample.key, torch.rand(8))
    twin = mixed(kind=kind, seed=9)
    twin.load_state_dict(buffer.state_dict())
    for _ in range(3):
        a, b = buffer.sample(8, 0), twin.sample(8, 0)
        np.testing.assert_array_equal(a.key, b.key)
        assert torch.equal(a.weight, b.weight)
        assert torch.equal(a.segment.reward, b.segment.reward)
        for each, one in ((buffer, a), (twin, b)):
            each.prioritize(one.key, torch.arange(8.0))
    assert buffer.metrics(0) == twin.metrics(0)


def test_other_demonstrations_are_refused():
    buffer = mixed()
    own, _ = replays()
    stream = make_stream([[12, 8]], [[True, False]], 40)
    segment = states_like(r2d2(), stream)
    demos = make_replay(segment, rows=120, window=WINDOW, kind="prioritized")
    demos.add(segment)
    other = Mixed(own, demos, ratio=0.4, generator=np.random.default_rng(0))
    with pytest.raises(CheckpointError, match="allowed are the demonstrations"):
        other.load_state_dict(buffer.state_dict())
