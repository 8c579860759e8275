"""Datasets: every trajectory comes back bit for bit, in any number of columns, or not at all."""

import errno
import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.dataset import pack_trajectories, read_dataset, write_dataset
from rlrun.dataset.format import DESCRIPTION_FILE, INDEX_FILE, STATES_FILE
from rlrun.errors import ConfigError, StorageError
from rlrun.run.export import export_replay
from rlrun.run.tensors import write_tensors
from rlrun.types import Segment, Window, tree_leaves
from tests.buffer.make import make_replay
from tests.dataset.make import KINDS, SOURCE, SPEC, dress, spell, spelled
from tests.pipeline.make import joined
from tests.reference.streams import make_stream, part

STREAMS = {
    "lengths": st.lists(
        st.lists(st.integers(1, 7), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    "dies": st.lists(st.booleans(), min_size=1, max_size=3),
    "rows": st.integers(1, 40),
}


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(
    **STREAMS,
    skip=st.integers(0, 12),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    shard_rows=st.integers(1, 60),
    deal=st.tuples(st.integers(1, 5), st.integers(1, 30)),
)
def test_every_trajectory_comes_back_whole_in_one_column(
    tmp_path_factory, lengths, dies, rows, skip, sizes, kind, shard_rows, deal
):
    columns, height = deal
    whole = dress(make_stream(lengths, [dies] * len(lengths), rows + skip).segment, kind)
    segment = part(whole, skip, rows + skip)  # what a ring has overwritten is not there
    parts, at = [], 0
    while at < rows:
        size = sizes[len(parts) % len(sizes)] or 3 * (not any(sizes))
        parts.append(part(segment, at, min(at + size, rows)))
        at += size
    expected = spelled(segment)
    path = tmp_path_factory.mktemp("d") / "data"
    if not segment.valid.any():
        with pytest.raises(ConfigError):
            write_dataset(path, parts, spec=SPEC, meta=SOURCE, shard_rows=shard_rows)
        return
    write_dataset(path, parts, spec=SPEC, meta=SOURCE, shard_rows=shard_rows)
    dataset = read_dataset(path)
    assert dataset.steps == int(segment.valid.sum())
    assert Counter(spell(e, 0, 0, len(e.reward)) for e in dataset.episodes()) == expected
    chunks = list(dataset.chunks(columns, height))
    shutil.rmtree(path.parent)
    assert {len(c.reward) for c in chunks[:-1]} <= {height}
    assert 1 <= len(chunks[-1].reward) <= height
    for before, after in pairwise(chunks):
        assert all(
            (a[-1] == b[0]).all()
            for a, b in zip(*map(tree_leaves, (before.obs, after.obs)))  # noqa: B905
        )
        assert (before.first[-1] == after.first[0]).all()
    one = joined(chunks)
    assert spelled(one) == expected
    assert_well_formed(one)


def assert_well_formed(one: Segment) -> None:
    """The contract that cutter, ring and collector rely on."""
    valid, first = one.valid, one.first
    assert not valid[-1].any(), "a column does not end with an end row"
    assert first[-1].all(), "the row behind opens"
    before = torch.cat([torch.zeros_like(valid[:1]), valid[:-1]])
    opened = valid & ~before
    assert first[:-1][opened].all(), "a trajectory is not opened"
    filling = ~valid & ~before
    assert (first[:-1] == (opened | filling)).all(), "first where nothing opens"
    done = one.terminated | one.truncated
    last = valid & ~torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    assert (done == last).all(), "only a trajectory's last step ends it"
    assert (one.reward[~valid] == 0).all()
    height = valid.shape[0] - filling.sum(0)
    longest = int(max(len(run) for c in valid.T for run in runs(c)))
    assert int(height.max() - height.min()) <= longest + 1, "the columns are not level"


def runs(column: torch.Tensor) -> list[str]:
    return "".join("x" if v else " " for v in column.tolist()).split() or [""]


# -- what is in the directory ----------------------------------------------------------------------


def test_description(made: Path) -> None:
    names = sorted(p.name for p in made.iterdir())
    shards = [f"data-{i:05d}.safetensors" for i in range(4)]
    assert names == sorted([*shards, DESCRIPTION_FILE, INDEX_FILE, STATES_FILE])
    assert [p.name for p in made.parent.iterdir()] == ["data"]
    said = json.loads((made / DESCRIPTION_FILE).read_text())
    assert (said["format"], said["columns"], said["rows"]) == (1, 3, 90)
    assert [s["rows"] for s in said["shards"]] == [24, 24, 24, 18]
    for entry in (*said["shards"], said["index"], said["states"]):
        assert (made / entry["file"]).stat().st_size == entry["bytes"]
    assert said["fields"]["obs"] == {"dtype": "float32", "shape": [3]}
    assert said["fields"]["terminated"] == {"dtype": "bool", "shape": []}
    assert said["spaces"]["action"] == {"type": "Discrete", "n": 10, "start": 0}
    assert said["spaces"]["obs"]["high"] == "inf"
    assert said["source"] == SOURCE
    # column 0: 6 episodes of 4; column 1: 9, 2, 9, 2, open; column 2: open
    assert (said["steps"], said["trajectories"], said["episodes"]) == (24 + 26 + 30, 12, 10)
    returns = [sum(10 * k + t + 1 for t in range(4)) for k in range(6)]
    returns += [sum(100 + 10 * k + t + 1 for t in range(n)) for k, n in enumerate([9, 2, 9, 2])]
    values = {n: getattr(np.array(returns), n)() for n in ("mean", "std", "min", "max")}
    assert said["return"] == pytest.approx(values)
    assert said["length_mean"] == pytest.approx((6 * 4 + 9 + 2 + 9 + 2) / 10)
    assert (
        "80 steps in 12 trajectories, 10 finished episodes of return"
        in read_dataset(made).summary()
    )


def test_statistics_are_of_finished_episodes_only(tmp_path: Path) -> None:
    segment = make_stream([[5]], [[True]], 30).segment  # an episode every 6 rows
    path = tmp_path / "fragments"
    write_dataset(path, [part(segment, 2, 28)], spec=SPEC, meta={}, shard_rows=5)
    said = read_dataset(path).description
    assert (said["trajectories"], said["episodes"]) == (5, 3)
    assert said["return"]["min"] == sum(10 + t + 1 for t in range(5))
    # The last row of the data ends an episode: its end row is only the observation behind.
    write_dataset(tmp_path / "end", [part(segment, 0, 5)], spec=SPEC, meta={}, shard_rows=2)
    said = read_dataset(tmp_path / "end").description
    assert (said["trajectories"], said["episodes"], said["length_mean"]) == (1, 1, 5.0)
    write_dataset(tmp_path / "open", [part(segment, 0, 4)], spec=SPEC, meta={}, shard_rows=2)
    said = read_dataset(tmp_path / "open").description
    assert (said["trajectories"], said["episodes"], said["return"]) == (1, 0, None)
    assert "finished episodes; 0.0 MB in" in read_dataset(tmp_path / "open").summary()


def test_a_trajectory_that_a_resume_cut_ends_truncated(tmp_path: Path) -> None:
    """The collector's end row after a restore: no flag on the step before."""
    segment = make_stream([[4]], [[False]], 12).segment
    segment.truncated[3] = False
    write_dataset(tmp_path / "d", [segment], spec=SPEC, meta={}, shard_rows=4)
    dataset = read_dataset(tmp_path / "d")
    assert dataset.description["episodes"] == 1
    assert [e.truncated[-1].item() for e in dataset.episodes()] == [True] * 3


# -- writing ---------------------------------------------------------------------------------------


def write_one(path: Path) -> None:
    segment = make_stream([[4], [9]], [[True], [False]], 30).segment
    states = (np.array([0]), np.array([0]), (np.ones((1, 2), np.float32),))
    write_dataset(path, [segment], spec=SPEC, meta=SOURCE, shard_rows=8, states=states)


CRASHES = ["write_tensors", "write_file", "fsync_directory", "os.rename", "seal"]


@pytest.mark.parametrize("at", CRASHES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_crash_leaves_nothing(tmp_path: Path, monkeypatch, at: str, error) -> None:
    real, calls = write_tensors, []

    def crash(*given):
        calls.append(given)
        if at == "write_tensors" and len(calls) < 3:
            return real(*given)
        raise error

    expected = StorageError if isinstance(error, OSError) else KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(f"rlrun.dataset.writer.{at}", crash)
        with pytest.raises(expected) as caught:
            write_one(tmp_path / "data")
    assert calls
    assert list(tmp_path.iterdir()) == []
    if expected is StorageError:
        assert str(caught.value).startswith(f"DATA_DIR = {tmp_path / 'data'}: ")
    write_one(tmp_path / "data")
    assert read_dataset(tmp_path / "data").steps == 24 + 27


def test_only_a_new_or_empty_directory_is_taken(made: Path, tmp_path: Path) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in made.iterdir())
    with pytest.raises(StorageError, match=rf"DATA_DIR = {made}: .*not empty"):
        write_one(made)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in made.iterdir()) == before
    for taken in (made / INDEX_FILE, made / INDEX_FILE / "deep"):
        with pytest.raises(StorageError, match=f"DATA_DIR = {taken}"):
            write_one(taken)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "new/deep"):
        write_one(path)
        assert read_dataset(path).steps == 51


def test_the_writer_copies_arrays_that_are_overwritten(tmp_path: Path) -> None:
    """A collector's segments are views of arrays it fills again; what is read is a copy too."""
    segment = make_stream([[4], [9]], [[True], [False]], 30).segment
    expected, shared = spelled(segment), part(segment, 0, 5).map(torch.clone)

    def parts():
        for start in range(0, 30, 5):
            fresh = part(segment, start, start + 5)
            for old, new in zip(shared.tensors(), fresh.tensors(), strict=True):
                old.copy_(new)
            yield shared

    write_dataset(tmp_path / "data", parts(), spec=SPEC, meta={}, shard_rows=14)
    dataset = read_dataset(tmp_path / "data")
    for _ in range(2):
        episodes = list(dataset.episodes())
        assert Counter(spell(e, 0, 0, len(e.reward)) for e in episodes) == expected
        for episode in episodes:
            episode.map(lambda x: x.zero_())


@pytest.mark.parametrize("window", [Window(2, 3, 2), Window(5, 2, 1), Window(0, 1, 1)])
@pytest.mark.parametrize("rows", [80, 41])
def test_a_replay_comes_back_window_for_window(tmp_path: Path, window: Window, rows: int) -> None:
    """Observations, steps and stored states of every window, in other numbers of columns; of a
    wrapped ring, whose episodes are cut, as well."""
    capacity = 512 if window.burnin else None
    segment = make_stream([[4, 11], [9], [30]], [[True, False], [True], [False]], 60).segment
    replay = make_replay(part(segment, 0, 0), rows=rows, window=window, capacity=capacity)
    for start in range(0, 60, 8):
        replay.add(part(segment, start, min(start + 8, 60)))
    export_replay(replay, tmp_path / "d", config_text="", spec=SPEC, meta={}, shard_rows=50)
    before = windows_in(replay)
    assert len(replay) > 15
    for columns, height in ((2, 16), (4, 5)):
        example = part(make_stream([[1]] * columns, [[True]] * columns, 1).segment, 0, 0)
        again = make_replay(example, rows=120, window=window, capacity=capacity)
        for chunk in read_dataset(tmp_path / "d").chunks(columns, height, like=example):
            again.add(chunk)
            again.check()
        after = windows_in(again)
        if rows == 80:
            assert before - after == Counter()
            # What was open is closed: its last steps make windows too.
            assert {w[-1] for w in after - before} <= {(0, 7), (2, 1)}
        else:
            assert sum((before & after).values()) > 0.6 * len(replay)


def test_export_of_the_last_rows(tmp_path: Path) -> None:
    """Of all environments together; with the config and the states of windows still stored."""
    segment = make_stream([[4], [9]], [[True], [False]], 60).segment
    replay = make_replay(part(segment, 0, 0), rows=31, window=Window(2, 3, 2))
    for start in range(0, 60, 10):
        replay.add(part(segment, start, start + 10))
    known = {float(x) for x in replay.stored_states()[2][0][:, 0]}
    given_ = {"spec": SPEC, "meta": SOURCE, "shard_rows": 16, "config_text": "seed: 3\n"}
    for last, skip in ((None, 0), (1000, 0), (60, 0), (51, 4), (12, 24)):
        export_replay(replay, tmp_path / f"{last}", last=last, **given_)
        found = read_dataset(tmp_path / f"{last}")
        assert found.source == {**SOURCE, "config": "seed: 3\n"}
        assert spelled(joined(list(found.chunks(2, 6)))) == spelled(part(segment, 30 + skip, 60))
        kept = {float(x) for e in found.episodes() for x in e.states[0][:, 0, 0]} - {0.0}
        assert kept <= known
        for e in found.episodes():
            own = e.states[0][:, 0, 0]
            spelled_there = e.obs[:-1, 0] @ torch.tensor([1000.0, 100.0, 1.0])
            assert ((own == 0) | (own == spelled_there)).all(), "a state of another row"
        assert len(kept) > 4 or last == 12


def windows_in(replay) -> Counter:
    """Every bit that is learned from each window, and its (column, episode)."""
    s = replay.sample(0, 0).segment
    found = []
    for b in range(s.reward.shape[1]):
        valid = s.valid[:, b]
        seen = torch.cat([valid, valid[-1:]])
        steps = [x[:, b][valid] for x in (s.action, s.reward, s.terminated)]
        states = [x[b] for x in tree_leaves(s.state)]
        said = [s.obs[:, b][seen], s.first[:, b][seen], *steps, *states]
        whose = tuple(s.obs[:, b][seen][-1, :2].int().tolist())
        found.append((*(x.numpy().tobytes() for x in said), whose))
    return Counter(found)


@pytest.mark.parametrize("shape", [(0, 4), (1, 0), (2, -1)])
def test_segments_have_rows_and_columns(shape) -> None:
    with pytest.raises(ConfigError, match=r"columns = .*, rows = .*: .*1"):
        next(pack_trajectories([], *shape))
