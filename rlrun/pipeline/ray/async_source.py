"""Chunks of all collectors as they come."""

import contextlib
from collections import deque
from typing import Any

from rlrun.errors import EnvError, NumericError
from rlrun.pipeline.ray.delivery import Delivery
from rlrun.pipeline.ray.messages import Collected
from rlrun.pipeline.ray.roles import CollectorHandle
from rlrun.pipeline.ray.source import POLL_SECONDS, ChunkHandle, RaySource

OUTSTANDING = 2  # chunks of a collector that are collected, on their way or not taken yet
ASYNC_REASON = (
    "pipeline=ray learns in the order in which rows arrive; pipeline.strict=true fixes it"
)


class AsyncSource(RaySource):
    """Chunks in the order in which they are stored; collectors never wait for each other.

    A chunk counts once its shard has stored it. A collector waits when two of its chunks have not
    been taken by the loop: then learning is behind, or the shards are.
    """

    def __init__(
        self,
        *arguments: Any,
        delivery: Delivery | None,
        total_steps: int,
        **given: Any,
    ) -> None:
        """``delivery``: to the shards; None: the learner takes the chunks (on-policy)."""
        super().__init__(*arguments, **given)
        self.delivery, self.total_steps = delivery, total_steps
        self.ready: deque[ChunkHandle] = deque()
        self.inexact, self.paused = ASYNC_REASON, False
        self.held: list[tuple[CollectorHandle, Any, Collected]] = []  # replies while it is paused

    def next_chunk(self) -> list[ChunkHandle]:
        """The next chunk that is stored."""
        self.wait(self._is_ready, grace=0.0)
        chunk = self.ready.popleft()
        chunk.collector.waiting -= 1
        self.count(chunk.info)
        self.launch()
        return [chunk]

    def _is_ready(self) -> bool:
        self.launch()  # collectors may have become idle: restarted, or their chunk was refused
        return bool(self.ready)

    def launch(self) -> None:
        """Order a chunk of every collector that may collect."""
        if self.paused or self.roles.stop() or self.counters.env_steps >= self.total_steps:
            return
        for collector in self.roles.collectors:
            if not collector.busy and collector.waiting < OUTSTANDING:
                self.order(collector, self.roles.frames.since(collector.sent))

    def _replied(self, collector: CollectorHandle, payload: Any, reply: Any) -> None:
        if self.paused and isinstance(reply, Collected):
            self.held.append((collector, payload, reply))
        else:
            super()._replied(collector, payload, reply)

    def collected(self, chunk: ChunkHandle) -> None:
        chunk.collector.waiting += 1
        if self.delivery is None:
            self.ready.append(chunk)
        else:
            self.delivery.send(chunk, self._delivered, self._lost)
        self.launch()

    def _delivered(self, chunk: ChunkHandle, stored: bool) -> None:
        if stored:
            self.ready.append(chunk)
        else:  # the shard it was collected for is gone
            chunk.collector.waiting -= 1
            self.traffic.lost += 1

    def _lost(self, chunk: ChunkHandle) -> None:
        """Let the collector collect a chunk again that was lost with its node, and those after it.

        Without its rows the ones after it would be stored as if they followed the ones before.
        """
        assert self.delivery is not None
        collector, seq = chunk.collector, chunk.info.seq
        if seq < collector.since:  # the shard that it was for is gone too
            self._delivered(chunk, False)
            return
        for given_up in [chunk, *self.delivery.take_back(collector, seq)]:
            self._delivered(given_up, False)
        collector.seq, collector.state = seq, chunk.before
        if collector.busy:
            collector.goes_back = True
        else:
            self._rejoin(collector)

    def rejoined(self, collector: CollectorHandle) -> None:
        self.launch()

    def quiesce(self) -> list[ChunkHandle]:
        """Order no more; return the chunks that are stored and were not taken by the loop.

        Chunks that are being collected are no part of a state that is saved then: those that arrive
        before ``go_on`` are neither stored nor is their collector's progress known until then.
        """
        self.paused = True
        if self.delivery is None:  # the learner has yet to see them: fresh ones come
            return []
        self.delivery.drain()
        chunks = [*self.ready]
        self.ready.clear()
        for chunk in chunks:
            chunk.collector.waiting -= 1
        return chunks

    def abandon(self) -> None:
        self.paused = True
        while any(c.busy for c in self.roles.collectors):
            for collector, _, _ in self.held:
                collector.busy = False
            self.held.clear()
            with contextlib.suppress(EnvError, NumericError):
                self.pump.run(POLL_SECONDS)
        self.quiesce()
        self.ready.clear()
        for collector in self.roles.collectors:
            collector.waiting = 0
        self.paused = False

    def go_on(self) -> None:
        """Take the chunks that have come meanwhile, and order again."""
        self.paused = False
        held, self.held = self.held, []
        for reply in held:
            self._replied(*reply)
        self.launch()
