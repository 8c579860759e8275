"""Byte planes of many zeros as bits that say where the other bytes are, and those bytes."""

import numpy as np

from rlrun.codec.kernels import length_of
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
    count, whole = np.uint64(0), len(plane) // 64
    plane[:] = 0
    for i in range(whole):
        word = np.uint64(0)
        for k in range(8):
            word |= np.uint64(bits[8 * i + k]) << np.uint64(8 * k)
        at = plane[64 * i : 64 * i + 64]
        if count + np.uint64(64) > np.uint64(len(others)):
            count = scatter(word, others, count, at)
            continue
        while word:  # 64 more are there: nothing to look after
            lowest = word & (np.uint64(0) - word)
            at[length_of(lowest) - np.uint64(1)] = others[count]
            count += np.uint64(1)
            word ^= lowest
    for i in range(8 * whole, len(bits)):
        count = scatter(np.uint64(bits[i]), others, count, plane[8 * i :])
    return int(count) if count <= np.uint64(len(others)) else -1


@jit
def scatter(word: np.uint64, others: Array, count: np.uint64, at: Array) -> np.uint64:
    """One word with every index checked: the new count, beyond ``others`` for a bit behind it or
    behind the end of ``at``."""
    for k in range(64):
        if word >> np.uint64(k) & np.uint64(1):
            if count >= np.uint64(len(others)) or k >= len(at):
                return np.uint64(len(others) + 1)
            at[k] = others[count]
            count += np.uint64(1)
    return count
