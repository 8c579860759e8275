"""Several replays sampled as one: demonstrations and collected rows, or a replay per collector."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.replay import Peek, Replay
from rlrun.buffer.samplers import Prioritized, Proportional
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment, tree_map

_PER_WINDOW = ("prev_action", "prev_reward")  # extras with one entry per window, not per row


class _Several(ABC):
    """Base class of several replays, one of which answers what concerns only a few windows."""

    @abstractmethod
    def _one(self, generator: np.random.Generator) -> "Replay | Mixed":
        """Return the replay that answers."""

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """See ``Replay.histories``."""
        return self._one(generator).histories(count, generator)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """See ``Replay.random_windows``."""
        return self._one(generator).random_windows(count, generator)

    def peek(self, count: int, generator: np.random.Generator, env_steps: int) -> Peek | None:
        """See ``Replay.peek``."""
        return self._one(generator).peek(count, generator, env_steps)


class Mixed(_Several):
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
        self.drawn: tuple[np.ndarray, list[np.ndarray]] = (np.empty(0, np.int64), [])
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
        keys = [part.key for part in parts]
        named = keys[:-1] + ([-1 - keys[-1]] if count else keys[-1:])
        key = np.concatenate(named)
        self.drawn = key, keys
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
        demos = key < 0
        count = int(np.count_nonzero(~demos))
        if key is self.drawn[0]:  # own windows first; each replay gets the keys it returned
            keys = list(self.drawn[1])
            if count:
                self.own.prioritize(keys.pop(0), priority[:count])
            if keys:
                self.demos.prioritize(keys[0], priority[count:])
            return
        if count:
            self.own.prioritize(key[~demos], priority[np.flatnonzero(~demos)])
        if count < len(key):
            self.demos.prioritize(-1 - key[demos], priority[np.flatnonzero(demos)])

    def _one(self, generator: np.random.Generator) -> Replay:
        return self.own  # whose states come from the run's networks

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


Store = Replay | Mixed
_SUMMED = ("windows", "late_priorities", "early_evictions", "demo_windows")  # of buffer/ metrics


class Streams(_Several):
    """A replay per collector of a distributed run, sampled as one.

    The columns of a ring advance together. Collectors do not, so each has a ring of its own. Stream
    j is drawn with probability m_j / sum m, then a window of it by its own sampler.

    m_j is the sum of p^alpha for proportional sampling, else the number of windows. Proportional
    and uniform sampling then equal those of one replay with all rows: new windows get the largest
    priority in any stream, and alpha changes in all streams at once. Ranks are within a stream.
    Importance weights are (N P(i))^-beta / max over the batch. A single stream equals its replay
    bit for bit.
    """

    def __init__(self, replays: Sequence[Store], *, generator: np.random.Generator) -> None:
        """``generator``: draws the streams; unused if there is only one."""
        self.replays, self.generator = list(replays), generator

    def __len__(self) -> int:
        """Return the number of windows that can be sampled."""
        return sum(len(replay) for replay in self.replays)

    @property
    def steps(self) -> int:
        """Steps stored since the run began."""
        return sum(replay.steps for replay in self.replays)

    def add(self, chunks: Sequence[tuple[int, Chunk | Segment]]) -> np.ndarray:
        """Store (stream, rows). Return the keys of the windows they complete, int64."""
        keys = [self._global(self.replays[number].add(rows), number) for number, rows in chunks]
        return np.concatenate(keys)

    def sample(self, batch: int, env_steps: int) -> Sample:
        """Sample ``batch`` windows, with importance weights float32 [batch]."""
        if len(self.replays) == 1:
            return self.replays[0].sample(batch, env_steps)
        beta = 0.0
        for sampler in self._prioritized():
            sampler.follow_alpha(env_steps)
            beta = sampler.beta_at(env_steps)
        mass = self._masses()
        bounds = np.cumsum(mass)
        point = (np.arange(batch) + self.generator.random(batch)) * (bounds[-1] / batch)
        chosen = np.minimum(bounds.searchsorted(point, side="right"), len(mass) - 1)
        counts = np.bincount(chosen, minlength=len(mass))
        parts, keys, shares = [], [], []
        for number in np.flatnonzero(counts):
            replay = self.replays[number]
            part = replay.sample(int(counts[number]), env_steps)
            shares.append(_shares(replay, part) * mass[number])
            parts.append(part.segment)
            keys.append(self._global(part.key, int(number)))
        share = np.concatenate(shares)
        weight = (share / share.min()) ** -beta
        return Sample(
            join(parts),
            torch.from_numpy(weight.astype(np.float32)),
            np.concatenate(keys),
            env_steps,
        )

    def get(self, key: np.ndarray, env_steps: int) -> Sample:
        """Return the windows with these keys, grouped by stream, weight 1."""
        count = len(self.replays)
        parts = [
            self.replays[int(stream_keys[0] % count)].get(stream_keys // count, env_steps)
            for stream_keys in np.split(key, np.flatnonzero(np.diff(key % count)) + 1)
        ]
        weight = torch.cat([part.weight for part in parts])
        return Sample(join([part.segment for part in parts]), weight, key, env_steps)

    def prioritize(self, key: np.ndarray, priority: np.ndarray | Tensor) -> None:
        """Set |delta| priorities as ``Replay.prioritize`` does."""
        count = len(self.replays)
        if count == 1:
            self.replays[0].prioritize(key, priority)
            return
        values = np.asarray(priority)
        for number in np.unique(key % count):
            mine = key % count == number
            self.replays[number].prioritize(key[mine] // count, values[mine])
        samplers = self._prioritized()
        largest = max((sampler.largest for sampler in samplers), default=1.0)
        for sampler in samplers:
            sampler.largest = largest

    def metrics(self, env_steps: int) -> dict[str, float]:
        """Return buffer/ metrics: sums of counts, else means over the stored windows."""
        return combined([(r.metrics(env_steps), float(len(r))) for r in self.replays])

    def codec_metrics(self) -> dict[str, float]:
        """Return codec/ metrics of compressed observations."""
        metrics = [replay.codec_metrics() for replay in self.replays]
        size = sum(x.get("codec/buffer_bytes", 0.0) for x in metrics)
        raw = sum(x["codec/buffer_bytes"] / x["codec/buffer_ratio"] for x in metrics if x)
        return {"codec/buffer_ratio": size / raw, "codec/buffer_bytes": size} if raw else {}

    def check(self) -> None:
        """Raise AssertionError naming a broken invariant."""
        for replay in self.replays:
            replay.check()

    def state_dict(self) -> dict[str, Any]:
        return {
            "streams": [replay.state_dict() for replay in self.replays],
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError if it has another number of streams."""
        streams = state["streams"]
        if len(streams) != len(self.replays):
            raise CheckpointError(
                f"buffer = {len(self.replays)} streams: the checkpoint has {len(streams)}; allowed "
                "are as many collectors as the run began with; undo the change of "
                "pipeline.num_actors"
            )
        for replay, stream_state in zip(self.replays, streams, strict=True):
            replay.load_state_dict(stream_state)
        self.generator.bit_generator.state = state["generator"]

    def _prioritized(self) -> list[Prioritized]:
        samplers = (_own(replay).sampler for replay in self.replays)
        return [sampler for sampler in samplers if isinstance(sampler, Prioritized)]

    def _masses(self) -> np.ndarray:
        """Return m_j of every stream, float64 [J], 0 while it has no window."""
        samplers = [(_own(replay).sampler, float(len(replay))) for replay in self.replays]
        return np.array(
            [s.sum_tree.root if isinstance(s, Proportional) else n for s, n in samplers]
        )

    def _global(self, key: np.ndarray, number: int) -> np.ndarray:
        """Return keys of stream ``number`` as keys of all streams."""
        return key if len(self.replays) == 1 else key * len(self.replays) + number

    def _one(self, generator: np.random.Generator) -> Store:
        if len(self.replays) == 1:
            return self.replays[0]
        return self.replays[int(generator.integers(len(self.replays)))]


def combined(parts: Sequence[tuple[dict[str, float], float]]) -> dict[str, float]:
    """Combine the buffer/ metrics of several (metrics, number of windows) into one.

    Counts are summed, maxima are maximised, all others are means over the windows.
    """
    if len(parts) == 1:
        return parts[0][0]
    names = dict.fromkeys(name for metrics, _ in parts for name in metrics)
    merged = {}
    for name in names:
        have = [(m[name], weight) for m, weight in parts if name in m]
        short = name.partition("/")[2]
        if short in _SUMMED:
            merged[name] = sum(value for value, _ in have)
        elif short.endswith("_max"):
            merged[name] = max(value for value, _ in have)
        else:
            total = sum(weight for _, weight in have)
            weights = [w / total if total else 1 / len(have) for _, w in have]
            merged[name] = sum(v * w for (v, _), w in zip(have, weights, strict=True))
    return merged


def _own(replay: Store) -> Replay:
    return replay.own if isinstance(replay, Mixed) else replay


def _shares(replay: Store, part: Sample) -> np.ndarray:
    """Return each sampled window's probability within its stream, up to rounding, float64 [B]."""
    own_replay = _own(replay)
    slots = own_replay.windows.find(part.key)[0]
    priorities = own_replay.sampler.priorities(slots)
    if priorities is None:
        return np.full(len(slots), 1.0 / max(len(own_replay), 1))
    return priorities[1]
