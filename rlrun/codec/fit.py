"""Slopes of blocks and contexts for ``planes_ctx``, fitted on an eighth of their words.

The encoder's business alone: a decoder takes any slopes, levels and usual buckets. The compiled
kernel and its numpy twin find the same, so that frames do not depend on numba.
"""

import numpy as np

from rlrun.codec.kernels import length_of, lengths_vectorised, signed_of, zigzag_of
from rlrun.codec.slopes import (
    BLOCK,
    Fit,
    Form,
    buckets_vectorised,
    folded,
    predicted,
    signed,
    steps_vectorised,
    wrapped,
)
from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit

LINE, EACH = 16, 8  # lines of neighbours looked at, one of so many
SEEN = BLOCK // EACH  # words of a whole block
ONE = 64  # the slope of a step that is made again
FLAT, STEEP = -32, 96  # slopes that can be voted for: [−0.5, 1.5)
VOTE = 16  # |step| from which an element has a vote
VOTED = np.array([1, 2, 3, 2, 1])  # weights of neighbouring slopes: a vote is not exact
ROUNDS = 2  # usual buckets without the blocks' levels, then those again: a point of size or more
RARE = 16  # words of a context below which it is taken for its length's average

_0, _1 = np.uint64(0), np.uint64(1)


def fit(words: Array, base: Array, second: Array, bounds: Array, form: Form) -> Fit:
    """Slopes of the blocks, usual buckets of the contexts, and the blocks' levels above those."""
    blocks = len(bounds) - 1
    slopes, seen = np.empty(blocks, np.int8), np.empty(blocks, np.int64)
    contexts, buckets = np.zeros((blocks, SEEN), np.uint16), np.zeros((blocks, SEEN), np.uint8)
    look = look_compiled if COMPILED else look_vectorised
    look(
        words, base, second, bounds, form.place, form.mask, form.fine, slopes, seen, contexts,
        buckets,
    )  # fmt: skip
    levels = np.zeros(blocks, np.int8)
    for _ in range(ROUNDS):
        usual = usual_of(*sums_of(contexts, buckets, levels, seen, form.contexts))
        levels = levels_of(contexts, buckets, seen, usual)
    return Fit(slopes, levels, usual)


def usual_of(sums: Array, counts: Array) -> Array:
    """uint8 [contexts]: mean bucket, of all contexts of a length where there are few."""
    sums, counts = sums.reshape(-1, 256), counts.reshape(-1, 256)
    by_length = mean(sums.sum(1), counts.sum(1))[:, None]
    found: Array = np.where(counts < RARE, by_length, mean(sums, counts))
    return np.clip(found, 0, 255).astype(np.uint8).reshape(-1)


def mean(sums: Array, counts: Array) -> Array:
    """Means of integers to the nearest integer, 0 of none."""
    result: Array = (2 * sums + counts) // np.maximum(2 * counts, 1)
    return result


def sums_of(
    contexts: Array, buckets: Array, levels: Array, seen: Array, n: int
) -> tuple[Array, Array]:
    """(sum of buckets less their levels int64 [n], how many int64 [n]) of each context."""
    if COMPILED:
        found = np.zeros((2, n), np.int64)
        sums_compiled(contexts, buckets, levels, seen, found[0], found[1])
        return found[0], found[1]
    there = np.arange(SEEN) < seen[:, None]
    where = contexts[there]
    above = (buckets.astype(np.int64) - levels[:, None])[there]
    sums = np.bincount(where, above, minlength=n).astype(np.int64)
    return sums, np.bincount(where, minlength=n)


@jit
def sums_compiled(
    contexts: Array, buckets: Array, levels: Array, seen: Array, sums: Array, counts: Array
) -> None:
    """Add up both."""
    for k in range(len(seen)):
        level = np.int64(levels[k])
        for i in range(seen[k]):
            sums[contexts[k, i]] += np.int64(buckets[k, i]) - level
            counts[contexts[k, i]] += 1


def levels_of(contexts: Array, buckets: Array, seen: Array, usual: Array) -> Array:
    """int8 [k]: by how much the buckets of a block exceed the usual ones."""
    if COMPILED:
        above = above_compiled(contexts, buckets, seen, usual, np.empty(len(seen), np.int64))
    else:
        there = np.arange(SEEN) < seen[:, None]
        above = ((buckets.astype(np.int64) - usual[contexts]) * there).sum(1)
    return np.clip(mean(above, seen), -128, 127).astype(np.int8)


@jit
def above_compiled(
    contexts: Array, buckets: Array, seen: Array, usual: Array, above: Array
) -> Array:
    """The sums of those differences."""
    for k in range(len(seen)):
        total = np.int64(0)
        for i in range(seen[k]):
            total += np.int64(buckets[k, i]) - np.int64(usual[contexts[k, i]])
        above[k] = total
    return above


def look_vectorised(
    words: Array, base: Array, second: Array, bounds: Array, place: int, mask: int, fine: int,
    slopes: Array, seen: Array, contexts: Array, buckets: Array,
) -> None:  # fmt: skip
    """Slopes of all blocks; of the words looked at contexts and buckets, 0 behind the last."""
    form = Form(8 * words.itemsize, place, mask, fine)
    pattern = np.flatnonzero(np.arange(BLOCK) // LINE % EACH == 0)
    at = bounds[:-1, None] + pattern
    there = at < bounds[1:, None]
    seen[:] = there.sum(1)
    at = np.where(there, at, 0)
    now, was, ago = (x[at.reshape(-1)] for x in (words, base, second))
    steps, context = (x.reshape(at.shape) for x in steps_vectorised(was, ago, form))
    change = signed(now - was).reshape(at.shape)
    candidates = [np.zeros_like(slopes), np.full_like(slopes, ONE), voted(steps, change, there)]
    costs, errors = [], []
    for slope in candidates:
        guess = steps * slope.astype(np.int64)[:, None] + 32 >> 6
        errors.append(folded(wrapped(change - guess, form.width)))
        costs.append((lengths_vectorised(errors[-1].reshape(-1)).reshape(at.shape) * there).sum(1))
    best = np.argmin(costs, 0)
    slopes[:] = np.choose(best, candidates)
    found, _ = buckets_vectorised(np.choose(best[:, None], errors).reshape(-1), fine)
    contexts[:] = np.where(there, context, 0)
    buckets[:] = np.where(there, found.reshape(at.shape), 0)


def voted(steps: Array, change: Array, there: Array) -> Array:
    """int8 [k]: the slope most words [k, SEEN] are near to, ``ONE`` without a vote."""
    ratio = np.floor(change * 64.0 / np.where(steps == 0, 1, steps) + 0.5)
    votes = there & (np.abs(steps) >= VOTE) & (ratio >= FLAT) & (ratio < STEEP)
    wide = STEEP - FLAT + 4  # two beyond each end
    at = np.where(votes, ratio - FLAT + 2, 0).astype(np.int64)
    at += wide * np.arange(len(steps))[:, None]
    count = np.bincount(at[votes], minlength=wide * len(steps)).reshape(-1, wide)
    near = sum(count[:, j : wide - 4 + j] * int(VOTED[j]) for j in range(5))
    winner = np.argmax(near, 1) + FLAT
    return np.where(votes.any(1), winner, ONE).astype(np.int8)


@jit
def voted_compiled(steps: Array, change: Array, at: Array, count: Array, near: Array) -> int:
    """The same for one block; the last two are room."""
    nobody = STEEP - FLAT + 4
    for i in range(len(steps)):
        step = steps[i]
        ratio = np.floor(change[i] * 64.0 / (1 if step == 0 else step) + 0.5)
        valid = abs(step) >= VOTE and ratio >= FLAT and ratio < STEEP
        at[i] = np.int64(ratio) - FLAT + 2 if valid else nobody
    count[:] = 0
    for i in range(len(steps)):
        count[at[i]] += 1
    if count[nobody] == len(steps):
        return ONE
    most = 0
    for j in range(STEEP - FLAT):
        near[j] = count[j] + count[j + 4] + 2 * (count[j + 1] + count[j + 3]) + 3 * count[j + 2]
        most = max(most, near[j])
    for j in range(STEEP - FLAT):
        if near[j] == most:
            return j + FLAT
    return ONE


@jit
def cost_compiled(steps: Array, change: Array, slope: int, spare: int) -> int:
    """Bits of the residuals of a block with that slope."""
    cost, share = np.uint64(0), np.uint64(np.int64(slope))
    for i in range(len(steps)):
        error = np.uint64(change[i]) - predicted(steps[i], share)
        cost += length_of(zigzag_of(signed_of(error, spare)))
    return int(np.int64(cost))


@jit
def look_compiled(
    words: Array,
    base: Array,
    second: Array,
    bounds: Array,
    place: int,
    mask: int,
    fine: int,
    slopes: Array,
    seen: Array,
    contexts: Array,
    buckets: Array,
) -> None:
    """The same."""
    spare, digits = 64 - 8 * words.itemsize, np.uint64(fine)
    low, keep, byte = np.uint64(place), np.uint64(mask), np.uint64(8)
    some = np.empty((3, SEEN), words.dtype)
    all_steps, all_change = np.empty(SEEN, np.int64), np.empty(SEEN, np.int64)
    at = np.empty(SEEN, np.int64)
    count, near = np.empty(STEEP - FLAT + 5, np.int64), np.empty(STEEP - FLAT, np.int64)
    for k in range(len(bounds) - 1):
        m = 0
        for start in range(bounds[k], bounds[k + 1], LINE * EACH):
            size = min(LINE, bounds[k + 1] - start)
            some[0, m : m + size] = words[start : start + size]
            some[1, m : m + size] = base[start : start + size]
            some[2, m : m + size] = second[start : start + size]
            m += size
        seen[k] = m
        steps, change, context = all_steps[:m], all_change[:m], contexts[k]
        for i in range(m):
            was = np.uint64(some[1, i])
            steps[i] = signed_of(was - np.uint64(some[2, i]), spare)
            change[i] = signed_of(np.uint64(some[0, i]) - was, spare)
            length = length_of(zigzag_of(steps[i]))
            context[i] = np.uint16(length << byte | (was >> low & keep))
        best, least = 0, cost_compiled(steps, change, 0, spare)
        for slope in (ONE, voted_compiled(steps, change, at, count, near)):
            cost = cost_compiled(steps, change, slope, spare)
            if cost < least:
                best, least = slope, cost
        slopes[k] = best
        bucket, share = buckets[k], np.uint64(np.int64(best))
        for i in range(m):
            error = np.uint64(change[i]) - predicted(steps[i], share)
            residual = zigzag_of(signed_of(error, spare))
            length = length_of(residual)
            extra = length - digits - _1 if length > digits else _0
            bucket[i] = np.uint8((extra << digits) + (residual >> extra))
