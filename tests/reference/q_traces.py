"""Targets of Q along a trace, one row at a time, by the sums of the papers instead of a recursion.

Lists of one column: ``reward``, ``action``, ``mu`` and flags [T]; ``q`` (values), ``choice`` (what
decides the greedy action) and ``allowed`` [T+1][A].
"""

import math


def policy_of(choice, allowed, epsilon):
    best = max((x, -a) for a, (x, ok) in enumerate(zip(choice, allowed, strict=True)) if ok)
    share = epsilon / sum(allowed)
    return [share * ok + (1 - epsilon) * (a == -best[1]) for a, ok in enumerate(allowed)]


def target_of(
    kind, t, *, reward, q, choice, allowed, action, mu, terminated, truncated, valid, gamma,
    trace, epsilon=0.0,
):  # fmt: skip
    """The target of row t of real values, for a valid row."""
    epsilon = epsilon if kind == "retrace" else 0.0

    def value(i):
        pi = policy_of(choice[i], allowed[i], epsilon)
        return sum(p * x for p, x in zip(pi, q[i], strict=True) if p > 0)

    rows, after = [t], t + 1  # those of the trace
    while not (terminated[rows[-1]] or truncated[rows[-1]]) and after < len(valid) and valid[after]:
        rows.append(after)
        after += 1
    if kind == "peng_q_lambda":
        return _mixture(rows, reward, value, terminated, gamma, trace)
    total, product = q[t][action[t]], 1.0
    for i in rows:  # Munos et al. 2016, equation 3
        pi = policy_of(choice[i], allowed[i], epsilon)[action[i]]
        c = {
            "retrace": min(1.0, pi / mu[i]),
            "watkins_q_lambda": float(pi == 1.0),
            "harutyunyan_q_lambda": 1.0,
        }[kind]
        product *= 1.0 if i == t else trace * c
        following = 0.0 if terminated[i] else value(i + 1)
        delta = reward[i] + gamma * following - q[i][action[i]]
        total += gamma ** (i - t) * product * delta
    return total


def _mixture(rows, reward, value, terminated, gamma, trace):
    """(1 - lambda) sum_n lambda^(n-1) R^(n), the longest return having the remaining weight."""
    total = 0.0
    for n in range(1, len(rows) + 1):
        last = rows[n - 1]
        returned = sum(gamma**j * reward[i] for j, i in enumerate(rows[:n]))
        if not terminated[last]:
            returned += gamma**n * value(last + 1)
        weight = trace ** (n - 1) * (1.0 if n == len(rows) else 1 - trace)
        total += weight * returned
    assert math.isfinite(total)
    return total
