"""Gradients of the terms of PPO's loss in numpy, for minibatches without padding.

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


# -- gradients of losses ---------------------------------------------------------------------------


def ppo_grad(
    log_prob: np.ndarray, behaviour: np.ndarray, advantage: np.ndarray, *, clip: float
) -> np.ndarray:
    """Return d L / d log pi [N] of ``PPO.loss``'s policy loss.

    It is -ratio A / N if the unclipped of the two terms is the smaller one, else 0.
    """
    ratio = np.exp(log_prob - behaviour)
    unclipped = ratio * advantage
    clipped = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip)) * advantage
    grad: np.ndarray = np.where(
        unclipped <= clipped, unclipped * np.float32(-1 / max(1, len(unclipped))), np.float32(0)
    )
    return grad


def value_grad(
    value: np.ndarray, target: np.ndarray, old: np.ndarray, *, clip: float | None
) -> np.ndarray:
    """Return d L / d V [N] of ``PPO.loss``'s value loss; 0 where the clipped error is larger."""
    error: np.ndarray = value - target
    if clip is not None:
        change = value - old
        clipped = error + (np.minimum(np.maximum(change, -clip), clip) - change)
        error[clipped * clipped > error * error] = 0
    error *= np.float32(1 / max(1, len(error)))
    return error


def entropy_grad(count: int, coef: float) -> np.ndarray | None:
    """Return d(-coef mean entropy) / d entropy for ``count`` rows [N]; None for coef 0."""
    return np.full(count, -coef / max(1, count), np.float32) if coef > 0 else None


def standardise(x: np.ndarray) -> np.ndarray:
    """Return ``functional.policy.standardise`` [N]."""
    count = len(x)
    if count < 2:
        return x
    centred: np.ndarray = x - np.add.reduce(x) / np.float32(count)
    std = np.sqrt(np.dot(centred, centred) / np.float32(count - 1))
    centred /= std + np.float32(1e-8)
    return centred
