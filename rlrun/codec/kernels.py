"""Kernels of the plane coders: predict, zigzag, split into byte planes.

Every ``*_compiled`` kernel has a ``*_vectorised`` numpy twin with the same numbers; the function
without a suffix takes the one there is. Words are unsigned [n] of one width; all arithmetic wraps.
Compiled code adds, subtracts and multiplies words as unsigned numbers only: numba tells LLVM that
signed ones never overflow, so what an overflow gives would depend on the CPU and on inlining.
Residuals: NONE word; SUB zigzag(word − base); SUB2 zigzag(word − 2·base + second).
"""

import numpy as np

from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit

NONE, SUB, SUB2 = 0, 1, 2  # part of the format
BLOCK = 2048  # words at a time: their residuals stay in the first cache


def bit_lengths(words: Array) -> Array:
    """Significant bits of each unsigned word, uint8 (0 for 0)."""
    if COMPILED:
        return lengths_compiled(words, np.empty(len(words), np.uint8))
    return lengths_vectorised(words)


@jit
def length_of(word: np.uint64) -> np.uint64:
    """Significant bits of one word; the loop compiles to one instruction."""
    length = np.uint64(0)
    while word:
        word >>= np.uint64(1)
        length += np.uint64(1)
    return length


@jit
def signed_of(word: np.uint64, spare: int) -> np.int64:
    """The number that the low 64 − ``spare`` bits of ``word`` are in two's complement."""
    return np.int64(word << np.uint64(spare)) >> np.int64(spare)


@jit
def zigzag_of(value: np.int64) -> np.uint64:
    """0, −1, 1, −2, … as 0, 1, 2, 3, …"""
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))


@jit
def lengths_compiled(words: Array, out: Array) -> Array:
    """``out`` uint8 [n], filled."""
    for i in range(len(words)):
        out[i] = length_of(np.uint64(words[i]))
    return out


def lengths_vectorised(words: Array) -> Array:
    """The exponents of the words as floats; 64-bit words in halves, which floats hold exactly."""
    if words.itemsize < 8:
        return np.frexp(words.astype(np.float64))[1].astype(np.uint8)
    low = np.frexp((words & np.uint64(0xFFFFFFFF)).astype(np.float64))[1]
    high = np.frexp((words >> np.uint64(32)).astype(np.float64))[1]
    lengths: Array = np.where(high > 0, high + 32, low).astype(np.uint8)
    return lengths


def zigzag(delta: Array) -> Array:
    """0, −1, 1, −2, … as 0, 1, 2, 3, …"""
    shift = delta.dtype.type(8 * delta.itemsize - 1)
    one = delta.dtype.type(1)
    result: Array = (delta << one) ^ (np.zeros_like(delta) - (delta >> shift))
    return result


def unzigzag(folded: Array) -> Array:
    """The deltas back."""
    one = folded.dtype.type(1)
    result: Array = (folded >> one) ^ (np.zeros_like(folded) - (folded & one))
    return result


def residuals(
    words: Array, base: Array, second: Array, predictor: int, out: Array | None = None
) -> Array:
    """The residuals [n], in ``out`` if given; bases the predictor has no use for are not read."""
    out = np.empty_like(words) if out is None else out
    if COMPILED:
        return residuals_compiled(words, base, second, predictor, out)
    out[:] = residuals_vectorised(words, base, second, predictor)
    return out


@jit
def residuals_compiled(
    words: Array, base: Array, second: Array, predictor: int, out: Array
) -> Array:
    """``out`` [n], filled."""
    n = len(words)
    kind = words.dtype.type
    top = kind(8 * words.itemsize - 1)
    if predictor == 0:
        out[:] = words
    elif predictor == 1:
        for i in range(n):
            delta = kind(words[i] - base[i])
            out[i] = kind(delta << kind(1)) ^ kind(kind(0) - kind(delta >> top))
    else:
        for i in range(n):
            delta = kind(words[i] - base[i] - base[i] + second[i])
            out[i] = kind(delta << kind(1)) ^ kind(kind(0) - kind(delta >> top))
    return out


def residuals_vectorised(words: Array, base: Array, second: Array, predictor: int) -> Array:
    """The same."""
    if predictor == NONE:
        return words
    delta = words - base
    if predictor == SUB2:
        delta -= base
        delta += second
    return zigzag(delta)


def restore(folded: Array, base: Array, second: Array, predictor: int) -> None:
    """Turn residuals [n] into their words, in place."""
    if COMPILED:
        restore_compiled(folded, base, second, predictor)
    else:
        restore_vectorised(folded, base, second, predictor)


@jit
def restore_compiled(folded: Array, base: Array, second: Array, predictor: int) -> None:
    """Predictor and delta added."""
    n = len(folded)
    kind = folded.dtype.type
    if predictor == 1:
        for i in range(n):
            word = folded[i]
            delta = kind(word >> kind(1)) ^ kind(kind(0) - kind(word & kind(1)))
            folded[i] = kind(delta + base[i])
    elif predictor == 2:
        for i in range(n):
            word = folded[i]
            delta = kind(word >> kind(1)) ^ kind(kind(0) - kind(word & kind(1)))
            folded[i] = kind(delta + base[i] + base[i] - second[i])


def restore_vectorised(folded: Array, base: Array, second: Array, predictor: int) -> None:
    """The same."""
    if predictor == NONE:
        return
    folded[:] = unzigzag(folded)
    folded += base
    if predictor == SUB2:
        folded += base
        folded -= second


def split(folded: Array) -> Array:
    """uint8 [width, n]: plane k holds byte k, lowest first, of every word."""
    planes = np.empty((folded.itemsize, len(folded)), np.uint8)
    if COMPILED:
        split_compiled(folded, planes)
    else:
        planes[:] = folded.view(np.uint8).reshape(len(folded), folded.itemsize).T
    return planes


@jit
def split_compiled(folded: Array, planes: Array) -> None:
    """Fill ``planes``, block by block."""
    n = len(folded)
    for start in range(0, n, BLOCK):
        words = folded[start : start + BLOCK]
        for k in range(len(planes)):
            shift = folded.dtype.type(8 * k)
            row = planes[k, start : start + BLOCK]
            for i in range(len(words)):
                row[i] = np.uint8(words[i] >> shift)


def join(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Fill ``words`` [n] from the read-only planes of their residuals, lowest first.

    Bases the predictor has no use for are not read.
    """
    if COMPILED:
        join_compiled(planes, base, second, predictor, words)
    else:
        join_vectorised(planes, base, second, predictor, words)


@jit
def join_compiled(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Block by block: joined, then restored while they are in the first cache."""
    kind = words.dtype.type
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        block[:] = planes[0][start : start + BLOCK]
        for k in range(1, len(planes)):
            shift = kind(8 * k)
            row = planes[k][start : start + BLOCK]
            for i in range(len(block)):
                block[i] |= kind(kind(row[i]) << shift)
        if predictor != 0:
            before = second[start : start + BLOCK]
            restore_compiled(block, base[start : start + BLOCK], before, predictor)


def join_vectorised(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """The same."""
    out = words.view(np.uint8).reshape(len(words), len(planes))
    for k, plane in enumerate(planes):
        out[:, k] = plane
    restore_vectorised(words, base, second, predictor)


def counts(words: Array) -> Array:
    """int64 [width, 256]: how often each byte value occurs in each plane."""
    if COMPILED:
        return counts_compiled(words, np.zeros((words.itemsize, 256), np.int64))
    rows = words.view(np.uint8).reshape(len(words), words.itemsize)
    return np.stack([np.bincount(row, minlength=256) for row in rows.T])


@jit
def counts_compiled(words: Array, out: Array) -> Array:
    """``out``, counted up."""
    for i in range(len(words)):
        word = np.uint64(words[i])
        for k in range(len(out)):
            out[k, word & np.uint64(255)] += 1
            word >>= np.uint64(8)
    return out


def series(words: Array, predictor: int) -> Array:
    """Residuals along time of words [T, D], series by series: [D·T].

    Step 0 is verbatim; SUB2 takes step 1 as SUB does.
    """
    x = np.ascontiguousarray(words.T)
    if predictor == NONE:
        return x.reshape(-1)
    folded = x.copy()
    delta = x[:, 1:] - x[:, :-1]
    if predictor == SUB2 and delta.shape[1] > 1:
        delta[:, 1:] -= x[:, 1:-1] - x[:, :-2]
    folded[:, 1:] = zigzag(delta)
    return folded.reshape(-1)


def unseries(folded: Array, rows: int, predictor: int) -> Array:
    """The words [T, D] back."""
    x = folded.reshape(-1, rows)
    if predictor != NONE:
        x = x.copy()
        x[:, 1:] = unzigzag(x[:, 1:])
        if predictor == SUB2 and rows > 2:
            np.cumsum(x[:, 1:], axis=1, dtype=x.dtype, out=x[:, 1:])
        np.cumsum(x, axis=1, dtype=x.dtype, out=x)
    return np.ascontiguousarray(x.T)
