"""``xor``: XOR or subtract the previous word, store the significant bits of each delta.

Per element, with L the length (significant bits) of this element's previous delta, initially 0:
a delta of at most L bits is written as ``0`` and L bits; a longer one as ``1``, its count of
leading zeros (6, 5, 4 or 3 bits for words of 64, 32, 16 or 8) and its bits without the leading
one. L becomes the length of the delta just written. Floats use XOR, integers subtraction modulo
2^width.

Words are [T, D]: D series of T steps, written series by series. A frame has T = 1; its previous
delta is that of its two bases. Bits fill bytes from the top; spare bits are 0.
"""

import numpy as np

from rlrun.codec.kernels import bit_length, bit_lengths, bit_lengths_vectorised
from rlrun.codec.words import Array, damaged_frame
from rlrun.jit import COMPILED, jit

CHUNK_DELTAS = 1 << 14  # deltas at a time in numpy, which needs 8 bytes per bit

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _8, _24, _31, _32, _63, _64 = (np.uint64(n) for n in (0, 1, 5, 8, 24, 31, 32, 63, 64))
_BYTE, _LOW, _ALL = np.uint64(0xFF), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)


def differences(words: Array, previous_words: Array, use_xor: bool) -> Array:
    """Return ``words`` XOR ``previous_words``, or their difference modulo 2^width."""
    result: Array = words ^ previous_words if use_xor else words - previous_words
    return result


def initial_lengths(base: Array | None, second: Array | None, use_xor: bool, n: int) -> Array:
    """Return uint8 [n]: length of each delta between the two bases; 0 without two bases."""
    if base is None or second is None:
        return np.zeros(n, np.uint8)
    return bit_lengths(differences(base, second, use_xor))


def encode(words: Array, base: Array, lengths: Array, use_xor: bool) -> bytes:
    """Return the bits of words [T, D], given ``base`` [D] and previous ``lengths`` uint8 [D]."""
    write = encode_compiled if COMPILED else encode_vectorised
    packed, bits = write(words, base, lengths, use_xor, count_bits(words))
    return packed.data.cast("B")[: (bits + 7) // 8].tobytes()


def decode(data: memoryview, rows: int, base: Array, lengths: Array, use_xor: bool) -> Array:
    """Return the words [rows, D]. Raises: DamagedFrame for bits that ``encode`` does not write."""
    words = np.empty((rows, len(base)), base.dtype)
    packed = np.zeros(
        len(data) // 4 + 3, np.dtype(">u4")
    )  # two spare words: reads extend beyond the end
    packed.view(np.uint8)[: len(data)] = data
    read = decode_compiled if COMPILED else decode_python
    bits = read(
        packed.astype("<u4"), words, base, lengths, use_xor, count_bits(words), 8 * len(data)
    )
    if bits < 0 or (bits + 7) // 8 != len(data) or (bits % 8 and data[-1] << bits % 8 & 255):
        raise damaged_frame("its bits are not those of an xor payload")
    return words


def count_bits(words: Array) -> int:
    """Return the number of bits of the leading-zero count."""
    return {1: 3, 2: 4, 4: 5, 8: 6}[words.itemsize]


@jit
def write_bits(
    out: Array,
    at: np.uint64,
    pending: np.uint64,
    pending_bits: np.uint64,
    value: np.uint64,
    size: np.uint64,
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Append ``size`` <= 32 bits; branch-free: an incomplete word is written again."""
    pending = (pending << size) | value
    pending_bits += size
    v = pending >> (pending_bits & _31)
    out[at] = (v >> _24 & _BYTE) | (v >> _8 & _BYTE << _8) | (v & _BYTE << _8) << _8 | v << _24
    return at + (pending_bits >> _5), pending, pending_bits & _31


@jit
def encode_compiled(
    words: Array, base: Array, lengths: Array, use_xor: bool, count_size: int
) -> tuple[Array, int]:
    """Return (big-endian 32-bit words, number of bits)."""
    rows, columns = words.shape
    width = np.uint64(8 * words.itemsize)
    mask = _ALL >> (_64 - width)
    count = np.uint64(count_size)
    out = np.empty(rows * columns * (8 * words.itemsize + count_size) // 32 + 3, np.uint32)
    # The last ``pending_bits`` < 32 bits of ``pending`` are not written yet.
    at, pending, pending_bits = _0, _0, _0
    for d in range(columns):
        last, previous = np.uint64(base[d]), np.uint64(lengths[d])
        for t in range(rows):
            word = np.uint64(words[t, d])
            delta = word ^ last if use_xor else (word - last) & mask
            last = word
            length = bit_length(delta)
            # Branch-free, since the comparison is unpredictable: three times as fast (measured).
            is_longer = np.uint64(length > previous)
            bits = is_longer * length + (_1 - is_longer) * previous - is_longer
            size = _1 + is_longer * count
            prefix = is_longer * ((_1 << count) | (width - length))
            body = delta ^ (is_longer << (bits & _63))  # no shift by 64: 64 bits are not longer
            previous = length
            if size + bits <= _32:  # nearly always, except for 64-bit words
                at, pending, pending_bits = write_bits(
                    out, at, pending, pending_bits, (prefix << bits) | body, size + bits
                )
                continue
            at, pending, pending_bits = write_bits(out, at, pending, pending_bits, prefix, size)
            if bits > _32:
                at, pending, pending_bits = write_bits(
                    out, at, pending, pending_bits, body >> _32, bits - _32
                )
                body, bits = body & _LOW, _32
            at, pending, pending_bits = write_bits(out, at, pending, pending_bits, body, bits)
    total = 32 * np.int64(at) + np.int64(pending_bits)
    write_bits(out, at, pending, pending_bits, _0, _32 - pending_bits)
    return out, int(total)


def encode_vectorised(
    words: Array, base: Array, lengths: Array, use_xor: bool, count_size: int
) -> tuple[Array, int]:
    """Return (bytes with the same bits, number of bits)."""
    previous_words = np.concatenate((base[None], words[:-1]))
    delta = differences(words, previous_words, use_xor)
    length = bit_lengths_vectorised(delta)
    previous = np.concatenate((lengths[None], length[:-1]))
    delta, length, previous = (x.T.reshape(-1) for x in (delta, length, previous))
    delta, length, previous = (x.astype(np.uint64) for x in (delta, length, previous))
    is_longer = length > previous
    bits = np.where(is_longer, length - _1 * is_longer, previous)
    width = np.uint64(8 * words.itemsize)
    prefix = np.where(is_longer, (1 << count_size) | (width - length), _0)
    body = np.where(is_longer, delta ^ (is_longer.astype(np.uint64) << bits), delta)
    sizes = np.where(is_longer, np.uint64(count_size + 1), _1)
    values = np.stack((prefix, body), 1).reshape(-1)
    counts = np.stack((sizes, bits), 1).reshape(-1).astype(np.int64)
    chunks = [np.zeros(0, np.uint8)]
    for start in range(0, len(values), CHUNK_DELTAS):
        count = counts[start : start + CHUNK_DELTAS]
        end = np.repeat(np.cumsum(count), count)
        shift = (end - 1 - np.arange(len(end))).astype(np.uint64)
        value = np.repeat(values[start : start + CHUNK_DELTAS], count)
        chunks.append((value >> shift & _1).astype(np.uint8))
    stream = np.concatenate(chunks)
    return np.packbits(stream), len(stream)


@jit
def read_bits(packed: Array, at: np.uint64, size: np.uint64) -> np.uint64:
    """Return the ``size`` <= 32 bits at bit ``at``, which the caller checks."""
    word = at >> _5
    window = (np.uint64(packed[word]) << _32) | np.uint64(packed[word + _1])
    if size == _0:
        return _0
    return (window << (at & _31)) >> (_64 - size)


@jit
def decode_compiled(
    packed: Array,
    words: Array,
    base: Array,
    lengths: Array,
    use_xor: bool,
    count_size: int,
    limit: int,
) -> int:
    """Fill ``words`` and return the number of bits read; −1 if they are not canonical."""
    rows, columns = words.shape
    width = np.uint64(8 * words.itemsize)
    mask = _ALL >> (_64 - width)
    count, end, at = np.uint64(count_size), np.uint64(limit), _0
    for d in range(columns):
        last, previous = np.uint64(base[d]), np.uint64(lengths[d])
        for t in range(rows):
            if at >= end:
                return -1
            is_longer = read_bits(packed, at, _1) == _1
            at += _1
            bits = previous
            if is_longer:
                if at + count > end:
                    return -1
                bits = width - read_bits(packed, at, count) - _1
                at += count
                if bits < previous:
                    return -1
            if at + bits > end:
                return -1
            high = bits - _32 if bits > _32 else _0
            low = bits - high
            delta = read_bits(packed, at, high) << _32
            delta |= read_bits(packed, at + high, low)
            at += bits
            if is_longer:
                delta |= _1 << bits
            previous = bit_length(delta)
            last = last ^ delta if use_xor else (last + delta) & mask
            words[t, d] = last
    return int(np.int64(at))  # signed, as −1 is


def decode_python(
    packed: Array,
    words: Array,
    base: Array,
    lengths: Array,
    use_xor: bool,
    count_size: int,
    limit: int,
) -> int:
    """Version without numba: the position of an element depends on the previous one."""
    rows, columns = words.shape
    width = 8 * words.itemsize
    mask = (1 << width) - 1
    source: list[int] = packed.tolist()
    at = 0

    def read(size: int) -> int:
        word = at >> 5
        window = source[word] << 64 | source[word + 1] << 32 | source[word + 2]
        return window >> 96 - (at & 31) - size & (1 << size) - 1

    for d in range(columns):
        last, previous = int(base[d]), int(lengths[d])
        series = []
        for _ in range(rows):
            if at >= limit:
                return -1
            is_longer, bits = read(1), previous
            at += 1
            if is_longer:
                if at + count_size > limit:
                    return -1
                bits = width - read(count_size) - 1
                at += count_size
                if bits < previous:
                    return -1
            if at + bits > limit:
                return -1
            delta = read(bits) | is_longer << bits
            at += bits
            previous = delta.bit_length()
            last = last ^ delta if use_xor else last + delta & mask
            series.append(last)
        words[:, d] = series
    return at
