"""Overlapped collecting: the next chunk is collected while the learner works on the last."""

import atexit
import multiprocessing
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
import torch

from rlrun import errors
from rlrun.buffer.layout import Row
from rlrun.buffer.ring import ChunkValidator
from rlrun.codec import NeedKeyFrame
from rlrun.env.workers import exit_with_parent, start_process
from rlrun.errors import CheckpointError, EnvError, ResourceError, RlrunError
from rlrun.pipeline.collector import (
    ChunkInterrupted,
    ChunkStats,
    CollectMetrics,
    Collector,
    loaded_stats,
)
from rlrun.pipeline.forkserver import SIGNALS, signals_blocked
from rlrun.pipeline.source import Source
from rlrun.pipeline.transport import CollectorSide, LearnerSide, wait_for_answer
from rlrun.trust import fault_of_users, trust_only, trusted
from rlrun.types import Chunk, Counters, Policy, tree_leaves


class RowCheck:
    """Checks the arrays and values of a received chunk against their spaces.

    Of extras and recurrent states, which an actor defines, only the number of rows is checked.
    """

    def __init__(self, row: Row, columns: int) -> None:
        self.spaces = row.spaces
        self.validate = ChunkValidator(replace(row, extras={}), columns, states=False)

    def __call__(self, chunk: Chunk, sender: str) -> Chunk:
        """Return ``chunk``. Raises: CheckpointError naming ``sender``, row and value."""
        try:
            wrong = self._misfit(chunk)
            if wrong is None and self.spaces is not None:
                wrong = self.spaces.violation(chunk.obs, chunk.action, chunk.valid)
        except (ValueError, TypeError, AttributeError, LookupError) as e:
            wrong = " ".join(str(e).partition(";")[0].split())[:200]
        if wrong is None:
            return chunk
        raise CheckpointError(
            f"{sender}: {wrong}; rows of the run's own environments are allowed; look for a "
            "process or a checkpoint of another program, or faulty memory"
        )

    def _misfit(self, chunk: Chunk) -> str | None:
        """Return a description of the first error, or None.

        Raises: ValueError for an array of another shape or dtype.
        """
        self.validate(chunk)
        steps = len(chunk.reward)
        for x in tree_leaves((chunk.extras, chunk.states)):
            if x.shape[:2] != (steps, self.validate.columns):
                return "an extra has another number of rows"
        valid = chunk.valid
        if (chunk.terminated & chunk.truncated).any():
            return "a row is terminated and truncated"
        if not np.isfinite(chunk.reward[valid]).all():
            return "a reward is not finite"
        return None


EXIT_SECONDS = 5.0  # for a process to end by itself
POLL_SECONDS = 0.25
STOP_SECONDS = 3.0  # for a chunk after a signal

MakeCollector = Callable[[Counters], Collector]
MakeCollectorSide = Callable[[], CollectorSide]


@dataclass(frozen=True, slots=True)
class CollectedChunk:
    """A chunk, its statistics, and the collector's state after it.

    ``state`` is sent with every chunk, because the process may end at any time. It lacks the
    environments' states, which are requested when a checkpoint needs them.
    """

    chunk: Chunk
    stats: ChunkStats
    seconds: dict[str, float]  # acting and stepping environments since the process began
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MissingBase:
    """A reply without rows: the weights were a delta to a frame that the collector lacks."""

    stream: int
    have_seq: int
    have_hash: int


class CollectorProcess:
    """The process of a collector, which receives weights and the clock and returns chunks.

    Commands are answered in order. Between ``start`` and ``result`` both processes work.
    """

    def __init__(
        self,
        make_collector: MakeCollector,
        policy: Policy,
        transport: LearnerSide,
        make_collector_side: MakeCollectorSide,
        *,
        check: RowCheck,
        max_seconds: float | None,
    ) -> None:
        """``policy``: its weights are sent. ``make_collector`` and ``make_collector_side`` are
        pickled.

        ``check``: applied to received rows. ``max_seconds``: longest wait for a chunk; None: no
        limit.
        """
        context: Any = multiprocessing.get_context("forkserver")
        self.max_seconds, self.check = max_seconds, check
        self.stop: Callable[[], bool] = lambda: False  # called while waiting for a chunk
        self.policy, self.transport, self.in_flight, self.env_steps = policy, transport, False, 0
        self.pipe, child = context.Pipe()
        arguments = (child, trusted(), make_collector, make_collector_side)
        self.process = context.Process(target=_serve, args=arguments)
        try:
            with signals_blocked():
                start_process(self.process)
        except (EOFError, OSError) as e:
            raise ResourceError(
                f"pipeline.name = overlapped: the collector's process could not be started "
                f"({type(e).__name__}: {e}); look for a lack of memory or processes; "
                "pipeline=serial needs none"
            ) from e
        child.close()
        atexit.register(self.close)  # before multiprocessing waits for its children

    def start(self, env_steps: int) -> None:
        """Start the next chunk with the policy's present weights."""
        assert not self.in_flight, "one chunk at a time"
        self._send("collect", env_steps, self.transport.pack(self.policy.weights()))
        self.in_flight, self.env_steps = True, env_steps

    def result(self) -> CollectedChunk:
        """Wait for the started chunk and return it."""
        assert self.in_flight, "nothing was started"
        self.in_flight = False
        while isinstance(reply := self._reply(), MissingBase):
            need = NeedKeyFrame(reply.stream, reply.have_seq, reply.have_hash)
            self._send("collect", self.env_steps, wait_for_answer(self.transport, need))
        rows, *rest = reply
        chunk = self.check(self.transport.unpack(rows), "pipeline = overlapped: its collector")
        return CollectedChunk(chunk, *rest)

    def state(self) -> dict[str, Any]:
        """Return the collector's state with that of the environments. No chunk may be in flight."""
        self._send("state")
        state: dict[str, Any] = self._reply()
        return state

    def load(self, state: dict[str, Any], env_steps: int) -> str | None:
        """Continue from ``state`` at ``env_steps``. Return why that is not exact, or None."""
        self._send("load", state, env_steps)
        reason: str | None = self._reply()
        return reason

    def close(self) -> None:
        """End the process. A chunk in flight is lost.

        Raises: EnvError if the environments raised in close(), unless another error is being
        handled.
        """
        failing = sys.exc_info()[0] is not None or self.in_flight
        atexit.unregister(self.close)
        try:
            if not failing and self.process.is_alive() and not self.pipe.closed:
                self._send("close")
                if self.pipe.poll(EXIT_SECONDS):
                    self._reply()
        finally:
            self.pipe.close()
            self.process.join(EXIT_SECONDS)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()

    def _send(self, command: str, *arguments: Any) -> None:
        try:
            self.pipe.send((command, arguments))
        except OSError:
            raise self._ended() from None

    def _reply(self) -> Any:
        try:
            self._wait()
            error, reply = self.pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if error is None:
            return reply
        raise errors.error_named(error, reply) or RuntimeError(
            f"in the collector's process:\n{reply}"
        )

    def _wait(self) -> None:
        """Wait for an answer.

        Raises: EnvError after ``max_seconds`` without one, ChunkInterrupted ``STOP_SECONDS`` after
        ``stop``. The process is ended first.
        """
        waited = stopping = 0.0
        while not self.pipe.poll(POLL_SECONDS):
            waited += POLL_SECONDS
            stopping += POLL_SECONDS if self.stop() else 0.0
            if stopping >= STOP_SECONDS:
                self.process.kill()
                raise ChunkInterrupted
            if self.max_seconds is not None and waited >= self.max_seconds:
                self.process.kill()
                raise EnvError(
                    f"watchdog.max_seconds = {self.max_seconds:g}: no answer of the collector's "
                    "process (pipeline=overlapped); a chunk must be collected within that time; "
                    "look for an environment that hangs, or raise the limit (null: no limit)"
                )

    def _ended(self) -> RlrunError:
        self.process.join(EXIT_SECONDS)
        if self.process.exitcode == errors.NO_GUARD:
            return errors.unguarded("pipeline = overlapped", "pipeline=serial")
        return EnvError(
            f"pipeline.name = overlapped: the collector's process ended (exit code "
            f"{self.process.exitcode}); it must outlive the run; pipeline=serial shows why"
        )


def _serve(
    pipe: Connection,
    packages: Sequence[str],
    make_collector: MakeCollector,
    make_collector_side: MakeCollectorSide,
) -> None:
    """Execute commands until the pipe is closed: the main function of the process.

    ``packages``: those that the main process trusts.
    """
    trust_only(packages)
    for number in SIGNALS:  # a signal to the process group; the main process saves
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    error, worker = attempt(lambda: CollectorWorker(make_collector, make_collector_side))
    while True:
        try:
            command, arguments = pipe.recv()
            failed = error is not None
            pipe.send((error, worker) if failed else attempt(getattr(worker, command), *arguments))
        except (EOFError, OSError):
            break
    if error is None:
        with suppress(EnvError):
            worker.close()


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[str | None, Any]:
    """Return (None, result) of ``function``, or (class, text) of its error."""
    try:
        return None, function(*arguments)
    except RlrunError as e:
        return errors.known_error(e), str(e)
    except Exception as e:
        fault = fault_of_users(e)
        if fault is not None:
            return type(fault).__name__, str(fault)
        return type(e).__name__, traceback.format_exc()


class CollectorWorker:
    """A collector in another process. Its methods have the names of ``CollectorProcess``."""

    def __init__(
        self, make_collector: MakeCollector, make_collector_side: MakeCollectorSide
    ) -> None:
        self.counters, self.transport, self.closed = Counters(), make_collector_side(), False
        self.collector: Collector = make_collector(self.counters)

    def collect(
        self, env_steps: int, *weights: Any, with_env: bool = False
    ) -> tuple[Any, ...] | MissingBase:
        """Collect a chunk after loading ``weights``, successive messages.

        ``with_env``: include the environments in the returned state.
        """
        collector = self.collector
        try:
            for message in weights:
                collector.policy.load(self.transport.unpack(message))
        except NeedKeyFrame as need:
            return MissingBase(need.stream, need.have_seq, need.have_hash)
        collector.actor.refresh()
        self.counters.env_steps = env_steps
        rows = self.transport.pack(collector.collect_rows())
        state = collector.state_dict() if with_env else collector.light_state_dict()
        return rows, collector.take_stats(), dict(collector.seconds), state | self._generator()

    def state(self) -> dict[str, Any]:
        return self.collector.state_dict() | self._generator()

    def _generator(self) -> dict[str, Any]:
        """Return the state of the exploration generator."""
        return {"generator": dict(self.collector.policy.generator.bit_generator.state)}

    def load(self, state: dict[str, Any], env_steps: int, incarnation: int = 0) -> str | None:
        """Continue from ``state``. ``incarnation``: how often this process was lost."""
        self.counters.env_steps = env_steps
        self.collector.load_state_dict(state, incarnation=incarnation)
        self.collector.policy.generator.bit_generator.state = state["generator"]
        return self.collector.inexact

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.collector.env.close()


@dataclass(slots=True)
class OverlappedSource(Source):
    """A collector in its own process, one chunk ahead of the learner.

    Chunk k + 1 is collected with the weights from before learning on chunk k. They are always
    exactly one chunk old, so a run is as deterministic as a serial one. The first chunk is
    collected alone. Evaluations, logs and checkpoints use the learner's weights.

    A thread instead of a process would share the interpreter lock. Measured, it was no faster than
    the serial pipeline.
    """

    phase: ClassVar[str] = "chunk"

    process: CollectorProcess
    policy: Policy
    collect_metrics: CollectMetrics
    check: RowCheck  # of a checkpoint's chunk
    total_steps: int  # no chunk is started at or after this env step
    seconds: dict[str, float] = field(default_factory=lambda: {"act": 0.0, "env": 0.0})
    counted: dict[str, Any] | None = None  # state after the last counted chunk
    received: CollectedChunk | None = None  # in flight at a checkpoint, not counted yet
    pending_error: RlrunError | None = None  # of the chunk in flight at a checkpoint
    inexact: str | None = None

    @property
    def env_steps(self) -> int:
        return self.collect_metrics.counters.env_steps

    def next_chunk(self) -> Chunk:
        if self.pending_error is not None:
            raise self.pending_error
        collected, self.received = self.received, None
        if collected is None:
            if not self.process.in_flight:
                self.process.start(self.env_steps)
            collected = self.process.result()
        self.collect_metrics.commit(collected.stats, collected.chunk)
        self.seconds, self.counted = collected.seconds, collected.state
        if self.env_steps < self.total_steps:
            self.process.start(self.env_steps)  # before this chunk is stored or learned
        return collected.chunk

    def stop_when(self, stop: Callable[[], bool]) -> None:
        self.process.stop = stop

    def metrics(self) -> dict[str, float]:
        return self.collect_metrics.report()

    def transport_metrics(self) -> dict[str, float]:
        return self.process.transport.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Wait for the chunk in flight and return it with the collector's state.

        If that chunk fails, its rows before the error are in the collector's state. If the process
        has ended, the state is the one before the chunk, without the environments.
        """
        if self.process.in_flight:
            try:
                self.received = self.process.result()
            except RlrunError as e:
                self.pending_error = e
            except ChunkInterrupted:  # it is lost
                pass
        state = self._collector_state() | self.collect_metrics.state_dict()
        self.inexact = state["inexact"]
        if self.received is None:
            return {"collector": state}
        chunk, stats = self.received.chunk, self.received.stats
        rows = {name: getattr(chunk, name) for name in chunk.__slots__}
        received = {
            "rows": rows, "steps": stats.steps, "finished_episodes": stats.finished_episodes,
        }  # fmt: skip
        return {"collector": state, "received": received}

    def _collector_state(self) -> dict[str, Any]:
        try:
            return self.process.state()
        except EnvError:
            last = self.received.state if self.received is not None else self.counted
            if last is None:
                raise
            return last

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generator = dict(self.policy.generator.bit_generator.state)  # of a serial checkpoint
        collector, received = {"generator": generator, **state["collector"]}, state.get("received")
        if self.process.in_flight:  # of the abandoned run (run.on_nan=rollback)
            self.process.result()
        self.received = self.pending_error = None
        self.collect_metrics.load_state_dict(collector)
        env_steps = self.env_steps
        if received is None:
            self.counted = collector
        else:
            chunk = self.check(Chunk(**received["rows"]), "checkpoint, received")
            stats = loaded_stats("received", received)
            env_steps += stats.steps
            self.received = CollectedChunk(chunk, stats, self.seconds, collector)
        self.inexact = self.process.load(
            collector | {"finished_episodes": [], "actions": None}, env_steps
        )

    def close(self) -> None:
        self.process.close()
