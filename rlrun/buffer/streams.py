"""Several replays sampled as one: a replay for each collector of a distributed run.

A ring holds columns that advance together. Collectors do not, so each has a ring of its own, and
windows are drawn over all of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.mixed import Mixed, join
from rlrun.buffer.replay import Replay
from rlrun.buffer.samplers.proportional import Proportional
from rlrun.buffer.samplers.rank import Rank
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, Sample, Segment

Store = Replay | Mixed
_SUMMED = ("windows", "late_priorities", "early_evictions", "demo_windows")  # of buffer/ metrics


class Streams:
    """Draws windows of stream j with probability m_j / sum m, then within it as its sampler does.

    m_j is the sum of p^alpha (proportional), else the number of windows. Proportional and uniform
    sampling are then exactly those of one replay with all rows; ranks are those within a stream.
    Importance weights are (N P(i))^-beta / max over the batch. One stream is that replay itself,
    bit for bit.
    """

    def __init__(self, replays: Sequence[Store], *, generator: np.random.Generator) -> None:
        """``generator``: of the choice of streams; unused where there is one."""
        self.replays, self.generator = list(replays), generator

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return sum(len(replay) for replay in self.replays)

    @property
    def rows(self) -> int:
        """Steps stored since the run began."""
        return sum(replay.rows for replay in self.replays)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays owned."""
        return sum(replay.nbytes for replay in self.replays)

    @property
    def mass(self) -> float:
        """Sum of m_j: what this shard weighs beside others."""
        return float(self._masses().sum())

    def add(self, number: int, rows: Chunk | Segment) -> np.ndarray:
        """Store rows of stream ``number``; return the keys of the windows they complete, int64."""
        return self._global(self.replays[number].add(rows), number)

    def sample(self, batch: int, env_steps: int) -> Sample:
        """Sample ``batch`` windows, with importance weights float32 [batch]."""
        if len(self.replays) == 1:
            return self.replays[0].sample(batch, env_steps)
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
            keys.append(self._global(np.asarray(part.key), int(number)))
        share = np.concatenate(shares)
        weight = (share / share.min()) ** -self._beta(env_steps)
        return Sample(
            join(parts),
            torch.from_numpy(weight.astype(np.float32)),
            np.concatenate(keys),
            env_steps,
        )

    def get(self, key: np.ndarray, env_steps: int) -> Sample:
        """The windows with these keys, all of one stream, weight 1."""
        number = int(key[0] % len(self.replays)) if len(key) else 0
        return self.replays[number].get(key // len(self.replays), env_steps)

    def prioritize(self, key: np.ndarray, priority: np.ndarray | Tensor) -> None:
        """Set |delta| priorities, as ``Replay.prioritize``."""
        count = len(self.replays)
        if count == 1:
            self.replays[0].prioritize(key, priority)
            return
        values = np.asarray(priority)
        for number in np.unique(key % count):
            mine = key % count == number
            self.replays[number].prioritize(key[mine] // count, values[mine])

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """As ``Replay.histories``, of one stream."""
        return self._one(generator).histories(count, generator)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """As ``Replay.random_windows``, of one stream."""
        return self._one(generator).random_windows(count, generator)

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics: sums of counts, means over the stored windows of the rest."""
        return combined([(r.metrics(env_steps), float(len(r))) for r in self.replays])

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics of compressed observations."""
        found = [replay.codec_metrics() for replay in self.replays]
        size = sum(x.get("codec/buffer_bytes", 0.0) for x in found)
        raw = sum(x["codec/buffer_bytes"] / x["codec/buffer_ratio"] for x in found if x)
        return {"codec/buffer_ratio": size / raw, "codec/buffer_bytes": size} if raw else {}

    def check(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        for replay in self.replays:
            replay.check()

    def state_dict(self) -> dict[str, Any]:
        return {
            "streams": [replay.state_dict() for replay in self.replays],
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises: CheckpointError when it has another number of streams."""
        streams = state["streams"]
        if len(streams) != len(self.replays):
            raise CheckpointError(
                f"buffer = {len(self.replays)} streams: the checkpoint has {len(streams)}; allowed "
                "are as many collectors and shards as the run began with; undo the change of "
                "pipeline.num_actors or pipeline.num_shards"
            )
        for replay, own in zip(self.replays, streams, strict=True):
            replay.load_state_dict(own)
        self.generator.bit_generator.state = state["generator"]

    def _masses(self) -> np.ndarray:
        """m_j of every stream, float64 [J]."""
        return np.array([_mass(replay) for replay in self.replays])

    def _global(self, key: np.ndarray, number: int) -> np.ndarray:
        """Keys of stream ``number`` as keys of all streams."""
        return key if len(self.replays) == 1 else key * len(self.replays) + number

    def _one(self, generator: np.random.Generator) -> Store:
        if len(self.replays) == 1:
            return self.replays[0]
        return self.replays[int(generator.integers(len(self.replays)))]

    def _beta(self, env_steps: int) -> float:
        sampler = _own(self.replays[0]).sampler
        return sampler.beta_at(env_steps) if isinstance(sampler, Proportional | Rank) else 0.0


def combined(parts: Sequence[tuple[dict[str, float], float]]) -> dict[str, float]:
    """buffer/ metrics of several (metrics, number of windows) as those of one buffer.

    Counts are summed, of maxima the largest is taken, all else is a mean over the windows.
    """
    if len(parts) == 1:
        return parts[0][0]
    names = dict.fromkeys(name for metrics, _ in parts for name in metrics)
    found = {}
    for name in names:
        have = [(m[name], weight) for m, weight in parts if name in m]
        short = name.partition("/")[2]
        if short in _SUMMED:
            found[name] = sum(value for value, _ in have)
        elif short.endswith("_max"):
            found[name] = max(value for value, _ in have)
        else:
            total = sum(weight for _, weight in have)
            weights = [w / total if total else 1 / len(have) for _, w in have]
            found[name] = sum(v * w for (v, _), w in zip(have, weights, strict=True))
    return found


def _own(replay: Store) -> Replay:
    return replay.own if isinstance(replay, Mixed) else replay


def _mass(replay: Store) -> float:
    """m of a stream: 0 while it has no window."""
    sampler = _own(replay).sampler
    return sampler.sum_tree.root if isinstance(sampler, Proportional) else float(len(replay))


def _shares(replay: Store, part: Sample) -> np.ndarray:
    """Probability within its stream of every sampled window, up to rounding, float64 [B]."""
    own = _own(replay)
    slots = own.reader.find(part.key)[0]
    known = own.sampler.priorities(slots)
    if known is None:
        return np.full(len(slots), 1.0 / max(len(own), 1))
    sampler = own.sampler
    total = sampler.sum_tree.root if isinstance(sampler, Proportional) else _rank_total(sampler)
    shares: np.ndarray = known[1] / total
    return shares


def _rank_total(sampler: Any) -> float:
    """Sum of p^alpha over the ranks in use."""
    assert isinstance(sampler, Rank)
    return float(sampler.cdf[sampler.count - 1])
