"""Frames of the format as it was fixed, and mutated ones: an error of the codec's own or the right
tree, never anything else.

Half of the mutations are sealed again (header crc and payload hash made right), so that the
decoders themselves are reached; the content hash is the last line then. CODEC_FUZZ sets the
number of mutations (4000; 1 000 000 take minutes).
"""

import json
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun import codec
from rlrun.codec import frame
from rlrun.codec.coders import CODERS
from rlrun.codec.frame import VERSION, content_of
from rlrun.codec.stream import Bases
from tests.codec import samples
from tests.codec.everything import frames

GOLDEN = json.loads((Path(__file__).parent / f"golden_v{VERSION}.json").read_text("utf-8"))
MUTATIONS = int(os.environ.get("CODEC_FUZZ", "4000"))
LIMIT = 1 << 20


def mutate(frame: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    """One to four edits: bits, bytes, cuts, repeats, splices with another frame."""
    data = bytearray(frame)
    for _ in range(rng.integers(1, 5)):
        at, kind = int(rng.integers(0, max(1, len(data)))), rng.integers(0, 7)
        if kind == 0 and data:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1 and data:
            data[at] = int(rng.choice([0, 1, 127, 128, 255, rng.integers(0, 256)]))
        elif kind == 2:
            del data[at : at + int(rng.integers(1, 20))]
        elif kind == 3:
            data[at:at] = data[at : at + int(rng.integers(1, 20))]
        elif kind == 4:
            del data[at:]
            data += other[at:]
        elif kind == 5 and len(data) > 80:  # the payload's first bytes decide the most
            data[int(rng.integers(68, min(len(data), 120)))] = int(rng.integers(0, 256))
        elif kind == 6 and len(data) > 80:
            struct.pack_into("<Q", data, int(rng.integers(0, 72)), int(rng.integers(0, 1 << 62)))
    if rng.random() < 0.6 and len(data) > 12:
        data[:5] = frame[:5]
        if rng.random() < 0.8:
            data[5:9] = frame[5:9]
        return samples.seal(data)
    return bytes(data)


def right(tree, back) -> bool:
    return codec.encode(back, coder="raw") == codec.encode(tree, coder="raw")


@pytest.fixture(scope="module")
def now() -> dict[str, tuple[bytes, object, dict]]:
    """Frames by name; those of xor, which is only read, from the file."""
    found = {name: (frame, tree, bases) for name, frame, tree, bases in frames()}
    for name in GOLDEN:
        if "/xor/" in name:
            found[name] = bytes.fromhex(GOLDEN[name]), *found[name.replace("xor", "raw")][1:]
    return found


def test_golden_frames_are_read_and_written(now) -> None:
    """Bytes with a zstd stage may change with the library; those are only read."""
    assert len(GOLDEN) > 250
    assert set(GOLDEN) <= set(now)
    for name, text in GOLDEN.items():
        frame, tree, bases = now[name]
        assert right(tree, codec.decode(bytes.fromhex(text), **bases)), name
        assert frame.hex() == text or "/raw/" not in name, name


@pytest.mark.filterwarnings("error")
def test_mutated_frames(now) -> None:
    rng = np.random.default_rng(0)
    pool = [(name, *entry) for name, entry in now.items() if len(entry[0]) < 20000]
    errors: dict[str, int] = {}
    for k in range(MUTATIONS):
        name, frame, tree, bases = pool[k % len(pool)]
        mutated = mutate(frame, rng, pool[int(rng.integers(len(pool)))][1])
        try:
            back = codec.decode(mutated, **bases, max_bytes=LIMIT)
        except codec.CodecError as e:
            errors[type(e).__name__] = errors.get(type(e).__name__, 0) + 1
            continue
        own = struct.unpack_from("<Q", frame, 44) == struct.unpack_from("<Q", mutated, 44)
        assert right(tree, back) or not own, name  # spliced with all of another frame: its own hash
        assert own or stated_hash_holds(mutated, back), name
    assert sum(errors.values()) > 0.9 * MUTATIONS
    assert errors["DamagedFrame"] > 0.5 * MUTATIONS
    assert errors["LimitExceeded"] > 0
    assert errors["NeedKeyFrame"] > 0


def stated_hash_holds(frame: bytes, back) -> bool:
    """Return whether the tree is the one whose content hash the frame states."""
    from rlrun.codec.frame import content_of

    chunk = bool(frame[6] & 4)
    return content_of(back, chunk=chunk).hash == struct.unpack_from("<Q", frame, 44)[0]


@pytest.mark.parametrize("coder", ["planes", "planes_ctx"])
def test_a_second_base_of_other_shapes_is_refused(coder: str) -> None:
    """Kernels read it word by word without a test; hashes are whatever a stranger writes."""
    first = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    second = first + np.float32(1e-3)
    data = codec.encode(2 * first - second, base=first, second=second, coder=coder)
    header, payload, _ = frame.unpack(data, LIMIT)
    small = second[:1]
    contents = (content_of(x, chunk=False) for x in (first, small))
    forged = frame.pack(replace(header, base_hash=Bases(*contents).hash), [bytes(payload)])
    with pytest.raises(codec.DamagedFrame, match="base"):
        codec.decode(forged, base=first, second=small)


def with_field(frame: bytes, at: int, form: str, value: int) -> bytes:
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
        (5, "B", len(CODERS), codec.DamagedFrame),  # codec
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
    assert codec.decode(with_field(frame, 12, "<Q", 5)).shape == (100,)  # the crc is valid
    with pytest.raises(error):
        codec.decode(with_field(frame, at, form, value))


def test_an_index_outside_of_its_palette_is_refused() -> None:
    """Three words, and bit planes of ones: index 3."""
    words = np.arange(3, dtype=np.float32).tobytes()
    header = frame.Header(2, frame.KEY, samples.KIND["float32"].code, (64,), 0, 0, 0, 0, 0)
    for count, error in ((3, "palette"), (4, "content")):
        parts = bytes((1, count)) + words + bytes(4 * (count - 3)) + bytes((0, 255)) * 2
        with pytest.raises(codec.DamagedFrame, match=error):
            codec.decode(frame.pack(header, [parts]))


def test_a_delta_of_rows_is_refused() -> None:
    """Its fields would not be those of its base."""
    base = {"a": np.zeros(100, np.float32), "b": np.zeros(100, np.float32)}
    delta = codec.encode(base, base=base)
    assert np.array_equal(codec.decode(delta, base=base)["a"], base["a"])
    with pytest.raises(codec.DamagedFrame, match="header"):
        codec.decode(with_field(delta, 6, "B", delta[6] | 4), base=base)


def test_the_limit_is_of_all_arrays_together() -> None:
    frame = codec.encode([np.arange(100.0), np.arange(100.0)])
    assert len(codec.decode(frame, max_bytes=1600)) == 2
    with pytest.raises(codec.LimitExceeded):
        codec.decode(frame, max_bytes=1599)


@pytest.mark.parametrize("data", ["text", 3, None, [1], memoryview(b"abcdef")[::2]])
def test_not_bytes(data) -> None:
    with pytest.raises(codec.DamagedFrame):
        codec.decode(data)
