"""Chunks of all collectors: what sources on Ray share, and rounds in lock-step."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rlrun.buffer.saved import reason
from rlrun.errors import CheckpointError, EnvError, NumericError
from rlrun.pipeline.collector import ChunkInterrupted, CollectMetrics
from rlrun.pipeline.ray.messages import Collected, NeedFrame, Order, RoleFailure
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import RETRY_SECONDS, STOP_SECONDS, CollectorHandle, Roles
from rlrun.pipeline.ray.sent_rows import send
from rlrun.pipeline.ray.traffic import RoleTraffic

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class ChunkHandle:
    """A chunk that is elsewhere: its rows are the object ``payload``."""

    collector: CollectorHandle
    info: Collected
    payload: Any
    before: dict[str, Any] | None = None  # the collector's state before it


class RaySource:
    """Parts that both sources share: orders, weights, restarts of collectors."""

    clock: ClassVar[str] = "env steps"
    phase: ClassVar[str] = "chunk"

    def __init__(
        self,
        roles: Roles,
        collect_metrics: CollectMetrics,
        *,
        keep_env: bool,
        max_seconds: float | None,
    ) -> None:
        """``keep_env``: every chunk comes with the environments' state (strict); ``max_seconds``:
        to wait for a chunk, None: for ever."""
        self.roles, self.pump, self.collect_metrics = roles, roles.pump, collect_metrics
        self.counters, self.keep_env = collect_metrics.counters, keep_env
        self.max_seconds, self.traffic = max_seconds, RoleTraffic(roles)
        self.inexact: str | None = None

    def stop_when(self, stop: Callable[[], bool]) -> None:
        self.roles.stop = stop

    @property
    def pulse(self) -> float:
        return float(self.pump.replies)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all collectors together."""
        total = {"act": 0.0, "env": 0.0}
        for collector in self.roles.collectors:
            for name in total:
                total[name] += collector.seconds.get(name, 0.0)
        return total

    def order(self, collector: CollectorHandle, frames: list[tuple[int, Any]]) -> None:
        """Order the next chunk, with the weights ``frames`` (version, object)."""
        incarnation = self._incarnation(collector)
        if incarnation != collector.incarnation:
            collector.incarnation, collector.since = incarnation, collector.seq
        order = Order(
            collector.seq, self.counters.env_steps, tuple(v for v, _ in frames), incarnation,
            collector.since, self.keep_env,
        )  # fmt: skip
        collector.busy = True
        collect = collector.handle.collect.options(num_returns=2)
        info, payload = collect.remote(order, *(frame for _, frame in frames))
        if frames:
            collector.sent = frames[-1][0]
        self.pump.when(info, partial(self._replied, collector, payload))

    def _incarnation(self, collector: CollectorHandle) -> int:
        """Return which incarnation of its shard stores a collector's chunks, 0: there is none."""
        return self.roles.shard_of(collector).incarnation if self.roles.shards else 0

    def _replied(self, collector: CollectorHandle, payload: Any, reply: Any) -> None:
        if isinstance(reply, Lost):
            self.roles.note_lost(collector, reply)
            self._rejoin(collector)
            return
        collector.down = False
        if isinstance(reply, RoleFailure):
            collector.busy = False
            raise reply.error(collector.name)
        if collector.goes_back:
            self._rejoin(collector)
        elif isinstance(reply, NeedFrame):
            self.traffic.key_frames += 1
            self._send_frame(collector, reply)
        else:
            collector.busy, before = False, collector.state
            collector.state, collector.seq = reply.state, reply.seq + 1
            collector.seconds = dict(reply.seconds)
            self.traffic.collected(collector, reply)
            self.roles.write_log(collector, reply.log)
            self.collected(ChunkHandle(collector, reply, payload, before))

    def collected(self, chunk: ChunkHandle) -> None:
        """Take a chunk of a collector that is idle now."""
        raise NotImplementedError

    def _send_frame(self, collector: CollectorHandle, need: NeedFrame) -> None:
        """Order the chunk again, with weights that this collector can decode."""
        from rlrun.codec import NeedKeyFrame

        request = NeedKeyFrame(need.stream, need.have_seq, need.have_hash)
        reply = self.roles.learner.handle.answer.remote(request)

        def answered(frame: Any) -> None:
            if isinstance(frame, RoleFailure):
                raise frame.error("learner")
            if isinstance(frame, Lost):
                self.roles.lost(self.roles.learner, frame)
            if frame is None or isinstance(frame, Lost):  # too soon, or restarting
                again = partial(self._send_frame, collector, need)
                self.pump.after(RETRY_SECONDS / 4, again)
                return
            import ray

            self.order(collector, [(self.roles.frames.newest, ray.put(frame))])

        self.pump.when(reply, answered)

    def _rejoin(self, collector: CollectorHandle) -> None:
        """Let a restarted collector go on from its last chunk, whose open episodes are cut."""
        collector.busy, collector.sent, collector.goes_back = True, -1, False
        reply = collector.handle.load.remote(
            collector.state, self.counters.env_steps, collector.restarts
        )

        def loaded(found: Any) -> None:
            if isinstance(found, Lost):  # still restarting
                self.roles.note_lost(collector, found)
                self.pump.after(RETRY_SECONDS, partial(self._rejoin, collector))
                return
            self.roles.value(collector, found)
            if collector.goes_back:
                self._rejoin(collector)
                return
            collector.busy = False
            self.inexact = self.inexact or found
            self.rejoined(collector)

        self.pump.when(reply, loaded)

    def rejoined(self, collector: CollectorHandle) -> None:
        """A collector is there again."""
        raise NotImplementedError

    def count(self, info: Collected) -> None:
        """Add a chunk to the run's counters."""
        metrics, stats = self.collect_metrics, info.stats
        metrics.actions.counts += info.actions
        self.counters.env_steps += stats.steps
        self.counters.episodes += len(stats.finished_episodes)
        self.counters.chunks += 1
        metrics.finished_episodes += stats.finished_episodes
        metrics.restarts += stats.restarts
        metrics.without_action += stats.without_action

    def wait(self, done: Callable[[], bool], *, grace: float) -> None:
        """Handle replies until ``done()``.

        Raises: ChunkInterrupted, ``grace`` seconds after a signal; EnvError after ``max_seconds``
            without any reply.
        """
        since, stopping, seen = time.monotonic(), None, self.pump.replies
        while not done():
            self.pump.run(POLL_SECONDS)
            now = time.monotonic()
            if self.pump.replies != seen:
                since, seen = now, self.pump.replies
            if self.roles.stop():
                stopping = stopping if stopping is not None else now
                if now - stopping >= grace:
                    raise ChunkInterrupted
            if self.max_seconds is not None and now - since >= self.max_seconds:
                raise EnvError(
                    f"watchdog.max_seconds = {self.max_seconds:g}: no answer of any role "
                    "(pipeline=ray); a chunk must be collected within that time; look for an "
                    "environment that hangs, or raise the limit (null: none)"
                )

    def after_updates(self, updates: int) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return self.collect_metrics.report()

    def transport_metrics(self) -> dict[str, float]:
        """ray/ and codec/ metrics since the last call."""
        return self.traffic.metrics()

    def state_dict(self) -> dict[str, Any]:
        states = [collector.state for collector in self.roles.collectors]
        found = {
            "collectors": [{"seq": c.seq, "state": c.state} for c in self.roles.collectors],
            "collector": self.collect_metrics.state_dict(),
        }
        if self.roles.predictor is not None:
            found["predictor"] = self.roles.ask(self.roles.predictor, "state")
        reasons = [state.get("inexact") for state in states if state is not None]
        lost = [r.name for r in (*self.roles.shards, self.roles.learner) if r.restarts]
        reasons += [f"{name} was lost, with what it had not saved" for name in lost]
        self.inexact = self.inexact or next(filter(None, reasons), None)
        return found | {"inexact": self.inexact}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = state.get("collectors")
        collectors = self.roles.collectors
        if saved is None or len(saved) != len(collectors):
            count = "of another pipeline" if saved is None else f"of {len(saved)} collectors"
            raise CheckpointError(
                f"pipeline.num_actors = {len(collectors)}: the checkpoint is {count}; allowed is "
                "the pipeline that the run began with; undo the change"
            )
        self.abandon()
        earlier = reason("inexact", state.get("inexact"))  # a loss before this process
        self.inexact = self.inexact or earlier
        self.collect_metrics.load_state_dict(state["collector"])
        if self.roles.predictor is not None:
            self.roles.ask(self.roles.predictor, "restore", state["predictor"])
        for collector, own in zip(collectors, saved, strict=True):
            state = send(own["state"], lambda rows: rows.first)  # another node has no files of ours
            if state is not None:  # the shards are others than those of the saved run
                state["incarnation"] = self._incarnation(collector)
            collector.seq, collector.state, collector.sent = int(own["seq"]), state, -1
            collector.goes_back = False
            if collector.state is not None:
                given = collector.state, self.counters.env_steps, collector.restarts
                found = self.roles.ask(collector, "load", *given)
                self.inexact = self.inexact or found

    def abandon(self) -> None:
        """Wait for orders under way, whose chunks are of a run that is given up (on_nan)."""
        while any(collector.busy for collector in self.roles.collectors):
            with contextlib.suppress(EnvError, NumericError):
                self.pump.run(POLL_SECONDS)

    def close(self) -> None:
        self.roles.close()


class RoundSource(RaySource):
    """All collectors collect with the same weights; their chunks are taken in order.

    With one collector this is the serial pipeline. A collector that is lost collects its chunk
    again, from the state before it: the same one where its environments can be restored.
    """

    def __init__(self, *arguments: Any, publish: Callable[[], None], **given: Any) -> None:
        """``publish``: publishes the present weights, if they have changed."""
        super().__init__(*arguments, **given)
        self.publish, self.round = publish, dict[int, ChunkHandle]()

    def next_chunk(self) -> list[ChunkHandle]:
        """The next chunk of every collector."""
        collectors = self.roles.collectors
        self.publish()
        for collector in collectors:
            if not collector.busy and collector.number not in self.round:
                self.order(collector, self._frames(collector))
        self.wait(lambda: len(self.round) == len(collectors), grace=STOP_SECONDS)
        chunks = [self.round[collector.number] for collector in collectors]
        self.round.clear()
        for chunk in chunks:
            self.count(chunk.info)
        return chunks

    def abandon(self) -> None:
        super().abandon()
        self.round.clear()

    def _frames(self, collector: CollectorHandle) -> list[tuple[int, Any]]:
        return self.roles.frames.since(collector.sent)

    def collected(self, chunk: ChunkHandle) -> None:
        self.round[chunk.collector.number] = chunk

    def rejoined(self, collector: CollectorHandle) -> None:
        self.order(collector, self._frames(collector))
