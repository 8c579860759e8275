"""``xor``, which is only decoded: significant bits of the difference to the previous word.

Per element, with L the length (significant bits) of this element's previous delta, initially 0: a
delta of at most L bits is written as ``0`` and L bits. A longer one is written as ``1``, its count
of leading zeros (6, 5, 4 or 3 bits for words of 64, 32, 16 or 8) and its bits without the leading
one. L becomes the length of the delta just written. Floats use XOR, integers subtraction modulo
2^width.

Words are [T, D]: D series of T steps, written series by series. A frame has T = 1; its previous
delta is that of its two bases. Bits fill bytes from the top; spare bits are 0.
"""

import numpy as np

from rlrun.codec.frame import FieldSpec
from rlrun.codec.kernels import bit_length
from rlrun.codec.words import Array, damaged_frame
from rlrun.jit import jit

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _31, _32, _64 = (np.uint64(n) for n in (0, 1, 5, 31, 32, 64))
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def decode(spec: FieldSpec, data: memoryview, bases: tuple[Array | None, Array | None]) -> Array:
    """Return the words [n]. Raises: DamagedFrame for bits that no encoder writes."""
    rows = max(spec.rows, 1)
    base, second = bases
    use_xor = spec.kind.floating or spec.kind.name == "bool"
    before = np.zeros(spec.size // rows, spec.kind.word) if base is None else base
    delta = np.zeros_like(before)
    if base is not None and second is not None:
        delta = base ^ second if use_xor else base - second
    words = np.empty((rows, len(before)), spec.kind.word)
    packed = np.zeros(len(data) // 4 + 3, ">u4")  # two spare words: reads extend beyond the end
    packed.view(np.uint8)[: len(data)] = data
    bits = unpack(packed.astype("<u4"), words, before, delta, use_xor, 8 * len(data))
    if bits < 0 or (bits + 7) // 8 != len(data) or (bits % 8 and data[-1] << bits % 8 & 255):
        raise damaged_frame("its bits are not those of an xor payload")
    return words.reshape(-1)


@jit
def read_bits(packed: Array, at: np.uint64, size: np.uint64) -> np.uint64:
    """Return the ``size`` <= 32 bits at bit ``at``, which the caller checks."""
    word = at >> _5
    window = (np.uint64(packed[word]) << _32) | np.uint64(packed[word + _1])
    if size == _0:
        return _0
    return (window << (at & _31)) >> (_64 - size)


@jit
def unpack(
    packed: Array, words: Array, base: Array, delta_before: Array, use_xor: bool, limit: int
) -> int:
    """Fill words [T, D] and return the number of bits read; −1 if they are not canonical."""
    rows, columns = words.shape
    width, end, at = np.uint64(8 * words.itemsize), np.uint64(limit), _0
    mask, count = _ALL >> (_64 - width), bit_length(width - _1)
    for d in range(columns):
        last, previous = np.uint64(base[d]), bit_length(np.uint64(delta_before[d]))
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
