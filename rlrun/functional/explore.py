"""Random and scripted actions of actors, in numpy."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.spaces import value_range


class Temperature(np.ndarray):
    """``explore`` of an actor under Boltzmann exploration: temperatures [E] in units of Q."""


def select_action(
    q: np.ndarray,
    explore: np.ndarray | None,
    generator: np.random.Generator,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Epsilon-greedy or Boltzmann actions int64 [E] for values ``q`` [E, A].

    ``explore`` [E]: epsilon, the probability of a uniform action in place of argmax_a q, for which
    an environment draws one number; None draws none. Of a Temperature: ``boltzmann``. All actions,
    including uniform ones, are among those that ``mask`` [E, A] allows (None: all).
    """
    if isinstance(explore, Temperature):
        return boltzmann(q, explore, generator, mask)
    greedy: np.ndarray = (q if mask is None else np.where(mask, q, -np.inf)).argmax(-1)
    if explore is None:
        return greedy
    # A size of 1 takes three times as long, and releases the interpreter lock.
    size = None if len(explore) == 1 else len(explore)
    coin = generator.random(size) < explore
    if mask is None:
        return np.where(coin, generator.integers(q.shape[-1], size=size), greedy)
    number = generator.integers(mask.sum(-1))  # index among the allowed actions
    drawn = (mask.cumsum(-1) > number[:, None]).argmax(-1)
    return np.where(coin, drawn, greedy)


def boltzmann(
    q: np.ndarray,
    temperature: np.ndarray,
    generator: np.random.Generator,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """An action with probability softmax(q / temperature); int64 [E]. Temperature 0 is greedy.

    ``temperature`` [E] in units of ``q`` [E, A]. Only actions that ``mask`` [E, A] allows are
    selected. Computed as argmax_a(q_a + temperature g_a) with Gumbel noise g, which has exactly
    these probabilities and does not overflow. Source: Sutton & Barto 2018, eq. 2.11; Gumbel 1954.
    """
    gumbel = generator.gumbel(size=q.shape)
    noised = q + np.asarray(temperature)[:, None] * gumbel
    chosen: np.ndarray = (noised if mask is None else np.where(mask, noised, -np.inf)).argmax(-1)
    return chosen


def log_probability(
    q: np.ndarray, action: np.ndarray, explore: np.ndarray | None, mask: np.ndarray | None = None
) -> np.ndarray:
    """log mu(action) float32 [E] of ``select_action``'s actions for values ``q`` [E, A].

    Epsilon-greedy: epsilon / n + (1 - epsilon) [action is greedy], with n allowed actions. A
    Temperature: log softmax(q / temperature), 0 for temperature 0. None (greedy): 0.
    """
    if explore is None:
        return np.zeros(len(q), np.float32)
    index, allowed = np.arange(len(q)), q if mask is None else np.where(mask, q, -np.inf)
    if isinstance(explore, Temperature):
        above = allowed - allowed.max(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 and -x / 0 at temperature 0
            logits = np.where(above == 0, 0.0, above / np.asarray(explore, np.float64)[:, None])
        log_prob = logits[index, action] - np.log(np.exp(logits).sum(-1))
        greedy_only = np.asarray(explore) == 0
        return np.where(greedy_only, 0.0, log_prob).astype(np.float32)
    count = q.shape[-1] if mask is None else mask.sum(-1)
    greedy = allowed.argmax(-1) == action
    log_mu: np.ndarray = np.log(explore / count + (1 - explore) * greedy).astype(np.float32)
    return log_mu


def team_epsilon_greedy(
    q: np.ndarray, allowed: np.ndarray, epsilon: np.ndarray | None, generator: np.random.Generator
) -> np.ndarray:
    """argmax_a q of every agent, or a uniform one of the ``allowed`` actions; int64 [E, N].

    One random number per agent, with its environment's ``epsilon`` [E]; None uses none. ``q`` [E,
    N, A], ``allowed`` bool [E, N, A], at least one action each.
    """
    greedy: np.ndarray = np.where(allowed, q, -np.inf).argmax(-1)
    if epsilon is None:
        return greedy
    coin = generator.random(greedy.shape) < epsilon[:, None]
    drawn = np.where(allowed, generator.random(q.shape), -1.0).argmax(-1)
    return np.where(coin, drawn, greedy)


def draw_categorical(
    logits: np.ndarray, sizes: tuple[int, ...], generator: np.random.Generator | None
) -> tuple[np.ndarray, np.ndarray]:
    """(action int64, log pi(action) float32 [E]) of independent choices among ``sizes[i]`` each.

    ``logits`` [E, sum(sizes)]; the action is [E] for a single choice, else [E, len(sizes)]. One
    uniform number per choice; None: the most probable action.
    """
    if len(sizes) == 1:
        return _draw_choice(logits, generator)
    parts = np.split(logits, np.cumsum(sizes)[:-1], axis=-1)
    actions, log_probs = zip(*(_draw_choice(x, generator) for x in parts), strict=True)
    total: np.ndarray = np.sum(log_probs, 0)
    return np.stack(actions, -1), total


def _draw_choice(
    logits: np.ndarray, generator: np.random.Generator | None
) -> tuple[np.ndarray, np.ndarray]:
    logits = logits - logits.max(-1, keepdims=True)
    cumulative = np.exp(logits).cumsum(-1)
    total = cumulative[:, -1]
    if generator is None:
        action: np.ndarray = logits.argmax(-1)
    else:
        threshold = generator.random(len(logits), np.float32) * total
        threshold = np.minimum(threshold, np.nextafter(total, np.float32(0)))  # may round up to it
        action = (cumulative[:, :-1] <= threshold[:, None]).sum(-1)
    return action, logits[np.arange(len(logits)), action] - np.log(total)


LOG_2PI = float(np.log(2 * np.pi))


def draw_gaussian(
    mean: np.ndarray, log_std: np.ndarray, generator: np.random.Generator | None
) -> tuple[np.ndarray, np.ndarray]:
    """(action float32 [E, A], log N(action; mean, exp(log_std)) float32 [E]); None: the mean.

    ``mean`` [E, A], ``log_std`` [A]. The action is not clipped.
    """
    constant = np.float32(log_std.sum() + 0.5 * LOG_2PI * len(log_std))
    if generator is None:
        return mean, np.full(len(mean), -constant, np.float32)
    noise = generator.standard_normal(mean.shape, np.float32)
    log_prob = np.float32(-0.5) * np.square(noise).sum(-1) - constant
    return mean + noise * np.exp(log_std), log_prob


def uniform_actions(
    space: gym.Space[Any], num_envs: int, generator: np.random.Generator
) -> np.ndarray:
    """Actions [E, *A] drawn uniformly from a Discrete, MultiDiscrete, MultiBinary or bounded Box.

    Integer boxes include their upper bounds. Discrete actions count from 0: environments add
    their ``start``.
    """
    size = (num_envs, *(space.shape or ()))
    match space:
        case gym.spaces.Discrete():
            return generator.integers(space.n, size=size)
        case gym.spaces.MultiDiscrete():
            return generator.integers(space.nvec, size=size)
        case gym.spaces.MultiBinary():
            return generator.integers(2, size=size, dtype=np.int8)
        case gym.spaces.Box() if space.dtype.kind == "f":
            return generator.uniform(space.low, space.high, size).astype(space.dtype)
        case gym.spaces.Box():
            return generator.integers(space.low, space.high, size, space.dtype, endpoint=True)
        case _:
            raise AssertionError(f"checked in rlrun.config: {space}")


def outside(actions: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """bool [N]: True for ``actions`` [N, *A] (any number type) that are not in ``space``.

    Discrete actions count from 0: environments add their ``start``. NaN is never in a space.
    """
    (low, high), start = value_range(space), getattr(space, "start", 0)
    low, high, whole = low - start, high - start, np.dtype(space.dtype).kind != "f"
    x = actions.astype(np.float64) if whole else actions.astype(space.dtype)
    wrong = ~((x >= low) & (x <= high)) | (whole & (x != np.floor(x)))
    any_wrong: np.ndarray = wrong.reshape(len(actions), -1).any(-1)
    return any_wrong


def action_table(choices: Sequence[float | tuple[float, ...]], space: gym.Space[Any]) -> np.ndarray:
    """The actions [K, *A] of ``choices``, in the dtype of ``space``.

    A number is the action, or each of its components; a list has one number per component.

    Raises: ValueError naming a choice that is not an action of ``space``.
    """
    shape = space.shape or ()
    size = int(np.prod(shape))
    rows = []
    for choice in choices:
        several = isinstance(choice, tuple)
        if several and len(choice) != size:  # type: ignore[arg-type]
            numbers = "a bare number" if size == 1 else f"one number or a list of {size}"
            raise ValueError(f"{list(choice)} is not an action, {numbers} is")  # type: ignore[arg-type]
        row = np.broadcast_to(np.asarray(choice, np.float64), (size,)).reshape(shape)
        if outside(row[None], space).any():
            text = list(choice) if several else f"{choice:g}"  # type: ignore[arg-type]
            raise ValueError(f"{text} is not an action of {space}")
        rows.append(row)
    return np.stack(rows).astype(space.dtype)


def sine(
    space: gym.Space[Any], steps: np.ndarray, *, period: float, amplitude: float, phase: float
) -> np.ndarray:
    """middle + amplitude * half * sin(2 pi (step / period + phase k)) for number k of an action.

    ``steps`` [E] -> [E, *A] in the dtype of ``space``, a bounded float Box with that middle and
    half width.
    """
    assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    index = np.arange(low.size).reshape(low.shape)
    turns = steps.reshape(-1, *[1] * low.ndim) / period + phase * index
    wave = (low + high) / 2 + amplitude * (high - low) / 2 * np.sin(2 * np.pi * turns)
    inside: np.ndarray = np.clip(wave.astype(space.dtype), space.low, space.high)
    return inside
