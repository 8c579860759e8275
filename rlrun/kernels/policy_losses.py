"""``functional.policy`` in numpy: slopes of a small minibatch on the CPU, all rows of which count.

At 256 rows a torch operation costs several times what it computes, a numpy one a fifth of that.
There are slopes only; who wants the loss itself asks ``functional.policy``. All is float32.
"""

from typing import NamedTuple

import numpy as np

from rlrun.functional.policy import LOG_2PI


class ActionLogProb(NamedTuple):
    """What a distribution says of the actions taken, and what its slopes are made of."""

    log_prob: np.ndarray  # [N]
    entropy: np.ndarray | None  # [N], where it was asked for
    kept: tuple[np.ndarray, ...]

    def terms(self) -> tuple[np.ndarray, np.ndarray]:
        """(log pi, entropy), which was asked for."""
        assert self.entropy is not None
        return self.log_prob, self.entropy


# -- distributions ---------------------------------------------------------------------------------


def categorical(
    logits: np.ndarray, action: np.ndarray, sizes: tuple[int, ...], *, entropy: bool
) -> ActionLogProb:
    """As ``functional.policy.categorical``; ``logits`` [N, sum(sizes)], ``action`` int64 [N, *].

    Kept: for every choice log p [K, N] (an action's numbers side by side: sums over actions are
    then sums of long rows), p [K, N], and where in those the action taken stands [N].
    """
    count, chosen = len(logits), action.reshape(len(logits), -1)
    rows = np.arange(count)
    total, spread, kept, at = 0.0, 0.0, [], 0
    for i, size in enumerate(sizes):
        log_p = np.array(logits[:, at : at + size].T, order="C")
        log_p -= np.maximum.reduce(log_p)
        p = np.exp(log_p)
        log_p -= np.log(np.add.reduce(p))
        np.exp(log_p, out=p)
        place = np.multiply(chosen[:, i], count, dtype=np.int64) + rows
        total = total + log_p.take(place)
        if entropy:
            spread = spread - np.add.reduce(p * log_p)
        kept += [log_p, p, place]
        at += size
    return ActionLogProb(np.asarray(total), np.asarray(spread) if entropy else None, tuple(kept))


def categorical_grad(
    drawn: ActionLogProb, log_prob: np.ndarray, entropy: np.ndarray | None
) -> np.ndarray:
    """[N, sum(sizes)]: d loss / d logits, of its slopes over log pi and the entropies' sum, [N].

    d log p_a / d z_j = 1[j = a] - p_j; dH / d z_j = -p_j (log p_j + H).
    """
    parts = []
    for log_p, p, place in zip(drawn.kept[::3], drawn.kept[1::3], drawn.kept[2::3], strict=True):
        slope = p * -log_prob
        slope.put(place, slope.take(place) + log_prob)
        if entropy is not None:
            own = np.add.reduce(p * log_p)  # of this choice alone, negative
            slope -= p * (log_p - own) * entropy
        parts.append(slope)
    joined: np.ndarray = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined.T


def gaussian(
    mean: np.ndarray, log_std: np.ndarray, action: np.ndarray, *, entropy: bool
) -> ActionLogProb:
    """As ``functional.policy.gaussian``; ``mean``, ``action`` [N, A], ``log_std`` [A].

    Kept: (a - mean) / std [N, A] and 1 / std [A].
    """
    inverse = np.exp(-log_std)
    scaled = (action.reshape(mean.shape) - mean) * inverse
    constant = np.float32((log_std + np.float32(0.5 * LOG_2PI)).sum())
    log_prob = np.float32(-0.5) * np.square(scaled).sum(-1) - constant
    spread = constant + np.float32(0.5 * len(log_std))
    return ActionLogProb(
        log_prob, np.full_like(log_prob, spread) if entropy else None, (scaled, inverse)
    )


def gaussian_grad(
    drawn: ActionLogProb, log_prob: np.ndarray, entropy: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(d loss / d mean [N, A], d loss / d log std [A]) of its slopes over log pi and entropy, [N].

    d log pi / d mean = (a - mean) / std^2; d log pi / d log std = ((a - mean) / std)^2 - 1.
    """
    scaled, inverse = drawn.kept
    over_std = log_prob @ (np.square(scaled) - 1)
    if entropy is not None:
        over_std = over_std + entropy.sum()
    return log_prob[:, None] * scaled * inverse, over_std


# -- what is descended on --------------------------------------------------------------------------


def ppo_grad(
    log_prob: np.ndarray, behaviour: np.ndarray, advantage: np.ndarray, *, clip: float
) -> np.ndarray:
    """As ``functional.policy.ppo_grad``, [N]."""
    ratio = np.exp(log_prob - behaviour)
    free = ratio * advantage
    held = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip)) * advantage
    slope: np.ndarray = np.where(
        free <= held, free * np.float32(-1 / max(1, len(free))), np.float32(0)
    )
    return slope


def value_grad(
    value: np.ndarray, target: np.ndarray, old: np.ndarray, *, clip: float | None
) -> np.ndarray:
    """The slope of ``functional.policy.value_loss`` over V, [N]."""
    error: np.ndarray = value - target
    if clip is not None:
        moved = value - old
        held = error + (np.minimum(np.maximum(moved, -clip), clip) - moved)
        error[held * held > error * error] = 0
    error *= np.float32(1 / max(1, len(error)))
    return error


def entropy_grad(count: int, coef: float) -> np.ndarray | None:
    """The slope of -coef mean entropy over every one of ``count`` entropies, [N]; None: of 0."""
    return np.full(count, -coef / max(1, count), np.float32) if coef > 0 else None


def standardise(x: np.ndarray) -> np.ndarray:
    """As ``functional.policy.standardise``, [N]."""
    count = len(x)
    if count < 2:
        return x
    centred: np.ndarray = x - np.add.reduce(x) / np.float32(count)
    std = np.sqrt(np.dot(centred, centred) / np.float32(count - 1))
    centred /= std + np.float32(1e-8)
    return centred
