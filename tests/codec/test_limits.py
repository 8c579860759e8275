"""A frame allocates at most a bounded multiple of its payload."""

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zstandard

from rlrun import codec
from rlrun.codec import frame, stream
from rlrun.codec.frame import FREE_BYTES, KEY, MAX_RATIO, TREE, Header, pack
from rlrun.errors import CodecError
from tests.codec.samples import KIND

LARGE = FREE_BYTES + (1 << 20)


def unbounded(monkeypatch: pytest.MonkeyPatch, encode: Callable[[], bytes]) -> bytes:
    """The frame of an encoder that does not keep the bound; its hashes are right."""
    with monkeypatch.context() as patch:
        patch.setattr(stream, "max_expansion", lambda size: 1 << 62)
        return encode()


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a refused call allocated at most."""
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


CONSTANTS: dict[str, Any] = {
    "float32": np.zeros(LARGE // 4, np.float32),
    "images": np.full((LARGE // 4096, 64, 64), 7, np.uint8),
    "int64": np.full((LARGE // 512, 64), -1),
    "tree": {"a": np.zeros(LARGE // 4, np.float32), "b": np.arange(9)},
}


@pytest.mark.parametrize(
    ("name", "chunk"), [("float32", False), ("images", True), ("int64", True), ("tree", False)]
)
def test_constant_arrays(monkeypatch: pytest.MonkeyPatch, name: str, chunk: bool) -> None:
    tree = CONSTANTS[name]
    encode = codec.encode_chunk if chunk else codec.encode
    bomb = unbounded(monkeypatch, lambda: encode(tree))
    if len(bomb) * MAX_RATIO < LARGE:
        assert peak(lambda: codec.decode(bomb)) < FREE_BYTES
        with pytest.raises(CodecError, match=f"{MAX_RATIO}"):
            codec.decode(bomb, max_bytes=1 << 40)
    honest = encode(tree)
    assert LARGE // MAX_RATIO < len(honest) < LARGE // 100
    back = codec.decode(honest)
    pairs = [(tree, back)] if isinstance(tree, np.ndarray) else [(tree[k], back[k]) for k in tree]
    assert all(np.array_equal(a, b) for a, b in pairs)


def test_a_delta_of_nothing_stays_small() -> None:
    array = np.random.default_rng(0).integers(0, 255, LARGE, np.uint8)
    delta = codec.encode(array, base=array)
    assert len(delta) < 200_000
    assert np.array_equal(codec.decode(delta, base=array), array)


def test_a_zstd_part_allocates_what_its_array_takes() -> None:
    """Not the size that it states itself."""
    words = zstandard.compress(bytes(LARGE))
    header = Header(5, KEY, KIND["uint8"].code, (100,), 0, 0, 0, 0, 0)
    assert peak(lambda: codec.decode(pack(header, [words]))) < 1 << 20


def frame_of(table: bytes, rest: bytes = b"") -> bytes:
    size, length = len(table), b""
    while size >= 128:
        length += bytes((size & 127 | 128,))
        size >>= 7
    header = Header(TREE, KEY, 0, (), 0, 0, 0, 0, 0)
    return pack(header, [length + bytes((size,)), table, rest])


def long_keys(levels: int, leaves: int) -> bytes:
    """``levels`` dicts of one key of 60 000 characters around a list of empty arrays."""
    key = b"\x00" + struct.pack("<H", 60_000) + b"k" * 60_000
    table = b"".join(b"\x01" + struct.pack("<I", 1) + key for _ in range(levels))
    return table + b"\x03" + struct.pack("<I", leaves) + bytes((0, 1, 1, *bytes(8))) * leaves


TABLES = {
    "long keys": long_keys(8, 6_000),
    "many leaves": b"\x03" + struct.pack("<I", 9_000) + bytes((0, 1, 1, *bytes(8))) * 9_000,
    "deep": b"\x03\x01\x00\x00\x00" * 200_000,
    "too many nodes": b"\x03\xff\xff\xff\xff",
    "huge array": bytes((0, 1, 1)) + struct.pack("<Q", 1 << 62),
    "huge dims": bytes((0, 1, 64)) + struct.pack("<64Q", *[(1 << 64) - 1] * 64),
    "65 dims": bytes((0, 1, 65)) + bytes(8 * 65),
    "list of a huge array": b"\x03\x01\x00\x00\x00" + bytes((0, 1, 1)) + struct.pack("<Q", 1 << 40),
    "empty": b"",
    "unknown kind": b"\x03\x01\x00\x00\x00" + bytes((0, 99, 0)),
    "unknown node": b"\x09",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    data = frame_of(TABLES[name])
    assert peak(lambda: codec.decode(data)) < FREE_BYTES + 200 * len(data)


def test_paths_are_short() -> None:
    leaves = frame.leaves_of(long_keys(8, 3), 1 << 30)
    assert max(len(leaf.path) for leaf in leaves) <= frame.MAX_PATH
    tree = codec.decode(codec.encode({"k" * 60_000: {"x": np.arange(3)}}))
    assert list(tree) == ["k" * 60_000]
