"""The ``xor`` coder bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.codec import CodecError, xor

DTYPES = [np.uint8, np.uint16, np.uint32, np.uint64]


def bits(data: bytes, count: int) -> str:
    return "".join(map(str, np.unpackbits(np.frombuffer(data, np.uint8))))[:count]


def test_worked_example() -> None:
    """32 bit, one element, deltas 0x43, 0x21, 0."""
    words = np.array([[0x43], [0x43 ^ 0x21], [0x43 ^ 0x21]], np.uint32)
    coded = xor.encode(words, np.zeros(1, np.uint32), np.zeros(1, np.uint8), True)
    expected = "1 11001 000011" + "0 0100001" + "0 000000"
    assert bits(coded, 27) == expected.replace(" ", "")
    assert len(coded) == 4


def test_worked_example_frame_by_frame() -> None:
    """The same deltas one frame at a time: the previous length is that of the two bases."""
    frames = [np.array([w], np.uint32) for w in (0, 0x43, 0x62, 0x62)]
    for k, expected in enumerate(["1 11001 000011", "0 0100001", "0 000000"]):
        base, second = frames[k], frames[k - 1] if k else None
        lengths = xor.initial_lengths(base, second, True, 1)
        coded = xor.encode(frames[k + 1][None], base, lengths, True)
        plain = expected.replace(" ", "")
        assert bits(coded, len(plain)) == plain


def test_integers_subtract() -> None:
    """5 to 3 is −2 = 0xFE modulo 2^8: flag, no leading zeros, seven bits under the leading one."""
    coded = xor.encode(
        np.array([[3]], np.uint8), np.array([5], np.uint8), np.zeros(1, np.uint8), False
    )
    assert bits(coded, 11) == "1" + "000" + "1111110"


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(DTYPES))
    width = np.dtype(dtype).itemsize * 8
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    word = st.one_of(st.integers(0, 2**width - 1), st.integers(0, 3))

    def grid(*shape):
        n = int(np.prod(shape))
        return np.array(draw(st.lists(word, min_size=n, max_size=n)), dtype).reshape(shape)

    lengths = draw(st.lists(st.integers(0, width), min_size=columns, max_size=columns))
    return grid(rows, columns), grid(columns), np.array(lengths, np.uint8), draw(st.booleans())


def reference(words, base, lengths, exclusive) -> str:
    """Characters, from the wording of the scheme."""
    width = 8 * words.itemsize
    field, out = {8: 3, 16: 4, 32: 5, 64: 6}[width], ""
    for d in range(words.shape[1]):
        last, length = int(base[d]), int(lengths[d])
        for word in map(int, words[:, d]):
            delta = word ^ last if exclusive else (word - last) % 2**width
            if delta.bit_length() <= length:
                out += "0" + (f"{delta:0{length}b}" if length else "")
            else:
                out += "1" + f"{width - delta.bit_length():0{field}b}" + f"{delta:b}"[1:]
            last, length = word, delta.bit_length()
    return out


@settings(max_examples=150, deadline=None)
@given(cases())
def test_compiled_and_vectorised_equal_the_reference(case) -> None:
    words, base, lengths, exclusive = case
    expected = reference(words, base, lengths, exclusive)
    coded = xor.encode(words, base, lengths, exclusive)
    assert bits(coded, len(expected)) == expected
    assert len(coded) == (len(expected) + 7) // 8
    packed, count = xor.encode_vectorised(words, base, lengths, exclusive, xor.count_bits(words))
    assert (packed.tobytes(), count) == (coded, len(expected))
    assert np.array_equal(
        xor.decode(memoryview(coded), len(words), base, lengths, exclusive), words
    )
    assert np.array_equal(plain(coded, words, base, lengths, exclusive, expected), words)


def plain(coded, words, base, lengths, exclusive, expected):
    padded = np.frombuffer(coded + bytes(12 - len(coded) % 4), ">u4")
    out = np.empty_like(words)
    read = xor.decode_python(
        padded, out, base, lengths, exclusive, xor.count_bits(words), 8 * len(coded)
    )
    assert read == len(expected)
    return out


@pytest.mark.parametrize("coded", [b"", b"\x00", b"\xff", b"\x00\x00\x00", b"\xc8\x31\x00\x01"])
def test_noncanonical_bits_are_refused(coded: bytes) -> None:
    """Too short, spare bits set, a long form for a short delta, or too long."""
    base, lengths = np.zeros(1, np.uint32), np.full(1, 12, np.uint8)
    with pytest.raises(CodecError, match="xor payload"):
        xor.decode(memoryview(coded), 1, base, lengths, True)
