"""Coded or raw, weights and rows arrive bit for bit; lost frames are asked for again."""

import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.buffer.windows.cutter import Cutter, StateFilter
from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.build.transport import collector_side_of
from rlrun.codec import (
    CODER_OPTIONS,
    CodecError,
    DamagedFrame,
    ForeignFrame,
    NeedKeyFrame,
    StaleFrame,
)
from rlrun.pipeline.process import CollectorProcess
from rlrun.pipeline.received import RowCheck
from rlrun.run import train
from rlrun.rundir.checkpoint import load_newest
from rlrun.schema import TransportConfig
from rlrun.schema.pipeline import Coder
from rlrun.transport import InProcess, make_collector_side, make_learner_side
from rlrun.types import CHUNK_FIELDS, Chunk, Counters, Window, tree_leaves, tree_map
from tests.codec import samples
from tests.compose import changed, config
from tests.pipeline.test_serial import SMOKE, go

CODED = TransportConfig(
    "coded", "auto", "auto", keep=3, key_seconds=0.0, link_mbps=None, copies="float32"
)
RAW = TransportConfig(
    "raw", "auto", "auto", keep=3, key_seconds=0.0, link_mbps=None, copies="float32"
)


def weights(k: int, shape=(40, 9)) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    base = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    return {"a": base + 1e-4 * k, "b": (base[0] * k).bfloat16(), "n": torch.tensor(k)}


def assert_same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def fields(chunk: Chunk) -> list[np.ndarray]:
    return tree_leaves(tuple(getattr(chunk, name) for name in CHUNK_FIELDS))


def chunk_of(rng: np.random.Generator, steps: int, columns: int, obs: str = "box") -> Chunk:
    """Rows as a collector may bring them."""

    def flag(rows: int) -> np.ndarray:
        return rng.random((rows, columns)) < 0.2

    screen = rng.integers(0, 3, (steps + 1, columns, 6, 5)).astype(np.uint8)
    box = rng.normal(size=(steps + 1, columns, 4)).astype(np.float32)
    state = rng.normal(size=(steps, columns, 3)).astype(np.float32)
    return Chunk(
        obs={"box": box, "screen": screen, "tree": {"a": box, "b": (screen, box[..., 0])}}[obs],
        first=flag(steps + 1),
        action=rng.integers(0, 4, (steps, columns)),
        reward=rng.normal(size=(steps, columns)).astype(np.float32),
        terminated=flag(steps),
        truncated=flag(steps),
        valid=flag(steps),
        extras={"lives": rng.integers(0, 3, (steps, columns)).astype(np.float32)},
        states=(state, state + 1),
    )


def test_schema_and_codec_know_the_same_coders():
    assert set(Coder.__args__) == {*CODER_OPTIONS}


@pytest.mark.parametrize("setting", [RAW, CODED], ids=["raw", "coded"])
def test_weights_and_rows_arrive(setting):
    link = InProcess(make_learner_side(setting), make_collector_side(setting))
    rng = np.random.default_rng(0)
    for k in range(6):
        given = weights(k)
        if setting is RAW:
            del given["b"]  # numpy has no bfloat16
        assert_same(link.weights(given), given)
        chunk = chunk_of(rng, 1 + 3 * k, 2, ("box", "screen", "tree")[k % 3])
        found = link.rows(chunk)
        for x, y in zip(fields(found), fields(chunk), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        assert all(x.flags.writeable for x in fields(found)), "torch takes no others"
    metrics = link.metrics()
    assert (metrics == {}) == (setting is RAW)
    if metrics:
        assert 0 < metrics["codec/weights_ratio"] < 1.2
        assert metrics["codec/weights_bytes"] > metrics["codec/chunks_bytes"] / 50
        assert link.metrics() == {}, "since the last record"


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 12), st.integers(1, 4),
    st.sampled_from(["box", "screen", "tree"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_chunk_arrives(seed, steps, columns, obs):
    link = InProcess(make_learner_side(CODED), make_collector_side(CODED))
    chunk = chunk_of(np.random.default_rng(seed), steps, columns, obs)
    before = tree_map(np.copy, tuple(fields(chunk)))
    found = link.rows(chunk)
    assert type(found.obs) is type(chunk.obs)
    for x, y, z in zip(fields(found), before, fields(chunk), strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(z, y)


@pytest.mark.parametrize("coder", samples.CODERS)
def test_every_coder(coder):
    setting = changed(CODED, weights=coder, chunks=coder)
    link = InProcess(make_learner_side(setting), make_collector_side(setting))
    rng = np.random.default_rng(1)
    for k in range(4):
        assert_same(link.weights(weights(k)), weights(k))
        chunk = chunk_of(rng, 9, 2)
        for x, y in zip(fields(link.rows(chunk)), fields(chunk), strict=True):
            np.testing.assert_array_equal(x, y)


# -- what a network does ---------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["pass", "lose", "twice", "damage", "late"]), max_size=25))
@settings(max_examples=80, deadline=None)
def test_a_bad_wire(plan):
    """Lost, doubled, damaged, late frames: a collector has the newest weights or an error."""
    learner, collector = make_learner_side(CODED), make_collector_side(CODED)
    held, late = None, []
    for k, event in enumerate(plan):
        message = learner.pack(weights(k))
        if event == "lose":
            continue
        if event == "late":
            late.append(message)
            continue
        if event == "damage":
            broken = bytearray(message)
            broken[len(broken) // 2] ^= 4
            with pytest.raises(CodecError):
                collector.unpack(bytes(broken))
        try:
            held = collector.unpack(message)
        except NeedKeyFrame as need:
            held = collector.unpack(learner.answer(need))
        assert_same(held, weights(k))
        if event == "twice":
            with pytest.raises(StaleFrame):
                collector.unpack(message)
        for old in late:
            with pytest.raises(CodecError):
                collector.unpack(old)
        late.clear()


def test_a_late_joiner_and_a_restarted_learner():
    learner, first = make_learner_side(CODED), make_collector_side(CODED)
    for k in range(3):
        first.unpack(learner.pack(weights(k)))
    second = make_collector_side(CODED, 1)
    with pytest.raises(NeedKeyFrame) as raised:
        second.unpack(learner.pack(weights(3)))
    assert_same(second.unpack(learner.answer(raised.value)), weights(3))
    again = make_learner_side(CODED)
    assert_same(second.unpack(again.pack(weights(9))), weights(9))
    with pytest.raises(ForeignFrame):
        second.unpack(learner.pack(weights(4)))


def test_key_frames_are_rationed_and_waited_for():
    setting = changed(CODED, key_seconds=0.3)
    learner = make_learner_side(setting)
    learner.pack(weights(0))
    collector = make_collector_side(setting)
    link = InProcess(learner, collector)
    assert_same(link.weights(weights(1)), weights(1))


def test_rows_of_another_collector_are_refused():
    rng = np.random.default_rng(0)
    learner = make_learner_side(CODED, 0)
    with pytest.raises(ForeignFrame):
        learner.unpack(make_collector_side(CODED, 1).pack(chunk_of(rng, 3, 2)))
    message = make_collector_side(CODED, 0).pack(chunk_of(rng, 3, 2))
    with pytest.raises(DamagedFrame):
        learner.unpack(message[:-1])
    learner.unpack(message)


# -- states no window starts from ------------------------------------------------------------------

STREAMS = st.lists(st.lists(st.integers(1, 14), min_size=1, max_size=4), min_size=1, max_size=3)


@given(
    STREAMS, st.integers(0, 6), st.integers(1, 5), st.integers(1, 4), st.booleans(),
    st.sampled_from(["last", "null_padding", "drop"]), st.booleans(), st.data(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_windows_start_only_where_states_are_kept(
    lengths, burnin, learned, nstep, plain, residual, close, data
):
    """Whatever the tiling and the pieces: a window's first row is one ``StateFilter`` keeps."""
    window = Window(burnin, learned, nstep)
    most = window.rows - 1 if plain else window.learned - 1
    overlap = data.draw(st.integers(0, most))
    given = {"columns": len(lengths), "overlap": overlap, "residual": residual, "plain": plain}
    cutter, starts = Cutter(window, **given), StateFilter(window, **given, close=close)
    first, valid = [], []
    for own in lengths:  # an end row behind every episode
        steps = [
            (t == 0, t < n) for n in itertools.islice(itertools.cycle(own), 8) for t in range(n + 1)
        ]
        first.append([f for f, _ in steps][:60])
        valid.append([v for _, v in steps][:60])
    size = min(map(len, first))
    first, valid = (np.array([x[:size] for x in y]).T for y in (first, valid))
    kept, begun, seen = [], [], 0
    while seen < size:
        count = data.draw(st.integers(1, size - seen))
        part = slice(seen, seen + count)
        kept.append(starts.may_start(first[part]))
        windows = cutter.cut(first[part], valid[part], close=close)
        begun += zip(windows.learn - windows.burnin, windows.column, strict=True)
        seen += count
    keep = np.concatenate(kept)
    if starts.keep_all:
        return  # ``filter`` zeroes nothing
    for row, column in begun:
        assert keep[row, column], (row, column)


def test_blanked_states_are_most_of_them_and_the_rest_is_untouched():
    c = config("policy=r2d2", "env=cartpole", "transport=coded")
    end = collector_side_of(make_plan(c))
    rng = np.random.default_rng(0)
    chunk = chunk_of(rng, 200, 16)
    chunk.first[:] = False
    chunk.first[0] = True
    before = tree_map(np.copy, chunk.states)
    thin = end.thin(chunk)
    np.testing.assert_array_equal(chunk.states[0], before[0])
    some = (thin.states[0] != 0).any(-1)
    np.testing.assert_array_equal(thin.states[0][some], chunk.states[0][some])
    assert 0.05 < some.mean() < 0.1  # every 15th row
    assert thin.obs is chunk.obs
    raw = changed(c, transport=RAW)
    assert collector_side_of(make_plan(raw)).pack(chunk) is chunk


# -- runs ------------------------------------------------------------------------------------------

LINES = {
    "r2d2": ("policy=r2d2", "env=cartpole"),
    "td": ("policy=r2d2", "env=repeat_previous", "buffer.initial_priority=td"),
    "plain": ("policy=r2d2", "env=tmaze", "collector.tiling=plain", "collector.overlap=3",
              "collector.residual=null_padding", "collector.trajectory=collect", "memory=gru"),
    "last": ("policy=drqn", "env=cartpole", "collector.tiling=plain", "collector.overlap=0",
             "collector.residual=last"),
    "dqn": ("policy=dqn", "env=cartpole", "env.frame_stack=2", "buffer=rank"),
    "her": ("policy=dqn", "env=bitflip", "env.kwargs.bits=4", "buffer.relabel=future"),
    "random": ("policy=random", "env=bandit"),
    "sac": ("policy=sac", "env=pendulum", "torso.hidden=[16]"),
    "separate": ("policy=dqn", "env=relay", "agents=separate"),
    "ppo_separate": ("policy=ppo", "env=relay", "agents=separate", "collector.n_sample=96"),
}  # fmt: skip


@pytest.mark.parametrize("pipeline", ["serial", "overlapped"])
@pytest.mark.parametrize("name", LINES)
def test_coded_runs_are_raw_runs(tmp_path, name, pipeline):
    """The same digest, the same final weights; codec/ metrics are told, outside the digest."""
    if pipeline == "overlapped" and name not in ("r2d2", "dqn"):
        pytest.skip("the wire is the same")
    line = (*LINES[name], f"pipeline={pipeline}")
    raw = go(tmp_path / "raw", *line)
    coded = go(tmp_path / "coded", *line, "transport=coded")
    assert raw["digest"] == coded["digest"]
    assert raw["eval"] == coded["eval"]
    told = [json.loads(x) for x in (tmp_path / "coded/timings.jsonl").read_text().splitlines()]
    assert 0 < told[-1]["codec/chunks_ratio"] < 2  # 16 small rows a frame: headers count
    assert ("codec/weights_ratio" in told[-1]) == (name != "random")
    assert "codec/" not in (tmp_path / "coded/metrics.jsonl").read_text()
    assert "codec/" not in (tmp_path / "raw/timings.jsonl").read_text()


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [("r2d2", "overlapped"), ("sac", "serial"), ("separate", "serial"),
     ("ppo_separate", "overlapped")],
)  # fmt: skip
def test_resume_coded_as_raw(tmp_path, name, pipeline):
    """A run that stops and goes on is the same run through either; what travels may change."""
    line = (*LINES[name], f"pipeline={pipeline}")
    ends = []
    for wire in ("raw", "coded"):
        go(tmp_path / wire, *line, f"transport={wire}")
        longer = config(*SMOKE, *line, f"transport={wire}", "run.total_steps=700")
        assert train.resume(tmp_path / wire, longer, raw_yaml="", overrides=[]) == 0
        ends.append(json.loads((tmp_path / wire / "run.json").read_text())["digest"])
    assert ends[0] == ends[1]
    change = config(*SMOKE, *line, "transport=raw", "run.total_steps=1000")
    assert train.resume(tmp_path / "coded", change, raw_yaml="", overrides=[]) == 0
    state, _ = load_newest(tmp_path / "coded/checkpoints")
    assert state["counters"]["env_steps"] >= 1000


def test_a_lost_message_on_the_pipe_is_requested_again():
    """The collector's process lacks a base, gets one, and continues."""
    c = config(*SMOKE, "policy=r2d2", "env=cartpole", "transport=coded")
    plan = make_plan(c)
    make = partial(build.make_collector, plan)
    here = make(Counters())
    far = partial(collector_side_of, plan)
    remote = CollectorProcess(
        make, here.policy, make_learner_side(changed(c.transport, key_seconds=0.0)), far,
        check=RowCheck(plan.row, plan.columns), max_seconds=60,
    )  # fmt: skip
    try:
        for k in range(4):
            if k in (0, 2):
                remote.transport.pack(here.policy.weights())  # a frame that never arrives
            remote.start(100 * k)
            here.counters.env_steps = 100 * k
            here.actor.refresh()
            own, got = here.collect_rows(), remote.result()
            for name in ("obs", "action", "reward", "first"):
                np.testing.assert_array_equal(getattr(own, name), getattr(got.chunk, name))
            with torch.no_grad():
                for p in here.policy.net.parameters():
                    p.mul_(1.1)
    finally:
        remote.close()
