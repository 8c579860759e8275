"""Kernels of ``planes_ctx``: linear prediction per block, residuals split into symbols and bits.

Words are unsigned [n] of one width W; ``bounds`` int64 [k + 1] are those of blocks of at most
``BLOCK`` words. Every ``*_compiled`` kernel has a ``*_vectorised`` numpy version with the same
results. With step = base − second and change = word − base, both signed and modulo 2^W:

* residual = zigzag(change − (coefficient · step + 32 >> 6)), coefficient int8 of the block;
* bucket = extra << bucket_bits | the first 1 + ``bucket_bits`` bits of the residual, uint8; the
  ``extra`` bits below them are stored as they are; a short residual is its own bucket;
* context = 256 · length of zigzag(step) + a byte of the base's exponent, uint16;
* symbol = bucket − max(expected_buckets[context] + offset − SYMBOL_CENTRE, 0) modulo 256, offset
  int8 of the block.

A symbol is the length of a residual relative to its context and block, so that symbols of all
contexts have similar frequencies.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.codec.kernels import bit_length, bit_lengths_vectorised, sign_extend, zigzag_word
from rlrun.codec.words import Array, Kind
from rlrun.jit import COMPILED, jit

BLOCK = 512  # words: often a row of weights; part of the format
SYMBOL_CENTRE = 16  # symbol of a residual in the expected bucket; part of the format
MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}
BLOCKS_AT_ONCE = 64  # in the numpy versions

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _8, _31, _32, _64 = (np.uint64(k) for k in (0, 1, 5, 8, 31, 32, 64))


@dataclass(frozen=True, slots=True)
class WordLayout:
    """Parameters of a kind of word for the kernels."""

    width: int  # bits W
    exponent_shift: int  # position of the exponent's lowest bit
    exponent_mask: int  # 255; 0 for integers
    bucket_bits: int  # as many as a uint8 bucket can represent

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return (self.width + 1) * 256


@dataclass(frozen=True, slots=True)
class BlockParameters:
    """Parameters of a payload: of its blocks and of the contexts."""

    coefficients: Array  # int8 [k], in 1/64
    offsets: Array  # int8 [k]
    expected_buckets: Array  # uint8 [contexts]


def word_layout(kind: Kind) -> WordLayout:
    """Return the layout of a kind."""
    shift, bucket_bits = MANTISSA.get(kind.name), 2 if kind.bits == 64 else 3
    return WordLayout(kind.bits, shift or 0, 0 if shift is None else 255, bucket_bits)


def block_bounds(sizes: tuple[int, ...]) -> Array:
    """Return the bounds of the blocks of tensors of these sizes; no block spans two tensors."""
    parts, at = [np.zeros(1, np.int64)], 0
    for size in sizes:
        if size:
            parts += [np.arange(at + BLOCK, at + size, BLOCK), np.array([at + size])]
        at += size
    return np.concatenate(parts)


def as_signed(delta: Array) -> Array:
    """Return wrapped differences as int64."""
    return delta.view(f"i{delta.itemsize}").astype(np.int64)


def zigzag_signed(values: Array) -> Array:
    """Return the zigzag code of int64 as uint64: 0, −1, 1, −2, … as 0, 1, 2, 3, …"""
    result: Array = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return result


def contexts_vectorised(base: Array, second: Array, layout: WordLayout) -> tuple[Array, Array]:
    """Return (steps int64 [n], contexts int64 [n])."""
    steps = as_signed(base - second)
    shifted = (base >> base.dtype.type(layout.exponent_shift)).astype(np.int64)
    return steps, bit_lengths_vectorised(zigzag_signed(steps)).astype(
        np.int64
    ) << 8 | shifted & layout.exponent_mask


def buckets_vectorised(residuals: Array, bucket_bits: int) -> tuple[Array, Array]:
    """Return (buckets int64 [n], extra uint64 [n]) of uint64 residuals."""
    extra_bits = np.maximum(bit_lengths_vectorised(residuals).astype(np.int64) - bucket_bits - 1, 0)
    counts = extra_bits.astype(np.uint64)
    return (extra_bits << bucket_bits) + (residuals >> counts).astype(np.int64), counts


def pack(
    words: Array,
    base: Array,
    second: Array,
    bounds: Array,
    layout: WordLayout,
    parameters: BlockParameters,
) -> tuple[Array, Array]:
    """Return (symbols uint8 [n], bytes of the extra bits, lowest first, spare ones 0)."""
    if not COMPILED:
        return pack_vectorised(words, base, second, bounds, layout, parameters)
    symbols = np.empty(len(words), np.uint8)
    bits = np.empty(len(words) * layout.width // 32 + 3, np.uint32)
    count = pack_compiled(
        words, base, second, bounds, parameters.coefficients, parameters.offsets,
        parameters.expected_buckets, layout.exponent_shift, layout.exponent_mask,
        layout.bucket_bits, symbols, bits,
    )  # fmt: skip
    return symbols, bits.view(np.uint8)[: (count + 7) // 8]


def pack_vectorised(
    words: Array,
    base: Array,
    second: Array,
    bounds: Array,
    layout: WordLayout,
    parameters: BlockParameters,
) -> tuple[Array, Array]:
    """Numpy version of ``pack``."""
    symbols, parts = np.empty(len(words), np.uint8), [np.zeros(0, np.uint8)]
    for k in range(0, len(bounds) - 1, BLOCKS_AT_ONCE):
        span, coefficients, offsets = block_group(bounds, k, parameters)
        steps, contexts = contexts_vectorised(base[span], second[span], layout)
        change = as_signed(words[span] - base[span])
        error = wrap_signed(change - (steps * coefficients + 32 >> 6), layout.width)
        residuals = zigzag_signed(error)
        buckets, extra_bits = buckets_vectorised(residuals, layout.bucket_bits)
        shifts = np.maximum(parameters.expected_buckets[contexts] + offsets - SYMBOL_CENTRE, 0)
        symbols[span] = buckets - shifts & 255
        counts = extra_bits.astype(np.int64)
        at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        parts.append((np.repeat(residuals, counts) >> at.astype(np.uint64) & _1).astype(np.uint8))
    return symbols, np.packbits(np.concatenate(parts), bitorder="little")


def block_group(bounds: Array, k: int, parameters: BlockParameters) -> tuple[slice, Array, Array]:
    """Return (words of ``BLOCKS_AT_ONCE`` blocks from k on, int64 coefficients, offsets)."""
    edges = bounds[k : k + BLOCKS_AT_ONCE + 1]
    sizes = np.diff(edges)
    coefficients = parameters.coefficients[k : k + BLOCKS_AT_ONCE].astype(np.int64).repeat(sizes)
    offsets = parameters.offsets[k : k + BLOCKS_AT_ONCE].astype(np.int64).repeat(sizes)
    return slice(int(edges[0]), int(edges[-1])), coefficients, offsets


def wrap_signed(values: Array, width: int) -> Array:
    """Wrap int64 to signed integers of ``width`` bits."""
    result: Array = values << (64 - width) >> (64 - width)
    return result


@jit
def predict_change(step: np.int64, coefficient: np.uint64) -> np.uint64:
    """Return coefficient · step / 64, rounded to nearest; the product wraps modulo 2^64."""
    return np.uint64(np.int64(np.uint64(step) * coefficient + _32) >> np.int64(6))


@jit
def pack_compiled(
    words: Array,
    base: Array,
    second: Array,
    bounds: Array,
    coefficients: Array,
    offsets: Array,
    expected_buckets: Array,
    exponent_shift: int,
    exponent_mask: int,
    bucket_bits: int,
    symbols: Array,
    bits: Array,
) -> int:
    """Fill both and return the number of bits; ``bits`` has a spare word, filled with zeros."""
    spare, kind = 64 - 8 * words.itemsize, words.dtype.type
    fraction_bits, exponent_at = np.uint64(bucket_bits), np.uint64(exponent_shift)
    exponent_byte = np.uint64(exponent_mask)
    low_bits, extra_bits = np.empty(BLOCK, kind), np.empty(BLOCK, np.uint8)
    contexts, residuals = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint64)
    # The low ``pending_bits`` < 32 bits of ``pending`` are not written yet.
    pending, pending_bits, at = _0, _0, _0
    for k in range(len(bounds) - 1):
        block, block_base = words[bounds[k] : bounds[k + 1]], base[bounds[k] : bounds[k + 1]]
        block_second, out = second[bounds[k] : bounds[k + 1]], symbols[bounds[k] : bounds[k + 1]]
        coefficient, offset = np.uint64(coefficients[k]), np.int64(offsets[k]) - SYMBOL_CENTRE
        for i in range(len(block)):
            step = sign_extend(np.uint64(block_base[i]) - np.uint64(block_second[i]), spare)
            change = np.uint64(block[i]) - np.uint64(block_base[i])
            error = change - predict_change(step, coefficient)
            residuals[i] = zigzag_word(sign_extend(error, spare))
            length = bit_length(zigzag_word(step))
            contexts[i] = np.uint32(
                length << _8 | (np.uint64(block_base[i]) >> exponent_at & exponent_byte)
            )
        for i in range(len(block)):
            length = bit_length(residuals[i])
            extra = length - fraction_bits - _1 if length > fraction_bits else _0
            extra_bits[i] = np.uint8(extra)
            low_bits[i] = kind(residuals[i] & ((_1 << extra) - _1))
            out[i] = np.uint8((extra << fraction_bits) + (residuals[i] >> extra))
        for i in range(len(block)):
            expected: Any = np.int64(expected_buckets[contexts[i]]) + offset
            out[i] -= np.uint8(max(expected, 0))
        for i in range(len(block)):
            value, extra = np.uint64(low_bits[i]), np.uint64(extra_bits[i])
            if words.itemsize == 8 and extra > _32:
                pending |= (value & np.uint64(0xFFFFFFFF)) << pending_bits
                bits[at] = np.uint32(pending)
                at += _1
                pending >>= _32
                value >>= _32
                extra -= _32
            pending |= value << pending_bits
            pending_bits += extra
            bits[at] = np.uint32(pending)  # branch-free: an incomplete word is written again
            at += pending_bits >> _5
            pending >>= pending_bits & _32
            pending_bits &= _31
    bits[at] = np.uint32(pending)
    return int(np.int64(at) * 32 + np.int64(pending_bits))


def unpack(
    symbols: Array, bits: memoryview, base: Array, second: Array, bounds: Array, layout: WordLayout,
    parameters: BlockParameters,
) -> Array | None:  # fmt: skip
    """Return the words [n]; None if the number of bits is not the one the symbols need."""
    words = np.empty_like(base)
    padded = np.zeros(len(bits) // 4 + 4, np.uint32)  # reads extend beyond the end
    padded.view(np.uint8)[: len(bits)] = bits
    limit = 8 * len(bits)
    if COMPILED:
        count = unpack_compiled(
            symbols, padded, limit, base, second, bounds, parameters.coefficients,
            parameters.offsets, parameters.expected_buckets, layout.exponent_shift,
            layout.exponent_mask, layout.bucket_bits, words,
        )  # fmt: skip
    else:
        count = unpack_vectorised(
            symbols, padded, limit, base, second, bounds, layout, parameters, words
        )
    if count < 0 or (count + 7) // 8 != len(bits) or (count % 8 and bits[-1] >> count % 8):
        return None
    return words


def unpack_vectorised(
    symbols: Array, bits: Array, limit: int, base: Array, second: Array, bounds: Array,
    layout: WordLayout, parameters: BlockParameters, words: Array,
) -> int:  # fmt: skip
    """Fill ``words`` and return the bits read; −1, with ``words`` undefined, if there are fewer."""
    done = 0
    for k in range(0, len(bounds) - 1, BLOCKS_AT_ONCE):
        span, coefficients, offsets = block_group(bounds, k, parameters)
        steps, contexts = contexts_vectorised(base[span], second[span], layout)
        shifts = np.maximum(parameters.expected_buckets[contexts] + offsets - SYMBOL_CENTRE, 0)
        buckets = symbols[span] + shifts & 255
        extra_bits = np.maximum((buckets >> layout.bucket_bits) - 1, 0)
        ends = done + np.cumsum(extra_bits)
        if ends[-1] > limit:
            return -1
        at, done = ends - extra_bits, int(ends[-1])
        word, shift = at >> 5, (at & 31).astype(np.uint64)
        low, middle, high = (bits[word + j].astype(np.uint64) for j in range(3))
        value = (low | middle << _32) >> shift
        value |= np.where(shift > _0, high << (_64 - np.maximum(shift, _1)), _0)
        counts = extra_bits.astype(np.uint64)
        top = (buckets - (extra_bits << layout.bucket_bits)).astype(np.uint64)
        residuals = top << counts | value & ((_1 << counts) - _1)
        error = (residuals >> _1).view(np.int64) ^ -(residuals & _1).view(np.int64)
        change = error + (steps * coefficients + 32 >> 6)
        words[span] = base[span] + change.astype(base.dtype)
    return done


@jit
def unpack_compiled(
    symbols: Array,
    bits: Array,
    limit: int,
    base: Array,
    second: Array,
    bounds: Array,
    coefficients: Array,
    offsets: Array,
    expected_buckets: Array,
    exponent_shift: int,
    exponent_mask: int,
    bucket_bits: int,
    words: Array,
) -> int:
    """Compiled version; all reads are within ``bits``, 96 bits longer than ``limit``."""
    spare, kind = 64 - 8 * words.itemsize, words.dtype.type
    fraction_bits = np.uint64(bucket_bits)
    exponent_at = np.uint64(exponent_shift)
    exponent_byte = np.uint64(exponent_mask)
    end = np.uint64(limit)
    low_bits, extra_bits = np.empty(BLOCK, kind), np.empty(BLOCK, np.uint8)
    buckets, contexts = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint32)
    prediction = np.empty(BLOCK, np.uint64)
    at = _0
    for k in range(len(bounds) - 1):
        block_base = base[bounds[k] : bounds[k + 1]]
        block_second = second[bounds[k] : bounds[k + 1]]
        block_symbols, out = symbols[bounds[k] : bounds[k + 1]], words[bounds[k] : bounds[k + 1]]
        coefficient, offset = np.uint64(coefficients[k]), np.int64(offsets[k]) - SYMBOL_CENTRE
        for i in range(len(out)):
            step = sign_extend(np.uint64(block_base[i]) - np.uint64(block_second[i]), spare)
            prediction[i] = np.uint64(block_base[i]) + predict_change(step, coefficient)
            length = bit_length(zigzag_word(step))
            contexts[i] = np.uint32(
                length << _8 | (np.uint64(block_base[i]) >> exponent_at & exponent_byte)
            )
        for i in range(len(out)):
            expected: Any = np.int64(expected_buckets[contexts[i]]) + offset
            buckets[i] = np.uint8(block_symbols[i] + np.uint8(max(expected, 0)))
        total = np.uint32(0)
        for i in range(len(out)):
            extra_length: Any = (np.int64(buckets[i]) >> bucket_bits) - 1
            extra_bits[i] = np.uint8(max(extra_length, 0))
            total += np.uint32(extra_bits[i])
        if at + np.uint64(total) > end:
            return -1
        for i in range(len(out)):
            word, shift = at >> _5, at & _31
            value = np.uint64(bits[word]) | np.uint64(bits[word + _1]) << _32
            value >>= shift
            if words.itemsize == 8:
                value |= np.uint64(bits[word + _1 + _1]) << _1 << (_31 + _32 - shift)
            low_bits[i] = kind(value)
            at += np.uint64(extra_bits[i])
        for i in range(len(out)):
            extra = np.uint64(extra_bits[i])
            residual = (np.uint64(buckets[i]) - (extra << fraction_bits)) << extra
            residual |= np.uint64(low_bits[i]) & ((_1 << extra) - _1)
            error = (residual >> _1) ^ (_0 - (residual & _1))
            out[i] = kind(prediction[i] + error)
    return int(np.int64(at))


RUN_LENGTH, RUN_STRIDE = 16, 8  # sampled runs of neighbours: one in RUN_STRIDE
SAMPLE_WORDS = BLOCK // RUN_STRIDE  # sampled words of a full block
UNIT = 64  # coefficient 1, in 1/64
# Range of the histogram of coefficients: [−0.5, 1.5).
MIN_COEFFICIENT = -32
MAX_COEFFICIENT = 96
MIN_STEP = 16  # smallest |step| whose ratio is counted
SMOOTHING = np.array([1, 2, 3, 2, 1])  # kernel over neighbouring coefficients
ROUNDS = 2  # of alternating expected buckets and offsets: 1 percentage point smaller than one
MIN_COUNT = 16  # contexts with fewer words use the mean of their length


def fit_blocks(
    words: Array, base: Array, second: Array, bounds: Array, layout: WordLayout
) -> BlockParameters:
    """Return coefficients and offsets of the blocks, and expected buckets of the contexts."""
    blocks = len(bounds) - 1
    coefficients, sampled = np.empty(blocks, np.int8), np.empty(blocks, np.int64)
    contexts = np.zeros((blocks, SAMPLE_WORDS), np.uint16)
    buckets = np.zeros((blocks, SAMPLE_WORDS), np.uint8)
    fit_coefficients = fit_coefficients_compiled if COMPILED else fit_coefficients_vectorised
    fit_coefficients(
        words, base, second, bounds, layout.exponent_shift, layout.exponent_mask,
        layout.bucket_bits, coefficients, sampled, contexts, buckets,
    )  # fmt: skip
    offsets = np.zeros(blocks, np.int8)
    for _ in range(ROUNDS):
        expected_buckets = mean_buckets(
            *context_sums(contexts, buckets, offsets, sampled, layout.contexts)
        )
        offsets = block_offsets(contexts, buckets, sampled, expected_buckets)
    return BlockParameters(coefficients, offsets, expected_buckets)


def mean_buckets(sums: Array, counts: Array) -> Array:
    """Return uint8 [contexts]: the mean bucket; that of all contexts of a length for rare ones."""
    sums, counts = sums.reshape(-1, 256), counts.reshape(-1, 256)
    by_length = mean(sums.sum(1), counts.sum(1))[:, None]
    found: Array = np.where(counts < MIN_COUNT, by_length, mean(sums, counts))
    return np.clip(found, 0, 255).astype(np.uint8).reshape(-1)


def mean(sums: Array, counts: Array) -> Array:
    """Return means of integers, rounded to nearest; 0 for a count of 0."""
    result: Array = (2 * sums + counts) // np.maximum(2 * counts, 1)
    return result


def context_sums(
    contexts: Array, buckets: Array, offsets: Array, sampled: Array, n: int
) -> tuple[Array, Array]:
    """Return (sum of buckets minus offsets int64 [n], counts int64 [n]) of every context."""
    if COMPILED:
        found = np.zeros((2, n), np.int64)
        context_sums_compiled(contexts, buckets, offsets, sampled, found[0], found[1])
        return found[0], found[1]
    in_sample = np.arange(SAMPLE_WORDS) < sampled[:, None]
    sampled_contexts = contexts[in_sample]
    excess = (buckets.astype(np.int64) - offsets[:, None])[in_sample]
    sums = np.bincount(sampled_contexts, excess, minlength=n).astype(np.int64)
    return sums, np.bincount(sampled_contexts, minlength=n)


@jit
def context_sums_compiled(
    contexts: Array, buckets: Array, offsets: Array, sampled: Array, sums: Array, counts: Array
) -> None:
    """Add to ``sums`` and ``counts``."""
    for k in range(len(sampled)):
        offset = np.int64(offsets[k])
        for i in range(sampled[k]):
            sums[contexts[k, i]] += np.int64(buckets[k, i]) - offset
            counts[contexts[k, i]] += 1


def block_offsets(
    contexts: Array, buckets: Array, sampled: Array, expected_buckets: Array
) -> Array:
    """Return int8 [k]: the mean difference between buckets and expected buckets of a block."""
    if COMPILED:
        excess = excess_compiled(
            contexts, buckets, sampled, expected_buckets, np.empty(len(sampled), np.int64)
        )
    else:
        in_sample = np.arange(SAMPLE_WORDS) < sampled[:, None]
        excess = ((buckets.astype(np.int64) - expected_buckets[contexts]) * in_sample).sum(1)
    return np.clip(mean(excess, sampled), -128, 127).astype(np.int8)


@jit
def excess_compiled(
    contexts: Array, buckets: Array, sampled: Array, expected_buckets: Array, excess: Array
) -> Array:
    """Fill and return the sums of those differences."""
    for k in range(len(sampled)):
        total = np.int64(0)
        for i in range(sampled[k]):
            total += np.int64(buckets[k, i]) - np.int64(expected_buckets[contexts[k, i]])
        excess[k] = total
    return excess


def fit_coefficients_vectorised(
    words: Array, base: Array, second: Array, bounds: Array, exponent_shift: int,
    exponent_mask: int, bucket_bits: int, coefficients: Array, sampled: Array,
    contexts: Array, buckets: Array,
) -> None:  # fmt: skip
    """Fill coefficients of all blocks, contexts and buckets of sampled words (0 after them)."""
    layout = WordLayout(8 * words.itemsize, exponent_shift, exponent_mask, bucket_bits)
    pattern = np.flatnonzero(np.arange(BLOCK) // RUN_LENGTH % RUN_STRIDE == 0)
    at = bounds[:-1, None] + pattern
    in_sample = at < bounds[1:, None]
    sampled[:] = in_sample.sum(1)
    at = np.where(in_sample, at, 0)
    word_sample, base_sample, second_sample = (x[at.reshape(-1)] for x in (words, base, second))
    steps, context = (
        x.reshape(at.shape) for x in contexts_vectorised(base_sample, second_sample, layout)
    )
    change = as_signed(word_sample - base_sample).reshape(at.shape)
    candidates = [
        np.zeros_like(coefficients),
        np.full_like(coefficients, UNIT),
        voted_coefficients(steps, change, in_sample),
    ]
    costs, errors = [], []
    for coefficient in candidates:
        prediction = steps * coefficient.astype(np.int64)[:, None] + 32 >> 6
        errors.append(zigzag_signed(wrap_signed(change - prediction, layout.width)))
        costs.append(
            (bit_lengths_vectorised(errors[-1].reshape(-1)).reshape(at.shape) * in_sample).sum(1)
        )
    best = np.argmin(costs, 0)
    coefficients[:] = np.choose(best, candidates)
    found, _ = buckets_vectorised(np.choose(best[:, None], errors).reshape(-1), bucket_bits)
    contexts[:] = np.where(in_sample, context, 0)
    buckets[:] = np.where(in_sample, found.reshape(at.shape), 0)


def voted_coefficients(steps: Array, change: Array, in_sample: Array) -> Array:
    """Return int8 [k]: the mode of the ratios change / step of words [k, SAMPLE_WORDS].

    ``UNIT`` for a block without a step of at least ``MIN_STEP``.
    """
    ratio = np.floor(change * 64.0 / np.where(steps == 0, 1, steps) + 0.5)
    votes = (
        in_sample
        & (np.abs(steps) >= MIN_STEP)
        & (ratio >= MIN_COEFFICIENT)
        & (ratio < MAX_COEFFICIENT)
    )
    wide = MAX_COEFFICIENT - MIN_COEFFICIENT + 4  # two more at each end
    at = np.where(votes, ratio - MIN_COEFFICIENT + 2, 0).astype(np.int64)
    at += wide * np.arange(len(steps))[:, None]
    count = np.bincount(at[votes], minlength=wide * len(steps)).reshape(-1, wide)
    smoothed = sum(count[:, j : wide - 4 + j] * int(SMOOTHING[j]) for j in range(5))
    best = np.argmax(smoothed, 1) + MIN_COEFFICIENT
    return np.where(votes.any(1), best, UNIT).astype(np.int8)


@jit
def voted_coefficient_compiled(
    steps: Array, change: Array, at: Array, count: Array, smoothed: Array
) -> int:
    """Compiled version for one block; ``at``, ``count``, ``smoothed``: scratch arrays."""
    no_vote = MAX_COEFFICIENT - MIN_COEFFICIENT + 4
    for i in range(len(steps)):
        step = steps[i]
        ratio = np.floor(change[i] * 64.0 / (1 if step == 0 else step) + 0.5)
        valid = abs(step) >= MIN_STEP and ratio >= MIN_COEFFICIENT and ratio < MAX_COEFFICIENT
        at[i] = np.int64(ratio) - MIN_COEFFICIENT + 2 if valid else no_vote
    count[:] = 0
    for i in range(len(steps)):
        count[at[i]] += 1
    if count[no_vote] == len(steps):
        return UNIT
    highest = 0
    for j in range(MAX_COEFFICIENT - MIN_COEFFICIENT):
        smoothed[j] = count[j] + count[j + 4] + 2 * (count[j + 1] + count[j + 3]) + 3 * count[j + 2]
        highest = max(highest, smoothed[j])
    for j in range(MAX_COEFFICIENT - MIN_COEFFICIENT):
        if smoothed[j] == highest:
            return j + MIN_COEFFICIENT
    return UNIT


@jit
def cost_compiled(steps: Array, change: Array, coefficient: int, spare: int) -> int:
    """Return the total bit length of the residuals of a block with that coefficient."""
    cost, factor = np.uint64(0), np.uint64(np.int64(coefficient))
    for i in range(len(steps)):
        error = np.uint64(change[i]) - predict_change(steps[i], factor)
        cost += bit_length(zigzag_word(sign_extend(error, spare)))
    return int(np.int64(cost))


@jit
def fit_coefficients_compiled(
    words: Array,
    base: Array,
    second: Array,
    bounds: Array,
    exponent_shift: int,
    exponent_mask: int,
    bucket_bits: int,
    coefficients: Array,
    sampled: Array,
    contexts: Array,
    buckets: Array,
) -> None:
    """Compiled version of ``fit_coefficients_vectorised``."""
    spare, fraction_bits = 64 - 8 * words.itemsize, np.uint64(bucket_bits)
    exponent_at = np.uint64(exponent_shift)
    exponent_byte = np.uint64(exponent_mask)
    byte_bits = np.uint64(8)
    sample = np.empty((3, SAMPLE_WORDS), words.dtype)
    all_steps, all_change = np.empty(SAMPLE_WORDS, np.int64), np.empty(SAMPLE_WORDS, np.int64)
    at = np.empty(SAMPLE_WORDS, np.int64)
    count = np.empty(MAX_COEFFICIENT - MIN_COEFFICIENT + 5, np.int64)
    smoothed = np.empty(MAX_COEFFICIENT - MIN_COEFFICIENT, np.int64)
    for k in range(len(bounds) - 1):
        m = 0
        for start in range(bounds[k], bounds[k + 1], RUN_LENGTH * RUN_STRIDE):
            size = min(RUN_LENGTH, bounds[k + 1] - start)
            sample[0, m : m + size] = words[start : start + size]
            sample[1, m : m + size] = base[start : start + size]
            sample[2, m : m + size] = second[start : start + size]
            m += size
        sampled[k] = m
        steps, change, context = all_steps[:m], all_change[:m], contexts[k]
        for i in range(m):
            base_sample = np.uint64(sample[1, i])
            steps[i] = sign_extend(base_sample - np.uint64(sample[2, i]), spare)
            change[i] = sign_extend(np.uint64(sample[0, i]) - base_sample, spare)
            length = bit_length(zigzag_word(steps[i]))
            context[i] = np.uint16(
                length << byte_bits | (base_sample >> exponent_at & exponent_byte)
            )
        best, lowest_cost = 0, cost_compiled(steps, change, 0, spare)
        for coefficient in (UNIT, voted_coefficient_compiled(steps, change, at, count, smoothed)):
            cost = cost_compiled(steps, change, coefficient, spare)
            if cost < lowest_cost:
                best, lowest_cost = coefficient, cost
        coefficients[k] = best
        bucket, factor = buckets[k], np.uint64(np.int64(best))
        for i in range(m):
            error = np.uint64(change[i]) - predict_change(steps[i], factor)
            residual = zigzag_word(sign_extend(error, spare))
            length = bit_length(residual)
            extra = length - fraction_bits - _1 if length > fraction_bits else _0
            bucket[i] = np.uint8((extra << fraction_bits) + (residual >> extra))
