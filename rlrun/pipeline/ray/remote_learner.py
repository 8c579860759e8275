"""The learner's role as the loop sees it: how many updates are due, and weights for the others."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rlrun.errors import EnvError, NumericError
from rlrun.pipeline.learner import Pacer
from rlrun.pipeline.ray.delivery import MAX_DAMAGED
from rlrun.pipeline.ray.messages import Learned
from rlrun.pipeline.ray.publication import Publication
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.remote_buffer import RemoteBuffer, RemoteRollouts
from rlrun.pipeline.ray.roles import RETRY_SECONDS, Roles
from rlrun.pipeline.ray.source import ChunkHandle
from rlrun.pipeline.ray.traffic import RoleTraffic
from rlrun.schema import LearnerConfig
from rlrun.types import Counters, Policy

_logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # calls of the learner, so that it never waits for the next
CALL_SECONDS = 0.2  # of updates in one call, about
POLL_SECONDS = 0.25


class _Means:
    """Sums of metrics in the learner, as far as the loop asks about them."""

    def __init__(self, sync: Callable[[], None]) -> None:
        """``sync`` brings the learner's present state here."""
        self.sync = sync
        self.state: dict[str, Any] = {"sums": None, "names": []}

    def require_finite(self) -> None:
        """Raise NumericError when one of the sums is not finite."""
        self.sync()
        sums = self.state["sums"]
        if sums is not None and not bool(sums.isfinite().all()):
            name = self.state["names"][int((~sums.isfinite()).nonzero()[0])]
            raise NumericError(
                f"{name}: the loss diverged; it must stay finite; lower policy.lr or set "
                "policy.grad_clip"
            )


def _keys(chunks: list[ChunkHandle]) -> set[tuple[int, int]]:
    return {(chunk.collector.number, chunk.info.seq) for chunk in chunks}


class RemoteLearner:
    """Says how many updates are due, as in the serial pipeline, and publishes weights.

    Where collecting is more than ``max_lead`` env steps ahead of the updates that it pays for,
    ``step`` waits, and with it the collectors.
    """

    def __init__(
        self,
        config: LearnerConfig,
        roles: Roles,
        traffic: RoleTraffic,
        *,
        policy: Policy,
        buffer: RemoteBuffer | RemoteRollouts,
        counters: Counters,
        rounds: bool,
        max_lead: int,
        publish_every: int,
        stop: Callable[[], bool],
    ) -> None:
        """``policy``: a copy in this process, which ``sync`` updates. ``publish_every``: env steps
        of all collectors between two versions of the weights."""
        self.config, self.roles, self.traffic, self.policy = config, roles, traffic, policy
        self.buffer, self.counters, self.rounds = buffer, counters, rounds
        self.max_lead, self.publish_every, self.stop = max_lead, publish_every, stop
        self.pacer = None if policy.window is None else Pacer(config, policy.window)
        self.unsaved = self.again = 0  # updates done since ``last_state``; of ``due``: done before
        self.due = self.flying = self.calls = self.rows_collected = self.published = 0
        self.waiting: deque[ChunkHandle] = deque()  # on-policy: not sent yet
        self.open: set[tuple[int, int]] = set()  # on-policy, collector and seq: sent, not learned
        self.rate = 20.0  # updates/s, as measured last
        self.seconds: dict[str, float] = {"sample": 0.0, "update": 0.0, "prioritize": 0.0}
        self.publication = Publication(roles, traffic, counters, rounds=rounds)
        self.means, self.saved = _Means(self.sync), dict[str, Any]()
        self.last_state: dict[str, Any] | None = None  # to restart the learner from
        self.last_updates, self.last_published = 0, -1
        self.starving = self.restarting = False  # no shard has a window; the learner was lost
        roles.learner.refill = self._refill

    # -- learning --------------------------------------------------------------------------------

    def step(self, rows: int, keys: np.ndarray) -> int:
        """Let the learner do what ``rows`` new rows pay for; return the updates done meanwhile."""
        before = self.counters.updates
        self.rows_collected += rows
        if isinstance(self.buffer, RemoteRollouts):
            self._step_rollouts(self.buffer)
        else:
            self._step_replay(rows)
        return self.counters.updates - before

    def _step_replay(self, rows: int) -> None:
        assert self.pacer is not None
        buffer = self.buffer
        assert isinstance(buffer, RemoteBuffer)
        stored = max(buffer.steps, self.counters.env_steps)  # a shard that was lost has few
        if stored >= self.config.learning_starts and len(buffer):
            chunks = len(self.roles.collectors) if self.rounds else 1
            self.due += self.pacer.updates_for(rows, chunks)
        self._submit()
        if self.rounds:
            self._wait(lambda: not self.due and not self.flying)
        else:
            self._wait(lambda: self._lead() <= self.max_lead)

    def _lead(self) -> float:
        """Env steps whose updates have not been done."""
        assert self.pacer is not None
        open_updates = self.due + self.flying
        if self.starving:
            return 0.0
        if self.config.replay_ratio is not None:
            return open_updates * self.pacer.rows_per_update / self.config.replay_ratio
        assert self.config.update_per_collect is not None
        chunks = max(self.counters.chunks, 1)
        return open_updates / self.config.update_per_collect * self.counters.env_steps / chunks

    def _submit(self) -> None:
        """Keep the learner busy with what is due."""
        if self.restarting or self._gives_up():  # what is due is saved
            return
        shards = self.roles.shards
        if not any(shard.windows for shard in shards):
            self.starving = bool(self.due)
            return
        self.starving = False
        while self.due and self.calls < (1 if self.rounds else IN_FLIGHT):
            whole = self.rounds and not self.again
            updates = self.due if whole else min(self.due, max(1, int(self.rate * CALL_SECONDS)))
            windows = sum(shard.windows for shard in shards)
            reply = self.roles.learner.handle.learn.remote(
                updates, self.counters.env_steps, [shard.mass for shard in shards], windows,
                self._publishes(),
            )  # fmt: skip
            self.due, self.flying, self.calls = self.due - updates, self.flying + updates, \
                self.calls + 1  # fmt: skip
            handle = partial(self._learned, updates, time.monotonic())
            self.roles.pump.when(reply, handle)

    def _gives_up(self) -> bool:
        """Return whether a signal ends the learning: a round only if it does much again."""
        return self.stop() and (not self.rounds or bool(self.again))

    def _publishes(self) -> bool:
        """Return whether the next call returns the weights; in rounds the source asks for them."""
        steps = self.counters.env_steps
        if self.rounds or steps - self.published < self.publish_every:
            return False
        self.published = steps
        return True

    def _learned(self, updates: int, began: float, reply: Any) -> None:
        self.flying, self.calls = self.flying - updates, self.calls - 1
        if isinstance(reply, Lost):
            self.due += updates
            self.roles.lost(self.roles.learner, reply)
            self._submit()
            return
        found: Learned = self.roles.value(self.roles.learner, reply)
        self._take(found)
        if found.steps:
            self.rate = 0.5 * self.rate + 0.5 * found.steps / max(time.monotonic() - began, 1e-3)
        self.due, self.unsaved = self.due + updates - found.steps, self.unsaved + found.steps
        self.again = max(0, self.again - found.steps)
        if found.steps < updates:  # the shards have no windows now
            for shard in self.roles.shards:
                shard.update(self.roles.ask(shard, "info"))
        self._submit()

    def _take(self, found: Learned) -> None:
        """Take over what the learner says of itself."""
        self.counters.updates = found.updates
        self.traffic.learning += sum(
            found.seconds.get(n, 0.0) - self.seconds.get(n, 0.0) for n in ("sample", "update")
        )
        for name, value in found.seconds.items():
            parts = self.seconds if name in self.seconds else self.policy.seconds
            if name != "code":
                parts[name] = value
        if found.lag:
            self.traffic.lags.append(found.lag)
        self.roles.write_log(self.roles.learner, found.log)
        if found.frame is not None:
            self.publication.publish(found.frame)

    def publish(self) -> None:
        """Publish the present weights, where they have changed since the last time."""
        updates = self.counters.updates
        if self.roles.frames.count and updates == self.last_published:
            return
        self.last_published, frame = self.roles.ask(self.roles.learner, "frame")
        self.publication.publish(frame)

    def _step_rollouts(self, buffer: RemoteRollouts) -> None:
        self.waiting.extend(buffer.chunks)
        buffer.chunks.clear()
        if self.rounds:
            self._send_rollouts([*self.waiting])
            self.waiting.clear()
            self._wait(lambda: not self.calls)
            return
        while self.waiting:
            self._wait(lambda: self.calls < IN_FLIGHT)
            self._send_rollouts([self.waiting.popleft()])

    def _send_rollouts(self, chunks: list[ChunkHandle], damaged: int = 0) -> None:
        """``damaged``: times that one of them arrived damaged."""
        if not chunks:
            return
        self.open |= _keys(chunks)
        numbers = [chunk.collector.number for chunk in chunks]
        sinces = [min(seq for n, seq in self.open if n == number) for number in numbers]
        reply = self.roles.learner.handle.learn_rollouts.remote(
            numbers, [chunk.info.seq for chunk in chunks], sinces, self.counters.env_steps,
            self._publishes(), False, *(chunk.payload for chunk in chunks),
        )  # fmt: skip
        self.calls += 1
        self.roles.pump.when(reply, partial(self._learned_rollouts, chunks, damaged))

    def _learned_rollouts(self, chunks: list[ChunkHandle], damaged: int, reply: Any) -> None:
        self.calls -= 1
        if isinstance(reply, Lost):  # the chunks are lost with it: fresh ones come
            if not reply.of_object:
                self.roles.lost(self.roles.learner, reply)
            self._drop(chunks, str(reply))
            return
        stored, found = self.roles.value(self.roles.learner, reply)
        if found is not None:
            self.open -= _keys(chunks)
            self._take(found)
            return
        damaged += any(s.damaged for s in stored)  # else an earlier one was, which comes again
        if damaged <= MAX_DAMAGED:
            self.calls += 1  # one call is under way until they are sent again
            again = partial(self._resend_rollouts, chunks, damaged)
            self.roles.pump.after(RETRY_SECONDS / 4, again)
        else:
            self._drop(chunks, f"they arrived damaged {damaged} times")

    def _resend_rollouts(self, chunks: list[ChunkHandle], damaged: int) -> None:
        self.calls -= 1
        self._send_rollouts(chunks, damaged)

    def _drop(self, chunks: list[ChunkHandle], reason: str) -> None:
        """Give up chunks that the learner did not get."""
        self.open -= _keys(chunks)
        self.traffic.lost += len(chunks)
        names = ", ".join(f"{chunk.info.seq} of {chunk.collector.name}" for chunk in chunks)
        _logger.warning("chunks are lost: %s (%s)", names, reason)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Handle replies until ``done()`` or a signal that ends the learning."""
        while not done():
            self.roles.pump.run(POLL_SECONDS)
            if self.due:  # shards that were lost may have windows again
                self._submit()
            if self._gives_up():
                return

    def _refill(self) -> None:
        """Load the newest state into the restarted learner, and publish its weights."""
        restarting, self.restarting = self.restarting, True
        self.due, self.again = self.due + self.unsaved, self.again + self.unsaved
        self.unsaved = 0
        self._send_state(self.last_state, self.last_updates)
        if restarting:  # lost again meanwhile, or by a handler that is called while we wait
            return
        _, frame = self.roles.ask(self.roles.learner, "frame")
        self.restarting = False
        self.publication.publish(frame)

    # -- state -----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Wait for calls under way, whose results are of a run that is given up (on_nan)."""
        self.due = self.unsaved = self.again = 0
        self.waiting.clear()
        while self.calls:
            with contextlib.suppress(EnvError, NumericError):
                self.roles.pump.run(POLL_SECONDS)
        self.restarting = False  # an error may have ended it half-way
        self.roles.ask(self.roles.learner, "abandon")

    def drain(self) -> None:
        """Wait until the learner has answered all calls."""
        while self.calls:
            self.roles.pump.run(POLL_SECONDS)

    def sync(self) -> None:
        """Copy the learner's state to the policy of this process, and keep it for a restart."""
        self.drain()
        self.saved = self.roles.ask(self.roles.learner, "state")
        self.policy.load_state_dict(self.saved["policy"])
        self.means.state = self.saved["learner"]["means"]
        self.last_state, self.last_updates = self.saved, self.counters.updates
        self.unsaved = 0

    def metrics(self) -> dict[str, float]:
        """train/ metrics averaged over the updates since the last call, and the replay ratio."""
        found, updates, lines = self.roles.ask(self.roles.learner, "metrics")
        self.roles.write_log(self.roles.learner, lines)
        rows, self.rows_collected = self.rows_collected, 0
        if self.pacer is not None and rows and self.counters.updates:
            found["train/replay_ratio"] = updates * self.pacer.rows_per_update / rows
        return dict(found)

    def diagnose(self) -> dict[str, float]:
        """train/ metrics of the present networks."""
        if isinstance(self.buffer, RemoteRollouts):
            return {}
        steps, windows = self.counters.env_steps, len(self.buffer)
        found: dict[str, float] = self.roles.ask(self.roles.learner, "diagnose", steps, windows)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state at the last ``sync``, and what is due."""
        due = {"due": self.due, "rows_collected": self.rows_collected, "published": self.published}
        credit = {} if self.pacer is None else {"credit": self.pacer.credit}
        return {"role": self.saved, **due, **credit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.due, self.unsaved = int(state["due"]), 0
        self.rows_collected = int(state["rows_collected"])
        self.again = self.due if self.rounds else 0  # a round leaves none else
        self.open.clear()
        self.published = int(state["published"])
        if self.pacer is not None:
            self.pacer.credit = float(state["credit"])
        self.last_state, self.last_updates = state["role"], self.counters.updates
        self.last_published = -1
        self._send_state(state["role"], self.counters.updates)
        if not self.rounds:  # where the source does it
            self.publish()

    def _send_state(self, state: dict[str, Any] | None, updates: int) -> None:
        names = {name: getattr(self.counters, name) for name in self.counters.__slots__}
        self.counters.updates = updates
        self.roles.ask(self.roles.learner, "load", state, names | {"updates": updates})
