"""Exploration, and statistics of collecting: of one chunk, and between two log lines."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.buffer import saved
from rlrun.functional.explore import Temperature
from rlrun.schedule import make_schedule
from rlrun.schema import ExploreConfig
from rlrun.types import Chunk, Counters

BINS = 16  # equal parts of the range of a real action
MOST_VALUES = 4096  # of a discrete action; more are not counted


class ActionCounts:
    """Counts the values of every component of the actions since the last ``entropy``.

    Components: the action itself (Discrete), its entries (MultiDiscrete, MultiBinary), its
    dimensions in ``BINS`` equal parts (Box with finite bounds; actions beyond them belong to the
    outer parts, NaN to none). A component with one value only, or too many, or unbounded, is not
    counted.
    """

    def __init__(self, space: gym.Space[np.ndarray]) -> None:
        """``space``: of one environment's actions; discrete ones are numbered from 0."""
        self.low, self.per_unit = np.zeros(1), np.ones(1)
        sizes = np.zeros(0, np.int64)
        if isinstance(space, gym.spaces.Discrete):
            sizes = np.array([space.n])
        elif isinstance(space, gym.spaces.MultiDiscrete):
            sizes = space.nvec.reshape(-1).astype(np.int64)
        elif isinstance(space, gym.spaces.MultiBinary):
            sizes = np.full(int(np.prod(space.shape)), 2)
        elif isinstance(space, gym.spaces.Box):
            low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
            with np.errstate(over="ignore", invalid="ignore"):
                span = high - low
            bounded = np.isfinite(span) & (span > 0)
            self.low, self.per_unit = low[bounded], BINS / span[bounded]
            sizes = np.where(bounded, BINS, 0)
        self.kept = (sizes > 1) & (sizes <= MOST_VALUES)
        self.sizes = sizes[self.kept]
        self.starts = np.cumsum(self.sizes) - self.sizes  # of the components in ``counts``
        self.counts = np.zeros(int(self.sizes.sum()), np.int64)
        self.single = len(sizes) == 1 and isinstance(space, gym.spaces.Discrete)
        self.binned = isinstance(space, gym.spaces.Box)

    def add(self, action: np.ndarray, valid: np.ndarray) -> None:
        """Count the actions [T, E, *A] of the rows that are ``valid`` [T, E]."""
        if not len(self.counts):
            return
        taken = action[valid]
        if not self.single:
            taken = taken.reshape(len(taken), -1)[:, self.kept]
            if self.binned:
                part = np.clip((taken - self.low) * self.per_unit, 0, BINS - 1)
                counted = ~np.isnan(part)
                part = np.where(counted, part, 0).astype(np.int64)  # no number is no NaN
                taken = (part + self.starts)[counted]
            else:
                taken = np.clip(taken, 0, self.sizes - 1) + self.starts
        self.counts += np.bincount(taken.reshape(-1), minlength=len(self.counts))

    def entropy(self) -> float | None:
        """Return the share in [0, 1] of the largest possible entropy, mean over the components.

        Of the empirical distribution of each counted one: -sum_a f(a) log f(a) / log n. None: no
        action was counted. Begins anew.
        """
        if not self.counts.any():
            return None
        shares = []
        for start, size in zip(self.starts, self.sizes, strict=True):
            count = self.counts[start : start + size]
            if not count.any():
                continue
            f = count[count > 0] / count.sum()
            shares.append(-float((f * np.log(f)).sum()) / np.log(size))
        self.counts = np.zeros_like(self.counts)
        return float(np.clip(np.mean(shares), 0.0, 1.0))

    def load(self, counts: np.ndarray | None) -> None:
        """Continue from saved ``counts``; None, or those of another space: from none."""
        known = counts is not None and counts.shape == self.counts.shape
        self.counts = np.array(counts, np.int64) if known else np.zeros_like(self.counts)


def ladder(eps: float, alpha: float, num_envs: int) -> np.ndarray:
    """eps ** (1 + alpha i / (N - 1)) for environments i = 0..N-1, float32 [N]; N = 1 gives [eps].

    Source: Horgan et al. 2018 (Ape-X), section 4; eps 0.4, alpha 7.
    """
    position = np.arange(num_envs) / max(num_envs - 1, 1)
    return (eps ** (1 + alpha * position)).astype(np.float32)


def make_explore(
    config: ExploreConfig, *, num_envs: int, total_steps: int
) -> Callable[[int], np.ndarray]:
    """env_steps -> epsilon of every environment, float32 [num_envs]; or its Temperature.

    A ladder over a single environment would be a constant ``eps``, so N = 1 follows the
    ``epsilon`` schedule.
    """
    if config.name == "ladder" and num_envs > 1:
        assert config.eps is not None  # checked by ExploreConfig
        assert config.alpha is not None
        fixed = ladder(config.eps, config.alpha, num_envs)
        return lambda env_steps: fixed
    if config.name == "none":
        zero = np.zeros(num_envs, np.float32)
        return lambda env_steps: zero
    if config.name == "boltzmann":
        assert config.temperature is not None  # checked by ExploreConfig
        temperature = make_schedule(config.temperature, total_steps=total_steps)
        return lambda env_steps: np.full(num_envs, temperature(env_steps), np.float32).view(
            Temperature
        )
    schedule = make_schedule(config.epsilon, total_steps=total_steps)
    return lambda env_steps: np.full(num_envs, schedule(env_steps), np.float32)


Explore = Callable[[int], np.ndarray]
"""env_steps -> epsilon of every environment, float32 [E]"""


@dataclass(slots=True)
class ChunkStats:
    """Steps of one chunk and the episodes that finished in it."""

    steps: int = 0
    finished_episodes: list[tuple[float, int]] = field(default_factory=list)  # (return, length)
    restarts: int = 0  # of environments whose process failed (env.on_worker_failure)
    without_action: int = 0  # rows of open episodes whose mask allows no action


def loaded_stats(part: str, state: dict[str, Any]) -> ChunkStats:
    """Return the statistics of rows in a checkpoint. Raises: CheckpointError."""
    steps = saved.integer(f"{part}.steps", state["steps"], 0, saved.MOST_ROWS)
    return ChunkStats(steps, _episodes(part, state))


def _episodes(part: str, state: dict[str, Any]) -> list[tuple[float, int]]:
    """Return (return, length) of every finished episode of a state."""
    most = float(np.finfo(np.float64).max)
    return [
        (
            saved.number(f"{part}.finished_episodes", score, -most, most),
            saved.integer(f"{part}.finished_episodes", steps, 0, saved.MOST_ROWS),
        )
        for score, steps in state["finished_episodes"]
    ]


class CollectMetrics:
    """Adds chunks to the run's counters and averages finished episodes between two log lines."""

    def __init__(self, counters: Counters, explore: Explore, actions: ActionCounts) -> None:
        """``explore``: env_steps -> epsilon [E]."""
        self.counters, self.explore, self.actions = counters, explore, actions
        self.finished_episodes: list[tuple[float, int]] = []  # since the last ``report``
        self.restarts = self.without_action = 0  # since the last ``report``

    def commit(self, stats: ChunkStats, chunk: Chunk) -> None:
        """Count a chunk."""
        self.actions.add(chunk.action, chunk.valid)
        self.counters.env_steps += stats.steps
        self.counters.episodes += len(stats.finished_episodes)
        self.counters.chunks += 1
        self.finished_episodes += stats.finished_episodes
        self.restarts += stats.restarts
        self.without_action += stats.without_action

    def state_dict(self) -> dict[str, Any]:
        return {
            "finished_episodes": list(self.finished_episodes),
            "actions": self.actions.counts.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.finished_episodes = _episodes("collector", state)
        self.actions.load(state["actions"])

    def report(self) -> dict[str, float]:
        """collect/ metrics of the episodes finished since the last call."""
        epsilon = self.explore(self.counters.env_steps)
        name = "temperature" if isinstance(epsilon, Temperature) else "epsilon"
        out = {
            "collect/episodes": float(self.counters.episodes),
            f"collect/{name}_mean": float(epsilon.mean()),
        }
        if (entropy := self.actions.entropy()) is not None:
            out["collect/action_entropy"] = entropy
        if self.restarts:
            out["collect/restarts"], self.restarts = float(self.restarts), 0
        if self.without_action:
            out["collect/without_action"] = float(self.without_action)
            self.without_action = 0
        if self.finished_episodes:
            returns, lengths = np.array(self.finished_episodes).T
            out["collect/return_mean"] = float(returns.mean())
            out["collect/return_min"] = float(returns.min())
            out["collect/return_max"] = float(returns.max())
            out["collect/length_mean"] = float(lengths.mean())
            self.finished_episodes.clear()
        return out
