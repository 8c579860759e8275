"""Log-probabilities of actions and their gradients in numpy, without padding.

With 256 rows the overhead of a torch operation is several times its computation, and numpy's is a
fifth of that. All arrays are float32.
"""

from typing import NamedTuple

import numpy as np

from rlrun.functional.policy import LOG_2PI


class ActionLogProb(NamedTuple):
    """log pi and entropy of actions, and the factors of their gradients."""

    log_prob: np.ndarray  # [N]
    entropy: np.ndarray | None  # [N]; None: not computed
    factors: tuple[np.ndarray, ...]


# -- distributions ---------------------------------------------------------------------------------


def categorical(
    logits: np.ndarray, action: np.ndarray, sizes: tuple[int, ...], *, entropy: bool
) -> ActionLogProb:
    """Return ``functional.policy.categorical`` of logits [N, sum(sizes)], action int64 [N, *].

    Factors of every component: log p [K, N] (the actions in rows, so that sums over actions are
    sums of long rows), p [K, N], and the flat index of the selected action in them [N].
    """
    count, chosen = len(logits), action.reshape(len(logits), len(sizes))
    rows = np.arange(count)
    log_prob, entropies, factors, start = 0.0, 0.0, [], 0
    for i, size in enumerate(sizes):
        log_p = np.array(logits[:, start : start + size].T, order="C")
        log_p -= np.maximum.reduce(log_p)
        p = np.exp(log_p)
        log_p -= np.log(np.add.reduce(p))
        np.exp(log_p, out=p)
        index = np.multiply(chosen[:, i], count, dtype=np.int64) + rows
        log_prob = log_prob + log_p.take(index)
        if entropy:
            entropies = entropies - np.add.reduce(p * log_p)
        factors += [log_p, p, index]
        start += size
    return ActionLogProb(
        np.asarray(log_prob), np.asarray(entropies) if entropy else None, tuple(factors)
    )


def categorical_grad(
    evaluated: ActionLogProb, log_prob: np.ndarray, entropy: np.ndarray | None
) -> np.ndarray:
    """Return d loss / d logits [N, sum(sizes)].

    ``log_prob``, ``entropy`` [N]: d loss / d log pi and d loss / d (sum of entropies). d log p_a /
    d z_j = 1[j = a] - p_j; dH / d z_j = -p_j (log p_j + H).
    """
    parts = []
    factors = evaluated.factors
    for log_p, p, index in zip(factors[::3], factors[1::3], factors[2::3], strict=True):
        grad = p * -log_prob
        grad.put(index, grad.take(index) + log_prob)
        if entropy is not None:
            negative_entropy = np.add.reduce(p * log_p)  # of this component
            grad -= p * (log_p - negative_entropy) * entropy
        parts.append(grad)
    joined: np.ndarray = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined.T


def gaussian(
    mean: np.ndarray, log_std: np.ndarray, action: np.ndarray, *, entropy: bool
) -> ActionLogProb:
    """Return ``functional.policy.gaussian`` of mean, action [N, A] and log_std [A].

    Factors: (a - mean) / std [N, A] and 1 / std [A].
    """
    inverse = np.exp(-log_std)
    scaled = (action.reshape(mean.shape) - mean) * inverse
    constant = np.float32((log_std + np.float32(0.5 * LOG_2PI)).sum())
    log_prob = np.float32(-0.5) * np.square(scaled).sum(-1) - constant
    entropy_value = constant + np.float32(0.5 * len(log_std))
    return ActionLogProb(
        log_prob, np.full_like(log_prob, entropy_value) if entropy else None, (scaled, inverse)
    )


def gaussian_grad(
    evaluated: ActionLogProb, log_prob: np.ndarray, entropy: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (d loss / d mean [N, A], d loss / d log std [A]).

    ``log_prob``, ``entropy`` [N]: d loss / d log pi and d loss / d entropy.

    d log pi / d mean = (a - mean) / std^2; d log pi / d log std = ((a - mean) / std)^2 - 1.
    """
    scaled, inverse = evaluated.factors
    log_std_grad = log_prob @ (np.square(scaled) - 1)
    if entropy is not None:
        log_std_grad = log_std_grad + entropy.sum()
    return log_prob[:, None] * scaled * inverse, log_std_grad
