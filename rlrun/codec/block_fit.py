"""Fit of the parameters of ``planes_ctx`` on an eighth of the words.

Only the encoder needs it: a decoder accepts any coefficients, offsets and expected buckets. The
compiled and the numpy version have the same result, so that frames do not depend on numba.
"""

import numpy as np

from rlrun.codec.block_prediction import (
    BLOCK,
    BlockParameters,
    WordLayout,
    as_signed,
    buckets_vectorised,
    contexts_vectorised,
    predict_change,
    wrap_signed,
    zigzag_signed,
)
from rlrun.codec.kernels import bit_length, bit_lengths_vectorised, sign_extend, zigzag_word
from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit

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

_0, _1 = np.uint64(0), np.uint64(1)


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
