"""Statistics of collecting: of one chunk, and averaged between two log lines."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.buffer import saved
from rlrun.functional.explore import Temperature
from rlrun.pipeline.action_entropy import ActionCounts
from rlrun.types import Chunk, Counters

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
            saved.number(f"{part}.finished", score, -most, most),
            saved.integer(f"{part}.finished", steps, 0, saved.MOST_ROWS),
        )
        for score, steps in state["finished"]
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
        return {"finished": list(self.finished_episodes), "actions": self.actions.counts.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.finished_episodes = _episodes("collector", state)
        self.actions.load(state.get("actions"))  # earlier versions did not count them

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
