"""Datasets: every trajectory comes back bit for bit, in any number of columns, or not at all."""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.buffer.windows.cutter import Cutter
from rlrun.dataset import (
    export_replay,
    open_source,
    read_dataset,
    reader,
    require_new_directory,
    write_dataset,
)
from rlrun.dataset.format import DESCRIPTION_FILE, INDEX_FILE, STATES_FILE
from rlrun.errors import ConfigError, StorageError
from rlrun.rundir import tensorfile
from rlrun.rundir.durable import seal, unseal
from rlrun.types import Segment, Spec, Window, tree_leaves, tree_map
from tests.buffer.factory import make_replay
from tests.reference.streams import make_stream, part, state_of

SPEC = Spec(spaces.Box(-1, np.inf, (3,), np.float32), spaces.Discrete(10))
SOURCE = {"policy": "r2d2", "env": "counter", "seed": 3}
KINDS = ["plain", "nested", "image"]


def dress(segment: Segment, kind: str) -> Segment:
    """The stream with observations of another structure, and extras."""
    x = segment.obs
    if kind == "nested":
        whole = x.to(torch.int64).sum(-1)
        obs = {"z": (x, {"c": x.double()}), "a/b": whole, "a": {"b": x[..., :1] == 0}}
    elif kind == "image":
        obs = x.to(torch.uint8)[..., None, :].expand(*x.shape[:2], 5, 3).contiguous()
    else:
        return segment
    extras = {"log_prob": segment.reward * 0.5, "a/b": segment.action[..., None].to(torch.int32)}
    return replace(segment, obs=obs, extras=extras)


def cut(segment: Segment, start: int, stop: int) -> Segment:
    """Rows [start, stop) of a collected segment with any observations."""
    x = part(replace(segment, obs=segment.first), start, stop)
    obs = tree_map(lambda leaf: leaf[start : stop + 1], segment.obs)
    return replace(x, obs=obs, extras={k: v[start:stop] for k, v in segment.extras.items()})


def joined(chunks: list[Segment]) -> Segment:
    """The rows of chunks that continue each other, as one segment."""

    def rows(name):
        return torch.cat([getattr(c, name) for c in chunks])

    def ahead(pick):
        return torch.cat([*(pick(c)[:-1] for c in chunks), pick(chunks[-1])[-1:]])

    leaves = range(len(tree_leaves(chunks[0].obs)))
    obs = iter([ahead(lambda c, i=i: tree_leaves(c.obs)[i]) for i in leaves])
    states = iter([torch.cat(list(x)) for x in zip(*(tree_leaves(c.states) for c in chunks))])  # noqa: B905
    return Segment(
        obs=tree_map(lambda _: next(obs), chunks[0].obs),
        first=ahead(lambda c: c.first),
        extras={k: torch.cat([c.extras[k] for c in chunks]) for k in chunks[0].extras},
        states=tree_map(lambda _: next(states), chunks[0].states),
        **{n: rows(n) for n in ("action", "reward", "terminated", "truncated", "valid")},
    )


def spell(segment: Segment, column: int, start: int, stop: int) -> tuple:
    """Every bit of the steps [start, stop) of a column, closed as a trajectory is."""
    steps = [segment.action, segment.reward, segment.terminated, *segment.extras.values()]
    truncated = segment.truncated[start:stop, column].clone()
    truncated[-1] |= ~segment.terminated[stop - 1, column]
    obs = tree_map(lambda x: x[start : stop + 1, column].numpy().tobytes(), segment.obs)
    said = [x[start:stop, column].numpy() for x in steps]
    kinds = tuple((str(x.dtype), x.shape, x.tobytes()) for x in said)
    return repr(obs), kinds, truncated.numpy().tobytes(), tuple(segment.extras)


def spelled(segment: Segment) -> Counter:
    """The multiset of trajectories, found row by row."""
    found = []
    for c in range(segment.reward.shape[1]):
        start = None
        for t in range(len(segment.reward)):
            if segment.valid[t, c] and start is None:
                start = t
            if not segment.valid[t, c] and start is not None:
                found.append(spell(segment, c, start, t))
                start = None
        if start is not None:
            found.append(spell(segment, c, start, len(segment.reward)))
    return Counter(found)


STREAMS = {
    "lengths": st.lists(
        st.lists(st.integers(1, 7), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    "dies": st.lists(st.booleans(), min_size=1, max_size=3),
    "rows": st.integers(1, 40),
}


@pytest.fixture(scope="module", autouse=True)
def _no_fsync():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # hundreds of datasets, none worth keeping
        yield


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
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
    segment = cut(whole, skip, rows + skip)  # what a ring has overwritten is not there
    parts, at = [], 0
    while at < rows:
        size = sizes[len(parts) % len(sizes)] or 3 * (not any(sizes))
        parts.append(cut(segment, at, min(at + size, rows)))
        at += size
    expected = spelled(segment)
    path = tmp_path_factory.mktemp("d") / "data"
    if not segment.valid.any():
        with pytest.raises(ConfigError, match="there are no steps to write"):
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


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    **STREAMS,
    bs=st.integers(0, 3),
    learned=st.integers(1, 4),
    nstep=st.integers(1, 3),
    deal=st.tuples(st.integers(1, 4), st.integers(1, 12)),
    seed=st.integers(0, 99),
)
def test_windows_of_the_chunks_learn_every_step_once_and_find_their_states(
    tmp_path_factory, lengths, dies, rows, bs, learned, nstep, deal, seed
):
    """A cutter over the chunks; the states kept are those of the exporting run's windows."""
    columns, height = deal
    window = Window(bs, learned, nstep)
    source = make_stream(lengths, [dies] * len(lengths), rows).segment
    kept = cutter(window, len(lengths)).cut(source.first[:-1].numpy(), source.valid.numpy())
    row, column = kept.learn - kept.burnin, kept.column
    extra = (np.array([-1, rows, rows + 5]), np.array([0, 0, 0]))  # of rows that are not there
    row, column = np.concatenate([row, extra[0]]), np.concatenate([column, extra[1]])
    order = np.random.default_rng(seed).permutation(len(row))
    row, column = row[order], column[order]
    at = np.clip(row, 0, rows - 1)
    states = (source.states[0].numpy()[at, column],)
    path = tmp_path_factory.mktemp("d") / "data"
    write_dataset(
        path, [source], spec=SPEC, meta=SOURCE, shard_rows=7, states=(row, column, states)
    )
    chunks = list(read_dataset(path).chunks(columns, height))
    shutil.rmtree(path.parent)
    one = joined(chunks)
    cutting, learned_rows = cutter(window, columns), np.zeros(one.valid.shape, int)
    for chunk in chunks:
        assert torch.equal(chunk.state[0], chunk.states[0][0])
        for w in windows_of(cutting.cut(chunk.first[:-1].numpy(), chunk.valid.numpy())):
            span = np.arange(w["learn"], min(w["learn"] + learned, w["last"] + 1 - w["ended"]))
            learned_rows[span, w["column"]] += 1
            check_state(one, w, kept, source)
    assert (learned_rows == one.valid.numpy()).all()
    after = make_stream([[3]] * columns, [[True]] * columns, 20).segment  # the collector goes on
    for w in windows_of(cutting.cut(after.first[:-1].numpy(), after.valid.numpy())):
        assert w["origin"] >= len(one.valid)


def check_state(one, w, kept, source) -> None:
    """The state before a window's first row: the one that was kept, where one was."""
    row = w["learn"] - w["burnin"]
    c, number, t = (int(x) for x in one.obs[row, w["column"]])
    state = float(one.states[0][row, w["column"], 0])
    at = zip((kept.learn - kept.burnin).tolist(), kept.column.tolist(), strict=True)
    known = {tuple(int(x) for x in source.obs[r, col]) for r, col in at}
    assert state == (state_of(c, number, t) if (c, number, t) in known else 0.0)
    # Only windows that a longer trajectory would still have completed were not kept.
    cut_there = bool(source.valid[-1, c])
    assert (c, number, t) in known or cut_there


def cutter(window: Window, columns: int) -> Cutter:
    return Cutter(window, columns=columns, overlap=0, residual=None, plain=False)


def windows_of(windows) -> list[dict[str, int]]:
    names = ("column", "learn", "burnin", "last", "ended", "origin")
    return [{n: int(getattr(windows, n)[i]) for n in names} for i in range(len(windows))]


# -- what is in the directory ----------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A dataset of three columns, 30 rows, in several shards, with states."""
    segment = make_stream([[4], [9, 2], [50]], [[True], [False], [True]], 30).segment
    row, column = np.array([5, 0, 10]), np.array([0, 1, 1])
    states = (row, column, (np.ones((3, 2), np.float32),))
    path = tmp_path / "in" / "data"
    parts = [cut(segment, 0, 13), cut(segment, 13, 30)]
    write_dataset(path, parts, spec=SPEC, meta=SOURCE, shard_rows=24, states=states)
    return path


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
    write_dataset(path, [cut(segment, 2, 28)], spec=SPEC, meta={}, shard_rows=5)
    said = read_dataset(path).description
    assert (said["trajectories"], said["episodes"]) == (5, 3)
    assert said["return"]["min"] == sum(10 + t + 1 for t in range(5))
    # The last row of the data ends an episode: its end row is only the observation behind.
    write_dataset(tmp_path / "end", [cut(segment, 0, 5)], spec=SPEC, meta={}, shard_rows=2)
    said = read_dataset(tmp_path / "end").description
    assert (said["trajectories"], said["episodes"], said["length_mean"]) == (1, 1, 5.0)
    write_dataset(tmp_path / "open", [cut(segment, 0, 4)], spec=SPEC, meta={}, shard_rows=2)
    said = read_dataset(tmp_path / "open").description
    assert (said["trajectories"], said["episodes"], said["return"]) == (1, 0, None)
    assert "finished episodes; 0.0 MB in" in read_dataset(tmp_path / "open").summary()


def test_an_open_trajectory_ends_truncated_with_its_last_observation(tmp_path: Path) -> None:
    segment = make_stream([[50]], [[True]], 9).segment
    write_dataset(tmp_path / "d", [segment], spec=SPEC, meta={}, shard_rows=4)
    (chunk,) = read_dataset(tmp_path / "d").chunks(1, 20)
    assert chunk.truncated[:, 0].tolist() == [False] * 8 + [True, False]
    assert not chunk.terminated.any()
    assert chunk.valid[:, 0].tolist() == [True] * 9 + [False]
    assert chunk.obs[9, 0].tolist() == [0, 0, 9]
    assert chunk.action[9, 0] == 0


def test_a_trajectory_that_a_resume_cut_ends_truncated(tmp_path: Path) -> None:
    """The collector's end row after a restore: no flag on the step before."""
    segment = make_stream([[4]], [[False]], 12).segment
    segment.truncated[3] = False
    write_dataset(tmp_path / "d", [segment], spec=SPEC, meta={}, shard_rows=4)
    dataset = read_dataset(tmp_path / "d")
    assert dataset.description["episodes"] == 1
    assert [e.truncated[-1].item() for e in dataset.episodes()] == [True] * 3


def test_more_columns_than_trajectories(made: Path) -> None:
    one = joined(list(read_dataset(made).chunks(13, 100)))
    assert len(one.reward) == 31
    assert (one.valid.sum(0) == 0).sum() == 1
    assert_well_formed(one)


def test_few_shards_are_open_and_each_is_verified_once(tmp_path: Path, monkeypatch) -> None:
    segment = make_stream([[7], [60]], [[True], [True]], 64).segment
    write_dataset(tmp_path / "d", [segment], spec=SPEC, meta={}, shard_rows=4)
    seen: list[str] = []
    verify = reader.verify_file
    monkeypatch.setattr(reader, "verify_file", lambda p, e: (seen.append(p.name), verify(p, e)))
    monkeypatch.setattr(reader, "MAX_MAPPED_SHARDS", 1)
    dataset = read_dataset(tmp_path / "d")
    assert seen == []
    for _ in dataset.chunks(2, 3):
        assert len(dataset._open) <= 1
    assert sorted(seen) == sorted({p.name for p in (tmp_path / "d").glob("*.safetensors")})


def test_what_is_read_is_a_copy(made: Path) -> None:
    before = (made / "data-00000.safetensors").read_bytes()
    dataset = read_dataset(made)
    for episode in dataset.episodes():
        episode.obs.fill_(-9)
        episode.reward.fill_(-9)
    assert all((e.obs != -9).all() and (e.reward != -9).all() for e in dataset.episodes())
    assert (made / "data-00000.safetensors").read_bytes() == before


# -- what is wrong with it -------------------------------------------------------------------------

FILES = [
    "data-00000.safetensors",
    "data-00002.safetensors",
    INDEX_FILE,
    STATES_FILE,
    DESCRIPTION_FILE,
]


def use(path: Path) -> int:
    return sum(int(c.valid.sum()) for c in read_dataset(path).chunks(2, 8))


@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_before_a_row_is_used(made: Path, name: str) -> None:
    assert use(made) == 80
    path = made / name
    content = path.read_bytes()
    for at in range(0, len(content), 41):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=f"{name} is damaged") as caught:
            use(made)
    assert caught.value.exit_code == 6
    assert str(caught.value).startswith(f"buffer.load = {made}: ")
    for shorter in (b"", content[:-1], content[: len(content) // 2], content + b"\0"):
        path.write_bytes(shorter)
        with pytest.raises(StorageError, match=f"{name} (has .* bytes, not|is damaged)"):
            use(made)
    path.unlink()
    missing = ConfigError if name == DESCRIPTION_FILE else StorageError
    with pytest.raises(missing, match=f"{name}.*(missing|is allowed)"):
        use(made)
    path.write_bytes(content)
    assert use(made) == 80


def test_damage_is_found_when_the_shard_is_reached(made: Path) -> None:
    path = made / "data-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    chunks = read_dataset(made).chunks(3, 8)
    next(chunks)
    with pytest.raises(StorageError, match=path.name):
        list(chunks)


def test_another_version_is_named(made: Path) -> None:
    fields = unseal((made / DESCRIPTION_FILE).read_bytes())
    (made / DESCRIPTION_FILE).write_bytes(seal({**fields, "format": 99, "rlrun": "9.9"}))
    with pytest.raises(ConfigError, match=r"has format 99 \(of rlrun 9.9\)") as caught:
        read_dataset(made)
    assert caught.value.exit_code == 2


def test_no_dataset_there(made: Path) -> None:
    for path, why in ((made / "no", "is no directory"), (made.parent, "has no dataset.json")):
        with pytest.raises(ConfigError, match=rf"buffer.load = {path}: {why}; .* rlrun export"):
            open_source(str(path))
    with pytest.raises(ConfigError, match="is no directory"):
        read_dataset(made / INDEX_FILE)
    assert open_source(str(made)).steps == 80


@pytest.mark.parametrize(
    ("obs", "action", "text"),
    [
        (spaces.Box(-1, np.inf, (4,), np.float32), SPEC.action, "observation space shape is [3]"),
        (spaces.Box(-1, 1, (3,), np.float32), SPEC.action, 'high is "inf", not 1.0'),
        (spaces.Box(0, 255, (3,), np.uint8), SPEC.action, 'dtype is "float32", not "uint8"'),
        (SPEC.obs, spaces.Discrete(4), "action space n is 10, not 4"),
        (SPEC.obs, spaces.Discrete(10, start=1), "action space start is 0, not 1"),
        (spaces.Dict({"a": SPEC.obs}), SPEC.action, "observation space is"),
    ],
)
def test_other_spaces_are_refused(made: Path, obs, action, text: str) -> None:
    dataset = read_dataset(made)
    dataset.require(SPEC)
    with pytest.raises(ConfigError) as caught:
        dataset.require(Spec(obs, action))
    assert text in str(caught.value)
    assert str(made) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nested_spaces(tmp_path: Path) -> None:
    def spec(side: int, n: int) -> Spec:
        low = np.array([0.0, -np.inf, -1.5], np.float32)
        parts = (spaces.MultiBinary(3), spaces.MultiDiscrete([n, 2]), spaces.Box(low, 9, (3,)))
        image = spaces.Box(0, 255, (side, side, 3), np.uint8)
        return Spec(spaces.Dict({"i": image, "t": spaces.Tuple(parts)}), SPEC.action)

    segment = make_stream([[3]], [[True]], 9).segment
    parts = [np.zeros((10, 1, *s.shape), s.dtype) for s in spec(84, 5).obs["t"].spaces]
    obs = {"i": torch.zeros(10, 1, 84, 84, 3, dtype=torch.uint8), "t": tuple(parts)}
    segment = replace(segment, obs=tree_map(torch.as_tensor, obs))
    write_dataset(tmp_path / "d", [segment], spec=spec(84, 5), meta={}, shard_rows=9)
    dataset = read_dataset(tmp_path / "d")
    dataset.require(spec(84, 5))
    with pytest.raises(ConfigError, match=r"observation space i shape is \[84, 84, 3\], not \[6"):
        dataset.require(spec(64, 5))
    with pytest.raises(ConfigError, match="observation space t is"):
        dataset.require(spec(84, 6))
    odd = Spec(spaces.Text(4), SPEC.action)
    with pytest.raises(ConfigError, match="observation space is"):
        dataset.require(odd)


def test_fields_must_be_those_of_the_run(tmp_path: Path, caplog) -> None:
    segment = dress(make_stream([[3]], [[True]], 9).segment, "nested")
    path = tmp_path / "d"
    states = (np.array([0]), np.array([0]), (np.ones((1, 2), np.float32),))
    write_dataset(path, [segment], spec=SPEC, meta={}, shard_rows=4, states=states)
    dataset = read_dataset(path)

    def refused(like: Segment) -> str:
        with pytest.raises(ConfigError, match=str(path)) as caught:
            next(dataset.chunks(1, 4, like=like))
        return str(caught.value)

    example = cut(segment, 0, 0)
    assert set(next(dataset.chunks(1, 4, like=example)).extras) == {"log_prob", "a/b"}
    assert next(dataset.chunks(1, 4, like=replace(example, extras={}))).extras == {}
    more = {**example.extras, "speed": example.reward}
    text = refused(replace(example, extras=more))
    assert "lack speed, which collector.keep_info names; it has log_prob, a/b" in text
    assert "action is int64 [], this run's is int32 []" in refused(
        replace(example, action=example.action.int())
    )
    assert "obs is missing" in refused(replace(example, obs=segment.obs["z"][0][:1]))
    fewer = {k: v for k, v in example.obs.items() if k != "a"}
    assert "obs/a/b" in refused(replace(example, obs=fewer))
    # states: the run's shapes, the dataset's where they fit
    assert next(dataset.chunks(1, 4, like=example)).states[0][0, 0].tolist() == [1, 1]
    assert next(dataset.chunks(1, 4, like=replace(example, states=()))).states == ()
    caplog.set_level("INFO")
    wide = next(dataset.chunks(1, 4, like=replace(example, states=(torch.zeros(0, 1, 5),))))
    assert wide.states[0].shape == (4, 1, 5)
    assert not wide.states[0].any()
    assert "do not fit" in caplog.text
    write_dataset(tmp_path / "without", [segment], spec=SPEC, meta={}, shard_rows=4)
    plain = next(read_dataset(tmp_path / "without").chunks(1, 4, like=example))
    assert plain.states[0].shape == (4, 1, 2)
    assert next(read_dataset(tmp_path / "without").chunks(1, 4)).states == ()


# -- writing ---------------------------------------------------------------------------------------


def write_one(path: Path) -> None:
    segment = make_stream([[4], [9]], [[True], [False]], 30).segment
    states = (np.array([0]), np.array([0]), (np.ones((1, 2), np.float32),))
    write_dataset(path, [segment], spec=SPEC, meta=SOURCE, shard_rows=8, states=states)


CRASHES = ["tensorfile.write", "write_file", "fsync_directory", "os.rename", "seal"]


@pytest.mark.parametrize("at", CRASHES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_crash_leaves_nothing(tmp_path: Path, monkeypatch, at: str, error) -> None:
    real, calls = tensorfile.write, []

    def crash(*given):
        calls.append(given)
        if at == "tensorfile.write" and len(calls) < 3:
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
        assert str(caught.value).startswith(f"DATA_DIR = {tmp_path / 'data'}: the dataset cannot")
        assert "No space left" in str(caught.value)
    write_one(tmp_path / "data")
    assert read_dataset(tmp_path / "data").steps == 24 + 27


def test_an_error_of_the_rows_leaves_nothing(tmp_path: Path) -> None:
    def parts():
        yield make_stream([[4]], [[True]], 30).segment
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_dataset(tmp_path / "data", parts(), spec=SPEC, meta={}, shard_rows=4)
    with pytest.raises(ConfigError, match="there are no steps to write"):
        write_dataset(tmp_path / "data", [], spec=SPEC, meta={}, shard_rows=4)
    assert list(tmp_path.iterdir()) == []


def test_only_a_new_or_empty_directory_is_taken(made: Path, tmp_path: Path) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in made.iterdir())
    with pytest.raises(ConfigError, match=rf"DATA_DIR = {made}: the directory is not empty"):
        write_one(made)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in made.iterdir()) == before
    with pytest.raises(ConfigError, match="is not a directory"):
        write_one(made / INDEX_FILE)
    with pytest.raises(StorageError, match=rf"{INDEX_FILE} is not a directory"):
        require_new_directory(made / INDEX_FILE / "deep")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "new/deep"):
        write_one(path)
        assert read_dataset(path).steps == 51
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is not a directory"):
        require_new_directory(tmp_path / "link")


def test_an_unwritable_place_is_known_before(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageError, match=f"{tmp_path} is not writable"):
        require_new_directory(tmp_path / "a/b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("broken", ["no end row", "goes on"])
def test_rows_of_another_layout_are_refused(tmp_path: Path, broken: str) -> None:
    segment = make_stream([[4]], [[True]], 12).segment
    if broken == "no end row":
        segment.first[2] = True
    else:
        segment.terminated[2] = True
    with pytest.raises(AssertionError, match="episode"):
        write_dataset(tmp_path / "data", [segment], spec=SPEC, meta={}, shard_rows=4)


def test_the_writer_copies_arrays_that_are_overwritten(tmp_path: Path) -> None:
    """A collector's segments are views of arrays it fills again."""
    segment = make_stream([[4], [9]], [[True], [False]], 30).segment
    shared = cut(segment, 0, 5)

    def parts():
        for start in range(0, 30, 5):
            fresh = cut(segment, start, start + 5)
            for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid"):
                getattr(shared, name).copy_(getattr(fresh, name).clone())
            yield shared

    expected = spelled(segment)
    segment = tree_copy(segment)
    shared = tree_copy(shared)
    write_dataset(tmp_path / "data", parts(), spec=SPEC, meta={}, shard_rows=14)
    assert Counter(
        spell(e, 0, 0, len(e.reward)) for e in read_dataset(tmp_path / "data").episodes()
    ) == (expected)


def tree_copy(segment: Segment) -> Segment:
    names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
    return replace(segment, **{n: getattr(segment, n).clone() for n in names})


def test_export(tmp_path: Path) -> None:
    """A replay as ``export_replay`` sees it: absolute row numbers, the oldest row not 0."""
    segment = make_stream([[4], [9]], [[True], [False]], 30).segment
    oldest = 1000

    class Replay:
        ring = SimpleNamespace(oldest=oldest, head=oldest + 30, columns=2)

        def stored(self, rows, *, skip):
            assert rows > 0
            for start in range(skip, 30, 7):
                yield replace(cut(segment, start, min(start + 7, 30)), states=(), state=())

        def stored_states(self):
            row, column = np.array([5, 0]), np.array([0, 1])
            return row + oldest, column, (segment.states[0].numpy()[row, column],)

    out = tmp_path / "data"
    export_replay(Replay(), out, config_text="seed: 3\n", spec=SPEC, meta=SOURCE, shard_rows=16)
    dataset = read_dataset(out)
    assert dataset.source == {**SOURCE, "config": "seed: 3\n"}
    assert spelled(joined(list(dataset.chunks(3, 6)))) == spelled(segment)
    kept = [float(e.states[0][:, 0, 0].max()) for e in dataset.episodes()]
    assert sorted(kept)[-2:] == [state_of(0, 1, 0), state_of(1, 0, 0)]
    for last, skip in ((1000, 0), (60, 0), (51, 4), (12, 24)):
        out = tmp_path / f"last{last}"
        given = {"spec": SPEC, "meta": SOURCE, "shard_rows": 16, "last": last}
        export_replay(Replay(), out, config_text="", **given)
        found = read_dataset(out)
        assert spelled(joined(list(found.chunks(2, 6)))) == spelled(cut(segment, skip, 30)), last
        starts = {float(e.states[0][0, 0, 0]) for e in found.episodes()}
        assert (state_of(0, 1, 0) in starts) == (skip <= 5), last


@pytest.mark.parametrize("window", [Window(2, 3, 2), Window(0, 1, 1)], ids=["table", "cells"])
def test_a_replay_comes_back_window_for_window(tmp_path: Path, window: Window) -> None:
    """Observations, steps and stored states of every window, in another number of columns."""
    capacity = 512 if window.burnin else None
    segment = make_stream([[4, 11], [9], [30]], [[True, False], [True], [False]], 60).segment
    replay = make_replay(part(segment, 0, 0), rows=80, window=window, capacity=capacity)
    for start in range(0, 60, 8):
        replay.add(part(segment, start, min(start + 8, 60)))
    out = tmp_path / "data"
    export_replay(replay, out, config_text="", spec=SPEC, meta={}, shard_rows=50)
    example = part(make_stream([[1]] * 2, [[True]] * 2, 1).segment, 0, 0)
    again = make_replay(example, rows=120, window=window, capacity=capacity)
    for chunk in read_dataset(out).chunks(2, 16, like=example):
        again.add(chunk)
        again.check()
    before, after = windows_in(replay), windows_in(again)
    assert len(replay) > 20
    assert before - after == Counter()
    # What was open is closed: its last steps make windows too.
    assert {w[-1] for w in after - before} <= {(0, 7), (2, 1)}


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


def test_spaces_of_shipped_environments_are_described() -> None:
    from rlrun.dataset.format import spec_json

    for env_id in ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1"):
        env = gym.make(env_id)
        spec = Spec(env.observation_space, env.action_space)
        assert json.loads(json.dumps(spec_json(spec), allow_nan=False)) == spec_json(spec)
        env.close()


def reseal(made: Path, **changed: object) -> None:
    fields = unseal((made / DESCRIPTION_FILE).read_bytes()) | changed
    (made / DESCRIPTION_FILE).write_bytes(seal(fields))


def replace_shards(made: Path, edit: Callable[[dict[str, Any]], None], name: str = "data-") -> None:
    """Edit every shard, or other files; the description has their new hashes."""
    fields = unseal((made / DESCRIPTION_FILE).read_bytes())
    for entry in [*fields["shards"], fields["index"], fields["states"]]:
        if entry["file"].startswith(name):
            arrays = tensorfile.read(made / entry["file"], numpy=reader._AllNames())
            arrays = {n: np.array(x) for n, x in arrays.items()}
            edit(arrays)
            (made / entry["file"]).unlink()
            digest, size = tensorfile.write(made / entry["file"], arrays, {})
            entry |= {"sha256": digest, "bytes": size}
    reseal(made, **fields)


def read_all(made: Path) -> list[Segment]:
    dataset = read_dataset(made)
    dataset.require(SPEC)
    return list(dataset.chunks(2, 8))


def test_files_say_which_numbering_they_hold(made: Path) -> None:
    """Another writer may number Discrete actions as its environment does."""
    assert unseal((made / DESCRIPTION_FILE).read_bytes())["action_start"] == 0
    before = [c.action for c in read_all(made)]
    replace_shards(made, lambda arrays: np.add(arrays["action"], 7, out=arrays["action"]))
    with pytest.raises(ConfigError, match=r"data-0000.*its action is 1[0-9]; allowed is \[0, 9\]"):
        read_all(made)
    reseal(made, action_start=7)
    for old, new in zip(before, read_all(made), strict=True):
        assert torch.equal(old, new.action)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(arrays: dict[str, Any]) -> None:
        arrays[name][...] = value

    return edit


def cast(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, Any]], None]:
    def edit(arrays: dict[str, Any]) -> None:
        arrays[name] = change(arrays[name])

    return edit


SHARDS = {
    "action 1e15": put("action", 10**15), "action -1": put("action", -1),
    "nan obs": put("obs", np.nan), "nan reward": put("reward", np.nan),
    "inf reward": put("reward", np.inf),
    **{f"no {n}": lambda a, n=n: a.pop(n) for n in ("reward", "action", "valid", "obs")},
    **{f"{n} half": cast(n, lambda x: x.astype(np.float16)) for n in ("reward", "action", "valid")},
    **{f"{n} short": cast(n, lambda x: x[:-1]) for n in ("reward", "action", "terminated", "obs")},
    **{f"{n} deep": cast(n, lambda x: x[..., None]) for n in ("reward", "action", "valid")},
    **{f"{n} wide": cast(n, lambda x: np.repeat(x, 2, 1)) for n in ("reward", "obs")},
}  # fmt: skip
INDEX = {
    **{f"{n} {v}": put(n, v) for n in ("row", "column", "steps") for v in (-1, 10**15, 2**62)},
    **{f"no {n}": lambda a, n=n: a.pop(n) for n in ("row", "steps")},
    **{f"{n} float": cast(n, lambda x: x.astype(np.float32)) for n in ("row", "column")},
    "short": cast("row", lambda x: x[:-1]), "deep": cast("row", lambda x: x[:, None]),
}  # fmt: skip
STATES = {
    **{f"{n} {v}": put(n, v) for n in ("row", "column") for v in (-1, 10**15)},
    "short": cast("states/0", lambda x: x[:-1]), "unsorted": cast("column", lambda x: x[::-1]),
    "no leaf": lambda a: a.pop("states/0"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "edit"),
    [(n, e) for n, cases in (("data", SHARDS), ("index", INDEX), ("states", STATES))
     for e in cases.values()],
    ids=[f"{n} {e}" for n, cases in (("data", SHARDS), ("index", INDEX), ("states", STATES))
         for e in cases],
)  # fmt: skip
def test_sealed_files_of_wrong_content_are_refused(made: Path, name: str, edit: Any) -> None:
    replace_shards(made, edit, name)
    with pytest.raises((ConfigError, StorageError), match=f"buffer.load = .*{name}.*; "):
        read_all(made)


WRONG: list[Any] = [None, -1, 0, 10**30, 1.5, "x", [], {}, [1], [[]], {"a": 1}, True, [{}]]
OPTIONAL = {  # harmless, or not read
    "rlrun": WRONG, "source": [{}, {"a": 1}], "return": [None], "states": [None],
    "length_mean": WRONG, "format": [True],
    "episodes": [0], "steps": [0], "trajectories": [0], "action_start": [0], "sha256": WRONG,
}  # fmt: skip


def test_sealed_descriptions_of_wrong_content_are_refused(made: Path) -> None:
    whole = (made / DESCRIPTION_FILE).read_bytes()
    fields = unseal(whole)
    first = fields["shards"][0]
    deep: Any = "obs"
    for _ in range(100):
        deep = {"tuple": [deep]}
    cases = [(name, value) for name in fields for value in WRONG]
    cases += [("shards", [{**first, key: v}]) for key in first for v in WRONG if v != first[key]]
    cases += [("obs", {"dict": [["x", "obs"]]}), ("obs", deep), ("obs", "reward"), ("obs", "nope")]
    cases += [("spaces", {"obs": {}, "action": {}}), ("fields", {**fields["fields"], "obs": {}})]
    for name, value in cases:
        if any(value is v or value == v for v in OPTIONAL.get(name, [])):
            continue
        (made / DESCRIPTION_FILE).write_bytes(seal({**fields, name: value}))
        try:
            read_all(made)
        except (ConfigError, StorageError):
            continue
        pytest.fail(f"{name} = {value} was read")
    (made / DESCRIPTION_FILE).write_bytes(whole)
    assert read_all(made)
