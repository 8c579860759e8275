"""Streams: every fault raises an error, no wrong tree is returned, and decoders recover."""

import pickle

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import Decoder, Encoder
from tests.codec import samples


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def encoder(name="w0/net", *, keep=4, key_seconds=10.0, **kw) -> Encoder:
    return Encoder(name, keep=keep, key_seconds=key_seconds, **kw)


def trees(count: int, seed: int = 0) -> list[dict]:
    values = samples.walk(samples.KIND["float32"], (40, 30), seed, count)
    return [{"w": v, "n": np.asarray(k)} for k, v in enumerate(values)]


def equal(a, b) -> bool:
    return codec.encode(a, coder="raw") == codec.encode(b, coder="raw")


@pytest.mark.parametrize("coder", samples.CODERS)
def test_in_order(coder: str) -> None:
    sender, receiver = encoder(coder=coder), Decoder("w0/net")
    sizes, shapes = [], {"w": np.full((5, 50), 0.5, np.float32)}
    for tree in [*trees(6), shapes, shapes]:  # another shape is a key frame
        frame = sender.encode(tree)
        sizes.append(len(frame))
        assert equal(receiver.decode(frame), tree)
    assert receiver.lost == 0
    assert coder == "raw" or max(sizes[1:6]) < sizes[0]
    with pytest.raises(codec.ForeignFrame):
        receiver.decode(encoder("w1/net").encode(shapes))
    tree = {"w": np.zeros(100, np.float32)}
    for k in range(4):  # the encoder copies
        tree["w"] += k
        back = receiver.decode(sender.encode(tree))
        assert back["w"][0] == sum(range(k + 1))
    with pytest.raises(ValueError):  # noqa: PT011
        back["w"][0] = 1


def test_lost_frame_and_delta_answer() -> None:
    sender, receiver, data = encoder(), Decoder("w0/net"), trees(8)
    for tree in data[:3]:
        receiver.decode(sender.encode(tree))
    sender.encode(data[3])  # lost
    with pytest.raises(codec.NeedKeyFrame) as caught:
        receiver.decode(sender.encode(data[4]))
    assert caught.value.have_seq == 2
    answer = sender.answer(caught.value)
    assert equal(receiver.decode(answer), data[4])
    assert len(answer) < 0.9 * len(codec.encode(data[4]))
    assert receiver.lost == 1
    for tree in data[5:]:  # one base first, two again
        assert equal(receiver.decode(sender.encode(tree)), tree)


def test_a_decoder_with_one_base_recovers() -> None:
    """It has the last frame but not the one before: the next delta has one base.

    Private: only an answer of another encoder sets the flag.
    """
    sender, data = encoder(), trees(7)
    receiver = Decoder("w0/net")
    receiver.decode(sender.encode(data[0]))
    sender.encode(data[1])
    with pytest.raises(codec.NeedKeyFrame):
        receiver.decode(sender.encode(data[2]))
    receiver.decode(sender.answer(receiver.key_frame_request()))
    sender._one_base = False  # as after an answer of another encoder
    frame = sender.encode(data[3])
    with pytest.raises(codec.NeedKeyFrame) as caught:
        receiver.decode(frame)
    assert equal(receiver.decode(sender.answer(caught.value)), data[3])
    assert equal(receiver.decode(sender.encode(data[4])), data[4])
    assert sender.answer(receiver.key_frame_request()) is None  # it has the last frame


def test_key_frame_when_the_content_is_dropped() -> None:
    clock = Clock()
    sender, receiver, data = encoder(keep=2), Decoder("w0/net"), trees(7)
    sender.clock = clock
    receiver.decode(sender.encode(data[0]))
    frames = [sender.encode(tree) for tree in data[1:5]]
    with pytest.raises(codec.NeedKeyFrame) as caught:
        receiver.decode(frames[-1])
    assert sender.answer(caught.value) is None  # the first frame was a key, just now
    clock.now = 11.0
    answer = sender.answer(caught.value)
    assert sender.answer(caught.value) is answer  # cached
    assert equal(receiver.decode(answer), data[4])
    clock.now = 12.0
    frame = sender.encode(data[5])
    assert sender.answer(Decoder("w0/net").key_frame_request()) is None  # rate-limited
    assert equal(receiver.decode(frame), data[5])


def test_restarted_worker() -> None:
    """Its deltas have no base; its key frame replaces the old stream, which is then foreign."""
    old, new, receiver, data = encoder(), encoder(), Decoder("w0/net"), trees(5)
    receiver.decode(old.encode(data[0]))
    key = new.encode(data[0])
    with pytest.raises(codec.NeedKeyFrame) as caught:
        receiver.decode(new.encode(data[1]))
    assert (caught.value.stream, caught.value.have_seq) == (new.id, -1)
    assert equal(receiver.decode(old.encode(data[1])), data[1])
    assert equal(receiver.decode(key), data[0])
    with pytest.raises(codec.ForeignFrame):
        receiver.decode(old.encode(data[2]))


def test_same_stream_but_another_base() -> None:
    """An encoder restored with its stream id, other arrays: detected by the hash."""
    one, two, receiver = encoder(), encoder(), Decoder("w0/net")
    two.id = one.id
    receiver.decode(one.encode(trees(1, seed=1)[0]))
    two.encode(trees(1, seed=2)[0])
    with pytest.raises(codec.NeedKeyFrame):
        receiver.decode(two.encode(trees(2, seed=2)[1]))


def test_chunks_need_no_base() -> None:
    """A lost chunk is counted and the next one decoded."""
    sender, receiver = encoder("w0/rows"), Decoder("w0/rows")
    rows = [{"obs": x} for x in samples.walk(samples.KIND["float32"], (16, 8, 4), 3, 4)]
    frames = [sender.encode_chunk(row) for row in rows]
    for k in (0, 2, 3):
        assert equal(receiver.decode(frames[k]), rows[k])
    assert receiver.lost == 1
    with pytest.raises(codec.StaleFrame):
        receiver.decode(frames[1])


def test_a_failed_encode_changes_nothing() -> None:
    sender, receiver, data = encoder(), Decoder("w0/net"), trees(3)
    receiver.decode(sender.encode(data[0]))
    with pytest.raises(codec.CodecError):
        sender.encode({"w": "text"})
    assert equal(receiver.decode(sender.encode(data[1])), data[1])


def test_a_delta_needs_its_bases() -> None:
    second, base, now = samples.walk(samples.KIND["float32"], (100,), 0)
    frame = codec.encode(now, base=base, second=second)
    for bases in ({}, {"base": second}, {"base": base}, {"base": second, "second": base}):
        with pytest.raises(codec.NeedKeyFrame) as need:
            codec.decode(frame, **bases)
    sent = pickle.loads(pickle.dumps(need.value))
    assert isinstance(sent, codec.NeedKeyFrame)
    assert vars(sent) == vars(need.value)
    assert str(sent) == str(need.value)
