"""``planes_ctx``: linear prediction of every block of weights, residuals coded in context.

The gradients of a row of weights are correlated, and so are the optimiser's steps: every row
repeats its own fraction of the previous step. The length of the residual depends on that step, the
element and the row, all of which the decoder has before it decodes the residual.

Payload: narrowed kind u8 (0: none) · parts (see ``planes``) for the coefficients and the offsets of
the blocks, for the expected bucket of each context, for the symbols, all bytes · the extra bits,
lowest first, spare ones 0. A block has at most ``BLOCK`` words of one tensor. With step = base −
second and change = word − base, both signed and modulo 2^W:

* residual = zigzag(change − (coefficient · step + 32 >> 6)), coefficient int8 of the block;
* bucket = extra << bucket_bits | the first 1 + ``bucket_bits`` bits of the residual, uint8; the
  ``extra`` bits below them are stored as they are; a short residual is its own bucket;
* context = 256 · length of zigzag(step) + a byte of the base's exponent, uint16;
* symbol = bucket − max(expected bucket of the context + offset − SYMBOL_CENTRE, 0) modulo 256,
  offset int8 of the block.

A symbol is the length of a residual relative to its context and block, so that symbols of all
contexts have similar frequencies.
"""

from typing import Any, NamedTuple

import numpy as np

from rlrun.codec import planes
from rlrun.codec.frame import FieldSpec
from rlrun.codec.planes import bit_length, sign_extend, zigzag_word
from rlrun.codec.words import KIND_BY_CODE, Array, Cursor, Kind, damaged_frame, widen
from rlrun.jit import jit

BLOCK = 512  # words: often a row of weights; part of the format
SYMBOL_CENTRE = 16  # symbol of a residual in the expected bucket; part of the format
MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}

# Unsigned constants: numba turns uint64 with a signed literal into a float.
_0, _1, _5, _8, _31, _32 = (np.uint64(k) for k in (0, 1, 5, 8, 31, 32))


class Layout(NamedTuple):
    """Parameters of a kind of word for the kernels."""

    spare: int  # 64 − bits of a word
    exponent_shift: int  # position of the exponent's lowest bit
    exponent_mask: int  # 255; 0 for integers
    bucket_bits: int  # as many as a uint8 bucket can represent

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return (65 - self.spare) * 256


class Parameters(NamedTuple):
    """Parameters of a payload: of its blocks and of the contexts."""

    coefficients: Array  # int8 [k], in 1/64
    offsets: Array  # int8 [k]
    expected_buckets: Array  # uint8 [contexts]


def layout_of(kind: Kind) -> Layout:
    """Return the layout of a kind."""
    shift, bucket_bits = MANTISSA.get(kind.name), 2 if kind.bits == 64 else 3
    return Layout(64 - kind.bits, shift or 0, 0 if shift is None else 255, bucket_bits)


def block_bounds(sizes: tuple[int, ...]) -> Array:
    """Return int64 [k + 1], the bounds of the blocks of tensors of these sizes."""
    parts, at = [np.zeros(1, np.int64)], 0
    for size in sizes:
        if size:
            parts += [np.arange(at + BLOCK, at + size, BLOCK), np.array([at + size])]
        at += size
    return np.concatenate(parts)


def encode(spec: FieldSpec, words: Array, bases: planes.Bases) -> bytes:
    """Return the payload of n > 0 words, given two bases."""
    code, words, (base, second) = planes.narrow_with_bases(spec.kind, words, bases)
    assert base is not None
    assert second is not None
    layout = layout_of(KIND_BY_CODE[code] if code else spec.kind)
    data, bounds = (words, base, second), block_bounds(spec.sizes)
    parameters = fit(data, bounds, layout)
    symbols = np.empty(len(words), np.uint8)
    bits = np.empty(len(words) * words.itemsize // 4 + 3, np.uint32)
    count = pack(data, bounds, layout, parameters, symbols, bits)
    coefficients, offsets, expected_buckets = parameters
    fields = coefficients.view(np.uint8), offsets.view(np.uint8), expected_buckets, symbols
    coded = bits.view(np.uint8)[: (count + 7) // 8]
    return b"".join([bytes((code,)), *map(planes.encode_part, fields), coded.data])


def decode(spec: FieldSpec, data: memoryview, bases: planes.Bases) -> Array:
    """Return the words [n] of the payload, n > 0. Raises: DamagedFrame."""
    cursor = Cursor(data)
    kind, (base, second) = planes.read_kind(cursor, spec.kind, bases)
    if base is None or second is None:
        raise damaged_frame("planes_ctx without two bases")
    layout, bounds = layout_of(kind), block_bounds(spec.sizes)
    coefficients, offsets = (
        planes.decode_part(cursor, len(bounds) - 1).view(np.int8) for _ in range(2)
    )
    parameters = Parameters(coefficients, offsets, planes.decode_part(cursor, layout.contexts))
    symbols = planes.decode_part(cursor, spec.size)
    bits = cursor.read_bytes(len(data) - cursor.position)
    padded = np.zeros(len(bits) // 4 + 4, np.uint32)  # reads extend beyond the end
    padded.view(np.uint8)[: len(bits)] = bits
    words = np.empty_like(base)
    coded = symbols, padded, 8 * len(bits)
    count = unpack(coded, (read_only(base), read_only(second)), bounds, layout, parameters, words)
    if count < 0 or (count + 7) // 8 != len(bits) or (count % 8 and bits[-1] >> count % 8):
        raise damaged_frame("its extra bits do not match its symbols")
    return widen(words, kind, spec.kind)


def read_only(words: Array) -> Array:
    """Return a read-only view, as the bases of a stream are: kernels are compiled for one type."""
    view = words.view()
    view.flags.writeable = False
    return view


# -- one word --------------------------------------------------------------------------------------


@jit
def step_of(base: Any, second: Any, layout: Layout) -> np.int64:
    return sign_extend(np.uint64(base) - np.uint64(second), layout.spare)


@jit
def context_of(base: Any, step: np.int64, layout: Layout) -> np.uint64:
    exponent = np.uint64(base) >> np.uint64(layout.exponent_shift)
    return bit_length(zigzag_word(step)) << _8 | (exponent & np.uint64(layout.exponent_mask))


@jit
def predict(step: np.int64, coefficient: np.uint64) -> np.uint64:
    """Return coefficient · step / 64, rounded to nearest; the product wraps modulo 2^64."""
    return np.uint64(np.int64(np.uint64(step) * coefficient + _32) >> np.int64(6))


@jit
def residual_of(
    change: np.uint64, step: np.int64, coefficient: np.uint64, layout: Layout
) -> np.uint64:
    return zigzag_word(sign_extend(change - predict(step, coefficient), layout.spare))


@jit
def extra_of(residual: np.uint64, layout: Layout) -> np.uint64:
    """Return the number of bits that are stored as they are."""
    length, fraction_bits = bit_length(residual), np.uint64(layout.bucket_bits)
    return length - fraction_bits - _1 if length > fraction_bits else _0


# -- symbols and bits ------------------------------------------------------------------------------


@jit
def pack(
    data: tuple[Array, Array, Array], bounds: Array, layout: Layout, parameters: Parameters,
    symbols: Array, bits: Array,
) -> int:  # fmt: skip
    """Fill symbols uint8 [n] and the extra bits, uint32, of ``data``: words, base, second.

    Return the number of bits; ``bits`` has a spare word, filled with zeros.
    """
    words, base, second = data
    coefficients, offsets, expected_buckets = parameters
    kind, fraction_bits = words.dtype.type, np.uint64(layout.bucket_bits)
    low_bits, extra_bits = np.empty(BLOCK, kind), np.empty(BLOCK, np.uint8)
    contexts, residuals = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint64)
    # The low ``pending_bits`` < 32 bits of ``pending`` are not written yet.
    pending, pending_bits, at = _0, _0, _0
    for k in range(len(bounds) - 1):
        block, block_base = words[bounds[k] : bounds[k + 1]], base[bounds[k] : bounds[k + 1]]
        block_second, out = second[bounds[k] : bounds[k + 1]], symbols[bounds[k] : bounds[k + 1]]
        coefficient, offset = np.uint64(coefficients[k]), np.int64(offsets[k]) - SYMBOL_CENTRE
        for i in range(len(block)):
            step = step_of(block_base[i], block_second[i], layout)
            change = np.uint64(block[i]) - np.uint64(block_base[i])
            residuals[i] = residual_of(change, step, coefficient, layout)
            contexts[i] = np.uint32(context_of(block_base[i], step, layout))
        for i in range(len(block)):
            extra = extra_of(residuals[i], layout)
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


@jit
def unpack(
    coded: tuple[Array, Array, int], bases: tuple[Array, Array], bounds: Array, layout: Layout,
    parameters: Parameters, words: Array,
) -> int:  # fmt: skip
    """Fill ``words`` from ``coded``: symbols, bits, their number; return the number of bits read.

    −1, with ``words`` undefined, if there are fewer. All reads are within ``bits``, 96 bits longer
    than their number.
    """
    symbols, bits, limit = coded
    base, second = bases
    coefficients, offsets, expected_buckets = parameters
    kind, fraction_bits = words.dtype.type, np.uint64(layout.bucket_bits)
    low_bits, extra_bits = np.empty(BLOCK, kind), np.empty(BLOCK, np.uint8)
    buckets, contexts = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint32)
    prediction = np.empty(BLOCK, np.uint64)
    at, end = _0, np.uint64(limit)
    for k in range(len(bounds) - 1):
        block_base = base[bounds[k] : bounds[k + 1]]
        block_second = second[bounds[k] : bounds[k + 1]]
        block_symbols, out = symbols[bounds[k] : bounds[k + 1]], words[bounds[k] : bounds[k + 1]]
        coefficient, offset = np.uint64(coefficients[k]), np.int64(offsets[k]) - SYMBOL_CENTRE
        for i in range(len(out)):
            step = step_of(block_base[i], block_second[i], layout)
            prediction[i] = np.uint64(block_base[i]) + predict(step, coefficient)
            contexts[i] = np.uint32(context_of(block_base[i], step, layout))
        for i in range(len(out)):
            expected: Any = np.int64(expected_buckets[contexts[i]]) + offset
            buckets[i] = np.uint8(block_symbols[i] + np.uint8(max(expected, 0)))
        total = np.uint32(0)
        for i in range(len(out)):
            extra_length: Any = (np.int64(buckets[i]) >> layout.bucket_bits) - 1
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


# -- parameters, by a sample of the words ----------------------------------------------------------

RUN_LENGTH, RUN_STRIDE = 16, 8  # sampled runs of neighbours: one in RUN_STRIDE
SAMPLE_WORDS = BLOCK // RUN_STRIDE  # sampled words of a full block
UNIT = 64  # coefficient 1, in 1/64
MIN_COEFFICIENT, MAX_COEFFICIENT = -32, 96  # of the histogram: [−0.5, 1.5)
RATIOS = MAX_COEFFICIENT - MIN_COEFFICIENT
MIN_STEP = 16  # smallest |step| whose ratio is counted
ROUNDS = 2  # of alternating expected buckets and offsets: 1 percentage point smaller than one
MIN_COUNT = 16  # contexts with fewer words use the mean of their length


def fit(data: tuple[Array, Array, Array], bounds: Array, layout: Layout) -> Parameters:
    """Return coefficients and offsets of the blocks, and expected buckets of the contexts."""
    blocks = len(bounds) - 1
    coefficients, sampled = np.empty(blocks, np.int8), np.empty(blocks, np.int64)
    contexts = np.zeros((blocks, SAMPLE_WORDS), np.uint16)
    buckets = np.zeros((blocks, SAMPLE_WORDS), np.uint8)
    fit_coefficients(data, bounds, layout, coefficients, sampled, contexts, buckets)
    offsets = np.zeros(blocks, np.int8)
    for _ in range(ROUNDS):
        sums = np.zeros((2, layout.contexts), np.int64)
        add_by_context(contexts, buckets, offsets, sampled, sums)
        expected_buckets = mean_buckets(*sums.reshape(2, -1, 256))
        excess = np.empty(blocks, np.int64)
        excess_by_block(contexts, buckets, sampled, expected_buckets, excess)
        offsets = np.clip(mean(excess, sampled), -128, 127).astype(np.int8)
    return Parameters(coefficients, offsets, expected_buckets)


def mean_buckets(sums: Array, counts: Array) -> Array:
    """Return uint8 [contexts]: the mean bucket; that of all contexts of a length for rare ones."""
    by_length = mean(sums.sum(1), counts.sum(1))[:, None]
    means: Array = np.where(counts < MIN_COUNT, by_length, mean(sums, counts))
    return np.clip(means, 0, 255).astype(np.uint8).reshape(-1)


def mean(sums: Array, counts: Array) -> Array:
    """Return means of integers, rounded to nearest; 0 for a count of 0."""
    result: Array = (2 * sums + counts) // np.maximum(2 * counts, 1)
    return result


@jit
def add_by_context(
    contexts: Array, buckets: Array, offsets: Array, sampled: Array, sums: Array
) -> None:
    """Add bucket minus offset, and 1, of every sampled word to ``sums`` int64 [2, contexts]."""
    for k in range(len(sampled)):
        offset = np.int64(offsets[k])
        for i in range(sampled[k]):
            sums[0, contexts[k, i]] += np.int64(buckets[k, i]) - offset
            sums[1, contexts[k, i]] += 1


@jit
def excess_by_block(
    contexts: Array, buckets: Array, sampled: Array, expected_buckets: Array, excess: Array
) -> None:
    """Fill ``excess`` int64 [k] with the sums of bucket minus expected bucket."""
    for k in range(len(sampled)):
        total = np.int64(0)
        for i in range(sampled[k]):
            total += np.int64(buckets[k, i]) - np.int64(expected_buckets[contexts[k, i]])
        excess[k] = total


@jit
def fit_coefficients(
    data: tuple[Array, Array, Array], bounds: Array, layout: Layout,
    coefficients: Array, sampled: Array, contexts: Array, buckets: Array,
) -> None:  # fmt: skip
    """Fill the coefficient and the number of sampled words of every block, and their contexts and
    buckets [k, SAMPLE_WORDS].

    A coefficient is 0, 1 or the mode of change / step, whichever has the shortest residuals.
    """
    words, base, second = data
    steps, changes = np.empty(SAMPLE_WORDS, np.int64), np.empty(SAMPLE_WORDS, np.int64)
    scratch = (
        np.empty(SAMPLE_WORDS, np.int64),
        np.empty(RATIOS + 5, np.int64),
        np.empty(RATIOS, np.int64),
    )
    for k in range(len(bounds) - 1):
        m = 0
        for start in range(bounds[k], bounds[k + 1], RUN_LENGTH * RUN_STRIDE):
            for i in range(start, min(start + RUN_LENGTH, bounds[k + 1])):
                step = step_of(base[i], second[i], layout)
                steps[m] = step
                change = np.uint64(words[i]) - np.uint64(base[i])
                changes[m] = sign_extend(change, layout.spare)
                contexts[k, m] = np.uint16(context_of(base[i], step, layout))
                m += 1
        sampled[k] = m
        best, lowest_cost = 0, total_length(steps[:m], changes[:m], 0, layout)
        for coefficient in (UNIT, mode_of_ratios(steps[:m], changes[:m], scratch)):
            cost = total_length(steps[:m], changes[:m], coefficient, layout)
            if cost < lowest_cost:
                best, lowest_cost = coefficient, cost
        coefficients[k] = best
        factor = np.uint64(np.int64(best))
        for i in range(m):
            residual = residual_of(np.uint64(changes[i]), steps[i], factor, layout)
            extra = extra_of(residual, layout)
            buckets[k, i] = np.uint8((extra << np.uint64(layout.bucket_bits)) + (residual >> extra))


@jit
def total_length(steps: Array, changes: Array, coefficient: int, layout: Layout) -> int:
    """Return the total bit length of the residuals of a block with that coefficient."""
    cost, factor = _0, np.uint64(np.int64(coefficient))
    for i in range(len(steps)):
        cost += bit_length(residual_of(np.uint64(changes[i]), steps[i], factor, layout))
    return int(np.int64(cost))


@jit
def mode_of_ratios(steps: Array, changes: Array, scratch: tuple[Array, Array, Array]) -> int:
    """Return the mode of change / step, in 1/64; ``UNIT`` without a step of ``MIN_STEP``."""
    at, count, smoothed = scratch
    no_vote = RATIOS + 4
    for i in range(len(steps)):
        step = steps[i]
        ratio = np.floor(changes[i] * 64.0 / (1 if step == 0 else step) + 0.5)
        valid = abs(step) >= MIN_STEP and ratio >= MIN_COEFFICIENT and ratio < MAX_COEFFICIENT
        at[i] = np.int64(ratio) - MIN_COEFFICIENT + 2 if valid else no_vote
    count[:] = 0
    for i in range(len(steps)):
        count[at[i]] += 1
    if count[no_vote] == len(steps):
        return UNIT
    for j in range(RATIOS):  # two more counts at each end
        smoothed[j] = count[j] + count[j + 4] + 2 * (count[j + 1] + count[j + 3]) + 3 * count[j + 2]
    return int(np.argmax(smoothed)) + MIN_COEFFICIENT
