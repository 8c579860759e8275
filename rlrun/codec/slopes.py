"""Kernels of ``planes_ctx``: predict along each block's own slope, split into symbols and bits.

Words are unsigned [n] of one width W; ``bounds`` int64 [k + 1] are those of blocks of at most
``BLOCK`` words. A ``*_compiled`` kernel has a ``*_vectorised`` numpy twin with the same numbers.
With step = base − second and change = word − base, both signed and modulo 2^W:

* residual = zigzag(change − (slope · step + 32 >> 6)), a slope int8 for each block;
* bucket = extra << fine | the residual's first bits (1 + ``fine`` of them), uint8; the ``extra``
  bits below them go into the bits as they are; short residuals are their own bucket;
* context = 256 · length of zigzag(step) + a byte of the base's exponent, uint16;
* symbol = bucket − max(usual[context] + level − CENTRE, 0) modulo 256, a level int8 for each block.

A symbol says how long a residual is for its context and block: all have much the same frequencies.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.codec.kernels import length_of, lengths_vectorised, signed_of, zigzag_of
from rlrun.codec.words import Array, Kind
from rlrun.jit import COMPILED, jit

BLOCK = 512  # words: often a row of weights, whose gradients go together; part of the format
CENTRE = 16  # symbol of a usual residual; part of the format
MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}
PIECE = 64  # blocks at a time in numpy

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _8, _31, _32, _64 = (np.uint64(k) for k in (0, 1, 5, 8, 31, 32, 64))


@dataclass(frozen=True, slots=True)
class Form:
    """Parameters of a kind of word for the kernels."""

    width: int  # bits W
    place: int  # where the exponent's lowest bit is
    mask: int  # 255, or 0 where there is no exponent
    fine: int  # as many as bytes can tell apart

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return (self.width + 1) * 256


@dataclass(frozen=True, slots=True)
class Fit:
    """Slopes and contexts of the blocks of a payload."""

    slopes: Array  # int8 [k], in 1/64
    levels: Array  # int8 [k]
    usual: Array  # uint8 [contexts]


def form_of(kind: Kind) -> Form:
    """The form of a kind."""
    place = MANTISSA.get(kind.name)
    fine = 2 if kind.bits == 64 else 3
    return Form(kind.bits, place or 0, 0 if place is None else 255, fine)


def bounds_of(sizes: tuple[int, ...]) -> Array:
    """The bounds of the blocks of tensors of these sizes; none has words of two."""
    found, at = [np.zeros(1, np.int64)], 0
    for size in sizes:
        if size:
            found += [np.arange(at + BLOCK, at + size, BLOCK), np.array([at + size])]
        at += size
    return np.concatenate(found)


def signed(delta: Array) -> Array:
    """Wrapped differences as int64."""
    return delta.view(f"i{delta.itemsize}").astype(np.int64)


def folded(values: Array) -> Array:
    """Zigzag of int64, as uint64: 0, −1, 1, −2, … as 0, 1, 2, 3, …"""
    result: Array = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return result


def steps_vectorised(base: Array, second: Array, form: Form) -> tuple[Array, Array]:
    """(steps int64 [n], contexts int64 [n])."""
    steps = signed(base - second)
    exponents = (base >> base.dtype.type(form.place)).astype(np.int64) & form.mask
    return steps, lengths_vectorised(folded(steps)).astype(np.int64) << 8 | exponents


def buckets_vectorised(residuals: Array, fine: int) -> tuple[Array, Array]:
    """(buckets int64 [n], extras uint64 [n]) of uint64 residuals."""
    extras = np.maximum(lengths_vectorised(residuals).astype(np.int64) - fine - 1, 0)
    counts = extras.astype(np.uint64)
    return (extras << fine) + (residuals >> counts).astype(np.int64), counts


def pack(
    words: Array, base: Array, second: Array, bounds: Array, form: Form, fit: Fit
) -> tuple[Array, Array]:
    """(symbols uint8 [n], bytes of the bits, lowest first, spare ones 0)."""
    if not COMPILED:
        return pack_vectorised(words, base, second, bounds, form, fit)
    symbols = np.empty(len(words), np.uint8)
    bits = np.empty(len(words) * form.width // 32 + 3, np.uint32)  # touched as far as it is used
    count = pack_compiled(
        words, base, second, bounds, fit.slopes, fit.levels, fit.usual,
        form.place, form.mask, form.fine, symbols, bits,
    )  # fmt: skip
    return symbols, bits.view(np.uint8)[: (count + 7) // 8]


def pack_vectorised(
    words: Array, base: Array, second: Array, bounds: Array, form: Form, fit: Fit
) -> tuple[Array, Array]:
    """The same."""
    symbols, found = np.empty(len(words), np.uint8), [np.zeros(0, np.uint8)]
    for k in range(0, len(bounds) - 1, PIECE):
        here, slopes, levels = piece(bounds, k, fit)
        steps, contexts = steps_vectorised(base[here], second[here], form)
        change = signed(words[here] - base[here])
        error = wrapped(change - (steps * slopes + 32 >> 6), form.width)
        residuals = folded(error)
        buckets, extras = buckets_vectorised(residuals, form.fine)
        symbols[here] = buckets - np.maximum(fit.usual[contexts] + levels - CENTRE, 0) & 255
        counts = extras.astype(np.int64)
        at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        found.append((np.repeat(residuals, counts) >> at.astype(np.uint64) & _1).astype(np.uint8))
    return symbols, np.packbits(np.concatenate(found), bitorder="little")


def piece(bounds: Array, k: int, fit: Fit) -> tuple[slice, Array, Array]:
    """(the words of ``PIECE`` blocks from k on, int64 slope and level of each)."""
    edges = bounds[k : k + PIECE + 1]
    sizes = np.diff(edges)
    slopes = fit.slopes[k : k + PIECE].astype(np.int64).repeat(sizes)
    levels = fit.levels[k : k + PIECE].astype(np.int64).repeat(sizes)
    return slice(int(edges[0]), int(edges[-1])), slopes, levels


def wrapped(values: Array, width: int) -> Array:
    """int64 as signed numbers of ``width`` bits."""
    result: Array = values << (64 - width) >> (64 - width)
    return result


@jit
def predicted(step: np.int64, slope: np.uint64) -> np.uint64:
    """The change expected: slope · step / 64 to the nearest, modulo 2^64 before the division."""
    return np.uint64(np.int64(np.uint64(step) * slope + _32) >> np.int64(6))


@jit
def pack_compiled(
    words: Array,
    base: Array,
    second: Array,
    bounds: Array,
    slopes: Array,
    levels: Array,
    usual: Array,
    place: int,
    mask: int,
    fine: int,
    symbols: Array,
    bits: Array,
) -> int:
    """Fill both; the number of bits. ``bits`` has room for one word more, written as zeros."""
    spare, kind = 64 - 8 * words.itemsize, words.dtype.type
    digits, low = np.uint64(fine), np.uint64(place)
    keep = np.uint64(mask)
    rest, extras = np.empty(BLOCK, kind), np.empty(BLOCK, np.uint8)
    contexts, residuals = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint64)
    held, filled, at = _0, _0, _0  # the low ``filled`` < 32 bits of ``held`` are not yet out
    for k in range(len(bounds) - 1):
        now, was = words[bounds[k] : bounds[k + 1]], base[bounds[k] : bounds[k + 1]]
        ago, out = second[bounds[k] : bounds[k + 1]], symbols[bounds[k] : bounds[k + 1]]
        slope, level = np.uint64(slopes[k]), np.int64(levels[k]) - CENTRE
        for i in range(len(now)):
            step = signed_of(np.uint64(was[i]) - np.uint64(ago[i]), spare)
            error = np.uint64(now[i]) - np.uint64(was[i]) - predicted(step, slope)
            residuals[i] = zigzag_of(signed_of(error, spare))
            length = length_of(zigzag_of(step))
            contexts[i] = np.uint32(length << _8 | (np.uint64(was[i]) >> low & keep))
        for i in range(len(now)):
            length = length_of(residuals[i])
            extra = length - digits - _1 if length > digits else _0
            extras[i] = np.uint8(extra)
            rest[i] = kind(residuals[i] & ((_1 << extra) - _1))
            out[i] = np.uint8((extra << digits) + (residuals[i] >> extra))
        for i in range(len(now)):
            above: Any = np.int64(usual[contexts[i]]) + level
            out[i] -= np.uint8(max(above, 0))
        for i in range(len(now)):
            value, extra = np.uint64(rest[i]), np.uint64(extras[i])
            if words.itemsize == 8 and extra > _32:
                held |= (value & np.uint64(0xFFFFFFFF)) << filled
                bits[at] = np.uint32(held)
                at += _1
                held >>= _32
                value >>= _32
                extra -= _32
            held |= value << filled
            filled += extra
            bits[at] = np.uint32(held)  # without a branch, a word not yet full is written again
            at += filled >> _5
            held >>= filled & _32
            filled &= _31
    bits[at] = np.uint32(held)
    return int(np.int64(at) * 32 + np.int64(filled))


def unpack(
    symbols: Array, bits: memoryview, base: Array, second: Array, bounds: Array, form: Form,
    fit: Fit,
) -> Array | None:  # fmt: skip
    """The words [n], None where the bits are not as many as the symbols ask for."""
    words = np.empty_like(base)
    padded = np.zeros(len(bits) // 4 + 4, np.uint32)  # reads look ahead
    padded.view(np.uint8)[: len(bits)] = bits
    limit = 8 * len(bits)
    if COMPILED:
        count = unpack_compiled(
            symbols, padded, limit, base, second, bounds, fit.slopes, fit.levels, fit.usual,
            form.place, form.mask, form.fine, words,
        )  # fmt: skip
    else:
        count = unpack_vectorised(symbols, padded, limit, base, second, bounds, form, fit, words)
    if count < 0 or (count + 7) // 8 != len(bits) or (count % 8 and bits[-1] >> count % 8):
        return None
    return words


def unpack_vectorised(
    symbols: Array, bits: Array, limit: int, base: Array, second: Array, bounds: Array,
    form: Form, fit: Fit, words: Array,
) -> int:  # fmt: skip
    """Fill ``words``; the bits read, −1 (and no words of use) where there are fewer."""
    done = 0
    for k in range(0, len(bounds) - 1, PIECE):
        here, slopes, levels = piece(bounds, k, fit)
        steps, contexts = steps_vectorised(base[here], second[here], form)
        shifts = np.maximum(fit.usual[contexts] + levels - CENTRE, 0)
        buckets = symbols[here] + shifts & 255
        extras = np.maximum((buckets >> form.fine) - 1, 0)
        ends = done + np.cumsum(extras)
        if ends[-1] > limit:
            return -1
        at, done = ends - extras, int(ends[-1])
        word, shift = at >> 5, (at & 31).astype(np.uint64)
        low, middle, high = (bits[word + j].astype(np.uint64) for j in range(3))
        value = (low | middle << _32) >> shift
        value |= np.where(shift > _0, high << (_64 - np.maximum(shift, _1)), _0)
        counts = extras.astype(np.uint64)
        top = (buckets - (extras << form.fine)).astype(np.uint64)
        residuals = top << counts | value & ((_1 << counts) - _1)
        error = (residuals >> _1).view(np.int64) ^ -(residuals & _1).view(np.int64)
        change = error + (steps * slopes + 32 >> 6)
        words[here] = base[here] + change.astype(base.dtype)
    return done


@jit
def unpack_compiled(
    symbols: Array,
    bits: Array,
    limit: int,
    base: Array,
    second: Array,
    bounds: Array,
    slopes: Array,
    levels: Array,
    usual: Array,
    place: int,
    mask: int,
    fine: int,
    words: Array,
) -> int:
    """The same; every read is inside ``bits``, which go 96 beyond the limit."""
    spare, kind = 64 - 8 * words.itemsize, words.dtype.type
    digits, low, keep, end = (np.uint64(fine), np.uint64(place), np.uint64(mask), np.uint64(limit))
    rest, extras = np.empty(BLOCK, kind), np.empty(BLOCK, np.uint8)
    buckets, contexts = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint32)
    guess = np.empty(BLOCK, np.uint64)
    at = _0
    for k in range(len(bounds) - 1):
        was, ago = base[bounds[k] : bounds[k + 1]], second[bounds[k] : bounds[k + 1]]
        given, out = symbols[bounds[k] : bounds[k + 1]], words[bounds[k] : bounds[k + 1]]
        slope, level = np.uint64(slopes[k]), np.int64(levels[k]) - CENTRE
        for i in range(len(out)):
            step = signed_of(np.uint64(was[i]) - np.uint64(ago[i]), spare)
            guess[i] = np.uint64(was[i]) + predicted(step, slope)
            length = length_of(zigzag_of(step))
            contexts[i] = np.uint32(length << _8 | (np.uint64(was[i]) >> low & keep))
        for i in range(len(out)):
            above: Any = np.int64(usual[contexts[i]]) + level
            buckets[i] = np.uint8(given[i] + np.uint8(max(above, 0)))
        total = np.uint32(0)
        for i in range(len(out)):
            longer: Any = (np.int64(buckets[i]) >> fine) - 1
            extras[i] = np.uint8(max(longer, 0))
            total += np.uint32(extras[i])
        if at + np.uint64(total) > end:
            return -1
        for i in range(len(out)):
            word, shift = at >> _5, at & _31
            value = np.uint64(bits[word]) | np.uint64(bits[word + _1]) << _32
            value >>= shift
            if words.itemsize == 8:
                value |= np.uint64(bits[word + _1 + _1]) << _1 << (_31 + _32 - shift)
            rest[i] = kind(value)
            at += np.uint64(extras[i])
        for i in range(len(out)):
            extra = np.uint64(extras[i])
            residual = (np.uint64(buckets[i]) - (extra << digits)) << extra
            residual |= np.uint64(rest[i]) & ((_1 << extra) - _1)
            error = (residual >> _1) ^ (_0 - (residual & _1))
            out[i] = kind(guess[i] + error)
    return int(np.int64(at))
