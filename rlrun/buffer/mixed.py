"""Several replays sampled as one: demonstrations and collected rows, or a part per collector."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.layout import Layout
from rlrun.buffer.replay import Peek, Replay
from rlrun.buffer.samplers import Uniform
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment, tree_map

_PER_WINDOW = ("prev_action", "prev_reward")  # extras with one entry per window, not per row


class Mixed:
    """Draws every window of a batch from ``demos`` with probability ``ratio``, else from ``own``.

    Each replay has its own priorities, importance weights (largest 1) and schedules. Keys of
    demonstrations are negative. Collected rows are added to ``own``. Source: Paine et al. 2019
    (R2D3), section 3.
    """

    def __init__(
        self, own: Replay, demos: Replay, *, ratio: float, generator: np.random.Generator
    ) -> None:
        assert len(demos), "checked where they are loaded"
        self.own, self.demos, self.ratio, self.generator = own, demos, ratio, generator
        self.counts = {"windows": 0, "demos": 0}  # sampled so far

    def __len__(self) -> int:
        """Return the number of own windows. Learning starts when there are some."""
        return len(self.own)

    @property
    def steps(self) -> int:
        """Own steps stored since the run began."""
        return self.own.steps

    def add(self, rows: Chunk | Segment) -> np.ndarray:
        """Add collected rows to the own replay, as ``Replay.add`` does."""
        return self.own.add(rows)

    def sample(self, batch: int, env_steps: int) -> Sample:
        """Sample ``batch`` windows, own ones before demonstrations."""
        count = int(self.generator.binomial(batch, self.ratio))
        self.counts["windows"] += batch
        self.counts["demos"] += count
        parts = [
            replay.sample(size, env_steps)
            for replay, size in ((self.own, batch - count), (self.demos, count))
            if size
        ]
        key = np.concatenate([part.key for part in parts])
        key[batch - count :] = -1 - key[batch - count :]
        segment = join([part.segment for part in parts])
        return Sample(segment, torch.cat([part.weight for part in parts]), key, env_steps)

    def get(self, key: np.ndarray, env_steps: int) -> Sample:
        """Return own windows by key, as ``Replay.get`` does."""
        assert (key >= 0).all(), "demonstrations are not read by key"
        return self.own.get(key, env_steps)

    def prioritize(self, key: np.ndarray, priority: np.ndarray | Tensor) -> None:
        """Set priorities in both replays, as ``Replay.prioritize`` does."""
        if len(key) != len(priority):
            self.own.prioritize(key, priority)  # raises
        own, demos = np.flatnonzero(key >= 0), np.flatnonzero(key < 0)
        if len(own):
            self.own.prioritize(key[own], priority[own])
        if len(demos):
            self.demos.prioritize(-1 - key[demos], priority[demos])

    # As in ``Replay``. Only the states of own rows come from the run's networks.

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        return self.own.histories(count, generator)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        return self.own.random_windows(count, generator)

    def peek(self, count: int, generator: np.random.Generator, env_steps: int) -> Peek | None:
        return self.own.peek(count, generator, env_steps)

    def metrics(self, env_steps: int) -> dict[str, float]:
        """Return buffer/ metrics of the own rows, and the share of demonstrations."""
        share = self.counts["demos"] / max(self.counts["windows"], 1)
        metrics = {"buffer/demo_windows": float(len(self.demos)), "buffer/demo_fraction": share}
        return self.own.metrics(env_steps) | metrics

    def codec_metrics(self) -> dict[str, float]:
        """Return codec/ metrics of the own rows. Demonstrations are not compressed."""
        return self.own.codec_metrics()

    def check(self) -> None:
        """Raise AssertionError naming a broken invariant."""
        self.own.check()
        self.demos.check()

    def state_dict(self) -> dict[str, Any]:
        """Return the own replay and the demonstrations' sampler; their rows are read again."""
        return {
            "own": self.own.state_dict(),
            "demos": {
                "layout": self.demos.fingerprint(),
                "steps": self.demos.steps,
                "sampler": self.demos.sampler.state_dict(),
            },
            "counts": dict(self.counts),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError if the demonstrations differ."""
        loaded, current = state["demos"], self.state_dict()["demos"]
        names = ("layout", "steps")
        if any(loaded[name] != current[name] for name in names):
            raise CheckpointError(
                f"buffer.demos = {current['steps']} steps, {current['layout']}: the checkpoint has "
                f"{loaded['steps']} steps, {loaded['layout']}; allowed are the demonstrations the "
                "run began with; restore that dataset"
            )
        self.own.load_state_dict(state["own"])
        self.demos.sampler.load_state_dict(loaded["sampler"])
        saved.check_invariants(self.demos.sampler.check(self.demos.windows.all()))
        self.counts = saved.check_counts(state["counts"], self.counts)
        self.generator.bit_generator.state = state["generator"]


def join(segments: list[Segment]) -> Segment:
    """Concatenate segments [T, B_i] of the same fields to [T, sum B_i]."""
    if len(segments) == 1:
        return segments[0]

    def cat(trees: list[Any], dim: int) -> Any:
        return tree_map(lambda *x: torch.cat(x, dim), *trees)

    steps = ("obs", "first", "action", "reward", "terminated", "truncated", "valid", "states")
    extras = {
        name: cat([s.extras[name] for s in segments], 0 if name in _PER_WINDOW else 1)
        for name in segments[0].extras
    }
    return Segment(
        **{name: cat([getattr(s, name) for s in segments], 1) for name in steps},
        extras=extras,
        state=cat([s.state for s in segments], 0),
        partial=tuple(sorted({n for s in segments for n in s.partial})),
    )


class Streams(Replay):
    """A replay whose columns belong to several collectors, the same number to each.

    The columns of one collector advance together, those of several do not. So every collector has
    a replay of its own, to which its rows are added. These ``parts`` share the arrays of this
    replay, which draws from the windows of all as if one collector had collected their rows.
    """

    def __init__(self, layout: Layout, count: int, *, device: Any = None, **others: Any) -> None:
        """``layout``: of all ``count`` collectors. ``others``: as for ``Replay``."""
        super().__init__(layout, device=device, **others)
        windows = None if layout.windows is None else layout.windows // count
        each = replace(layout, columns=layout.columns // count, windows=windows)
        self.parts = [
            Replay(
                each, window=self.window, cutter=table.cutter, stack=self.stack, device=device,
                sampler=_Part(self.sampler, i * each.slots), table=table,
            )
            for i, table in enumerate(self.windows.split(self.ring.split(count)))
        ]  # fmt: skip

    def add(self, chunks: Sequence[tuple[int, Chunk | Segment]]) -> np.ndarray:  # type: ignore[override]
        """Store (collector, rows). Return the keys of the windows they complete, int64."""
        keys = []
        for number, rows in chunks:
            part = self.parts[number]
            line, column = np.divmod(part.add(rows), part.windows.columns)
            column += number * part.windows.columns
            keys.append(line * self.windows.columns + column)
        self._count()
        return np.concatenate(keys)

    def _count(self) -> None:
        """Count the rows and windows of all parts."""
        for name in ("steps", "learned"):
            setattr(self, name, sum(getattr(part, name) for part in self.parts))
        for name in ("live", "early"):
            setattr(self.windows, name, sum(getattr(part.windows, name) for part in self.parts))
        self.drawn = np.empty(0, np.int64), np.empty(0, np.int64)

    def check(self) -> None:
        for part in self.parts:
            part.check()
        problem = self.sampler.check(self.windows.all())
        assert problem is None, problem

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}; of {len(self.parts)} collectors"

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts, and of what they share."""
        return {
            "layout": self.fingerprint(), "streams": [part.state_dict() for part in self.parts],
            "late": self.late, "sampler": self.sampler.state_dict(),
            "hindsight": self.hindsight.state_dict() if self.hindsight is not None else None,
        }  # fmt: skip

    def load_rows(self, state: dict[str, Any]) -> None:
        for part, part_state in zip(self.parts, state["streams"], strict=True):
            part.load_state_dict(part_state)
        self.late = saved.integer("late", state["late"], 0, saved.MOST_ROWS)
        self._count()


class _Part(Uniform):
    """The slots from ``start`` on of a ``sampler`` that draws from several replays."""

    def __init__(self, sampler: Uniform, start: int) -> None:
        super().__init__(sampler.generator)
        self.sampler, self.start = sampler, start

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        self.sampler.replace_slots(dead + self.start, new + self.start)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the shared sampler is loaded once."""
