"""Streams: every fault raises an error, no wrong tree is returned, and decoders recover."""

import pickle
import struct
import zlib

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
    sizes = []
    for tree in trees(6):
        frame = sender.encode(tree)
        sizes.append(len(frame))
        assert equal(receiver.decode(frame), tree)
    assert receiver.lost == 0
    assert coder == "raw" or max(sizes[1:]) < sizes[0]


def test_the_encoder_copies_its_arrays() -> None:
    sender, receiver = encoder(), Decoder("w0/net")
    tree = {"w": np.zeros(100, np.float32)}
    for k in range(4):
        tree["w"] += k
        assert receiver.decode(sender.encode(tree))["w"][0] == sum(range(k + 1))


def test_decoded_arrays_are_read_only() -> None:
    back = Decoder("w0/net").decode(encoder().encode(trees(1)[0]))
    with pytest.raises(ValueError, match="read-only"):
        back["w"][0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        back["w"].setflags(write=True)


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


def test_other_decoders_continue_after_an_answer() -> None:
    """A decoder without losses decodes the frames after another's recovery."""
    sender, data = encoder(), trees(9)
    lucky, late = Decoder("w0/net"), Decoder("w0/net")
    for k, tree in enumerate(data):
        frame = sender.encode(tree)
        assert equal(lucky.decode(frame), tree)
        if k == 3:
            answer = sender.answer(late.key_frame_request())
            assert answer is None  # a key frame 3 frames ago: too soon
            sender.clock = lambda: 1e9
        if k == 5:
            assert equal(late.decode(sender.answer(late.key_frame_request())), tree)
        if k > 5:
            assert equal(late.decode(frame), tree)


def test_a_decoder_with_one_base_recovers() -> None:
    """It has the last frame but not the one before: the next delta has one base."""
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
    sender, receiver, data = encoder(keep=2, clock=clock), Decoder("w0/net"), trees(7)
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


def test_duplicates_and_late_frames_are_stale() -> None:
    sender, receiver, data = encoder(), Decoder("w0/net"), trees(4)
    frames = [sender.encode(tree) for tree in data]
    receiver.decode(frames[0])
    receiver.decode(frames[1])
    for old in frames[:2]:
        with pytest.raises(codec.StaleFrame):
            receiver.decode(old)
    assert equal(receiver.decode(frames[2]), data[2])


def test_reordered() -> None:
    sender, receiver, data = encoder(), Decoder("w0/net"), trees(4)
    frames = [sender.encode(tree) for tree in data]
    receiver.decode(frames[0])
    with pytest.raises(codec.NeedKeyFrame):
        receiver.decode(frames[2])
    assert equal(receiver.decode(frames[1]), data[1])  # the base was kept
    assert equal(receiver.decode(frames[2]), data[2])


def test_foreign_worker() -> None:
    receiver = Decoder("w0/net")
    receiver.decode(encoder().encode(trees(1)[0]))
    with pytest.raises(codec.ForeignFrame):
        receiver.decode(encoder("w1/net").encode(trees(1)[0]))


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


def test_a_new_shape_is_a_key_frame() -> None:
    sender, receiver = encoder(), Decoder("w0/net")
    for shape in [(4, 50), (4, 50), (5, 50), (5, 50), (5, 50)]:
        tree = {"w": np.full(shape, 0.5, np.float32)}
        assert equal(receiver.decode(sender.encode(tree)), tree)


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


def test_a_damaged_frame_changes_nothing() -> None:
    sender, receiver, data = encoder(), Decoder("w0/net"), trees(3)
    receiver.decode(sender.encode(data[0]))
    frame = sender.encode(data[1])
    for cut in (0, 3, 60, 71, 72, len(frame) - 1):
        with pytest.raises(codec.DamagedFrame):
            receiver.decode(frame[:cut])
    with pytest.raises(codec.DamagedFrame):
        receiver.decode(frame + b"\0")
    assert equal(receiver.decode(bytearray(frame)), data[1])


def sealed(frame: bytes, at: int, form: str, value: int) -> bytes:
    """Return the frame with one header field replaced and a valid crc."""
    ndim = frame[8]
    end = 60 + 8 * ndim + 8
    head = bytearray(frame[:end])
    struct.pack_into(form, head, at, value)
    return bytes(head) + struct.pack("<I", zlib.crc32(head)) + frame[end + 4 :]


@pytest.mark.parametrize(
    ("at", "form", "value", "error"),
    [
        (60, "<Q", 1 << 40, codec.LimitExceeded),  # elements
        (60, "<Q", (1 << 64) - 1, codec.LimitExceeded),
        (60, "<Q", 99, codec.DamagedFrame),
        (4, "B", 1, codec.DamagedFrame),  # version
        (5, "B", 77, codec.DamagedFrame),  # codec
        (5, "B", 255, codec.DamagedFrame),
        (6, "B", 255, codec.DamagedFrame),  # flags
        (7, "B", 99, codec.DamagedFrame),  # kind
        (8, "B", 200, codec.DamagedFrame),  # dimensions
        (9, "B", 1, codec.DamagedFrame),
        (10, "<H", 20, codec.DamagedFrame),  # header length
        (28, "<Q", 5, codec.DamagedFrame),  # base seq of a key frame
        (44, "<Q", 5, codec.DamagedFrame),  # content hash
        (52, "<Q", 1 << 60, codec.DamagedFrame),  # payload length
    ],
)
def test_wrong_header_fields_are_refused(at, form, value, error) -> None:
    frame = codec.encode(np.zeros(100, np.float32))
    assert codec.decode(sealed(frame, 12, "<Q", 5)).shape == (100,)  # the crc is valid
    with pytest.raises(error):
        codec.decode(sealed(frame, at, form, value))


def test_large_arrays_in_small_frames() -> None:
    """Decoded within the limit, refused beyond it."""
    frame = codec.encode({"zeros": np.zeros(1 << 22, np.float32)})
    assert len(frame) < 200
    assert codec.decode(frame)["zeros"].shape == (1 << 22,)
    with pytest.raises(codec.LimitExceeded):
        codec.decode(frame, max_bytes=1 << 20)
    with pytest.raises(codec.LimitExceeded):
        Decoder("w0/net", max_bytes=1000).decode(encoder().encode(trees(1)[0]))


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


@pytest.mark.parametrize("data", ["text", 3, None, [1], memoryview(b"abcdef")[::2]])
def test_not_bytes(data) -> None:
    with pytest.raises(codec.DamagedFrame):
        codec.decode(data)


def test_the_header_is_small() -> None:
    array = np.random.default_rng(0).integers(0, 256, (10, 10), np.uint8)
    assert len(codec.encode(array)) == 100 + 88
