"""Chunks on their way to the shards: sent until they are acknowledged, each stored once."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from rlrun.errors import ResourceError
from rlrun.pipeline.ray.messages import Stored
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import (
    RETRY_SECONDS,
    STOP_SECONDS,
    CollectorHandle,
    Roles,
    ShardHandle,
)

if TYPE_CHECKING:
    from rlrun.pipeline.ray.source import ChunkHandle

_logger = logging.getLogger(__name__)

ANSWER_SECONDS = 20.0  # until a chunk without a reply is sent again
POLL_SECONDS = 0.25
MAX_DAMAGED = 20  # times that a chunk may arrive damaged, until it is given up

Done = Callable[["ChunkHandle", bool], None]
Gone = Callable[["ChunkHandle"], None]


@dataclass(slots=True)
class Chaos:
    """Faults of a bad link, for tests: probabilities per message."""

    drop: float = 0.0
    twice: float = 0.0
    late: float = 0.0  # it arrives after the next one
    corrupt: float = 0.0
    seed: int = 0
    answer_seconds: float = ANSWER_SECONDS
    draws: Random = field(init=False)

    def __post_init__(self) -> None:
        self.draws = Random(self.seed)

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens."""
        return probability > 0 and self.draws.random() < probability


class Delivery:
    """Sends chunks to their shards and takes the replies."""

    def __init__(self, roles: Roles, chaos: Chaos | None = None) -> None:
        self.roles, self.pump, self.chaos = roles, roles.pump, chaos or Chaos()
        self.pending: dict[tuple[int, int], tuple[ChunkHandle, Done, Gone]] = {}
        self.tries: dict[tuple[int, int], int] = {}  # of each that is pending
        self.spoilt: dict[tuple[int, int], int] = {}  # how often it arrived damaged
        self.repeated = self.damaged = self.resent = 0  # so far

    def send(self, chunk: "ChunkHandle", done: Done, gone: Gone) -> None:
        """Store a chunk; ``done(chunk, stored)`` once it is known whether it was.

        ``gone``: called instead where its rows are lost and its shard still waits for them.
        """
        key = chunk.collector.number, chunk.info.seq
        self.pending[key], self.tries[key] = (chunk, done, gone), 0
        if self.chaos.happens(self.chaos.late):
            self.pump.after(0.05, partial(self._send, key, 0))
        else:
            self._send(key, 0)

    def _send(self, key: tuple[int, int], tried: int) -> None:
        """Send a chunk that is pending, and again where no reply comes.

        ``tried``: how often it had been sent when this was decided; nothing is done if it was sent
        again since. So however many replies and timers ask for it, one try is under way.
        """
        if self.tries.get(key) != tried:
            return
        self.tries[key] = number = tried + 1
        chunk = self.pending[key][0]
        shard = self.roles.shard_of(chunk.collector)
        for _ in range(1 + self.chaos.happens(self.chaos.twice)):
            if self.chaos.happens(self.chaos.drop):
                continue
            corrupt = self.chaos.happens(self.chaos.corrupt)
            reply = shard.handle.add.remote(*key, chunk.payload, corrupt)
            self.pump.when(reply, partial(self._replied, chunk, shard, number))
        self.pump.after(self.chaos.answer_seconds, partial(self._resend, key, number))

    def _resend(self, key: tuple[int, int], tried: int) -> None:
        if self.tries.get(key) == tried:
            self.resent += 1
            self._send(key, tried)

    def _replied(self, sent: "ChunkHandle", shard: ShardHandle, tried: int, reply: Any) -> None:
        key = sent.collector.number, sent.info.seq
        is_pending = key in self.pending and self.pending[key][0] is sent
        if isinstance(reply, Lost):
            if is_pending and reply.of_object:
                self._give_up(key, str(reply))
            elif is_pending:
                self.roles.note_lost(shard, reply)
                self.pump.after(RETRY_SECONDS, partial(self._send, key, tried))
            return
        found: Stored = self.roles.value(shard, reply)
        shard.update(found)
        self.repeated += found.again
        self.damaged += found.damaged
        if not is_pending:
            return
        if found.damaged or (not found.accepted and found.expected < key[1]):
            self.spoilt[key] = self.spoilt.get(key, 0) + found.damaged
            if self.spoilt[key] > MAX_DAMAGED:
                self._give_up(key, f"it arrived damaged {self.spoilt[key]} times")
            else:
                self.pump.after(RETRY_SECONDS / 4, partial(self._send, key, tried))
            return
        chunk, done, _ = self._forget(key)
        done(chunk, found.accepted)

    def _give_up(self, key: tuple[int, int], reason: str) -> None:
        """Report a chunk whose rows cannot be stored any more."""
        chunk, _, gone = self._forget(key)
        _logger.warning("chunk %d of %s is lost (%s)", key[1], chunk.collector.name, reason)
        gone(chunk)

    def _forget(self, key: tuple[int, int]) -> "tuple[ChunkHandle, Done, Gone]":
        del self.tries[key]
        self.spoilt.pop(key, None)
        return self.pending.pop(key)

    def take_back(self, collector: CollectorHandle, seq: int) -> "list[ChunkHandle]":
        """Forget the pending chunks of a collector from ``seq`` on, and return them."""
        later = [key for key in self.pending if key[0] == collector.number and key[1] >= seq]
        return [self._forget(key)[0] for key in later]

    def drain(self) -> None:
        """Wait until no chunk is pending.

        Raises: ResourceError where a shard does not answer after a signal: nothing can be saved.
        """
        began = time.monotonic()
        while self.pending:
            self.pump.run(POLL_SECONDS)
            if min(self.roles.stopping(), time.monotonic() - began) > STOP_SECONDS:
                raise ResourceError(
                    f"pipeline = ray: a chunk was not stored within {STOP_SECONDS:g} s after the "
                    "signal to end; the shards must answer for the run to be saved; see rlrun.log"
                )
