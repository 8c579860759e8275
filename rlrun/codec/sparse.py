"""Byte planes with many zeros as a bitmap of nonzero bytes and the nonzero bytes."""

import numpy as np

from rlrun.codec.kernels import bit_length
from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit


def split_nonzero(plane: Array) -> tuple[Array, Array]:
    """Return (bitmap uint8 [(m + 7) / 8] of nonzero bytes, lowest bit first; nonzero bytes)."""
    if not COMPILED:
        return np.packbits(plane != 0, bitorder="little"), plane[plane != 0]
    bitmap = np.zeros((len(plane) + 7) // 8, np.uint8)
    values = np.empty(len(plane) + 1, np.uint8)
    return bitmap, values[: split_nonzero_compiled(plane, bitmap, values)]


@jit
def split_nonzero_compiled(plane: Array, bitmap: Array, values: Array) -> int:
    """Fill both and return the number of nonzero bytes; ``values`` has one spare element."""
    count, full = np.uint64(0), len(plane) // 8
    for i in range(full):
        word = np.uint8(0)
        for k in range(8):
            byte = plane[8 * i + k]
            nonzero = np.uint8(byte != 0)
            values[count] = byte
            count += np.uint64(nonzero)
            word |= np.uint8(nonzero << k)
        bitmap[i] = word
    for j in range(8 * full, len(plane)):
        if plane[j]:
            values[count] = plane[j]
            count += np.uint64(1)
            bitmap[full] |= np.uint8(1 << (j - 8 * full))
    return int(count)


def join_nonzero(bitmap: Array, values: Array, plane: Array) -> int:
    """Fill ``plane`` and return the number of set bits.

    Return −1, with ``plane`` undefined, if more bits are set than ``values`` has bytes, or bits
    beyond the end of ``plane``.
    """
    if COMPILED:
        return int(join_nonzero_compiled(bitmap, values, plane))
    is_set = np.unpackbits(bitmap, bitorder="little")
    count = int(np.count_nonzero(is_set))
    if count != len(values) or is_set[len(plane) :].any():
        return -1
    plane[:] = 0
    plane[is_set[: len(plane)].view(bool)] = values
    return count


@jit
def join_nonzero_compiled(bitmap: Array, values: Array, plane: Array) -> int:
    """Compiled version; no read or write is out of bounds, whatever the bitmap."""
    count, full = np.uint64(0), len(plane) // 64
    plane[:] = 0
    for i in range(full):
        word = np.uint64(0)
        for k in range(8):
            word |= np.uint64(bitmap[8 * i + k]) << np.uint64(8 * k)
        block = plane[64 * i : 64 * i + 64]
        if count + np.uint64(64) > np.uint64(len(values)):
            count = scatter(word, values, count, block)
            continue
        while word:  # at least 64 values are left: no bounds checks
            lowest = word & (np.uint64(0) - word)
            block[bit_length(lowest) - np.uint64(1)] = values[count]
            count += np.uint64(1)
            word ^= lowest
    for i in range(8 * full, len(bitmap)):
        count = scatter(np.uint64(bitmap[i]), values, count, plane[8 * i :])
    return int(count) if count <= np.uint64(len(values)) else -1


@jit
def scatter(word: np.uint64, values: Array, count: np.uint64, block: Array) -> np.uint64:
    """Write the bytes of one bitmap word with bounds checks; return the new count.

    The count exceeds ``len(values)`` after a bit without a byte or beyond the end of ``block``.
    """
    for k in range(64):
        if word >> np.uint64(k) & np.uint64(1):
            if count >= np.uint64(len(values)) or k >= len(block):
                return np.uint64(len(values) + 1)
            block[k] = values[count]
            count += np.uint64(1)
    return count
