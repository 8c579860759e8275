"""The driver of a run on Ray: versions of the weights, chunks of all collectors, evaluations."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.saved import reason
from rlrun.codec import NeedKeyFrame
from rlrun.errors import CheckpointError, CodecError, EnvError
from rlrun.pipeline.collector import ChunkInterrupted, CollectMetrics
from rlrun.pipeline.evaluate import Evaluation
from rlrun.pipeline.overlapped import CollectedChunk, MissingBase, RowCheck
from rlrun.pipeline.parts import LoopEvaluations, require_finite
from rlrun.pipeline.ray.roles import POLL_SECONDS, STOP_SECONDS, Lost, Member, Role, Roles
from rlrun.pipeline.source import Source
from rlrun.pipeline.stop import StopRequest
from rlrun.pipeline.transport import LearnerSide, chunk_bytes, message_bytes, wait_for_answer
from rlrun.types import Chunk, Counters, Policy


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the weights; ``message`` is an object of Ray."""

    number: int
    message: Any
    updates: int
    env_steps: int


@dataclass(slots=True)
class Weights:
    """The versions published last; a receiver gets those after the one it has.

    A coded version is a delta to the one before it. A receiver that missed more than are kept, or
    is new, gets a key frame.
    """

    policy: Policy
    side: LearnerSide
    coded: bool
    half: bool  # rounded to bfloat16 (transport.copies)
    keep: int
    versions: list[Version] = field(default_factory=list)
    raw_bytes: int = 0
    sent_bytes: int = 0
    key_frames: int = 0
    seconds: float = 0.0  # in coding

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def publish(self, updates: int, env_steps: int) -> None:
        """Make the present weights the newest version."""
        import ray

        weights, began = self._rounded(), time.perf_counter()
        message = self.side.pack(weights)
        self.seconds += time.perf_counter() - began if self.coded else 0.0
        self.raw_bytes += sum(w.nbytes for w in weights.values())
        self.sent_bytes += message_bytes(message)
        number = self.newest.number + 1 if self.versions else 0
        self.versions.append(Version(number, ray.put(message), updates, env_steps))
        self.versions = self.versions[-self.keep :]

    def since(self, number: int) -> list[Any]:
        """Messages for a receiver with version ``number``, -1: with none."""
        import ray

        new = [version for version in self.versions if version.number > number]
        if not self.coded:
            return [version.message for version in new[-1:]]
        if not new or new[0].number == number + 1:
            return [version.message for version in new]
        need = NeedKeyFrame(0, -1, 0)
        frame = self.side.answer(need) if number >= 0 else wait_for_answer(self.side, need)
        if frame is None:  # their rate is limited
            return []  # the next order asks again
        self.key_frames += 1
        return [ray.put(frame)]

    def _rounded(self) -> dict[str, Tensor]:
        weights = self.policy.weights()
        if not self.half:
            return weights
        half = {n: x.bfloat16() if x.is_floating_point() else x for n, x in weights.items()}
        if self.coded:
            return half
        return {name: x.to(weights[name].dtype) for name, x in half.items()}  # numpy has none


ASYNC_REASON = (
    "pipeline=ray learns in the order in which rows arrive; pipeline.strict=true fixes it"
)
AHEAD = 2  # orders of a collector outside rounds


@dataclass(slots=True)
class Order:
    """A call to a collector whose reply is awaited."""

    reply: Any
    version: Version | None  # of the weights; None: the order loads a state
    predictor: Any = None  # actor that acts


@dataclass(slots=True)
class RemoteCollector:
    """A collector's role and its progress."""

    role: Role | Member
    number: int
    side: LearnerSide  # unpacks its rows
    state: dict[str, Any] | None = None  # after its last chunk that was taken
    sent: int = -1  # version of its weights
    orders: deque[Order] = field(default_factory=deque)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Traffic:
    """Sums over the collectors' replies between two records."""

    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    raw: int = 0  # bytes of rows
    sent: int = 0
    ages: list[int] = field(default_factory=list)  # env steps since the weights were published
    lags: list[int] = field(default_factory=list)  # updates since then

    def metrics(self) -> dict[str, float]:
        metrics = {
            "ray/collect_steps_per_s": self.steps / max(time.monotonic() - self.began, 1e-9),
            "ray/chunks_raw_bytes": float(self.raw), "ray/chunks_sent_bytes": float(self.sent),
        }  # fmt: skip
        if self.ages:
            metrics["ray/weights_age"] = sum(self.ages) / len(self.ages)
            metrics["ray/policy_lag"] = sum(self.lags) / len(self.lags)
        return metrics


@dataclass(slots=True)
class RaySource(Source):
    """Source of the chunks of all collectors.

    In rounds all collectors use the same weights, and their chunks are taken together in a fixed
    order. With one collector this equals the serial pipeline. Otherwise chunks are taken as they
    arrive, and every collector has ``AHEAD`` orders, so it does not wait while the learner works.

    After a loss, a new process of the collector continues from the state after its last chunk that
    was taken. In rounds that state includes the environments, so the lost chunk is collected again.
    """

    phase: ClassVar[str] = "chunk"

    roles: Roles
    collectors: Sequence[RemoteCollector]
    predictor: Role | None
    weights: Weights
    collect_metrics: CollectMetrics
    check: RowCheck
    rounds: bool
    publish_every: int  # env steps between two versions of the weights, except in rounds
    max_seconds: float | None  # longest wait for a chunk; None: no limit
    traffic: Traffic = field(default_factory=Traffic)
    # Received chunks by collector.
    round: dict[int, tuple[Version, CollectedChunk]] = field(default_factory=dict)
    # Collectors whose first order has a reply.
    ready: deque[RemoteCollector] = field(default_factory=deque)
    inexact: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.inexact = None if self.rounds else ASYNC_REASON

    @property
    def counters(self) -> Counters:
        return self.collect_metrics.counters

    # -- the loop's side ---------------------------------------------------------------------------

    def stop_when(self, stop: Callable[[], bool]) -> None:
        self.roles.stop = stop

    @property
    def pulse(self) -> float:
        return float(self.roles.replies)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all collectors together."""
        parts = ("act", "env")
        return {p: sum(c.seconds.get(p, 0.0) for c in self.collectors) for p in parts}

    def next_chunk(self) -> Chunk | list[tuple[int, Chunk]]:
        """Return (collector, rows) of all collectors in rounds, else of one.

        Of a single collector: only the rows.
        """
        self._publish()
        for collector in self.collectors:
            for _ in range(len(collector.orders), 1 if self.rounds else AHEAD):
                self._order(collector)
        grace = STOP_SECONDS if self.rounds else 0.0
        while len(self.round) < (len(self.collectors) if self.rounds else 1):
            self._take(self._next_ready(grace))
        chunks, self.round = sorted(self.round.items()), {}
        for number, (version, collected) in chunks:
            self._count(self.collectors[number], version, collected)
        rows = [(number, collected.chunk) for number, (_, collected) in chunks]
        return rows if len(self.collectors) > 1 else rows[0][1]

    def metrics(self) -> dict[str, float]:
        return self.collect_metrics.report()

    def transport_metrics(self) -> dict[str, float]:
        """Return ray/ and codec/ metrics since the last call."""
        weights, metrics = self.weights, self.traffic.metrics()
        self.traffic = Traffic()
        metrics |= {
            "ray/collectors_busy": 1.0 - len(self.ready) / len(self.collectors),
            "ray/restarts": float(self.roles.restarts),
            "ray/key_frames": float(weights.key_frames),
            "ray/weights_raw_bytes": float(weights.raw_bytes),
            "ray/weights_sent_bytes": float(weights.sent_bytes),
            "ray/coding_seconds": weights.seconds,
        }
        weights.raw_bytes = weights.sent_bytes = 0
        return metrics | weights.side.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the collectors' states after the chunks taken. Chunks under way are left out."""
        states = [collector.state for collector in self.collectors]
        reasons = [state["inexact"] for state in states if state is not None]
        self.inexact = self.inexact or next(filter(None, reasons), None)
        return {
            "collectors": states,
            "collector": self.collect_metrics.state_dict(),
            "inexact": self.inexact,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states, collectors = state.get("collectors"), self.collectors
        if states is None or len(states) != len(collectors):
            count = "of another pipeline" if states is None else f"of {len(states)} collectors"
            raise CheckpointError(
                f"pipeline.num_actors = {len(collectors)}: the checkpoint is {count}; allowed is "
                "the pipeline that the run began with; undo the change"
            )
        self.inexact = self.inexact or reason("inexact", state["inexact"])
        self.collect_metrics.load_state_dict(state["collector"])
        self.round.clear()
        self.ready.clear()
        for collector, loaded in zip(collectors, states, strict=True):
            used, collector.state = bool(collector.orders) or collector.state is not None, loaded
            collector.orders.clear()  # orders of an abandoned run (on_nan)
            if used and loaded is None:
                self._replace(collector, "the run goes back to a checkpoint")
            else:
                self._load(collector)
        while any(order.version is None for c in collectors for order in c.orders):
            self._take(self._next_ready(None))
        if self.weights.versions:
            self._publish(always=True)

    def close(self) -> None:
        self.roles.close()

    # -- orders ------------------------------------------------------------------------------------

    def _publish(self, *, always: bool = False) -> None:
        """Publish the present weights if they have changed and are due, or ``always``."""
        counters, weights = self.counters, self.weights
        if weights.versions and not always:
            newest = weights.newest
            early = counters.env_steps - newest.env_steps < self.publish_every
            if newest.updates == counters.updates or (early and not self.rounds):
                return
        weights.publish(counters.updates, counters.env_steps)
        if self.predictor is not None:
            self._tell_predictor(self.predictor, weights.newest.number - 1)

    def _tell_predictor(self, predictor: Role, known: int) -> None:
        """Send the newest weights to the predictor, which has version ``known``, and wait."""
        while True:
            messages = self.weights.since(known)
            reply = predictor.call("load", self.counters.env_steps, *messages)
            while not self.roles.wait([reply]):
                pass
            try:
                predictor.value(reply)
                return
            except (Lost, CodecError) as e:
                predictor.replace(e)
                known = -1

    def _order(self, collector: RemoteCollector) -> None:
        """Order the next chunk of a collector."""
        messages, newest = self.weights.since(collector.sent), self.weights.newest
        if messages:
            collector.sent = newest.number
        actor = None if self.predictor is None else self.predictor.handle
        arguments = self.counters.env_steps, self.rounds, actor, *messages
        reply = collector.role.call("collect_for", *arguments)
        collector.orders.append(Order(reply, newest, actor))

    def _load(self, collector: RemoteCollector) -> None:
        """Load the collector's state; None: it starts from the beginning."""
        if collector.state is not None:
            arguments = collector.state, self.counters.env_steps, collector.role.restarts
            collector.orders.append(Order(collector.role.call("load", *arguments), None))

    def _replace(self, collector: RemoteCollector, why: object) -> None:
        """Start a new process that continues after the collector's last chunk."""
        collector.role.replace(why)
        collector.orders.clear()
        collector.sent = -1
        self._load(collector)

    # -- replies -----------------------------------------------------------------------------------

    def _next_ready(self, grace: float | None) -> RemoteCollector:
        """Return a collector whose first order has a reply.

        Raises: ChunkInterrupted ``grace`` seconds after a signal, EnvError after ``max_seconds``
        without any reply.
        """
        since = time.monotonic()
        while not self.ready:
            if grace is not None and self.roles.stop() and self.roles.stopping() >= grace:
                raise ChunkInterrupted
            first = {c.orders[0].reply: c for c in self.collectors if c.orders}
            self.ready.extend(first[reply] for reply in self.roles.wait([*first]))
            if self.max_seconds is not None and time.monotonic() - since >= self.max_seconds:
                raise EnvError(
                    f"watchdog.max_seconds = {self.max_seconds:g}: no answer of any collector "
                    "(pipeline=ray); a chunk must be collected within that time; look for an "
                    "environment that hangs, or raise the limit (null: no limit)"
                )
        return self.ready.popleft()

    def _take(self, collector: RemoteCollector) -> None:
        """Take the reply to a collector's first order. Order again if it brings no rows."""
        order = collector.orders.popleft()
        try:
            value = collector.role.value(order.reply)
            if order.version is None:
                self.inexact = self.inexact or value
            elif value is None:
                self._predictor_was_lost(order)
                self._order(collector)
            else:
                self.round[collector.number] = order.version, self._unpacked(collector, value)
        except (Lost, CodecError) as e:
            self._replace(collector, e)
            if order.version is not None:
                self._order(collector)

    def _unpacked(self, collector: RemoteCollector, value: Any) -> CollectedChunk:
        """Check a collector's reply and count its bytes."""
        assert not isinstance(value, MissingBase), "every collector is sent the base that it lacks"
        message, *rest = value
        chunk = collector.side.unpack(message)
        self.traffic.raw += chunk_bytes(chunk)
        self.traffic.sent += message_bytes(message)
        return CollectedChunk(self.check(chunk, f"pipeline = ray: {collector.role.name}"), *rest)

    def _predictor_was_lost(self, order: Order) -> None:
        """Start a new predictor, unless another collector's reply has already caused that."""
        assert self.predictor is not None
        if order.predictor is self.predictor.handle:
            self.predictor.replace("a collector had no answer")
            self._tell_predictor(self.predictor, -1)

    def _count(
        self, collector: RemoteCollector, version: Version, collected: CollectedChunk
    ) -> None:
        """Add a chunk to the run's counters. After a loss, its collector continues from there."""
        collector.state, collector.seconds = collected.state, collected.seconds
        self.traffic.steps += collected.stats.steps
        self.traffic.ages.append(self.counters.env_steps - version.env_steps)
        self.traffic.lags.append(self.counters.updates - version.updates)
        self.collect_metrics.commit(collected.stats, collected.chunk)


class RemoteEvaluator:
    """The driver's handle of the evaluator, which works between ``start`` and ``result``."""

    def __init__(self, role: Role, roles: Roles) -> None:
        self.role, self.roles, self.steps = role, roles, 0
        self.under_way: tuple[dict[str, np.ndarray], int] | None = None  # weights, env steps
        self.reply: Any = None

    def run_until(
        self, stop: Callable[[], bool], policy: Policy, *, env_steps: int
    ) -> Evaluation | None:
        """Evaluate as ``Evaluator.run_until``."""
        self.start(policy, env_steps)
        evaluation = None
        while evaluation is None and not stop():
            evaluation = self.result(POLL_SECONDS)
        self.under_way = None
        return evaluation

    def start(self, policy: Policy, env_steps: int) -> None:
        """Start an evaluation of the present weights of ``policy``."""
        weights = {name: np.array(w.numpy(force=True)) for name, w in policy.weights().items()}
        self.under_way = weights, env_steps
        self.reply = self.role.call("run", *self.under_way)

    def result(self, seconds: float = 0.0) -> Evaluation | None:
        """Return the started evaluation, or None if it is not done within ``seconds``."""
        assert self.under_way is not None
        if not self.roles.wait([self.reply], seconds):
            return None
        self.steps += 1
        try:
            evaluation: Evaluation = self.role.value(self.reply)
        except Lost as e:
            self.role.replace(e)
            self.reply = self.role.call("run", *self.under_way)
            return None
        return evaluation

    def close(self) -> None:
        """Do nothing: ``Roles`` closes all roles."""


@dataclass(slots=True, kw_only=True)
class RayEvaluations(LoopEvaluations):
    """Evaluations in parallel with training, except the last one and those in rounds.

    An evaluation is recorded when it is done, at the env step of its weights. One that becomes due
    meanwhile is skipped.
    """

    evaluator: RemoteEvaluator
    rounds: bool

    def after_chunk(self, before: int, stop: StopRequest) -> None:
        self._record_if_done()
        LoopEvaluations.after_chunk(self, before, stop)

    def evaluate(self, stop: StopRequest) -> None:
        steps = self.parts.progress.counters.env_steps
        if self.rounds or self.solved or steps >= self.config.total_steps:
            while self.evaluator.under_way is not None and not stop():
                self._record_if_done(POLL_SECONDS)
            LoopEvaluations.evaluate(self, stop)
        elif self.evaluator.under_way is None:
            require_finite(self.parts)
            self.pending = True
            self.evaluator.start(self.parts.policy, steps)

    def _record_if_done(self, seconds: float = 0.0) -> None:
        evaluator = self.evaluator
        if evaluator.under_way is None or (evaluation := evaluator.result(seconds)) is None:
            return
        (weights, steps), evaluator.under_way, self.pending = evaluator.under_way, None, False
        self.record(evaluation, steps, {name: torch.from_numpy(w) for name, w in weights.items()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluator.under_way = None  # of an abandoned run
        LoopEvaluations.load_state_dict(self, state)
