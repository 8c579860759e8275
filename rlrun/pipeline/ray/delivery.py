"""Chunks on their way to the shards: sent until they are acknowledged, each stored once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from rlrun.pipeline.ray.messages import Stored
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import RETRY_SECONDS, Roles, ShardHandle

if TYPE_CHECKING:
    from rlrun.pipeline.ray.source import ChunkHandle

ANSWER_SECONDS = 20.0  # until a chunk without a reply is sent again

Done = Callable[["ChunkHandle", bool], None]


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
        self.pending: dict[tuple[int, int], tuple[ChunkHandle, Done]] = {}
        self.tries: dict[tuple[int, int], int] = {}  # of each that is pending
        self.repeated = self.damaged = self.resent = 0  # so far

    def send(self, chunk: "ChunkHandle", done: Done) -> None:
        """Store a chunk; ``done(chunk, stored)`` once it is known whether it was."""
        key = chunk.collector.number, chunk.info.seq
        self.pending[key], self.tries[key] = (chunk, done), 0
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
        chunk, shard = self.pending[key][0], self.roles.shard_of(self.pending[key][0].collector)
        for _ in range(1 + self.chaos.happens(self.chaos.twice)):
            if self.chaos.happens(self.chaos.drop):
                continue
            corrupt = self.chaos.happens(self.chaos.corrupt)
            reply = shard.handle.add.remote(*key, chunk.payload, corrupt)
            self.pump.when(reply, partial(self._replied, key, shard, number))
        self.pump.after(self.chaos.answer_seconds, partial(self._resend, key, number))

    def _resend(self, key: tuple[int, int], tried: int) -> None:
        if self.tries.get(key) == tried:
            self.resent += 1
            self._send(key, tried)

    def _replied(self, key: tuple[int, int], shard: ShardHandle, tried: int, reply: Any) -> None:
        if isinstance(reply, Lost):
            if key in self.pending:
                self.roles.note_lost(shard, reply)
                self.pump.after(RETRY_SECONDS, partial(self._send, key, tried))
            return
        found: Stored = self.roles.value(shard, reply)
        note(shard, found)
        self.repeated += found.again
        self.damaged += found.damaged
        if key not in self.pending:
            return
        if found.damaged or (not found.accepted and found.expected < key[1]):
            self.pump.after(RETRY_SECONDS / 4, partial(self._send, key, tried))
            return
        chunk, done = self.pending.pop(key)
        del self.tries[key]
        done(chunk, found.accepted)


def note(shard: ShardHandle, found: Stored) -> None:
    """Take over what a shard says of itself."""
    shard.shard, shard.rows, shard.windows = found.shard, found.rows, found.windows
    shard.mass = found.mass
