"""Byte planes of many zeros as bits that say where the other bytes are, and those bytes."""

import numpy as np

from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit


def sparse(plane: Array) -> tuple[Array, Array]:
    """(uint8 [(m + 7) / 8]: bits, lowest first, of bytes that are not zero; those bytes)."""
    if not COMPILED:
        return np.packbits(plane != 0, bitorder="little"), plane[plane != 0]
    bits = np.zeros((len(plane) + 7) // 8, np.uint8)
    others = np.empty(len(plane) + 1, np.uint8)
    return bits, others[: sparse_compiled(plane, bits, others)]


@jit
def sparse_compiled(plane: Array, bits: Array, others: Array) -> int:
    """Fill both; how many are not zero. ``others`` has room for one more."""
    count, whole = np.uint64(0), len(plane) // 8
    for i in range(whole):
        word = np.uint8(0)
        for k in range(8):
            byte = plane[8 * i + k]
            some = np.uint8(byte != 0)
            others[count] = byte
            count += np.uint64(some)
            word |= np.uint8(some << k)
        bits[i] = word
    for j in range(8 * whole, len(plane)):
        if plane[j]:
            others[count] = plane[j]
            count += np.uint64(1)
            bits[whole] |= np.uint8(1 << (j - 8 * whole))
    return int(count)


def dense(bits: Array, others: Array, plane: Array) -> int:
    """Fill ``plane``; how many bits are set, −1 where they are more than ``others`` or behind the
    end (``plane`` means nothing then)."""
    if COMPILED:
        return int(dense_compiled(bits, others, plane))
    where = np.unpackbits(bits, bitorder="little")
    count = int(np.count_nonzero(where))
    if count != len(others) or where[len(plane) :].any():
        return -1
    plane[:] = 0
    plane[where[: len(plane)].view(bool)] = others
    return count


@jit
def dense_compiled(bits: Array, others: Array, plane: Array) -> int:
    """The same; reads stay inside whatever the bits say."""
    count, last, whole = 0, len(others) - 1, len(plane) // 8
    for i in range(whole):
        word = bits[i]
        at = plane[8 * i : 8 * i + 8]
        if word == 0:
            at[:] = 0
        elif count + 8 <= last:  # eight more are there: nothing to look after
            for k in range(8):
                some = (word >> k) & 1
                at[k] = others[np.uint64(count)] * np.uint8(some)
                count += some
        else:
            for k in range(8):
                some = (word >> k) & 1
                at[k] = others[min(count, last)] * np.uint8(some)
                count += some
    for k in range(8 * (len(bits) - whole)):
        some = (bits[whole] >> k) & 1
        if 8 * whole + k < len(plane):
            plane[8 * whole + k] = others[min(count, last)] * np.uint8(some)
        elif some:
            return -1
        count += some
    return count if count <= last + 1 else -1
