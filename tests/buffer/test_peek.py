"""Windows to look at: drawn as the sampler draws, without a trace."""

import pickle

import numpy as np
import pytest
import torch

from rlrun.buffer.peek import peek
from tests.buffer.test_device import make_device_sampler
from tests.buffer.test_sampling_metrics import KINDS, WINDOWS, distribution, filled


def frozen(replay):
    """The whole state of a replay as bytes."""
    return pickle.dumps(replay.state_dict())


@pytest.mark.parametrize("window", WINDOWS, ids=("rows", "windows"))
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_drawn_as_the_sampler_draws_and_nothing_is_changed(kind, window):
    replay = filled(kind, window)
    before = frozen(replay)
    count = 5_000
    found = peek(replay, count, np.random.default_rng(3), 0)
    assert frozen(replay) == before
    slots, p = distribution(replay, 0.7)
    keys = replay.windows.keys(slots)
    seen = np.array([(found.sample.key == key).sum() for key in keys])
    assert seen.sum() == count
    error = np.abs(seen - count * p) / np.sqrt(count * p + 1)
    assert error.max() < 5
    few = peek(replay, 3, np.random.default_rng(4), 0).sample
    own = replay.get(few.key, 0).segment
    assert np.array_equal(few.segment.obs, own.obs)
    assert np.array_equal(few.segment.valid, own.valid)
    if kind == "uniform":
        assert found.priority is found.stored is None
        return
    raw = getattr(replay.sampler, "raw", getattr(replay.sampler, "priority", None))
    at = replay.windows.find(found.sample.key)[0]
    assert np.array_equal(found.priority, raw[at])
    assert np.array_equal(found.stored, raw[slots])


def test_an_empty_replay_has_nothing_to_show():
    replay = filled("prioritized")
    slots = replay.windows.all()
    replay.sampler.replace_slots(slots, slots[:0])
    replay.windows.alive[:] = False
    assert peek(replay, 4, np.random.default_rng(0), 0) is None


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_device_the_mass_is_that_of_its_draws(kind):
    slots, count = 40, 40_000
    sampler = make_device_sampler(kind, slots)
    live = np.arange(3, 33)
    sampler.replace_slots(live[:0], live)
    values = np.random.default_rng(1).pareto(1.5, len(live)) + 0.01
    sampler.update(torch.from_numpy(live), torch.from_numpy(values))
    found = sampler.priorities(live)
    mass = np.ones(len(live)) if found is None else found[1]
    drawn = np.concatenate([sampler.draw(None, 400, 0)[0].numpy() for _ in range(count // 400)])
    share = np.bincount(drawn, minlength=slots)[live] / count
    assert share == pytest.approx(mass / mass.sum(), abs=0.01)
    if found is not None:
        assert found[0] == pytest.approx(values, rel=1e-4)
