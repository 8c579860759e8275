"""A collector in a process of its own: commands and replies through a pipe."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlrun import errors
from rlrun.codec import NeedKeyFrame
from rlrun.env.workers import start_process
from rlrun.errors import EnvError, ResourceError, RlrunError
from rlrun.pipeline.collect_metrics import ChunkStats
from rlrun.pipeline.collector import ChunkInterrupted, Collector
from rlrun.pipeline.forkserver import SIGNALS, signals_blocked, start_method
from rlrun.pipeline.received import Check
from rlrun.transport import CollectorSide, LearnerSide, wait_for_answer
from rlrun.trust import fault_of_users, trust_only, trusted
from rlrun.types import Chunk, Counters, Policy

EXIT_SECONDS = 5.0  # a process may take to end by itself
POLL_SECONDS = 0.25
STOP_SECONDS = 3.0  # a chunk may take after a signal

MakeCollector = Callable[[Counters], Collector]
MakeCollectorSide = Callable[[], CollectorSide]


@dataclass(frozen=True, slots=True)
class CollectedChunk:
    """A chunk, its statistics, and the collector's state after it.

    ``state`` lacks that of the environments, which is asked for when a checkpoint needs it. It is
    sent with every chunk, as the process may end at any time.
    """

    chunk: Chunk
    stats: ChunkStats
    seconds: dict[str, float]  # acting and stepping environments since the process began
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MissingBase:
    """The weights were a delta to a frame that the collector lacks; no rows were collected."""

    stream: int
    have_seq: int
    have_hash: int


class CollectorProcess:
    """Process of a collector, which receives weights and the clock and returns chunks.

    Commands are answered in order; between ``start`` and ``result`` both processes work.
    """

    def __init__(
        self,
        make_collector: MakeCollector,
        policy: Policy,
        transport: LearnerSide,
        make_collector_side: MakeCollectorSide,
        *,
        check: Check,
        max_seconds: float | None,
    ) -> None:
        """``policy``: the one whose weights are sent. Both functions are pickled.

        ``check``: of the rows that come. ``max_seconds``: to wait for a chunk; None: for ever.
        """
        context: Any = multiprocessing.get_context(start_method())
        self.max_seconds, self.check = max_seconds, check
        self.stop: Callable[[], bool] = lambda: False  # asked while a chunk is waited for
        self.policy, self.transport, self.in_flight, self.env_steps = policy, transport, False, 0
        self.pipe, child = context.Pipe()
        given = (child, trusted(), make_collector, make_collector_side)
        self.process = context.Process(target=_serve, args=given)
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
        """Start the next chunk, with the policy's present weights."""
        assert not self.in_flight, "one chunk at a time"
        self._send("collect", env_steps, self.transport.pack(self.policy.weights()))
        self.in_flight, self.env_steps = True, env_steps

    def result(self) -> CollectedChunk:
        """Wait for the chunk that was started and return it."""
        assert self.in_flight, "nothing was started"
        self.in_flight = False
        while isinstance(reply := self._reply(), MissingBase):
            need = NeedKeyFrame(reply.stream, reply.have_seq, reply.have_hash)
            self._send("collect", self.env_steps, wait_for_answer(self.transport, need))
        rows, *rest = reply
        chunk = self.check(self.transport.unpack(rows), "pipeline = overlapped: its collector")
        return CollectedChunk(chunk, *rest)

    def state(self) -> dict[str, Any]:
        """Return the collector's state, the environments' too; no chunk may be in flight."""
        self._send("state")
        state: dict[str, Any] = self._reply()
        return state

    def load(self, state: dict[str, Any], env_steps: int) -> str | None:
        """Continue from ``state`` at the clock ``env_steps``; return why that is not exact."""
        self._send("load", state, env_steps)
        reason: str | None = self._reply()
        return reason

    def close(self) -> None:
        """End the process; a chunk in flight is lost.

        Raises: EnvError: the environments raised in close(), unless another error is under way.
        """
        failing = sys.exc_info()[0] is not None or self.in_flight
        atexit.unregister(self.close)
        try:
            if not failing and self.process.is_alive() and not self.pipe.closed:
                self._send("close")
                if self.pipe.poll(EXIT_SECONDS):
                    self._reply()
        finally:
            self._end()

    def _end(self) -> None:
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

        Raises: EnvError when there is none within ``max_seconds``, ChunkInterrupted when there is
            none ``STOP_SECONDS`` after ``stop``; the process is ended.
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
                    "look for an environment that hangs, or raise the limit (null: none)"
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
    """Main function of the process: execute commands until the pipe is closed.

    ``packages``: those that the main process trusts now.
    """
    trust_only(packages)
    for number in SIGNALS:  # sent to all processes; the main one saves
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    error, worker = _attempt(lambda: _Worker(make_collector, make_collector_side))
    while True:
        try:
            command, arguments = pipe.recv()
            failed = error is not None
            pipe.send((error, worker) if failed else _attempt(getattr(worker, command), *arguments))
        except (EOFError, OSError):
            break
    if error is None:
        with suppress(EnvError):
            worker.close()


def _exit_with_parent() -> None:
    """Exit with the main process, even during a step that never ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _attempt(function: Callable[..., Any], *arguments: Any) -> tuple[str | None, Any]:
    """Return (None, result), or (class, text) of the error."""
    try:
        return None, function(*arguments)
    except RlrunError as e:
        return errors.known_error(e), str(e)
    except Exception as e:
        fault = fault_of_users(e)
        if fault is not None:
            return type(fault).__name__, str(fault)
        return type(e).__name__, traceback.format_exc()


class _Worker:
    """The commands of the process; those of ``CollectorProcess`` have the same names."""

    def __init__(
        self, make_collector: MakeCollector, make_collector_side: MakeCollectorSide
    ) -> None:
        self.counters, self.transport, self.closed = Counters(), make_collector_side(), False
        self.collector: Collector = make_collector(self.counters)

    def collect(self, env_steps: int, weights: Any) -> tuple[Any, ...] | MissingBase:
        collector = self.collector
        try:
            collector.policy.load(self.transport.unpack(weights))
        except NeedKeyFrame as need:
            return MissingBase(need.stream, need.have_seq, need.have_hash)
        collector.actor.refresh()
        self.counters.env_steps = env_steps
        rows = self.transport.pack(collector.collect_rows())
        stats, light = collector.take_stats(), collector.light_state_dict()
        return rows, stats, dict(collector.seconds), light | self._generator()

    def state(self) -> dict[str, Any]:
        return self.collector.state_dict() | self._generator()

    def _generator(self) -> dict[str, Any]:
        """The state of exploration's random numbers."""
        return {"generator": dict(self.collector.policy.generator.bit_generator.state)}

    def load(self, state: dict[str, Any], env_steps: int) -> str | None:
        self.counters.env_steps = env_steps
        self.collector.load_state_dict(state)
        self.collector.policy.generator.bit_generator.state = state["generator"]
        return self.collector.inexact

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.collector.env.close()
