"""The role of a replay shard: stores the trajectories of its collectors and samples windows."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.buffer.mixed import Streams
from rlrun.pipeline.overlapped import Check
from rlrun.pipeline.ray.messages import Payload, Stored, answered, constructed
from rlrun.pipeline.ray.process import prepare, replaced, unpacked
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.sent_rows import all_rows, send
from rlrun.pipeline.transport import AutoLearnerSide
from rlrun.types import Sample, Segment


@dataclass(slots=True)
class ShardParts:
    """Parts of a shard."""

    streams: Streams
    sides: Mapping[int, AutoLearnerSide]  # by number of the collector
    stream_of: Mapping[int, int]  # number of the collector -> stream
    check: Check


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """Sampled windows as arrays, with what the shard weighs beside others."""

    segment: Any  # a Segment of arrays
    weight: np.ndarray
    key: np.ndarray
    mass: float
    incarnation: int


class ReplayRole:
    """A shard. A restarted one, which is empty, is another incarnation."""

    @constructed
    def __init__(self, make: bytes, number: int) -> None:
        """``make``: packed, () -> ShardParts."""
        self.log = prepare(f"replay {number}", threads=1)
        self.parts: ShardParts = unpacked(make)()
        self.number = number
        self.streams, self.receiver = (
            self.parts.streams,
            Receiver(self.parts.sides, self.parts.check),
        )
        self.incarnation = int.from_bytes(os.urandom(6), "little") if replaced() else 0
        self.seconds = {"add": 0.0, "sample": 0.0, "prioritize": 0.0}
        self.late = 0  # priorities of windows of an earlier incarnation

    @answered
    def info(self) -> Any:
        """The present state of the shard."""
        return self._reply(-1, accepted=True)

    @answered
    def add(self, collector: int, seq: int, payload: Payload, corrupt: bool = False) -> Any:
        """Store a chunk once; one of an earlier incarnation is refused, it began before."""
        began = time.perf_counter()
        if payload.incarnation != self.incarnation:
            return self._reply(seq + 1, accepted=False)
        if self.receiver.again(collector, seq):
            return self._reply(self.receiver.expected[collector], accepted=True, again=True)
        if self.receiver.early(collector, seq, payload.since):
            return self._reply(self.receiver.expected[collector], accepted=False)
        chunk = self.receiver.unpack(collector, payload, corrupt=corrupt)
        if chunk is None:
            return self._reply(seq, accepted=False, damaged=True)
        keys = self.streams.add(self.parts.stream_of[collector], chunk)
        self.receiver.accept(collector, seq)
        # A collector that was restarted lacks the windows of episodes that were open then. All it
        # has are windows of this stream: the same ones where there are as many.
        given = payload.priorities
        if given is not None and len(given) == len(keys):
            self.streams.prioritize(keys, given)
        self.seconds["add"] += time.perf_counter() - began
        return self._reply(seq + 1, accepted=True)

    def _reply(
        self, expected: int, *, accepted: bool, again: bool = False, damaged: bool = False
    ) -> Stored:
        streams = self.streams
        return Stored(
            expected, accepted, again, damaged, streams.steps, len(streams), streams.mass,
            self.incarnation,
        )  # fmt: skip

    @answered
    def sample(self, batch: int, env_steps: int) -> Any:
        """Return a ``SampledBatch``; None: there is no window yet."""
        if not len(self.streams):
            return None
        began = time.perf_counter()
        sample: Sample = self.streams.sample(batch, env_steps)
        self.seconds["sample"] += time.perf_counter() - began
        weight = sample.weight.numpy(force=True)
        return SampledBatch(
            as_arrays(sample.segment), weight, np.asarray(sample.key), self.streams.mass,
            self.incarnation,
        )  # fmt: skip

    @answered
    def prioritize(self, key: np.ndarray, priority: np.ndarray, incarnation: int) -> Any:
        """Set the priorities of windows sampled of that incarnation."""
        if incarnation != self.incarnation:
            self.late += len(key)
            return None
        began = time.perf_counter()
        self.streams.prioritize(key, priority)
        self.seconds["prioritize"] += time.perf_counter() - began
        return None

    @answered
    def histories(self, count: int, generator: np.random.Generator) -> Any:
        """(windows, histories as arrays, the generator after it)."""
        windows, history = self.streams.histories(count, generator)
        return as_arrays(windows), as_arrays(history), generator

    @answered
    def random_windows(self, count: int, generator: np.random.Generator) -> Any:
        """(windows as arrays, the generator after it)."""
        return as_arrays(self.streams.random_windows(count, generator)), generator

    @answered
    def metrics(self, env_steps: int) -> Any:
        """(buffer/ metrics, windows, codec/ metrics, seconds, log)."""
        found = self.streams.metrics(env_steps)
        if self.late:
            found["buffer/late_priorities"] = found.get("buffer/late_priorities", 0.0) + self.late
        codec = self.streams.codec_metrics()
        return found, float(len(self.streams)), codec, dict(self.seconds), self.log.take()

    @answered
    def coding(self) -> Any:
        """Seconds of coding so far."""
        return self.receiver.seconds

    @answered
    def ranges(self) -> Any:
        """(incarnation, (first, stop) of the rows of every ring in ``state_dict``)."""
        rings = all_rows(self.streams.state_dict())
        return self.incarnation, [(rows.first, rows.stop) for rows in rings]

    @answered
    def state_dict(self, incarnation: int, starts: Sequence[int]) -> Any:
        """Everything stored; of the rows only those from ``starts`` on, one for each ring.

        None where ``incarnation`` is an earlier one, of whose rows ``starts`` are.
        """
        if incarnation != self.incarnation:
            return None
        order = iter(starts)
        state = self.streams.state_dict() | {"received": self.receiver.state_dict()}
        return send(state, lambda rows: next(order))

    @answered
    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """The inverse of ``state_dict`` with all rows."""
        self.receiver.load_state_dict(state["received"])
        self.streams.load_state_dict(state)
        return None

    @answered
    def check(self) -> Any:
        """The broken invariant, None: there is none."""
        try:
            self.streams.check()
        except AssertionError as e:
            return str(e)
        return None


def as_arrays(segment: Segment) -> Any:
    """A segment whose tensors are arrays that share their memory: what travels without a copy."""
    return segment.map(lambda x: x.numpy(force=True))  # type: ignore[arg-type, return-value]
