"""Age of what is sampled, effective sample size, spread of importance weights."""

import numpy as np
import pytest

from rlrun.errors import CheckpointError
from rlrun.types import Window
from tests.buffer.make import KINDS, constant, live, make_replay, priorities
from tests.buffer.pair import copied
from tests.reference.streams import make_stream, part

WINDOWS = (Window(0, 1, 2), Window(2, 4, 2))
ROWS = 300
STREAM = make_stream([[9]] * 2, [[True]] * 2, ROWS)


def empty(window, kind="uniform", alpha=0.7, beta=0.5, rows=200, capacity=512):
    schedules = {} if kind == "uniform" else {"alpha": constant(alpha), "beta": constant(beta)}
    return make_replay(
        STREAM.segment, rows=rows, window=window, kind=kind,
        capacity=None if window.learned == 1 else capacity, **schedules,
    )  # fmt: skip


def filled(kind, window=WINDOWS[1], **given):
    replay = empty(window, kind, **given)
    for row in range(0, ROWS, 50):
        replay.add(part(STREAM.segment, row, row + 50))
    if kind != "uniform":
        keys = live(replay)
        replay.prioritize(keys, np.random.default_rng(1).pareto(1.5, len(keys)) + 0.01)
        replay.sample(1, 1)  # sorts ranks
    return replay


def learned_rows(replay):
    """(row, column) of the first learned row of every stored window."""
    s = replay.sample(0, 0).segment
    at = s.obs[replay.window.burnin]
    return [10 * int(number) + int(t) for _, number, t in at.tolist()]  # 9 steps and an end row


@pytest.mark.parametrize("window", WINDOWS, ids=("rows", "windows"))
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_sampling_distribution(kind, window):
    replay = filled(kind, window)
    raw = priorities(replay).astype(float)
    p = np.ones(len(replay))
    if kind != "uniform":
        p = raw**0.7 if kind == "prioritized" else (1.0 + np.argsort(np.argsort(-raw))) ** -0.7
    p = p / p.sum()
    ago = ROWS - np.array(learned_rows(replay))
    age = (p * ago).sum() * 2 * 9 / 10  # of ten rows nine are steps
    found = replay.metrics(0)
    assert found["buffer/sample_age"] == pytest.approx(age, rel=0.02)
    assert found["buffer/fill"] == 1
    if kind == "uniform":
        assert "buffer/priority_ess" not in found
        return
    assert found["buffer/priority_ess"] == pytest.approx(1 / (len(p) * (p**2).sum()), rel=0.02)
    weight = (len(p) * p) ** -0.5
    mean = (p * weight).sum()
    spread = np.sqrt((p * (weight - mean) ** 2).sum()) / mean
    assert found["buffer/weight_spread"] == pytest.approx(spread, rel=0.06), "rare large weights"


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_equal_probabilities_are_an_effective_sample_of_all_windows(kind):
    found = filled(kind, alpha=0.0).metrics(0)
    assert found["buffer/priority_ess"] == pytest.approx(1, abs=1e-12)
    assert found["buffer/weight_spread"] == pytest.approx(0, abs=1e-12)
    assert not {"buffer/sample_age", "buffer/priority_ess"} & set(empty(WINDOWS[1]).metrics(0))


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


@pytest.mark.parametrize("window", WINDOWS, ids=("rows", "windows"))
def test_loaded_rows_are_as_old_as_the_run(window):
    """buffer.load: each collected row has its age, a loaded one that of the first."""
    loaded, replay = 100, empty(window, rows=400)
    replay.add(part(STREAM.segment, 0, loaded))
    replay.loaded.mark(replay.ring, replay.steps)
    assert "buffer/sample_age" not in replay.metrics(0), "no step was taken"
    assert replay.metrics(0)["buffer/fill"] == 0.25
    for row in range(loaded, ROWS, 50):
        replay.add(part(STREAM.segment, row, row + 50))
    valid = STREAM.segment.valid
    steps_after = [int(valid[max(row, loaded) : ROWS].sum()) for row in learned_rows(replay)]
    found = replay.metrics(0)["buffer/sample_age"]
    assert found == pytest.approx(np.mean(steps_after), rel=0.02)
    assert found <= int(valid[loaded:ROWS].sum())
    twin, state = empty(window, rows=400), copied(replay.state_dict())
    twin.load_state_dict(state)
    assert twin.metrics(0) == replay.metrics(0)
    assert state["loaded"] == {"steps": 180, "head": loaded}


@pytest.mark.parametrize(
    "wrong", [{"steps": 541, "head": 9}, {"steps": 1, "head": 301}, {"steps": 1}]
)
def test_a_saved_number_of_loaded_rows_is_checked(wrong):
    replay = filled("uniform")
    with pytest.raises(CheckpointError, match="loaded"):
        replay.load_state_dict(replay.state_dict() | {"loaded": wrong})
