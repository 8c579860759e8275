"""Several replays sampled as one: probabilities, weights, keys, priorities, resume."""

import numpy as np
import pytest
import torch

from rlrun.buffer.mixed import Streams, combined
from rlrun.errors import CheckpointError
from rlrun.types import Window
from tests.buffer.make import far_from, make_replay
from tests.reference.streams import make_stream

WINDOW = Window(2, 4, 2)
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
        np.testing.assert_array_equal(one.key, two.key)
        assert torch.equal(one.weight, two.weight)
        for a, b in zip(one.segment.tensors(), two.segment.tensors(), strict=True):
            assert torch.equal(a, b)
        if kind != "uniform":
            values = np.linspace(0.1, 2, 8, dtype=np.float32)
            buffer.prioritize(one.key, values)
            replay.prioritize(two.key, values)
    assert buffer.metrics(0) == replay.metrics(0)


def test_a_joined_batch_has_the_windows_of_its_keys():
    buffer = streams()
    sample = buffer.sample(12, 0)
    for column, key in enumerate(sample.key):
        own = buffer.get(sample.key[column : column + 1], 0).segment
        for a, b in zip(sample.segment.tensors(), own.tensors(), strict=True):
            axis = 0 if a.shape[0] == 12 and a.ndim == b.ndim and b.shape[0] == 1 else 1
            assert torch.equal(a.select(axis, column), b.select(axis, 0)), key


def test_a_stream_without_windows_is_never_drawn():
    full = replays("prioritized", 1)[0]
    stream = make_stream([[30]], [[True]], 40)
    empty = make_replay(stream.segment, rows=120, window=WINDOW, kind="prioritized")
    buffer = Streams([empty, full], generator=np.random.default_rng(0))
    assert (buffer.sample(32, 0).key % 2 == 1).all()
    assert buffer.mass == pytest.approx(len(full)), "priority 1 each"


def test_a_restored_buffer_goes_on_with_the_same_draws():
    one, two = streams(), streams()
    one.sample(4, 0)
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        np.testing.assert_array_equal(one.sample(8, 0).key, two.sample(8, 0).key)
    one.check()
    with pytest.raises(CheckpointError, match="3 streams: the checkpoint has 2"):
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
