"""Age of what is sampled, effective sample size, spread of importance weights."""

import numpy as np
import pytest

from rlrun.errors import CheckpointError
from rlrun.types import Window
from tests.buffer.factory import constant, make_replay
from tests.reference.streams import make_stream, part

KINDS = ("uniform", "prioritized", "rank")
WINDOWS = (Window(0, 1, 2), Window(2, 4, 2))
ROWS = 300


def filled(kind, window=WINDOWS[1], alpha=0.7, beta=0.5, rows=200, columns=2):
    stream = make_stream([[9]] * columns, [[True]] * columns, ROWS)
    schedules = {} if kind == "uniform" else {"alpha": constant(alpha), "beta": constant(beta)}
    capacity = None if window.learned == 1 else 512
    replay = make_replay(
        stream.segment, rows=rows, window=window, kind=kind, capacity=capacity, **schedules
    )
    keys = np.concatenate(
        [replay.add(part(stream.segment, row, row + 50)) for row in range(0, ROWS, 50)]
    )
    if kind != "uniform":
        keys = keys[replay.windows.find(keys)[1]]
        replay.prioritize(keys, np.random.default_rng(1).pareto(1.5, len(keys)) + 0.01)
    return replay


def distribution(replay, alpha):
    """(live slots, P) by the definition."""
    slots, sampler = replay.windows.all(), replay.sampler
    if not hasattr(sampler, "alpha"):
        return slots, np.full(len(slots), 1 / len(slots))
    if hasattr(sampler, "heap"):
        mass = (sampler.position[slots] + 1.0) ** -alpha
    else:
        mass = sampler.raw[slots].astype(float) ** alpha
    return slots, mass / mass.sum()


@pytest.mark.parametrize("window", WINDOWS, ids=("rows", "windows"))
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_sampling_distribution(kind, window):
    replay = filled(kind, window)
    slots, p = distribution(replay, 0.7)
    row = np.array([replay.windows.spans(slots[i : i + 1]).learn[0] for i in range(len(slots))])
    age = (p * (replay.ring.head - row)).sum() * 2 * 9 / 10  # of ten rows nine are steps
    found = replay.metrics(0)
    assert found["buffer/sample_age"] == pytest.approx(age, rel=0.02)
    if kind == "uniform":
        assert "buffer/priority_ess" not in found
        assert "buffer/weight_spread" not in found
        return
    assert found["buffer/priority_ess"] == pytest.approx(1 / (len(p) * (p**2).sum()), rel=0.02)
    weight = (len(p) * p) ** -0.5
    mean = (p * weight).sum()
    spread = np.sqrt((p * (weight - mean) ** 2).sum()) / mean
    assert found["buffer/weight_spread"] == pytest.approx(spread, rel=0.06), "rare large weights"


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_equal_priorities_are_an_effective_sample_of_all_windows(kind):
    found = filled(kind, alpha=0.0).metrics(0)
    assert found["buffer/priority_ess"] == pytest.approx(1, abs=1e-12)
    assert found["buffer/weight_spread"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_they_change_nothing(kind):
    """The same samples, with and without records between them."""
    quiet, logged = filled(kind), filled(kind)
    for step in range(5):
        logged.metrics(step * 100)
        logged.random_windows(8, np.random.default_rng(step))
        a, b = quiet.sample(8, step), logged.sample(8, step)
        np.testing.assert_array_equal(a.key, b.key)
        np.testing.assert_array_equal(a.weight, b.weight)
    assert logged.metrics(7) == logged.metrics(7)


def test_an_empty_replay_has_none():
    stream = make_stream([[9]], [[True]], 60)
    replay = make_replay(stream.segment, rows=100, window=WINDOWS[1], kind="prioritized")
    assert not {"buffer/sample_age", "buffer/priority_ess"} & set(replay.metrics(0))


def test_zero_priorities_are_logged_before_the_draw_that_fails():
    replay = filled("prioritized", beta=1.0)
    replay.sampler.sum_tree.fill(np.zeros(replay.sampler.capacity))
    found = replay.metrics(0)
    assert "buffer/sample_age" not in found
    assert "buffer/priority_ess" not in found


def test_random_windows_are_live_and_of_the_given_generator():
    replay = filled("uniform")
    one, two = (replay.random_windows(64, np.random.default_rng(3)) for _ in range(2))
    assert one.reward.shape == two.reward.shape == (WINDOWS[1].rows - 1, 64)
    assert bool((one.reward == two.reward).all())
    everything = replay.sample(0, 0).segment.reward.T.tolist()
    assert all(column in everything for column in one.reward.T.tolist())


@pytest.mark.parametrize("window", WINDOWS, ids=("rows", "windows"))
def test_an_empty_replay_has_no_random_windows(window):
    """One of several streams may be empty when a policy is diagnosed."""
    stream = make_stream([[9]], [[True]], 60)
    replay = make_replay(stream.segment, rows=100, window=window, kind="uniform")
    assert replay.random_windows(8, np.random.default_rng(0)).valid.shape[1] == 0


@pytest.mark.parametrize("window", WINDOWS, ids=("rows", "windows"))
def test_loaded_rows_are_as_old_as_the_run(window):
    """buffer.load: each collected row has its age, a loaded one that of the first."""
    columns, loaded = 2, 100
    lengths = [[9], [9]]
    stream = make_stream(lengths, [[True]] * columns, ROWS)
    capacity = None if window.learned == 1 else 512
    replay = make_replay(stream.segment, rows=400, window=window, kind="uniform", capacity=capacity)
    replay.add(part(stream.segment, 0, loaded))
    replay.loaded.mark(replay.ring, replay.rows)
    assert "buffer/sample_age" not in replay.metrics(0), "no step was taken"
    for row in range(loaded, ROWS, 50):
        replay.add(part(stream.segment, row, row + 50))
    learn = replay.windows.spans(replay.windows.all()).learn
    steps_after = np.array([  # steps collected from a row on
        int(stream.segment.valid[max(row, loaded) : ROWS].sum()) for row in learn
    ])  # fmt: skip
    found = replay.metrics(0)["buffer/sample_age"]
    assert found == pytest.approx(steps_after.mean(), rel=0.02)
    assert found <= int(stream.segment.valid[loaded:ROWS].sum())
    twin = make_replay(stream.segment, rows=400, window=window, kind="uniform", capacity=capacity)
    twin.load_state_dict(replay.state_dict())
    assert twin.metrics(0) == replay.metrics(0)
    assert twin.state_dict()["loaded"] == {"rows": 180, "head": loaded}
    old = {name: x for name, x in replay.state_dict().items() if name != "loaded"}
    twin.load_state_dict(old)
    assert twin.metrics(0)["buffer/sample_age"] > found, "saved before loaded rows were told apart"


@pytest.mark.parametrize("wrong", [{"rows": 541, "head": 9}, {"rows": 1, "head": 301}, {"rows": 1}])
def test_a_saved_number_of_loaded_rows_is_checked(wrong):
    replay = filled("uniform")
    state = replay.state_dict() | {"loaded": wrong}
    with pytest.raises(CheckpointError, match="loaded"):
        replay.load_state_dict(state)
