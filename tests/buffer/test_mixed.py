"""Several replays sampled as one: demonstrations beside own rows, a replay for each collector."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.buffer.mixed import Mixed, Streams, combined
from rlrun.errors import CheckpointError
from rlrun.schema.ranges import ScheduleConfig
from rlrun.types import Window, tree_leaves
from tests.buffer.make import far_from, make_replay, priorities, same_samples, same_segments
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


# -- a replay for each collector -------------------------------------------------------------------

LENGTHS = ([[9, 14]], [[5, 8]], [[21]])


def replays(kind="prioritized", count=3, **changes):
    made = []
    for lengths in LENGTHS[:count]:
        stream = make_stream(lengths, [[True, False]], 60)
        replay = make_replay(stream.segment, rows=120, window=WINDOW, kind=kind, **changes)
        replay.add(stream.segment)
        made.append(replay)
    return made


def streams(kind="prioritized", count=3, **changes):
    return Streams(replays(kind, count, **changes), generator=np.random.default_rng(5))


def all_keys(buffer: Streams) -> np.ndarray:
    count = len(buffer.replays)
    return np.concatenate([r.sample(0, 0).key * count + j for j, r in enumerate(buffer.replays)])


def test_windows_are_drawn_and_weighed_as_from_one_replay_with_all_rows():
    buffer = streams()
    keys = all_keys(buffer)
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


def test_new_windows_of_any_stream_get_the_largest_priority_of_all():
    """Private: the mass of windows shows in thousands of samples only."""
    buffer = streams()
    keys = all_keys(buffer)
    buffer.prioritize(keys[keys % 3 == 0][:1], np.array([100.0], np.float32))
    new = buffer.add([(2, make_stream([[21]], [[True]], 30).segment)])
    assert len(new) > 2
    assert buffer._masses().sum() == pytest.approx(
        len(keys) - 1 + (1 + len(new)) * 100**0.6, rel=1e-4
    )


def test_alpha_moves_in_all_streams_at_once():
    """Private: as above."""
    buffer = streams(alpha=ScheduleConfig("linear", 0.6, 0.0, 10, None))
    keys = all_keys(buffer)
    buffer.prioritize(keys, np.linspace(1, 50, len(keys), dtype=np.float32))
    drawn = [buffer.sample(1, env_steps).weight.item() for env_steps in (0, 10)]
    assert drawn == [1, 1]
    assert buffer._masses().sum() == len(keys), "p^0 each, in the streams that were not drawn too"


@pytest.mark.parametrize("kind", ["uniform", "rank"])
def test_other_samplers_draw_streams_by_their_windows(kind):
    buffer = streams(kind)
    drawn = np.concatenate([buffer.sample(20, 0).key for _ in range(200)])
    windows = np.array([len(replay) for replay in buffer.replays])
    assert far_from(np.bincount(drawn % 3, minlength=3), windows) < 4
    weight = buffer.sample(20, 0).weight
    assert weight.max() == 1
    assert bool((weight > 0).all())


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "rank"])
def test_one_stream_is_its_replay_bit_for_bit(kind):
    buffer, (replay,) = streams(kind, 1), replays(kind, 1)
    for _ in range(3):
        one, two = buffer.sample(8, 0), replay.sample(8, 0)
        same_samples(one, two)
        if kind != "uniform":
            values = np.linspace(0.1, 2, 8, dtype=np.float32)
            buffer.prioritize(one.key, values)
            replay.prioritize(two.key, values)
    assert buffer.metrics(0) == replay.metrics(0)


def test_a_joined_batch_has_the_windows_of_its_keys():
    """One by one, and all streams' together, as new windows are read for their priorities."""
    buffer = streams()
    sample = buffer.sample(12, 0)
    again = buffer.get(sample.key, 0)
    assert len({*(sample.key % 3)}) == 3
    same_segments(sample.segment, again.segment)
    assert torch.equal(again.weight, torch.ones(12))
    for column, key in enumerate(sample.key):
        own = buffer.get(sample.key[column : column + 1], 0).segment
        for a, b in zip(sample.segment.tensors(), own.tensors(), strict=True):
            axis = 0 if a.shape[0] == 12 and a.ndim == b.ndim and b.shape[0] == 1 else 1
            assert torch.equal(a.select(axis, column), b.select(axis, 0)), key


def test_a_stream_without_windows_is_never_drawn():
    """Private: as above."""
    full = replays("prioritized", 1)[0]
    stream = make_stream([[30]], [[True]], 40)
    empty = make_replay(stream.segment, rows=120, window=WINDOW, kind="prioritized")
    buffer = Streams([empty, full], generator=np.random.default_rng(0))
    assert (buffer.sample(32, 0).key % 2 == 1).all()
    assert buffer._masses().sum() == pytest.approx(len(full)), "priority 1 each"


def test_a_restored_buffer_goes_on_with_the_same_draws():
    one, two = streams(), streams()
    one.sample(4, 0)
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        np.testing.assert_array_equal(one.sample(8, 0).key, two.sample(8, 0).key)
    one.check()
    two.replays[2].sampler.largest = 0.5
    with pytest.raises(AssertionError):
        two.check()
    with pytest.raises(CheckpointError, match=r"3 .*2"):
        one.load_state_dict(streams(count=2).state_dict())


def test_metrics_of_several_buffers_are_sums_maxima_and_means():
    parts = [
        ({"buffer/windows": 3.0, "buffer/fill": 0.5, "buffer/priority_max": 2.0}, 3.0),
        ({"buffer/windows": 1.0, "buffer/fill": 0.1, "buffer/priority_max": 7.0}, 1.0),
    ]
    found = combined(parts)
    assert found == {
        "buffer/windows": 4.0,
        "buffer/fill": pytest.approx(0.4),
        "buffer/priority_max": 7.0,
    }
