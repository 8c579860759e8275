"""What is refused and what is read back; which windows there are: test_machine.py."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.errors import CheckpointError, NumericError
from rlrun.types import Window, tree_leaves
from tests.buffer.make import CPU, KINDS, make_replay, priorities
from tests.buffer.pair import Pair, Setup, copied
from tests.reference.streams import make_stream, part

TABLES = (None, 50)


def pair_of(table=None, kind="prioritized", **changes):
    window = Window(1, 2, 2) if table else Window(0, 1, 3)
    return Pair(Setup(window=window, kind=kind, table=table, lengths=((5,), (7,)), **changes))


def learned(pair):
    return sorted(place.learn for place in pair.alive())


# -- when windows can be sampled -------------------------------------------------------------------


FIELDS = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")


def bytes_of(segment, name):
    """A field of every window."""
    x = getattr(segment, name)
    return [x[:, b].numpy().tobytes() for b in range(x.shape[1])]


# -- reading back ----------------------------------------------------------------------------------


def test_histories_reach_back_to_the_episodes_start():
    """Of windows whose past is all there."""
    stream = make_stream([[30, 12]], [[True]], 200)
    replay = make_replay(stream.segment, rows=60, window=Window(2, 4, 1))
    for row in range(0, 200, 10):
        replay.add(part(stream.segment, row, row + 10))
    windows, history = replay.histories(64, np.random.default_rng(0))
    assert windows.valid.shape[1] > 2
    assert history.valid.any(0).all(), "a window that opens its episode needs no history"
    assert history.first[0].all()
    for i in range(windows.valid.shape[1]):
        steps = int(history.valid[:, i].sum())
        assert history.obs[:steps, i, 2].int().tolist() == list(range(steps))
        own = int(windows.valid[:, i].int().argmax())
        assert torch.equal(windows.obs[own, i], history.obs[steps, i])
    few, _ = replay.histories(1, np.random.default_rng(0))
    assert few.valid.shape[1] == 1
    single = make_replay(stream.segment, rows=60, window=Window(0, 1, 1), capacity=None)
    single.add(stream.segment)
    assert single.histories(4, np.random.default_rng(0))[0].valid.shape[1] == 0


def test_random_windows_are_stored_ones_drawn_by_the_given_generator():
    pair = Pair(Setup(Window(2, 4, 2), slack=60, table=99, lengths=((9,), (4, 7))))
    assert pair.replay.random_windows(8, np.random.default_rng(0)).valid.shape[1] == 0
    pair.add(120)
    one, two = (pair.replay.random_windows(64, np.random.default_rng(3)) for _ in range(2))
    assert one.reward.shape[1] > 32
    assert torch.equal(one.reward, two.reward)
    stored = Counter(bytes_of(pair.replay.sample(0, 0).segment, "obs"))
    drawn = Counter(bytes_of(one, "obs"))
    assert set(drawn) <= set(stored)
    assert len(drawn) > len(stored) / 2


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", TABLES)
def test_sampling_before_any_window_is_complete(kind, table):
    """Rows may be there already; no window is drawn for ever, and no other cause is blamed."""
    pair = pair_of(table, kind)
    for rows in (0, 1, 1):
        pair.replay.add(pair.world.chunk(rows))
        with pytest.raises(ValueError, match=f"batch = 4: .* {pair.replay.steps} steps"):
            pair.replay.sample(4, 0)
        assert len(pair.replay.sample(0, 0).key) == 0


def unfit(x, how):
    if how == "dtype":
        return x.to(torch.float64)
    if how == "shape":
        return torch.stack([x, x], -1)
    return torch.cat([x, x], 1) if how == "columns" else x[:-1]


@pytest.mark.parametrize("table", TABLES)
def test_a_chunk_of_another_kind_changes_nothing(table):
    """Every field in every way; a compiled kernel would write it over whatever lies behind."""
    pair = pair_of(table, slack=20)
    pair.add(5)
    chunk = pair.world.chunk(4)
    names = [*FIELDS, "log_prob"] + ["states"] * (table is not None)
    for name in names:
        for how in ("dtype", "shape", "columns", "rows"):
            if name == "log_prob":
                bad = {"extras": {name: unfit(chunk.extras[name], how)}}
            elif name == "states":
                bad = {name: (unfit(chunk.states[0], how), chunk.states[1])}
            else:
                bad = {name: unfit(getattr(chunk, name), how)}
            named = "" if (name, how) == ("reward", "rows") else name  # rows are those of rewards
            with pytest.raises(ValueError, match=rf"{named}.* = \w+ \[.*: .* \w+ \["):
                pair.replay.add(replace(chunk, **bad))
    if table:
        with pytest.raises(ValueError, match="states"):
            pair.replay.add(replace(chunk, states=()))
    pair.agree()
    pair.agree_on_all()


def test_leaves_are_matched_by_name():
    """The order of a dict's keys means nothing; names that lack or are unknown are refused."""
    s = Setup(window=Window(0, 1, 1), slack=20, obs="dict")
    chunk = s.world().chunk(9)
    one, two = (s.replay(chunk) for _ in range(2))
    one.add(chunk)
    two.add(replace(chunk, obs=dict(reversed(chunk.obs.items()))))
    a, b = (r.sample(0, 0).segment.obs for r in (one, two))
    assert all(torch.equal(a[name], b[name]) for name in chunk.obs)
    for obs in ({"a": chunk.obs["a"]}, chunk.obs | {"z": chunk.obs["a"]}, chunk.obs["a"]):
        with pytest.raises(ValueError, match="obs"):
            one.add(replace(chunk, obs=obs))
    with pytest.raises(ValueError, match="log_prob"):
        one.add(replace(chunk, extras={}))
    nested = Setup(obs="tuple", slack=20)
    chunk = nested.world().chunk(3)
    replay = nested.replay(chunk)
    for obs in (chunk.obs[:1], (*chunk.obs, chunk.obs[0]), (chunk.obs[0], {"d": chunk.obs[0]})):
        with pytest.raises(ValueError, match="obs"):
            replay.add(replace(chunk, obs=obs))
    stream = make_stream([[9]], [[True]], 30).segment
    noted, named = (stream.obs[:-1, :, 2] * k for k in (1, 10))
    both = replace(stream, extras={"one": noted, "two": named})
    replay = make_replay(both, rows=50, window=Window(0, 1, 1))
    replay.add(replace(stream, extras={"two": named, "one": noted}))
    extras = replay.sample(0, 0).segment.extras
    assert torch.equal(extras["one"] * 10, extras["two"])
    assert extras["two"].max() > 10


@pytest.mark.parametrize("stack", [1, 4])
def test_columns_too_short_for_a_window_are_refused(stack):
    """A window of 6 rows, the rows read before it, and the newest observation: no slot less."""
    world, least = Setup(Window(2, 3, 1), table=9).world(), 6 + max(1, stack - 1) + 1
    given = {"window": Window(2, 3, 1), "stack": stack}
    replay, most = make_replay(world.chunk(0), rows=least, **given), 0
    for _ in range(40):
        replay.add(world.chunk(1))
        replay.check()
        most = max(most, len(replay)) if replay.steps > 20 else 0
    assert most > 0, "after the first wrap no window is ever whole"
    with pytest.raises(AssertionError):  # of users: rlrun.config
        make_replay(world.chunk(0), rows=least - 1, **given)


def test_a_dead_window_asked_for_by_name():
    pair = pair_of()
    pair.add(9)
    with pytest.raises(AssertionError):
        pair.replay.get(np.array([10**6]), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_priorities_than_keys(kind):
    pair = pair_of(kind=kind)
    pair.add(9)
    key = pair.replay.sample(4, 0).key
    for shape in ((0,), (1,), (3,), (9,), (4, 1)):
        for given in (key, key + 0):
            with pytest.raises(ValueError, match=r"priority = .*\[4\]"):
                pair.replay.prioritize(given, np.ones(shape, np.float32))


@pytest.mark.parametrize("kind", ["prioritized", "rank"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -1e-30])
def test_a_diverged_loss_is_refused_for_windows_that_are_gone_too(kind, bad):
    pair = pair_of(kind=kind)
    pair.add(9)
    for gone in (False, True):
        key = pair.replay.sample(4, 0).key
        for _ in range(6 * gone):
            pair.add(9)
        given = np.array([1, bad, 2, 1], np.float64 if gone else np.float32)
        before = priorities(pair.replay)
        with pytest.raises(NumericError, match=r"priority = .* >= 0"):
            pair.replay.prioritize(key, given)
        np.testing.assert_array_equal(priorities(pair.replay), before)
        assert pair.replay.metrics(0)["buffer/late_priorities"] == 0
    pair.agree()


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", TABLES)
def test_loading_discards_the_last_sample(kind, table):
    """Priorities of a sample drawn before go by name: its windows may never have been."""
    pair = pair_of(table, kind, slack=30)
    pair.add(6)
    saved = pair.save()
    pair.add(6)
    key = pair.replay.sample(16, 0).key
    pair.load(saved, crash=False)
    pair.prioritize(key, np.ones(16, np.float32))
    pair.agree()
    assert pair.model.late > 0


@pytest.mark.parametrize(
    "other",
    [{"slack": 5}, {"slack": 15}, {"kind": "rank"}, {"kind": "uniform"}, {"obs": "dict"},
     {"stack": 2}],
)  # fmt: skip
@pytest.mark.parametrize("table", TABLES)
def test_a_state_of_another_replay_changes_nothing(other, table):
    pair = pair_of(table)
    pair.add(40)
    mine = pair_of(table, **{"kind": "prioritized"} | other)
    mine.add(3)
    with pytest.raises(CheckpointError, match="buffer = "):
        mine.replay.load_state_dict(copied(pair.replay.state_dict()))
    mine.agree()


def test_a_saved_window_of_an_end_row_alone_is_refused():
    """The cell of its last step would be the one before the storage's first."""
    pair = pair_of(50)
    pair.add(20)
    table = pair.replay.windows
    slot = table.all()[0]
    table.lines[slot, 3] = table.lines[slot, 1] - table.lines[slot, 2]
    table.lines[slot, 4] = 1
    with pytest.raises(CheckpointError, match=r"windows.last"):
        pair_of(50).replay.load_state_dict(copied(pair.replay.state_dict()))


def test_an_observation_of_no_numbers():
    """A Box of shape (0,) next to others: nothing to copy, nothing to divide by."""
    stream = make_stream([[40]], [[True]], 60).segment
    empty = replace(stream, obs={"x": stream.obs, "none": torch.zeros(61, 1, 0)})
    for device in (None, CPU):
        replay = make_replay(empty, rows=80, window=Window(2, 9, 2), device=device)
        replay.add(empty)
        assert tree_leaves(replay.sample(4, 0).segment.obs)[1].shape == (13, 4, 0)


def test_a_replay_checks_itself():
    """``check`` is what every other test trusts: it names counts that differ."""
    pair = pair_of(50)
    pair.add(40)
    pair.replay.check()
    pair.replay.sampler.replace_slots(np.empty(0, np.int64), np.array([49]))
    with pytest.raises(AssertionError):
        pair.replay.check()


# -- stacks of frames ------------------------------------------------------------------------------


def test_frames_are_stored_once():
    s = Setup(window=Window(0, 1, 1), slack=30, stack=4)
    one = replace(s, stack=1, slack=32)
    assert s.rows == one.rows
    assert Pair(s).replay.layout.nbytes == Pair(one).replay.layout.nbytes


def test_histories_are_stacked_too():
    pair = Pair(Setup(Window(1, 2, 1), slack=60, table=300, stack=3, lengths=((9,), (20,))))
    for _ in range(9):
        pair.add(11)
    _, history = pair.replay.histories(64, np.random.default_rng(0))
    assert history.valid.shape[1] > 5
    for b in range(history.valid.shape[1]):
        steps = int(history.valid[:, b].sum())
        times = torch.arange(steps + 1)[:, None] - torch.arange(2, -1, -1)
        assert torch.equal(history.obs[: steps + 1, b, :, 2], times.clamp(min=0).float())
        assert len(history.obs[: steps + 1, b, :, :2].flatten(0, 1).unique(dim=0)) == 1
