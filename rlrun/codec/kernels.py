"""Kernels of the plane coders: residuals, zigzag coding, byte planes.

Words are unsigned [n] of one width; all arithmetic wraps. Compiled code adds, subtracts and
multiplies unsigned words only: LLVM assumes that signed arithmetic does not overflow, so its result
would depend on the CPU and on inlining.
Residuals: NONE word; SUB zigzag(word − base); SUB2 zigzag(word − 2·base + second).
"""

import numpy as np

from rlrun.codec.words import Array
from rlrun.jit import jit

NONE, SUB, SUB2 = 0, 1, 2  # part of the format
BLOCK = 2048  # words whose residuals fit into the L1 cache

# -- words -----------------------------------------------------------------------------------------


@jit
def bit_length(word: np.uint64) -> np.uint64:
    """Return the number of significant bits of a word; the loop compiles to one instruction."""
    length = np.uint64(0)
    while word:
        word >>= np.uint64(1)
        length += np.uint64(1)
    return length


@jit
def sign_extend(word: np.uint64, spare: int) -> np.int64:
    """Return the low 64 − ``spare`` bits of ``word``, as two's complement."""
    return np.int64(word << np.uint64(spare)) >> np.int64(spare)


@jit
def zigzag_word(value: np.int64) -> np.uint64:
    """Map 0, −1, 1, −2, … to 0, 1, 2, 3, …"""
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))


def zigzag(delta: Array) -> Array:
    """Map wrapped deltas 0, −1, 1, −2, … to 0, 1, 2, 3, …"""
    shift = delta.dtype.type(8 * delta.itemsize - 1)
    one = delta.dtype.type(1)
    result: Array = (delta << one) ^ (np.zeros_like(delta) - (delta >> shift))
    return result


def unzigzag(residual: Array) -> Array:
    """Invert ``zigzag``."""
    one = residual.dtype.type(1)
    result: Array = (residual >> one) ^ (np.zeros_like(residual) - (residual & one))
    return result


# -- residuals -------------------------------------------------------------------------------------


@jit
def residuals(words: Array, base: Array, second: Array, predictor: int, out: Array) -> Array:
    """Fill and return ``out`` [n]; bases that the predictor does not use are not read."""
    uint = words.dtype.type
    top = uint(8 * words.itemsize - 1)
    if predictor == 0:
        out[:] = words
    elif predictor == 1:
        for i in range(len(words)):
            delta = uint(words[i] - base[i])
            out[i] = uint(delta << uint(1)) ^ uint(uint(0) - uint(delta >> top))
    else:
        for i in range(len(words)):
            delta = uint(words[i] - base[i] - base[i] + second[i])
            out[i] = uint(delta << uint(1)) ^ uint(uint(0) - uint(delta >> top))
    return out


@jit
def restore(residual: Array, base: Array, second: Array, predictor: int) -> None:
    """Turn residuals [n] into their words, in place."""
    uint = residual.dtype.type
    if predictor == 1:
        for i in range(len(residual)):
            word = residual[i]
            delta = uint(word >> uint(1)) ^ uint(uint(0) - uint(word & uint(1)))
            residual[i] = uint(delta + base[i])
    elif predictor == 2:
        for i in range(len(residual)):
            word = residual[i]
            delta = uint(word >> uint(1)) ^ uint(uint(0) - uint(word & uint(1)))
            residual[i] = uint(delta + base[i] + base[i] - second[i])


def series_residuals(words: Array, predictor: int) -> Array:
    """Return the residuals along time of words [T, D], series by series: [D·T].

    Row 0 is stored as it is; SUB2 uses SUB in row 1.
    """
    x = np.ascontiguousarray(words.T)
    if predictor == NONE:
        return x.reshape(-1)
    residual = x.copy()
    delta = x[:, 1:] - x[:, :-1]
    if predictor == SUB2 and delta.shape[1] > 1:
        delta[:, 1:] -= x[:, 1:-1] - x[:, :-2]
    residual[:, 1:] = zigzag(delta)
    return residual.reshape(-1)


def restore_series(residual: Array, rows: int, predictor: int) -> Array:
    """Invert ``series_residuals``: words [T · D]."""
    x = residual.reshape(-1, rows)
    if predictor != NONE:
        x = x.copy()
        x[:, 1:] = unzigzag(x[:, 1:])
        if predictor == SUB2 and rows > 2:
            np.cumsum(x[:, 1:], axis=1, dtype=x.dtype, out=x[:, 1:])
        np.cumsum(x, axis=1, dtype=x.dtype, out=x)
    return np.ascontiguousarray(x.T).reshape(-1)


# -- byte planes -----------------------------------------------------------------------------------


def split_planes(residual: Array) -> Array:
    """Return byte planes uint8 [width, n]: plane k is byte k of every word, lowest first."""
    planes = np.empty((residual.itemsize, len(residual)), np.uint8)
    fill_planes(residual, planes)
    return planes


@jit
def fill_planes(residual: Array, planes: Array) -> None:
    """Fill ``planes``, block by block."""
    for start in range(0, len(residual), BLOCK):
        words = residual[start : start + BLOCK]
        for k in range(len(planes)):
            shift = residual.dtype.type(8 * k)
            row = planes[k, start : start + BLOCK]
            for i in range(len(words)):
                row[i] = np.uint8(words[i] >> shift)


@jit
def join_planes(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Fill ``words`` [n] from the read-only byte planes of their residuals, lowest first.

    Joins and restores block by block, while a block is in the L1 cache. Bases that the predictor
    does not use are not read.
    """
    uint = words.dtype.type
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        block[:] = planes[0][start : start + BLOCK]
        for k in range(1, len(planes)):
            shift = uint(8 * k)
            row = planes[k][start : start + BLOCK]
            for i in range(len(block)):
                block[i] |= uint(uint(row[i]) << shift)
        if predictor != 0:
            before = second[start : start + BLOCK]
            restore(block, base[start : start + BLOCK], before, predictor)


@jit
def byte_counts(words: Array, out: Array) -> Array:
    """Add the histogram of the bytes of every plane to ``out`` int64 [width, 256]; returns it."""
    for i in range(len(words)):
        word = np.uint64(words[i])
        for k in range(len(out)):
            out[k, word & np.uint64(255)] += 1
            word >>= np.uint64(8)
    return out


@jit
def split_nonzero(plane: Array, bitmap: Array, values: Array) -> int:
    """Fill both and return the number of nonzero bytes.

    ``bitmap`` uint8 [(m + 7) / 8], zeroed: nonzero bytes, lowest bit first. ``values`` uint8
    [m + 1]: these bytes; the last element is spare.
    """
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


@jit
def join_nonzero(bitmap: Array, values: Array, plane: Array) -> int:
    """Fill ``plane`` and return the number of set bits.

    Return −1, with ``plane`` undefined, if more bits are set than ``values`` has bytes, or bits
    beyond the end of ``plane``. No read or write is out of bounds, whatever the bitmap.
    """
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
