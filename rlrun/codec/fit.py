"""What ``planes_ctx`` says about blocks and contexts, found on a quarter of their words.

The encoder's business alone: a decoder takes any slopes, levels and usual buckets. The compiled
kernel and its numpy twin find the same, so that frames do not depend on numba.
"""

import numpy as np

from rlrun.codec.kernels import length_of, lengths_vectorised
from rlrun.codec.slopes import (
    BLOCK,
    Fit,
    Form,
    buckets_vectorised,
    folded,
    signed,
    steps_vectorised,
    wrapped,
)
from rlrun.codec.words import Array
from rlrun.jit import COMPILED, jit

LINE, EACH = 16, 4  # lines of neighbours looked at, one of so many
SEEN = BLOCK // EACH  # words of a whole block
ONE = 64  # the slope of a step that is made again
FLAT, STEEP = -32, 96  # slopes that can be voted for: [−0.5, 1.5)
VOTE = 16  # |step| from which an element has a vote
VOTED = np.array([1, 2, 3, 2, 1])  # weights of neighbouring slopes: a vote is not exact
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
    usual = usual_of(*sums_of(contexts, buckets, seen, form.contexts))
    return Fit(slopes, levels_of(contexts, buckets, seen, usual), usual)


def usual_of(sums: Array, counts: Array) -> Array:
    """uint8 [contexts]: mean bucket, of all contexts of a length where there are few."""
    sums, counts = sums.reshape(-1, 256), counts.reshape(-1, 256)
    by_length = mean(sums.sum(1), counts.sum(1))[:, None]
    found: Array = np.where(counts < RARE, by_length, mean(sums, counts)).astype(np.uint8)
    return found.reshape(-1)


def mean(sums: Array, counts: Array) -> Array:
    """Means of integers to the nearest integer, 0 of none."""
    result: Array = (2 * sums + counts) // np.maximum(2 * counts, 1)
    return result


def sums_of(contexts: Array, buckets: Array, seen: Array, n: int) -> tuple[Array, Array]:
    """(sum of buckets int64 [n], how many int64 [n]) of each context."""
    if COMPILED:
        found = np.zeros((2, n), np.int64)
        sums_compiled(contexts, buckets, seen, found[0], found[1])
        return found[0], found[1]
    there = np.arange(SEEN) < seen[:, None]
    where = contexts[there]
    sums = np.bincount(where, buckets[there], minlength=n).astype(np.int64)
    return sums, np.bincount(where, minlength=n)


@jit
def sums_compiled(contexts: Array, buckets: Array, seen: Array, sums: Array, counts: Array) -> None:
    """Add up both."""
    for k in range(len(seen)):
        for i in range(seen[k]):
            sums[contexts[k, i]] += buckets[k, i]
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
        total = 0
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
    spare = 64 - 8 * words.itemsize
    digits, low, keep, byte = np.uint64(fine), np.uint64(place), np.uint64(mask), np.uint64(8)
    steps, change = np.empty(SEEN, np.int64), np.empty(SEEN, np.int64)
    ratio, count = np.empty(SEEN, np.float64), np.empty(STEEP - FLAT + 4, np.int64)
    for k in range(len(bounds) - 1):
        m = 0
        for start in range(bounds[k], bounds[k + 1], LINE * EACH):
            for i in range(start, min(start + LINE, bounds[k + 1])):
                now, was = np.int64(words[i]), np.int64(base[i])
                steps[m] = (was - np.int64(second[i])) << spare >> spare
                change[m] = (now - was) << spare >> spare
                length = length_of(np.uint64((steps[m] << 1) ^ (steps[m] >> 63)))
                contexts[k, m] = np.uint16(length << byte | (np.uint64(base[i]) >> low & keep))
                m += 1
        seen[k] = m
        count[:] = 0
        some = False
        for i in range(m):
            step = steps[i]
            ratio[i] = np.floor(change[i] * 64.0 / (1 if step == 0 else step) + 0.5)
        for i in range(m):
            if abs(steps[i]) >= VOTE and FLAT <= ratio[i] < STEEP:
                count[np.int64(ratio[i]) - FLAT + 2] += 1
                some = True
        winner, most = ONE, np.int64(-1)
        if some:
            for j in range(STEEP - FLAT):
                near = count[j] + count[j + 4] + 2 * (count[j + 1] + count[j + 3])
                near += 3 * count[j + 2]
                if near > most:
                    winner, most = j + FLAT, near
        best, least = 0, np.int64(1) << 62
        for slope in (0, ONE, winner):
            cost = np.int64(0)
            for i in range(m):
                error = (change[i] - ((steps[i] * slope + 32) >> 6)) << spare >> spare
                cost += np.int64(length_of(np.uint64((error << 1) ^ (error >> 63))))
            if cost < least:
                best, least = slope, cost
        slopes[k] = best
        for i in range(m):
            error = (change[i] - ((steps[i] * best + 32) >> 6)) << spare >> spare
            residual = np.uint64((error << 1) ^ (error >> 63))
            length = length_of(residual)
            extra = length - digits - _1 if length > digits else _0
            buckets[k, i] = np.uint8((extra << digits) + (residual >> extra))
