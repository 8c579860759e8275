"""Coded or raw, weights and rows arrive bit for bit; lost frames are asked for again."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.codec import (
    CODER_OPTIONS,
    CodecError,
    DamagedFrame,
    ForeignFrame,
    NeedKeyFrame,
    StaleFrame,
)
from rlrun.pipeline.overlapped import CollectorProcess, RowCheck
from rlrun.pipeline.transport import (
    InProcess,
    chunk_bytes,
    decided,
    make_collector_side,
    make_learner_side,
    message_bytes,
)
from rlrun.run import build, start
from rlrun.run.build import collector_side_of
from rlrun.run.checkpoint import load_newest
from rlrun.run.plan import make_plan
from rlrun.schema import TransportConfig
from rlrun.schema.run import Coder
from rlrun.types import CHUNK_FIELDS, Chunk, Counters, tree_leaves
from tests.compose import changed, config
from tests.pipeline.make import SMOKE, go

CODED, RAW = (
    TransportConfig(name, "auto", "auto", keep=3, key_seconds=0.0, link_mbps=None, copies="float32")
    for name in ("coded", "raw")
)
AUTO = config("policy=r2d2", "env=cartpole", "pipeline=ray").transport


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


def assert_rows(found: Chunk, expected: Chunk) -> None:
    for x, y in zip(fields(found), fields(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


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
        given_ = weights(k)
        if setting is RAW:
            del given_["b"]  # numpy has no bfloat16
        assert_same(link.weights(given_), given_)
        chunk = chunk_of(rng, 3 * k, 1 + k % 3, ("box", "screen", "tree")[k % 3])
        found = link.rows(chunk)
        assert_rows(found, chunk)
        assert all(x.flags.writeable for x in fields(found)), "torch takes no others"
    metrics = link.metrics()
    assert (metrics == {}) == (setting is RAW)
    if metrics:
        assert 0 < metrics["codec/weights_ratio"] < 1.2
        assert metrics["codec/weights_bytes"] > metrics["codec/chunks_bytes"] / 50
        assert link.metrics() == {}, "since the last record"


EVENTS = st.sampled_from(["send", "send", "lose", "twice", "damage", "late"])


@given(st.lists(EVENTS, min_size=1, max_size=25))
@settings(max_examples=40)
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


def test_key_frames_are_rationed_and_waited_for():
    setting = changed(CODED, key_seconds=0.3)
    learner = make_learner_side(setting)
    learner.pack(weights(0))
    link = InProcess(learner, make_collector_side(setting))
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


def test_states_no_window_starts_from_are_blanked_where_rows_are_coded():
    """One row in 15 keeps its state; raw rows would not get smaller."""
    c = config("policy=r2d2", "env=cartpole", "transport=coded")
    chunk = chunk_of(np.random.default_rng(0), 200, 16)
    chunk.first[:] = False
    chunk.first[0] = True
    thin = collector_side_of(make_plan(c)).thin(chunk)
    assert 0.05 < (thin.states[0] != 0).any(-1).mean() < 0.1
    assert (chunk.states[0] != 0).all()
    assert collector_side_of(make_plan(changed(c, transport=RAW))).pack(chunk) is chunk


# -- coded where the link is slower than the codec -------------------------------------------------


@pytest.mark.parametrize(("name", "mbps", "coded"), [
    ("auto", math.inf, False), ("auto", 501, False), ("auto", 499, True), ("raw", 1, False),
    ("coded", math.inf, True),
])  # fmt: skip
def test_what_is_sent_arrives_over_any_link(name, mbps, coded):
    transport = decided(changed(AUTO, name=name), mbps * 125_000)
    learner, collector = make_learner_side(transport), make_collector_side(transport)
    chunk = chunk_of(np.random.default_rng(0), 200, 2, "screen")
    message = collector.pack(chunk)
    assert isinstance(message, bytes) == coded
    assert_rows(learner.unpack(message), chunk)
    assert (message_bytes(message) < chunk_bytes(chunk)) == coded
    for k in range(5):
        weights = {"w": torch.zeros(200, 30) + 0.001 * k, "b": torch.zeros(30)}
        message = learner.pack(weights)
        assert isinstance(message, bytes) == coded
        assert_same(collector.unpack(message), weights)
    assert (message_bytes(message) < 4 * 6030) == coded


# -- runs ------------------------------------------------------------------------------------------

LINES = {
    "r2d2": ("policy=r2d2", "env=cartpole", "pipeline=overlapped", "buffer.initial_priority=td"),
    "plain": ("policy=r2d2", "env=tmaze", "collector.tiling=plain", "collector.overlap=3",
              "collector.residual=null_padding", "memory=gru"),
    "separate": ("policy=ppo", "env=relay", "agents=separate", "collector.n_sample=96"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_coded_runs_are_raw_runs(tmp_path, name):
    """The same digest; codec/ metrics are told, outside the digest."""
    raw = go(tmp_path / "raw", *LINES[name])
    coded = go(tmp_path / "coded", *LINES[name], "transport=coded")
    assert raw["digest"] == coded["digest"]
    assert raw["eval"] == coded["eval"]
    told = [json.loads(x) for x in (tmp_path / "coded/timings.jsonl").read_text().splitlines()]
    assert 0 < told[-1]["codec/chunks_ratio"] < 2  # 16 small rows a frame: headers count
    assert "codec/weights_ratio" in told[-1]
    assert "codec/" not in (tmp_path / "coded/metrics.jsonl").read_text()
    assert "codec/" not in (tmp_path / "raw/timings.jsonl").read_text()
    if name != "r2d2":
        return
    ends = []
    for wire, goes_on in (("raw", "raw"), ("coded", "coded"), ("coded", "raw")):
        more = 700 if goes_on == wire else 1000  # what travels may change
        longer = config(*SMOKE, *LINES[name], f"transport={goes_on}", f"run.total_steps={more}")
        assert start.start(start.Launch(longer, tmp_path / wire, "", [])) == 0
        ends.append(json.loads((tmp_path / wire / "run.json").read_text())["digest"])
    assert ends[0] == ends[1]
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
