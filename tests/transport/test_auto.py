"""Messages are coded where the link is slower than the codec; the values never change."""

import math

import numpy as np
import pytest
import torch

from rlrun.transport import AutoCollectorSide, AutoLearnerSide
from rlrun.transport.auto import break_even, nbytes
from rlrun.types import CHUNK_FIELDS, Chunk, tree_leaves
from tests.compose import config
from tests.reference.streams import make_stream

AUTO = config("policy=r2d2", "env=cartpole", "pipeline=ray").transport
FAST, SLOW = math.inf, 1e3  # bytes/s


def chunk() -> Chunk:
    return Chunk.of(make_stream([[40], [25]], [[True], [False]], 200).segment)


def sides(link, transport=AUTO):
    thin = {"thin": lambda rows: rows}
    return AutoLearnerSide(transport, 0, link=link), AutoCollectorSide(
        transport, 0, link=link, **thin
    )


def leaves(rows: Chunk):
    return [x for name in CHUNK_FIELDS for x in tree_leaves(getattr(rows, name))]


def test_the_rule():
    """1 GB/s both ways at a ratio of 0.5: 0.5 / (1e-9 + 1e-9) = 250 MB/s."""
    assert break_even(0.5, 1e9, 1e9) == pytest.approx(250e6)
    assert break_even(1.2, 1e9, 1e9) == 0


@pytest.mark.parametrize("link", [FAST, SLOW])
def test_rows_arrive_as_they_were_sent(link):
    learner, collector = sides(link)
    message = collector.pack(chunk())
    assert isinstance(message, bytes) == (link == SLOW)
    for a, b in zip(leaves(learner.unpack(message)), leaves(chunk()), strict=True):
        np.testing.assert_array_equal(a, b)
    raw, sent = collector.last_bytes
    assert sent == nbytes(message)
    assert (sent < raw) == (link == SLOW)


@pytest.mark.parametrize("link", [FAST, SLOW])
def test_weights_arrive_as_they_were_sent(link):
    learner, collector = sides(link)
    weights = {"w": torch.randn(200, 30), "b": torch.zeros(30)}
    for step in range(5):
        weights = {n: w + 0.001 * step for n, w in weights.items()}
        message = learner.pack(weights)
        assert isinstance(message, bytes) == (link == SLOW)
        found = collector.unpack(message)
        assert all(torch.equal(found[n], w) for n, w in weights.items())
    raw, sent = learner.sent
    assert sent == raw if link == FAST else sent < raw


def test_a_link_between_the_two_speeds_is_decided_by_what_was_measured(monkeypatch):
    """Coded at first, since nothing was measured yet; raw once coding proves to be slower."""
    learner, collector = sides(1e13)
    assert collector.decided is False
    assert not isinstance(collector.pack(chunk()), bytes)
    assert collector.decided
    for _ in range(3):
        learner.pack({"w": torch.randn(50, 50)})
    assert not learner.coded


def test_a_late_joiner_asks_for_a_frame_it_can_decode():
    learner, collector = sides(SLOW)
    weights = {"w": torch.zeros(40)}
    for _ in range(3):
        weights = {"w": weights["w"] + 1}
        frame = learner.pack(weights)
    from rlrun.codec import NeedKeyFrame

    with pytest.raises(NeedKeyFrame) as need:
        collector.unpack(frame)
    learner.coded_side.weights.key_seconds = 0.0
    assert torch.equal(collector.unpack(learner.answer(need.value))["w"], weights["w"])
