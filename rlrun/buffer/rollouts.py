"""Rollouts of several collectors, taken out together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.mixed import join
from rlrun.buffer.rollout import Rollout
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment, tree_map


class Rollouts:
    """A rollout for each collector; ``take`` returns those with rows side by side, in order.

    Shorter ones are padded at their end: the padding's first row holds the observation after the
    last row, whose value counts; none of it is valid. One collector is a ``Rollout``, bit for bit.
    """

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self.rollouts = list(rollouts)

    def __len__(self) -> int:
        """Rows stored in the longest."""
        return max(len(rollout) for rollout in self.rollouts)

    def add(self, number: int, rows: Chunk | Segment) -> np.ndarray:
        """Append a copy of the rows of collector ``number``; as ``Rollout.add``."""
        return self.rollouts[number].add(rows)

    def take(self, env_steps: int) -> Sample:
        """Return all rows as one segment, weight 1, and clear the rollouts."""
        parts = [r.take(env_steps) for r in self.rollouts if len(r)]
        if len(parts) == 1:
            return parts[0]
        steps = max(len(part.segment.reward) for part in parts)
        segments = [padded(part.segment, steps) for part in parts]
        states = [segment.states for segment in segments]
        segment = replace(join(segments), states=_beside(states))
        columns = segment.reward.shape[1]
        return Sample(segment, torch.ones(columns), np.arange(columns), env_steps)

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics: none."""
        return {}

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics: none, rows are not compressed."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"rollouts": [rollout.state_dict() for rollout in self.rollouts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError when it is of other collectors."""
        if len(state["rollouts"]) != len(self.rollouts):
            raise CheckpointError(
                f"pipeline.num_actors = {len(self.rollouts)}: the checkpoint is of "
                f"{len(state['rollouts'])}; allowed is the number that the run began with"
            )
        for rollout, own in zip(self.rollouts, state["rollouts"], strict=True):
            rollout.load_state_dict(own)


def padded(segment: Segment, steps: int) -> Segment:
    """``segment`` [T, B] with invalid rows at its end, to ``steps`` rows."""
    more = steps - len(segment.reward)
    if not more:
        return segment

    def again(x: Tensor) -> Tensor:  # the last entry
        return torch.cat([x, x[-1:].expand(more, *x.shape[1:])])

    def nothing(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(more, *x.shape[1:])])

    per_row = {n: x for n, x in segment.extras.items() if not n.startswith("prev_")}
    whole = {n: x for n, x in segment.extras.items() if n.startswith("prev_")}
    return replace(
        segment,
        obs=tree_map(again, segment.obs),
        first=nothing(segment.first),
        action=again(segment.action),
        extras={n: again(x) for n, x in per_row.items()} | whole,
        states=tree_map(again, segment.states),
        reward=nothing(segment.reward),
        terminated=nothing(segment.terminated),
        truncated=nothing(segment.truncated),
        valid=nothing(segment.valid),
    )


def _beside(trees: list[Any]) -> Any:
    """Trees of tensors [T, B_i, ...] as one of [T, sum B_i, ...]."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees, 1)
    if isinstance(first, dict):
        return {name: _beside([tree[name] for tree in trees]) for name in first}
    return tuple(_beside(list(parts)) for parts in zip(*trees, strict=True))
