"""Hindsight experience replay: windows relabelled with a goal that was reached later.

Source: Andrychowicz et al., "Hindsight Experience Replay", NeurIPS 2017.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from rlrun.buffer.ring import Ring, Spans
from rlrun.types import Segment


@dataclass(slots=True)
class Hindsight:
    """Relabels a share of the sampled one-row windows with a goal that their episode reached.

    ``future``: the goal reached at a uniformly drawn row after the learned one. ``final``: at the
    episode's end. ``episode``: at any of its stored rows. Of unfinished episodes only the stored
    rows count. Goals, rewards and terminations of the whole window are recomputed by the
    environment. A step that terminated for the old goal only becomes a truncated one.
    """

    ring: Ring
    goals: Any  # ``rlrun.env.GoalFunctions``
    _: KW_ONLY
    strategy: Literal["future", "final", "episode"]
    ratio: float
    generator: np.random.Generator

    def __call__(self, segment: Segment, spans: Spans) -> Segment:
        """Relabel the segment in place and return it."""
        which = np.flatnonzero(self.generator.random(len(spans)) < self.ratio)
        if not len(which):
            return segment
        column = spans.column[which]
        row = self._rows(spans.first[which], spans.cell[which], column)
        new = self.ring.obs["achieved_goal"].flat[self.ring.cells(row, column)]
        obs = segment.obs
        obs["desired_goal"].numpy()[:, which] = new
        reached = obs["achieved_goal"].numpy()[:, which]
        desired = np.broadcast_to(new, reached.shape)
        valid = segment.valid.numpy()[:, which]
        ended = (segment.terminated | segment.truncated).numpy()[:, which]
        reward = np.where(valid, self.goals.reward(reached[1:], desired[1:]), np.float32(0))
        dead = valid & self.goals.terminated(reached[1:], desired[1:])
        before = np.where(
            segment.first.numpy()[0, which], np.float32(0), self.goals.reward(reached[0], new)
        )
        segment.reward.numpy()[:, which] = reward
        segment.terminated.numpy()[:, which] = dead
        segment.truncated.numpy()[:, which] = ended & ~dead
        segment.extras["prev_reward"].numpy()[which] = before
        return segment

    def _rows(self, row: np.ndarray, cell: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Draw the rows whose achieved goals become the goals of the windows that learn ``row``."""
        ring = self.ring
        final: np.ndarray = ring.host["final"].reshape(-1)[cell]
        final = np.where(final < 0, ring.heads[column], final)
        if self.strategy == "final":
            return final
        first = row + 1
        if self.strategy == "episode":
            first = np.maximum(ring.host["origin"].reshape(-1)[cell], ring.oldest_of(column))
        chosen: np.ndarray = self.generator.integers(first, final + 1)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["rng"]
