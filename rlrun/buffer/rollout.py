"""On-policy storage: the rows since the last update, taken together."""

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
from rlrun.types import Chunk, Sample, Segment, Tree, tree_map

_ENDS = ("obs", "first")  # have one entry more, after the last row
_ZEROED = ("first", "reward", "terminated", "truncated", "valid")  # in padding
_STEPS = ("action", "reward", "terminated", "truncated", "valid", "extras", "states")


class Rollout:
    """Up to ``rows`` rows of every column, time-major and contiguous, with the extras of acting.

    ``extras`` (behaviour log-probability, value) are those of the collected segments. The segment
    taken has ``states``, the recurrent state before every row, so that minibatches of whole
    sub-segments start from exact states. The previous action, reward and stacked frames before its
    first row are kept across ``take`` calls.
    """

    def __init__(
        self,
        example: Chunk | Segment,
        *,
        rows: int,
        stack: int = 1,
        spaces: RowSpaces | None = None,
    ) -> None:
        """``example``: collected rows, possibly zero of them, with the shapes and dtypes to store.

        ``stack``: observations per policy input; rows hold single ones. ``spaces``: rows of a
        checkpoint are checked against them.
        """
        example = Chunk.of(example).segment()
        self.rows, self.filled, self.stack, self.spaces = rows, 0, stack, spaces
        self.columns = example.reward.shape[1]

        def like(tree: Tree, count: int) -> Tree:
            return tree_map(lambda x: torch.zeros(count, *x.shape[1:], dtype=x.dtype), tree)

        self.ends: dict[str, Any] = like(_fields(example, _ENDS), rows + 1)
        self.steps: dict[str, Any] = like(_fields(example, _STEPS), rows)
        self.past = like(_fields(example, _ENDS), stack - 1)  # before row 0
        self.previous = like(_fields(example, ("action", "reward")), 1)
        arrays = tree_map(Tensor.numpy, (self.ends, self.steps))  # cost less to write than tensors
        self.end_arrays, self.step_arrays = arrays

    def __len__(self) -> int:
        """Return the number of rows stored in every column."""
        return self.filled

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Append a copy of collected rows and return the keys of the columns.

        Raises: ValueError if they do not fit.
        """
        chunk = Chunk.of(rows)
        start, steps = self.filled, len(chunk.reward)
        if start + steps > self.rows:
            raise ValueError(
                f"chunk rows = {steps}: too many; allowed are {self.rows - start} (the free "
                f"rows of {self.rows}); call take() before adding more rows"
            )

        def put(store: np.ndarray, new: np.ndarray, count: int = steps) -> None:
            store[start : start + count] = new[:count]

        tree_map(lambda store, x: put(store, x, steps + 1), self.end_arrays, _fields(chunk, _ENDS))
        tree_map(put, self.step_arrays, _fields(chunk, _STEPS))
        self.filled += steps
        return np.arange(self.columns)

    def take(self, env_steps: int) -> Sample:
        """Return all rows as one segment, weight 1, and clear the rollout.

        The next ``add`` overwrites the segment's tensors.
        """
        n = self.filled
        assert n, "the rollout is empty"
        steps = tree_map(lambda x: x[:n], self.steps)
        steps["extras"] |= {f"prev_{name}": x[0] for name, x in self.previous.items()}
        state = tree_map(lambda x: x[0], self.steps["states"])
        first = self.ends["first"][: n + 1]
        segment = Segment(obs=self._stacked(n), first=first, state=state, **steps)
        # Of the row before the next one:
        self.previous = {name: self.steps[name][n - 1 : n].clone() for name in self.previous}
        if past := self.stack - 1:
            self.past = tree_map(
                lambda was, x: torch.cat([was, x[:n]])[-past:], self.past, self.ends
            )
        self.filled = 0
        return Sample(segment, torch.ones(self.columns), np.arange(self.columns), env_steps)

    def _stacked(self, n: int) -> Tree:
        """Return observations [n+1, B, *O], or stacks of them [n+1, B, k, *O], oldest first.

        Frames before an episode's first repeat that frame, as in ``rlrun.env.framestack``.
        """
        k = self.stack
        if k == 1:
            return tree_map(lambda x: x[: n + 1], self.ends["obs"])
        ends = tree_map(lambda x: x[: n + 1], self.ends)
        first = torch.cat([self.past["first"], ends["first"]])
        row = torch.arange(len(first)).unsqueeze(-1)
        opened = torch.where(first, row, 0).cummax(0).values[k - 1 :]  # the episode's first row
        frame = (row[: n + 1] + torch.arange(k)).unsqueeze(1)  # [n+1, 1, k]
        frame = torch.maximum(frame, opened.unsqueeze(-1))  # [n+1, B, k]
        index = frame * self.columns + torch.arange(self.columns).unsqueeze(-1)

        def stacks(past: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([past, x]).flatten(0, 1)[index]

        return tree_map(stacks, self.past["obs"], ends["obs"])

    def state_dict(self) -> dict[str, Any]:
        """The stored rows."""
        n = self.filled
        return {
            "filled": n,
            "ends": tree_map(lambda x: x[: n + 1], self.ends),
            "steps": tree_map(lambda x: x[:n], self.steps),
            "past": {"ends": self.past, "steps": self.previous},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        filled = saved.integer("rollout.filled", state["filled"], 0, self.rows)
        past = {"ends": self.past, "steps": self.previous}
        for part, stored, loaded in (
            ("rollout", self.ends, state["ends"]),
            ("rollout", self.steps, state["steps"]),
            ("rollout.past", past, state["past"]),
        ):
            tree_map(lambda store, x, part=part: saved.fill(part, store, x), stored, loaded)
        steps = state["steps"]
        rows = tree_map(torch.Tensor.numpy, (state["ends"]["obs"], steps["action"], steps["valid"]))
        saved.check_values("rollout", self.spaces, *rows)
        previous = self.previous["action"].numpy(), np.ones((1, self.columns), bool)
        saved.check_values("rollout.past", self.spaces, None, *previous)
        self.filled = filled


def _fields(segment: Chunk | Segment, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in names}


class Rollouts:
    """A rollout per collector. ``take`` concatenates the non-empty ones along columns, in order.

    Shorter ones are padded at their end with invalid rows. The first padding row holds the
    observation after the last row, whose value counts. A single collector equals ``Rollout`` bit
    for bit.
    """

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self.rollouts = list(rollouts)

    def __len__(self) -> int:
        """Return the number of rows in the longest rollout."""
        return max(len(rollout) for rollout in self.rollouts)

    def add(self, chunks: Sequence[tuple[int, Chunk | Segment]]) -> np.ndarray:
        """Append copies of (collector, rows), as ``Rollout.add`` does."""
        return np.concatenate([self.rollouts[number].add(rows) for number, rows in chunks])

    def take(self, env_steps: int) -> Sample:
        """Return all rows as one segment, weight 1, and clear the rollouts.

        Keys number the columns of all collectors.
        """
        numbers = [number for number, rollout in enumerate(self.rollouts) if len(rollout)]
        parts = [self.rollouts[number].take(env_steps) for number in numbers]
        steps = max(len(part.segment.reward) for part in parts)
        segment = join([padded(part.segment, steps) for part in parts])
        keys = [
            number * len(part.key) + part.key for number, part in zip(numbers, parts, strict=True)
        ]
        key = np.concatenate(keys)
        return Sample(segment, torch.ones(len(key)), key, env_steps)

    def state_dict(self) -> dict[str, Any]:
        return {"rollouts": [rollout.state_dict() for rollout in self.rollouts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError if it has other collectors."""
        if len(state["rollouts"]) != len(self.rollouts):
            raise CheckpointError(
                f"pipeline.num_actors = {len(self.rollouts)}: the checkpoint is of "
                f"{len(state['rollouts'])}; allowed is the number that the run began with"
            )
        for rollout, rollout_state in zip(self.rollouts, state["rollouts"], strict=True):
            rollout.load_state_dict(rollout_state)


def padded(segment: Segment, steps: int) -> Segment:
    """Return ``segment`` [T, B] extended by invalid rows to ``steps`` rows."""
    missing = steps - len(segment.reward)
    if not missing:
        return segment

    def again(x: Tensor) -> Tensor:  # the last entry
        return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])

    def nothing(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(missing, *x.shape[1:])])

    extras = {n: x if n.startswith("prev_") else again(x) for n, x in segment.extras.items()}
    longer: dict[str, Any] = {n: nothing(getattr(segment, n)) for n in _ZEROED}
    longer |= {n: tree_map(again, getattr(segment, n)) for n in ("obs", "action", "states")}
    return replace(segment, extras=extras, **longer)
