"""Invalid input is refused with a message and leaves the replay unchanged."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.errors import CheckpointError, ConfigError, NumericError
from rlrun.types import Window, tree_leaves
from tests.buffer.factory import NONE, make_layout, make_replay, make_sampler
from tests.buffer.pair import KINDS, Pair, Setup, copied
from tests.reference.streams import make_stream

FIELDS = ("obs", "action", "reward", "terminated", "truncated", "valid", "first", "log_prob")


@pytest.fixture(autouse=True)
def _a_hang_is_a_failure():
    def stop(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pair_of(table=None, kind="prioritized", **changes):
    window = Window(1, 2, 2) if table else Window(0, 1, 3)
    return Pair(Setup(window=window, kind=kind, table=table, lengths=((5,), (7,)), **changes))


def bits(state):
    """All that is in a state dict, comparable."""
    if isinstance(state, dict):
        return {name: bits(value) for name, value in state.items()}
    if isinstance(state, tuple | list):
        return [bits(value) for value in state]
    return (str(state.dtype), state.tobytes()) if isinstance(state, np.ndarray) else state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", [None, 50])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_sampling_before_any_window_is_complete(kind, table, rows):
    """Rows may be there already; no window is drawn for ever, and no other cause is blamed."""
    pair = pair_of(table, kind)
    if rows:
        pair.add(rows)
    before = bits(pair.replay.state_dict())
    with pytest.raises(ValueError, match=f"no window is complete yet, {2 * rows} steps are stored"):
        pair.replay.sample(4, 0)
    assert bits(pair.replay.state_dict()) == before
    assert len(pair.replay.sample(0, 0).key) == 0


# -- chunks ----------------------------------------------------------------------------------------


def unfit(x, how):
    if how == "dtype":
        return x.to(torch.float64)
    if how == "shape":
        return torch.stack([x, x], -1)
    return torch.cat([x, x], 1) if how == "columns" else x[:-1]


@pytest.mark.parametrize("table", [None, 50])
@pytest.mark.parametrize("how", ["dtype", "shape", "columns", "rows"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_chunk_of_another_kind(table, how, field):
    """A compiled kernel would write it over whatever lies behind."""
    pair = pair_of(table, slack=20)
    pair.add(5)
    saved = bits(pair.replay.state_dict())
    chunk = pair.world.chunk(4)
    if field == "log_prob":
        bad = replace(chunk, extras={"log_prob": unfit(chunk.extras["log_prob"], how)})
    else:
        bad = replace(chunk, **{field: unfit(getattr(chunk, field), how)})
    named = "" if (field, how) == ("reward", "rows") else field  # rows are counted in rewards
    with pytest.raises(ValueError, match=rf"{named}.* = \w+ \[.*: .* allowed is \w+ \["):
        pair.replay.add(bad)
    assert bits(pair.replay.state_dict()) == saved, "a refused chunk changes nothing"
    pair.agree()


@pytest.mark.parametrize(
    "change", [lambda s: (), lambda s: (s[0].double(), s[1]), lambda s: (s[0][..., :1], s[1])]
)
def test_states_of_another_kind(change):
    pair = pair_of(50, slack=20)
    chunk = pair.world.chunk(9)
    with pytest.raises(ValueError, match="states"):
        pair.replay.add(replace(chunk, states=change(chunk.states)))
    pair.agree()


def test_names_that_are_missing_or_unknown():
    pair = pair_of(obs="dict", slack=20)
    chunk = pair.world.chunk(3)
    for obs in ({"a": chunk.obs["a"]}, chunk.obs | {"z": chunk.obs["a"]}, chunk.obs["a"]):
        with pytest.raises(ValueError, match="obs"):
            pair.replay.add(replace(chunk, obs=obs))
    with pytest.raises(ValueError, match="log_prob"):
        pair.replay.add(replace(chunk, extras={}))
    nested = pair_of(obs="tuple", slack=20)
    chunk = nested.world.chunk(3)
    for obs in (chunk.obs[:1], (*chunk.obs, chunk.obs[0]), (chunk.obs[0], {"d": chunk.obs[0]})):
        with pytest.raises(ValueError, match="obs"):
            nested.replay.add(replace(chunk, obs=obs))


def test_leaves_are_matched_by_name():
    """The order of a dict's keys means nothing: observations and extras."""
    pair = pair_of(obs="dict", slack=20)
    chunk = pair.world.chunk(9)
    turned = dict(reversed(list(chunk.obs.items())))
    pair.model.add(chunk)
    keys = pair.replay.add(replace(chunk, obs=turned))
    pair.names |= dict(zip(keys.tolist(), pair.places(keys), strict=True))
    pair.agree_on_all()
    stream = make_stream([[9]], [[True]], 30).segment
    one, two = (stream.obs[:-1, :, 2] * k for k in (1, 10))
    replay = make_replay(
        replace(stream, extras={"one": one, "two": two}), rows=50, window=Window(0, 1, 1)
    )
    replay.add(replace(stream, extras={"two": two, "one": one}))
    extras = replay.sample(0, 0).segment.extras
    assert torch.equal(extras["one"] * 10, extras["two"])
    assert extras["two"].max() > 10


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("table", [None, 50])
def test_a_chunk_of_no_rows_changes_nothing(table, close):
    pair = pair_of(table, close=close, slack=20)
    for steps in (0, 7, 0, 3):
        pair.add(steps)
        pair.agree()
    pair.agree_on_all()


@pytest.mark.parametrize("rows", [0, 1])
def test_a_window_longer_than_the_ring(rows):
    """S rows, the row before, and the newest observation: one slot less is refused."""
    window, stream = Window(2, 3, 2), make_stream([[9]], [[True]], 30).segment
    least = window.rows + 2
    assert make_replay(stream, rows=least, window=window).max_steps == 1
    with pytest.raises(ConfigError, match=f"hold no window .*; at least {least}"):
        make_replay(stream, rows=least - 1 - rows, window=window)


def test_a_dead_window_asked_for_by_name():
    pair = pair_of()
    pair.add(9)
    with pytest.raises(AssertionError, match="asked for by key is no longer stored"):
        pair.replay.get(np.array([10**6]), 0)


# -- priorities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (9,), (4, 1)])
def test_another_number_of_priorities_than_keys(kind, shape):
    pair = pair_of(kind=kind)
    pair.add(9)
    sample = pair.replay.sample(4, 0)
    for key in (sample.key, sample.key.copy()):
        with pytest.raises(ValueError, match=r"priority = shape .*: keys have \[4\]"):
            pair.replay.prioritize(key, np.ones(shape, np.float32))
    pair.agree()


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
def test_a_priority_beyond_float32_is_the_largest_there_is(kind):
    sampler = make_sampler(kind, 4)
    sampler.replace_slots(NONE, np.arange(4))
    sampler.update(np.arange(1), np.array([1e300]))
    kept = sampler.raw if kind == "prioritized" else sampler.priority
    assert kept[0] == np.finfo(np.float32).max == sampler.largest
    assert sampler.check(np.arange(4)) is None
    slots, weight = sampler.draw(None, 8, 0)
    assert np.isfinite(weight).all()
    assert 0 in slots


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_diverged_loss_is_refused_for_windows_that_are_gone_too(kind, bad):
    pair = pair_of(kind=kind)
    pair.add(9)
    sample = pair.replay.sample(4, 0)
    for _ in range(6):
        pair.add(9)
    with pytest.raises(NumericError, match="priority = "):
        pair.replay.prioritize(sample.key, np.full(4, bad, np.float32))
    assert pair.replay.counts["late"] == 0
    pair.agree()


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", [None, 50])
def test_loading_discards_the_last_sample(kind, table):
    """Priorities of a sample drawn before go by name: its windows may never have been."""
    pair = pair_of(table, kind, slack=30)
    pair.add(6)
    saved = pair.save()
    pair.add(6)
    sample = pair.replay.sample(16, 0)
    pair.load(saved, crash=False)
    pair.prioritize(sample.key, np.ones(16, np.float32))
    pair.agree()
    assert pair.model.late > 0


@pytest.mark.parametrize(
    "other", [{"slack": 5}, {"slack": 15}, {"kind": "rank"}, {"kind": "uniform"}, {"obs": "dict"}]
)
@pytest.mark.parametrize("table", [None, 50])
def test_a_state_of_another_replay(other, table):
    pair = pair_of(table)
    pair.add(40)
    mine = pair_of(table, **{"kind": "prioritized"} | other)
    mine.add(3)
    before = bits(mine.replay.state_dict())
    with pytest.raises(CheckpointError, match=r"buffer = .*: the saved one is .*; undo"):
        mine.replay.load_state_dict(copied(pair.replay.state_dict()))
    assert bits(mine.replay.state_dict()) == before, "a refused state changes nothing"


def test_an_observation_of_no_numbers():
    """A Box of shape (0,) next to others: nothing to copy, nothing to divide by."""
    stream = make_stream([[40]], [[True]], 60).segment
    empty = replace(stream, obs={"x": stream.obs, "none": torch.zeros(61, 1, 0)})
    replay = make_replay(empty, rows=80, window=Window(2, 9, 2))
    assert replay.nbytes == make_layout(stream, rows=80, window=replay.window, capacity=512).nbytes
    replay.add(empty)
    assert tree_leaves(replay.sample(4, 0).segment.obs)[1].shape == (13, 4, 0)
