"""Advantages, lambda-returns, V-trace one row at a time, distributions one number at a time."""

import math


def _ends(t, terminated, truncated, valid):
    """Return whether nothing may be looked up behind row t + 1."""
    last = t + 1 == len(valid) or not valid[t + 1]
    return terminated[t] or truncated[t] or last


def gae_rows(reward, value, terminated, truncated, valid, gamma, trace):
    """Lists of one column -> [A_t], sums of (gamma trace)^i delta_{t+i} up to the episode's end."""
    out = []
    for t in range(len(reward)):
        total, weight, i = 0.0, 1.0, t
        while valid[t]:
            after = 0.0 if terminated[i] else value[i + 1]
            total += weight * (reward[i] + gamma * after - value[i])
            if _ends(i, terminated, truncated, valid):
                break
            weight, i = weight * gamma * trace, i + 1
        out.append(total)
    return out


def lambda_rows(reward, value, terminated, truncated, valid, gamma, trace):
    """Lists of one column -> [G_t]: n-step returns weighted (1 - trace) trace^(n - 1).

    The longest one, to the end of the trace, has the weight that is left.
    """
    out = []
    for t in range(len(reward)):
        total, rewards, left, i = 0.0, 0.0, 1.0, t
        while valid[t]:
            rewards += gamma ** (i - t) * reward[i]
            after = 0.0 if terminated[i] else value[i + 1]
            nstep = rewards + gamma ** (i - t + 1) * after
            if _ends(i, terminated, truncated, valid):
                total += left * nstep
                break
            total, left, i = total + left * (1 - trace) * nstep, left * trace, i + 1
        out.append(total)
    return out


def vtrace_rows(ratio, reward, value, terminated, truncated, valid, gamma, trace, rho, c):
    """Lists of one column -> ([v_t], [advantage_t]), by the sums of the paper's equation 1."""
    targets, advantages = [], []

    def delta(i):
        after = 0.0 if terminated[i] else value[i + 1]
        return min(rho, ratio[i]) * (reward[i] + gamma * after - value[i])

    for t in range(len(reward)):
        total, weight, i = value[t], 1.0, t
        while valid[t]:
            total += weight * delta(i)
            if _ends(i, terminated, truncated, valid):
                break
            weight, i = weight * gamma * trace * min(c, ratio[i]), i + 1
        targets.append(total if valid[t] else 0.0)
    for t in range(len(reward)):
        if not valid[t]:
            advantages.append(0.0)
            continue
        if terminated[t]:
            ahead = 0.0
        else:
            ahead = value[t + 1] if _ends(t, terminated, truncated, valid) else targets[t + 1]
        advantages.append(min(rho, ratio[t]) * (reward[t] + gamma * ahead - value[t]))
    return targets, advantages


def ppo_row(log_prob, behaviour, advantage, clip):
    """The term of one row in the surrogate objective."""
    ratio = math.exp(log_prob - behaviour)
    return min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)


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


def nstep_rows(reward, terminated, truncated, valid, nstep, gamma):
    """Lists of one trajectory's rows -> [(R, k, discount)] per row; invalid rows give (0, 0, 1)."""
    out = []
    for t in range(len(reward)):
        total, k, dead = 0.0, 0, False
        while k < nstep and t + k < len(reward) and valid[t + k]:
            total += gamma**k * reward[t + k]
            k += 1
            if terminated[t + k - 1]:
                dead = True
                break
            if truncated[t + k - 1]:
                break
        out.append((total, k, 0.0 if dead else gamma**k))
    return out
