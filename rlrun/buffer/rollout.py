"""On-policy storage: the rows since the last update, all out at once, then cleared."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlrun.types import Chunk, Sample, Segment, Tree, tree_leaves, tree_map

_STEPS = ("action", "reward", "terminated", "truncated", "valid")


class Rollout:
    """Up to ``rows`` rows of every column, time-major and contiguous, with what acting wrote down.

    ``extras`` (behaviour log-probability, value) are those of the collected segments. The segment
    that comes out has ``states``, the recurrent state before every row, so that minibatches of
    whole sub-segments start from exact states.
    """

    def __init__(self, example: Chunk | Segment, *, rows: int) -> None:
        """``example``: collected rows (none will do) that show shapes and dtypes."""
        example = Chunk.of(example).segment()
        self.rows, self.filled = rows, 0
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

    def __len__(self) -> int:
        """Rows of every column held."""
        return self.filled

    @property
    def full(self) -> bool:
        """Whether no row fits any more."""
        return self.filled == self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays owned."""
        return sum(x.nbytes for x in self._arrays())

    def _arrays(self) -> list[torch.Tensor]:
        s = self.store
        trees: Tree = (s.obs, s.first, s.extras, s.states, tuple(getattr(s, n) for n in _STEPS))
        return tree_leaves(trees)

    def add(self, rows: Chunk | Segment) -> None:
        """Append collected rows; the arrays are copied.

        Raises: ValueError when they do not fit (take() what is there first).
        """
        chunk = Chunk.of(rows).segment()
        start, steps = self.filled, len(chunk.reward)
        if start + steps > self.rows:
            raise ValueError(
                f"chunk rows = {steps}: {self.rows - start} of {self.rows} rows are free; "
                "take() the segment before more rows are added"
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

    def take(self, env_steps: int) -> Sample:
        """All rows as one segment, weight 1, and an empty rollout.

        The segment's tensors are overwritten by the next ``add``.
        """
        n, s = self.filled, self.store
        segment = replace(
            s,
            obs=tree_map(lambda x: x[: n + 1], s.obs),
            first=s.first[: n + 1],
            extras={name: x[:n] for name, x in s.extras.items()},
            states=tree_map(lambda x: x[:n], s.states),
            state=tree_map(lambda x: x[0], s.states),
            action=s.action[:n],
            reward=s.reward[:n],
            terminated=s.terminated[:n],
            truncated=s.truncated[:n],
            valid=s.valid[:n],
        )
        self.filled = 0
        return Sample(segment, torch.ones(self.columns), np.arange(self.columns), env_steps)

    def state_dict(self) -> dict[str, Any]:
        """The rows held."""
        n, s = self.filled, self.store
        return {
            "filled": n,
            "obs": tree_map(lambda x: x[: n + 1], s.obs),
            "first": s.first[: n + 1],
            "extras": {name: x[:n] for name, x in s.extras.items()},
            "states": tree_map(lambda x: x[:n], s.states),
            "steps": {name: getattr(s, name)[:n] for name in _STEPS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        s = self.store
        own: Tree = (s.obs, s.first, s.extras, s.states, {n: getattr(s, n) for n in _STEPS})
        names = ("obs", "first", "extras", "states", "steps")
        saved = tuple(state[name] for name in names)
        tree_map(lambda store, x: store[: len(x)].copy_(x), own, saved)
        self.filled = int(state["filled"])
