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


def gaussian_log_density(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def ppo_row(log_prob, behaviour, advantage, clip):
    """The term of one row in the surrogate objective."""
    ratio = math.exp(log_prob - behaviour)
    return min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
