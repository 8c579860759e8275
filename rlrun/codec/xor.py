"""The scheme the codec descends from: XOR or subtract, then the significant bits of each delta.

Per element, with L the length (significant bits) of this element's previous delta, 0 at first:
a delta of at most L bits is written as ``0`` and L bits; a longer one as ``1``, its count of
leading zeros (6, 5, 4 or 3 bits for words of 64, 32, 16 or 8) and its bits without the leading
one. L becomes the length of the delta just written. Floats XOR, integers subtract modulo 2^width.

Words are [T, D]: D series of T steps, written series by series. A frame has T = 1; then the
previous delta is that of its two bases. Bits fill bytes from the top; spare bits are 0.
"""

import numpy as np

from rlrun.codec.cursor import damaged
from rlrun.codec.kernels import bit_lengths, length_of, lengths_vectorised
from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit

PIECE = 1 << 14  # deltas at a time in numpy: 8 bytes for each of their bits

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _8, _24, _31, _32, _63, _64 = (np.uint64(n) for n in (0, 1, 5, 8, 24, 31, 32, 63, 64))
_BYTE, _LOW, _ALL = np.uint64(0xFF), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)


def differences(words: Array, before: Array, exclusive: bool) -> Array:
    """``words`` XOR ``before``, or minus it modulo 2^width."""
    result: Array = words ^ before if exclusive else words - before
    return result


def first_lengths(base: Array | None, second: Array | None, exclusive: bool, n: int) -> Array:
    """uint8 [n]: length of each element's delta between the two bases; 0 without two of them."""
    if base is None or second is None:
        return np.zeros(n, np.uint8)
    return bit_lengths(differences(base, second, exclusive))


def encode(words: Array, base: Array, lengths: Array, exclusive: bool) -> bytes:
    """The bits of words [T, D] after ``base`` [D], whose deltas had ``lengths`` uint8 [D]."""
    write = encode_compiled if COMPILED else encode_vectorised
    packed, bits = write(words, base, lengths, exclusive, field_bits(words))
    return packed.data.cast("B")[: (bits + 7) // 8].tobytes()


def decode(data: memoryview, rows: int, base: Array, lengths: Array, exclusive: bool) -> Array:
    """The words [rows, D]. Raises: DamagedFrame for bits that ``encode`` would not write."""
    words = np.empty((rows, len(base)), base.dtype)
    packed = np.zeros(len(data) // 4 + 3, np.dtype(">u4"))  # two spare words: reads look ahead
    packed.view(np.uint8)[: len(data)] = data
    read = decode_compiled if COMPILED else decode_plain
    bits = read(
        packed.astype("<u4"), words, base, lengths, exclusive, field_bits(words), 8 * len(data)
    )
    if bits < 0 or (bits + 7) // 8 != len(data) or (bits % 8 and data[-1] << bits % 8 & 255):
        raise damaged("its bits are not those of an xor payload")
    return words


def field_bits(words: Array) -> int:
    """Bits of the leading-zero count."""
    return {1: 3, 2: 4, 4: 5, 8: 6}[words.itemsize]


@jit
def put(
    out: Array,
    at: np.uint64,
    held: np.uint64,
    filled: np.uint64,
    value: np.uint64,
    size: np.uint64,
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Append ``size`` <= 32 bits; without a branch, a word not yet full is written again."""
    held = (held << size) | value
    filled += size
    v = held >> (filled & _31)
    out[at] = (v >> _24 & _BYTE) | (v >> _8 & _BYTE << _8) | (v & _BYTE << _8) << _8 | v << _24
    return at + (filled >> _5), held, filled & _31


@jit
def encode_compiled(
    words: Array, base: Array, lengths: Array, exclusive: bool, field: int
) -> tuple[Array, int]:
    """(big-endian 32-bit words, number of bits)."""
    rows, columns = words.shape
    width = np.uint64(8 * words.itemsize)
    mask = _ALL >> (_64 - width)
    count = np.uint64(field)
    out = np.empty(rows * columns * (8 * words.itemsize + field) // 32 + 3, np.uint32)
    at, held, filled = _0, _0, _0  # the last ``filled`` < 32 bits of ``held`` are not yet out
    for d in range(columns):
        last, previous = np.uint64(base[d]), np.uint64(lengths[d])
        for t in range(rows):
            word = np.uint64(words[t, d])
            delta = word ^ last if exclusive else (word - last) & mask
            last = word
            length = length_of(delta)
            # No branch on what cannot be predicted: three times as fast (measured).
            longer = np.uint64(length > previous)
            bits = longer * length + (_1 - longer) * previous - longer
            size = _1 + longer * count
            head = longer * ((_1 << count) | (width - length))
            body = delta ^ (longer << (bits & _63))  # 64 bits are not longer; no shift by 64
            previous = length
            if size + bits <= _32:  # nearly always, but for 64-bit words
                at, held, filled = put(out, at, held, filled, (head << bits) | body, size + bits)
                continue
            at, held, filled = put(out, at, held, filled, head, size)
            if bits > _32:
                at, held, filled = put(out, at, held, filled, body >> _32, bits - _32)
                body, bits = body & _LOW, _32
            at, held, filled = put(out, at, held, filled, body, bits)
    total = 32 * np.int64(at) + np.int64(filled)
    put(out, at, held, filled, _0, _32 - filled)
    return out, int(total)


def encode_vectorised(
    words: Array, base: Array, lengths: Array, exclusive: bool, field: int
) -> tuple[Array, int]:
    """The same bits, as bytes."""
    before = np.concatenate((base[None], words[:-1]))
    delta = differences(words, before, exclusive)
    length = lengths_vectorised(delta)
    previous = np.concatenate((lengths[None], length[:-1]))
    delta, length, previous = (x.T.reshape(-1) for x in (delta, length, previous))
    delta, length, previous = (x.astype(np.uint64) for x in (delta, length, previous))
    longer = length > previous
    bits = np.where(longer, length - _1 * longer, previous)
    width = np.uint64(8 * words.itemsize)
    head = np.where(longer, (1 << field) | (width - length), _0)
    body = np.where(longer, delta ^ (longer.astype(np.uint64) << bits), delta)
    sizes = np.where(longer, np.uint64(field + 1), _1)
    values = np.stack((head, body), 1).reshape(-1)
    counts = np.stack((sizes, bits), 1).reshape(-1).astype(np.int64)
    pieces = [np.zeros(0, np.uint8)]
    for start in range(0, len(values), PIECE):
        count = counts[start : start + PIECE]
        end = np.repeat(np.cumsum(count), count)
        shift = (end - 1 - np.arange(len(end))).astype(np.uint64)
        value = np.repeat(values[start : start + PIECE], count)
        pieces.append((value >> shift & _1).astype(np.uint8))
    stream = np.concatenate(pieces)
    return np.packbits(stream), len(stream)


@jit
def peek(packed: Array, at: np.uint64, size: np.uint64) -> np.uint64:
    """The ``size`` <= 32 bits at bit ``at``; the caller keeps ``at`` inside."""
    word = at >> _5
    pair = (np.uint64(packed[word]) << _32) | np.uint64(packed[word + _1])
    if size == _0:
        return _0
    return (pair << (at & _31)) >> (_64 - size)


@jit
def decode_compiled(
    packed: Array,
    words: Array,
    base: Array,
    lengths: Array,
    exclusive: bool,
    field: int,
    limit: int,
) -> int:
    """Fill ``words`` and return the number of bits read, −1 where they are not canonical."""
    rows, columns = words.shape
    width = np.uint64(8 * words.itemsize)
    mask = _ALL >> (_64 - width)
    count, end, at = np.uint64(field), np.uint64(limit), _0
    for d in range(columns):
        last, previous = np.uint64(base[d]), np.uint64(lengths[d])
        for t in range(rows):
            if at >= end:
                return -1
            long = peek(packed, at, _1) == _1
            at += _1
            bits = previous
            if long:
                if at + count > end:
                    return -1
                bits = width - peek(packed, at, count) - _1
                at += count
                if bits < previous:
                    return -1
            if at + bits > end:
                return -1
            high = bits - _32 if bits > _32 else _0
            low = bits - high
            delta = peek(packed, at, high) << _32
            delta |= peek(packed, at + high, low)
            at += bits
            if long:
                delta |= _1 << bits
            previous = length_of(delta)
            last = last ^ delta if exclusive else (last + delta) & mask
            words[t, d] = last
    return int(np.int64(at))  # signed like the −1 above


def decode_plain(
    packed: Array,
    words: Array,
    base: Array,
    lengths: Array,
    exclusive: bool,
    field: int,
    limit: int,
) -> int:
    """The same without numba: where an element starts is only known when the last one is read."""
    rows, columns = words.shape
    width = 8 * words.itemsize
    mask = (1 << width) - 1
    source: list[int] = packed.tolist()
    at = 0

    def read(size: int) -> int:
        word = at >> 5
        triple = source[word] << 64 | source[word + 1] << 32 | source[word + 2]
        return triple >> 96 - (at & 31) - size & (1 << size) - 1

    for d in range(columns):
        last, previous = int(base[d]), int(lengths[d])
        series = []
        for _ in range(rows):
            if at >= limit:
                return -1
            long, bits = read(1), previous
            at += 1
            if long:
                if at + field > limit:
                    return -1
                bits = width - read(field) - 1
                at += field
                if bits < previous:
                    return -1
            if at + bits > limit:
                return -1
            delta = read(bits) | long << bits
            at += bits
            previous = delta.bit_length()
            last = last ^ delta if exclusive else last + delta & mask
            series.append(last)
        words[:, d] = series
    return at
