"""The role of a collector: environments, recurrent state, windows' first priorities."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.buffer.replay import Replay
from rlrun.buffer.windows import StateFilter
from rlrun.codec import DamagedFrame, ForeignFrame, LimitExceeded, NeedKeyFrame, StaleFrame
from rlrun.pipeline.collector import ActionCounts, Collector
from rlrun.pipeline.ray.messages import (
    Collected,
    NeedFrame,
    Order,
    Payload,
    answered,
    constructed,
    fills,
)
from rlrun.pipeline.ray.predicting import RemoteActor
from rlrun.pipeline.ray.process import prepare, replaced, unpacked
from rlrun.pipeline.ray.sent_rows import send
from rlrun.pipeline.ray.weights import Publisher
from rlrun.pipeline.transport import AutoCollectorSide, nbytes
from rlrun.types import Chunk, Counters


@dataclass(slots=True)
class CollectorParts:
    """Parts of a collector's role."""

    collector: Collector
    side: AutoCollectorSide
    publisher: Publisher  # of the collector's policy: loads what the learner publishes
    first_windows: Callable[[], Replay] | None  # makes a small replay for td priorities
    state_filter: StateFilter | None  # blanks recurrent states on their way, None: there are none


class CollectorRole:
    """Collects a chunk on order, with the weights that come with it."""

    @constructed
    def __init__(self, make: bytes, number: int, *, predictor: str | None, throttle: float) -> None:
        """``make``: packed, Counters -> CollectorParts.

        ``predictor``: name of the actor that acts, None: this role. ``throttle``: bytes/s of a
        slow link, in tests; 0: none.
        """
        self.log = prepare(f"collector {number}", threads=1)
        self.blank = replaced()
        self.number, self.counters = number, Counters()
        self.parts: CollectorParts = unpacked(make)(self.counters)
        self.collector, self.throttle = self.parts.collector, throttle
        self.version, self.incarnation, self.closed = -1, 0, False  # incarnation: of the shard
        self.actions = ActionCounts(self.collector.env.action_space)
        self.windows: Replay | None = None
        if predictor is not None:
            import ray

            generator = self.collector.policy.generator
            self.collector.actor = RemoteActor(
                self.collector.actor, ray.get_actor(predictor), number, generator
            )

    def collect(self, order: Order, *frames: Any) -> tuple[Any, Payload | None]:
        """Return (``Collected``, its rows); (NeedFrame or RoleFailure, None): nothing was done."""
        reply = self._collect(order, frames)
        return reply if isinstance(reply, tuple) else (reply, None)

    @answered
    def _collect(self, order: Order, frames: tuple[Any, ...]) -> Any:
        need = self._load_weights(order.versions, frames)
        if need is not None:
            return need
        collector, self.counters.env_steps = self.collector, order.env_steps
        if order.incarnation != self.incarnation:
            self._begin_stream(order.incarnation)
        chunk = collector.collect_rows()
        priorities = self._priorities(chunk, order)
        self.actions.add(chunk.action, chunk.valid)
        counts, self.actions.counts = self.actions.counts, np.zeros_like(self.actions.counts)
        message = self.parts.side.pack(chunk)
        if self.throttle:
            time.sleep(nbytes(message) / self.throttle)
        state = self._state() if order.keep_env else collector.light_state_dict()
        return (
            Collected(
                order.seq, collector.take_stats(), counts, state | self._generator(),
                self.version, order.env_steps,
                {**collector.seconds, "code": self.parts.side.seconds},
                self.parts.side.last_bytes, self.log.take(),
            ),
            Payload(message, priorities, order.incarnation, order.since),
        )  # fmt: skip

    def _load_weights(self, versions: tuple[int, ...], frames: tuple[Any, ...]) -> NeedFrame | None:
        """Act with the newest of ``frames``; return what is missing for it."""
        weights = None
        for version, frame in zip(versions, frames, strict=True):
            try:
                weights, self.version = self.parts.side.unpack(frame), version
            except (StaleFrame, ForeignFrame):  # this one, or a newer one, was there before
                continue
            except NeedKeyFrame as need:
                return NeedFrame(need.stream, need.have_seq, need.have_hash)
            except (DamagedFrame, LimitExceeded):
                known = self.parts.side.request()
                return NeedFrame(known.stream, known.have_seq, known.have_hash)
        if weights is not None:
            self.parts.publisher.load(weights)
            self.collector.actor.refresh()
        return None

    def _begin_stream(self, incarnation: int) -> None:
        """Cut windows, and keep their first states, from here on: the shard begins anew."""
        self.incarnation, self.windows = incarnation, None
        if self.parts.state_filter is not None:
            self.parts.state_filter.forget()

    def _priorities(self, chunk: Chunk, order: Order) -> np.ndarray | None:
        """|delta| of the windows that ``chunk`` completes, cut here as the shard will cut them."""
        if self.parts.first_windows is None:
            return None
        if self.windows is None:
            self.windows = self.parts.first_windows()
        keys = self.windows.add(chunk)
        if not len(keys):
            return np.zeros(0, np.float32)
        sample = self.windows.get(keys, order.env_steps)
        priorities: np.ndarray = self.collector.policy.priority(sample).numpy(force=True)
        return priorities

    @fills
    def load(self, state: dict[str, Any] | None, env_steps: int, incarnation: int) -> Any:
        """Continue from ``state``, None: begin; return why that is not exact, None: it is.

        ``incarnation``: how often the process of this collector was lost.
        """
        self.counters.env_steps = env_steps
        self._begin_stream(self.incarnation)
        if state is None:
            return None
        self.collector.load_state_dict(state, incarnation=incarnation)
        self.collector.policy.generator.bit_generator.state = state["generator"]
        if state.get("windows") is not None and self.parts.first_windows is not None:
            self.windows, self.incarnation = self.parts.first_windows(), int(state["incarnation"])
            self.windows.load_state_dict(state["windows"])
        if isinstance(self.collector.actor, RemoteActor):
            self.collector.actor.push(self.collector.state)
        return self.collector.inexact

    def _state(self) -> dict[str, Any]:
        """The state with the environments' and that of the windows whose priorities come."""
        windows = None if self.windows is None else self.windows.state_dict()
        own = {"windows": send(windows, lambda rows: rows.first), "incarnation": self.incarnation}
        return {**self.collector.state_dict(), **own}

    def _generator(self) -> dict[str, Any]:
        return {"generator": dict(self.collector.policy.generator.bit_generator.state)}

    @fills
    def close(self) -> Any:
        """Close the environments."""
        if not self.closed:
            self.closed = True
            self.collector.env.close()
        return None
