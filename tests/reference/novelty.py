"""Naive loops beside rlrun.functional.novelty."""

import math


def moments(values: list[float]) -> tuple[float, float]:
    """(mean, variance over the count) of all values, in two passes."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((v - mean) ** 2 for v in values) / len(values)


def discounted(novelty, valid, carried, gamma):
    """Every column on its own, row by row: (sums[t][b], last[b])."""
    steps, columns = len(novelty), len(carried)
    sums = [[0.0] * columns for _ in range(steps)]
    last = list(carried)
    for b in range(columns):
        for t in range(steps):
            if valid[t][b]:
                last[b] = novelty[t][b] + gamma * last[b]
            sums[t][b] = last[b]
    return sums, last


def error(prediction: list[float], target: list[float]) -> float:
    """Mean squared difference."""
    return sum((p - t) ** 2 for p, t in zip(prediction, target, strict=True)) / len(target)
