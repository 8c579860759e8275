"""Sampling from two replays: the run's own rows, and demonstrations that are never overwritten."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.replay import Replay
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment, tree_leaves, tree_map

_PER_WINDOW = ("prev_action", "prev_reward")  # extras with one entry per window, not per row


class Mixed:
    """Draws every window of a batch from ``demos`` with probability ``ratio``, else from ``own``.

    Each replay has its own priorities, importance weights (largest 1) and schedules. Keys of
    demonstrations are negative. Collected rows are added to ``own``.
    Source: Paine et al. 2019 (R2D3), section 3.
    """

    def __init__(
        self, own: Replay, demos: Replay, *, ratio: float, generator: np.random.Generator
    ) -> None:
        assert len(demos), "checked where they are loaded"
        self.own, self.demos, self.ratio, self.generator = own, demos, ratio, generator
        self.drawn: tuple[np.ndarray, list[np.ndarray]] = (np.empty(0, np.int64), [])
        self.counts = {"windows": 0, "demos": 0}  # sampled so far

    def __len__(self) -> int:
        """Own windows that can be sampled: learning starts when there are some."""
        return len(self.own)

    @property
    def rows(self) -> int:
        """Own steps stored since the run began."""
        return self.own.rows

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of both."""
        return self.own.nbytes + self.demos.nbytes

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Add collected rows to the own replay, as ``Replay.add``."""
        return self.own.add(rows)

    def sample(self, batch: int, env_steps: int) -> Sample:
        """``batch`` windows, own ones before demonstrations."""
        count = int(self.generator.binomial(batch, self.ratio))
        self.counts["windows"] += batch
        self.counts["demos"] += count
        parts = [
            replay.sample(size, env_steps)
            for replay, size in ((self.own, batch - count), (self.demos, count))
            if size
        ]
        keys = [_host(part.key) for part in parts]
        named = keys[:-1] + ([-1 - keys[-1]] if count else keys[-1:])
        key = np.concatenate(named)
        self.drawn = key, keys
        segment = join([part.segment for part in parts])
        return Sample(segment, torch.cat([part.weight for part in parts]), key, env_steps)

    def get(self, key: np.ndarray | Tensor, env_steps: int) -> Sample:
        """As ``Replay.get``, of own windows only."""
        assert (_host(key) >= 0).all(), "demonstrations are not read by key"
        return self.own.get(key, env_steps)

    def prioritize(self, key: np.ndarray | Tensor, priority: np.ndarray | Tensor) -> None:
        """As ``Replay.prioritize``, for both replays."""
        key = _host(key)
        if len(key) != len(priority):
            self.own.prioritize(key, priority)  # raises
        demos = key < 0
        count = int(np.count_nonzero(~demos))
        if key is self.drawn[0]:  # own windows first; each replay gets the keys it returned
            given = list(self.drawn[1])
            if count:
                self.own.prioritize(given.pop(0), priority[:count])
            if given:
                self.demos.prioritize(given[0], priority[count:])
            return
        if count:
            self.own.prioritize(key[~demos], priority[_like(~demos, priority)])
        if count < len(key):
            self.demos.prioritize(-1 - key[demos], priority[_like(demos, priority)])

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """As ``Replay.histories``, of own windows, whose states are from the run's networks."""
        return self.own.histories(count, generator)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """As ``Replay.random_windows``, of own windows."""
        return self.own.random_windows(count, generator)

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics of the own rows, and how many windows were demonstrations."""
        share = self.counts["demos"] / max(self.counts["windows"], 1)
        found = {"buffer/demo_windows": float(len(self.demos)), "buffer/demo_fraction": share}
        return self.own.metrics(env_steps) | found

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics of the own rows; demonstrations are not compressed."""
        return self.own.codec_metrics()

    def check(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        self.own.check()
        self.demos.check()

    def state_dict(self) -> dict[str, Any]:
        """The own replay, and the sampler of the demonstrations, whose rows are read again."""
        return {
            "own": self.own.state_dict(),
            "demos": {
                "layout": self.demos.fingerprint(),
                "rows": self.demos.rows,
                "sampler": self.demos.sampler.state_dict(),
            },
            "counts": dict(self.counts),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError when the demonstrations differ."""
        given, own = state["demos"], self.state_dict()["demos"]
        names = ("layout", "rows")
        if any(given[name] != own[name] for name in names):
            raise CheckpointError(
                f"buffer.demos = {own['rows']} steps, {own['layout']}: the checkpoint has "
                f"{given['rows']} steps, {given['layout']}; allowed are the demonstrations the run "
                "began with; restore that dataset"
            )
        self.own.load_state_dict(state["own"])
        self.demos.sampler.load_state_dict(given["sampler"])
        saved.check_invariants(self.demos.sampler.check(self.demos.windows.all()))
        self.counts = saved.check_counts(state["counts"], self.counts)
        self.generator.bit_generator.state = state["generator"]


def join(segments: list[Segment]) -> Segment:
    """Concatenate segments [T, B_i] of the same fields to [T, sum B_i]."""
    if len(segments) == 1:
        return segments[0]

    def concatenated(name: str, dim: int) -> Any:
        return _cat_trees([getattr(s, name) for s in segments], dim)

    first = segments[0]
    extras = {
        name: torch.cat([s.extras[name] for s in segments], 0 if name in _PER_WINDOW else 1)
        for name in first.extras
    }
    fields = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
    return Segment(
        **{name: concatenated(name, 1) for name in fields},
        extras=extras,
        state=concatenated("state", 0),
        partial=tuple(sorted({n for s in segments for n in s.partial})),
    )


def _cat_trees(trees: list[Any], dim: int) -> Any:
    """Concatenate the leaves of trees of the same structure along ``dim``."""
    leaves = [tree_leaves(tree) for tree in trees]
    joined = iter([torch.cat(same, dim) for same in zip(*leaves, strict=True)])
    return tree_map(lambda _: next(joined), trees[0])


def _host(key: np.ndarray | Tensor) -> np.ndarray:
    assert isinstance(key, np.ndarray), "demonstrations need buffer.device=cpu"
    return key


def _like(mask: np.ndarray, values: np.ndarray | Tensor) -> Any:
    return torch.from_numpy(mask).to(values.device) if isinstance(values, Tensor) else mask
