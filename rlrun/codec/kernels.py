"""Kernels of the plane coders: residuals, zigzag coding, byte planes.

Every ``*_compiled`` kernel has a ``*_vectorised`` numpy version with the same results; the function
without a suffix chooses one. Words are unsigned [n] of one width; all arithmetic wraps.
Compiled code adds, subtracts and multiplies unsigned words only: LLVM assumes that signed
arithmetic does not overflow, so its result would depend on the CPU and on inlining.
Residuals: NONE word; SUB zigzag(word − base); SUB2 zigzag(word − 2·base + second).
"""

import numpy as np

from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit

NONE, SUB, SUB2 = 0, 1, 2  # part of the format
BLOCK = 2048  # words whose residuals fit into the L1 cache


def bit_lengths(words: Array) -> Array:
    """Return the number of significant bits of every unsigned word, uint8 (0 for 0)."""
    if COMPILED:
        return bit_lengths_compiled(words, np.empty(len(words), np.uint8))
    return bit_lengths_vectorised(words)


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


@jit
def bit_lengths_compiled(words: Array, out: Array) -> Array:
    """Fill and return ``out`` uint8 [n]."""
    for i in range(len(words)):
        out[i] = bit_length(np.uint64(words[i]))
    return out


def bit_lengths_vectorised(words: Array) -> Array:
    """Exponents of the words as floats; 64-bit words in halves, which floats represent exactly."""
    if words.itemsize < 8:
        return np.frexp(words.astype(np.float64))[1].astype(np.uint8)
    low = np.frexp((words & np.uint64(0xFFFFFFFF)).astype(np.float64))[1]
    high = np.frexp((words >> np.uint64(32)).astype(np.float64))[1]
    lengths: Array = np.where(high > 0, high + 32, low).astype(np.uint8)
    return lengths


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


def residuals(
    words: Array, base: Array, second: Array, predictor: int, out: Array | None = None
) -> Array:
    """Return the residuals [n], in ``out`` if given; bases not used are not read."""
    out = np.empty_like(words) if out is None else out
    if COMPILED:
        return residuals_compiled(words, base, second, predictor, out)
    out[:] = residuals_vectorised(words, base, second, predictor)
    return out


@jit
def residuals_compiled(
    words: Array, base: Array, second: Array, predictor: int, out: Array
) -> Array:
    """Fill and return ``out`` [n]."""
    n = len(words)
    uint = words.dtype.type
    top = uint(8 * words.itemsize - 1)
    if predictor == 0:
        out[:] = words
    elif predictor == 1:
        for i in range(n):
            delta = uint(words[i] - base[i])
            out[i] = uint(delta << uint(1)) ^ uint(uint(0) - uint(delta >> top))
    else:
        for i in range(n):
            delta = uint(words[i] - base[i] - base[i] + second[i])
            out[i] = uint(delta << uint(1)) ^ uint(uint(0) - uint(delta >> top))
    return out


def residuals_vectorised(words: Array, base: Array, second: Array, predictor: int) -> Array:
    """Return the residuals [n]."""
    if predictor == NONE:
        return words
    delta = words - base
    if predictor == SUB2:
        delta -= base
        delta += second
    return zigzag(delta)


def restore(residual: Array, base: Array, second: Array, predictor: int) -> None:
    """Turn residuals [n] into their words, in place."""
    if COMPILED:
        restore_compiled(residual, base, second, predictor)
    else:
        restore_vectorised(residual, base, second, predictor)


@jit
def restore_compiled(residual: Array, base: Array, second: Array, predictor: int) -> None:
    """Turn residuals [n] into their words, in place."""
    n = len(residual)
    uint = residual.dtype.type
    if predictor == 1:
        for i in range(n):
            word = residual[i]
            delta = uint(word >> uint(1)) ^ uint(uint(0) - uint(word & uint(1)))
            residual[i] = uint(delta + base[i])
    elif predictor == 2:
        for i in range(n):
            word = residual[i]
            delta = uint(word >> uint(1)) ^ uint(uint(0) - uint(word & uint(1)))
            residual[i] = uint(delta + base[i] + base[i] - second[i])


def restore_vectorised(residual: Array, base: Array, second: Array, predictor: int) -> None:
    """Turn residuals [n] into their words, in place."""
    if predictor == NONE:
        return
    residual[:] = unzigzag(residual)
    residual += base
    if predictor == SUB2:
        residual += base
        residual -= second


def split_planes(residual: Array) -> Array:
    """Return byte planes uint8 [width, n]: plane k is byte k of every word, lowest first."""
    planes = np.empty((residual.itemsize, len(residual)), np.uint8)
    if COMPILED:
        split_planes_compiled(residual, planes)
    else:
        planes[:] = residual.view(np.uint8).reshape(len(residual), residual.itemsize).T
    return planes


@jit
def split_planes_compiled(residual: Array, planes: Array) -> None:
    """Fill ``planes``, block by block."""
    n = len(residual)
    for start in range(0, n, BLOCK):
        words = residual[start : start + BLOCK]
        for k in range(len(planes)):
            shift = residual.dtype.type(8 * k)
            row = planes[k, start : start + BLOCK]
            for i in range(len(words)):
                row[i] = np.uint8(words[i] >> shift)


def join_planes(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Fill ``words`` [n] from the read-only byte planes of their residuals, lowest first.

    Bases the predictor does not use are not read.
    """
    if COMPILED:
        join_planes_compiled(planes, base, second, predictor, words)
    else:
        join_planes_vectorised(planes, base, second, predictor, words)


@jit
def join_planes_compiled(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Join and restore block by block, while a block is in the L1 cache."""
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
            restore_compiled(block, base[start : start + BLOCK], before, predictor)


def join_planes_vectorised(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Join all planes, then restore the words."""
    out = words.view(np.uint8).reshape(len(words), len(planes))
    for k, plane in enumerate(planes):
        out[:, k] = plane
    restore_vectorised(words, base, second, predictor)


def byte_counts(words: Array) -> Array:
    """Return a histogram int64 [width, 256] of the bytes of every plane."""
    if COMPILED:
        return byte_counts_compiled(words, np.zeros((words.itemsize, 256), np.int64))
    rows = words.view(np.uint8).reshape(len(words), words.itemsize)
    return np.stack([np.bincount(row, minlength=256) for row in rows.T])


@jit
def byte_counts_compiled(words: Array, out: Array) -> Array:
    """Add to and return ``out``."""
    for i in range(len(words)):
        word = np.uint64(words[i])
        for k in range(len(out)):
            out[k, word & np.uint64(255)] += 1
            word >>= np.uint64(8)
    return out


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
    """Invert ``series_residuals``: words [T, D]."""
    x = residual.reshape(-1, rows)
    if predictor != NONE:
        x = x.copy()
        x[:, 1:] = unzigzag(x[:, 1:])
        if predictor == SUB2 and rows > 2:
            np.cumsum(x[:, 1:], axis=1, dtype=x.dtype, out=x[:, 1:])
        np.cumsum(x, axis=1, dtype=x.dtype, out=x)
    return np.ascontiguousarray(x.T)


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
