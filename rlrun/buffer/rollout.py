"""On-policy storage: the rows since the last update, taken out together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.mixed import join
from rlrun.errors import CheckpointError
from rlrun.functional.recorded import RowSpaces
from rlrun.types import Chunk, Sample, Segment, Tree, tree_leaves, tree_map

_STEPS = ("action", "reward", "terminated", "truncated", "valid")


class Rollout:
    """Up to ``rows`` rows of every column, time-major and contiguous, with the extras of acting.

    ``extras`` (behaviour log-probability, value) are those of the collected segments. The segment
    taken has ``states``, the recurrent state before every row, so that minibatches of whole
    sub-segments start from exact states. The previous action and reward and the frames of stacks
    before its first row are stored across ``take`` calls.
    """

    def __init__(
        self,
        example: Chunk | Segment,
        *,
        rows: int,
        stack: int = 1,
        spaces: RowSpaces | None = None,
    ) -> None:
        """``example``: collected rows, or none, with the shapes and dtypes to store. ``stack``:
        observations per input of the policy; rows hold single ones. ``spaces``: of a row, which
        rows of a checkpoint are compared with."""
        example = Chunk.of(example).segment()
        self.rows, self.filled, self.stack, self.spaces = rows, 0, stack, spaces
        self.columns = example.reward.shape[1]

        def like(x: torch.Tensor, count: int) -> torch.Tensor:
            return torch.zeros(count, *x.shape[1:], dtype=x.dtype)

        self.store = replace(
            example,
            obs=tree_map(lambda x: like(x, rows + 1), example.obs),
            first=like(example.first, rows + 1),
            extras={name: like(x, rows) for name, x in example.extras.items()},
            states=tree_map(lambda x: like(x, rows), example.states),
            action=like(example.action, rows),
            reward=like(example.reward, rows),
            terminated=like(example.terminated, rows),
            truncated=like(example.truncated, rows),
            valid=like(example.valid, rows),
        )
        past = stack - 1
        self.past_obs = tree_map(lambda x: like(x, past), example.obs)  # before row 0
        self.past_first = like(example.first, past)
        action, reward = example.action, example.reward
        self.prev_action, self.prev_reward = like(action, 1)[0], like(reward, 1)[0]

    def __len__(self) -> int:
        """Number of rows stored in every column."""
        return self.filled

    @property
    def full(self) -> bool:
        """Return whether all rows are used."""
        return self.filled == self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays owned."""
        return sum(x.nbytes for x in self._arrays())

    def _arrays(self) -> list[torch.Tensor]:
        s = self.store
        trees: Tree = (s.obs, s.first, s.extras, s.states, tuple(getattr(s, n) for n in _STEPS))
        return tree_leaves((trees, self._past()))

    def _past(self) -> Tree:
        return (self.past_obs, self.past_first, self.prev_action, self.prev_reward)

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Append a copy of collected rows; returns the keys of the columns.

        Raises: ValueError when they do not fit.
        """
        chunk = Chunk.of(rows).segment()
        start, steps = self.filled, len(chunk.reward)
        if start + steps > self.rows:
            raise ValueError(
                f"chunk rows = {steps}: too many; allowed are {self.rows - start} (the free "
                f"rows of {self.rows}); call take() before adding more rows"
            )

        def put(store: torch.Tensor, new: torch.Tensor, count: int = steps) -> None:
            store[start : start + count] = new[:count]

        s = self.store
        tree_map(lambda store, new: put(store, new, steps + 1), s.obs, chunk.obs)
        put(s.first, chunk.first, steps + 1)
        tree_map(put, s.states, chunk.states)
        for name, store in s.extras.items():
            put(store, chunk.extras[name])
        for name in _STEPS:
            put(getattr(s, name), getattr(chunk, name))
        self.filled += steps
        return np.arange(self.columns)

    def take(self, env_steps: int) -> Sample:
        """Return all rows as one segment, weight 1, and clear the rollout.

        The segment's tensors are overwritten by the next ``add``.
        """
        n, s = self.filled, self.store
        assert n, "the rollout is empty"
        before = {"prev_action": self.prev_action.clone(), "prev_reward": self.prev_reward.clone()}
        segment = replace(
            s,
            obs=self._stacked(n),
            first=s.first[: n + 1],
            extras={name: x[:n] for name, x in s.extras.items()} | before,
            states=tree_map(lambda x: x[:n], s.states),
            state=tree_map(lambda x: x[0], s.states),
            action=s.action[:n],
            reward=s.reward[:n],
            terminated=s.terminated[:n],
            truncated=s.truncated[:n],
            valid=s.valid[:n],
        )
        self._store_past(n)
        self.filled = 0
        return Sample(segment, torch.ones(self.columns), np.arange(self.columns), env_steps)

    def _stacked(self, n: int) -> Tree:
        """Observations [n+1, B, *O], or stacks [n+1, B, k, *O] of them, oldest first.

        Frames before an episode's first are copies of it, as in ``rlrun.env.framestack``.
        """
        k, s = self.stack, self.store
        if k == 1:
            return tree_map(lambda x: x[: n + 1], s.obs)
        first = torch.cat([self.past_first, s.first[: n + 1]])
        row = torch.arange(len(first)).unsqueeze(-1)
        opened = torch.where(first, row, 0).cummax(0).values[k - 1 :]  # the episode's first row
        frame = (row[: n + 1] + torch.arange(k)).unsqueeze(1)  # [n+1, 1, k]
        frame = torch.maximum(frame, opened.unsqueeze(-1))  # [n+1, B, k]
        index = frame * self.columns + torch.arange(self.columns).unsqueeze(-1)

        def stacks(past: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([past, x[: n + 1]]).flatten(0, 1)[index]

        return tree_map(stacks, self.past_obs, s.obs)

    def _store_past(self, n: int) -> None:
        """Store previous action, reward and frames for the row after the last."""
        past, s = self.stack - 1, self.store
        self.prev_action, self.prev_reward = s.action[n - 1].clone(), s.reward[n - 1].clone()
        if past:
            self.past_obs = tree_map(
                lambda was, x: torch.cat([was, x[:n]])[-past:], self.past_obs, s.obs
            )
            self.past_first = torch.cat([self.past_first, s.first[:n]])[-past:]

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics: none."""
        return {}

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics: none, rows are not compressed."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The stored rows."""
        n, s = self.filled, self.store
        return {
            "filled": n,
            "obs": tree_map(lambda x: x[: n + 1], s.obs),
            "first": s.first[: n + 1],
            "extras": {name: x[:n] for name, x in s.extras.items()},
            "states": tree_map(lambda x: x[:n], s.states),
            "steps": {name: getattr(s, name)[:n] for name in _STEPS},
            "past": self._past(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        s = self.store
        filled = saved.integer("rollout.filled", state["filled"], 0, self.rows)
        own: Tree = (s.obs, s.first, s.extras, s.states, {n: getattr(s, n) for n in _STEPS})
        names = ("obs", "first", "extras", "states", "steps")
        given = tuple(state[name] for name in names)
        tree_map(lambda store, x: saved.fill("rollout", store, x), own, given)
        tree_map(lambda own, x: saved.fill("rollout.past", own, x), self._past(), state["past"])
        steps = state["steps"]
        rows = tree_map(torch.Tensor.numpy, (state["obs"], steps["action"], steps["valid"]))
        saved.check_values("rollout", self.spaces, *rows)
        previous = self.prev_action.numpy()[None], np.ones((1, self.columns), bool)
        saved.check_values("rollout.past", self.spaces, None, *previous)
        self.filled = filled


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
        segment = join(segments)
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
