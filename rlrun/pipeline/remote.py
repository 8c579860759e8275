"""A collector in a process of its own: what it is told, what it answers."""

import atexit
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlrun import errors
from rlrun.codec import NeedKeyFrame
from rlrun.errors import EnvError, RlrunError
from rlrun.pipeline.collector import Brought, Collector
from rlrun.pipeline.warm import SIGNALS, signals_held, start_method
from rlrun.transport import CollectorEnd, LearnerEnd, answered
from rlrun.types import Chunk, Counters, Policy

QUIT_SECONDS = 5.0  # what a process gets to end by itself


Make = Callable[[Counters], Collector]
Far = Callable[[], CollectorEnd]


@dataclass(frozen=True, slots=True)
class Gathered:
    """One chunk from afar."""

    chunk: Chunk
    brought: Brought
    seconds: dict[str, float]  # spent acting and in environments since the process began
    after: "Settled"


@dataclass(frozen=True, slots=True)
class Settled:
    """What goes on behind a chunk: it comes with every chunk, as a process may end at any time."""

    collector: dict[str, Any]  # state of the collector
    generator: dict[str, Any]  # state of what its exploration draws from


@dataclass(frozen=True, slots=True)
class Lacking:
    """The weights were a delta to what the collector does not hold; nothing was gathered."""

    stream: int
    have_seq: int
    have_hash: int


class Remote:
    """Its collector is the one the config describes; the main process sends weights and the clock.

    Commands are answered in order; between ``start`` and ``result`` both processes work.
    """

    def __init__(self, make: Make, policy: Policy, link: LearnerEnd, far: Far) -> None:
        """``make``: Counters -> Collector, ``far``: -> the link's other end, both picklable.
        ``policy``: whose weights are sent."""
        context: Any = multiprocessing.get_context(start_method())
        self.policy, self.link, self.flying, self.clock = policy, link, False, 0
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, far))
        with signals_held():
            self.process.start()
        theirs.close()
        atexit.register(self.close)  # before multiprocessing waits for its children

    def start(self, env_steps: int) -> None:
        """Send off for the next chunk, with the policy's present weights."""
        assert not self.flying, "one chunk at a time"
        self._send("gather", env_steps, self.link.pack(self.policy.weights()))
        self.flying, self.clock = True, env_steps

    def result(self) -> Gathered:
        """The chunk that was started."""
        assert self.flying, "nothing was started"
        self.flying = False
        while isinstance(answer := self._answer(), Lacking):
            need = NeedKeyFrame(answer.stream, answer.have_seq, answer.have_hash)
            self._send("gather", self.clock, answered(self.link, need))
        rows, *rest = answer
        return Gathered(self.link.unpack(rows), *rest)

    def load(self, settled: Settled, env_steps: int) -> None:
        """Go on from there at the clock ``env_steps`` (environments begin with other episodes)."""
        self._send("load", settled, env_steps)
        self._answer()

    def close(self) -> None:
        """End the process; nothing is waited for but its end."""
        atexit.unregister(self.close)
        self.pipe.close()
        self.process.join(QUIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _send(self, command: str, *given: Any) -> None:
        try:
            self.pipe.send((command, given))
        except OSError:
            raise self._gone() from None

    def _answer(self) -> Any:
        try:
            error, answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if error is None:
            return answer
        kind = getattr(errors, error, None)
        if isinstance(kind, type) and issubclass(kind, RlrunError):
            raise kind(answer)
        raise RuntimeError(f"in the collector's process:\n{answer}")

    def _gone(self) -> EnvError:
        self.process.join(QUIT_SECONDS)
        return EnvError(
            f"pipeline.name = overlapped: the collector's process ended (exit code "
            f"{self.process.exitcode}); it must outlive the run; pipeline=serial shows why"
        )


def settled(collector: Collector) -> Settled:
    """That of a collector between two chunks."""
    generator = dict(collector.policy.generator.bit_generator.state)
    return Settled(collector.state_dict(), generator)


def _serve(pipe: Connection, make: Make, far: Far) -> None:
    """The process: obey until the other end is closed."""
    for number in SIGNALS:  # they reach all; the main process saves
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(1)
    wrong, served = _tried(lambda: _Served(make, far))
    while True:
        try:
            command, given = pipe.recv()
            obeyed = (wrong, served) if wrong else _tried(getattr(served, command), *given)
            pipe.send(obeyed)
        except (EOFError, OSError):
            break
    if wrong is None:
        served.collector.env.close()


def _follow_parent() -> None:
    """End with the main process, even in the middle of a step that never ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _tried(function: Callable[..., Any], *given: Any) -> tuple[str | None, Any]:
    """(None, result), or (class, text) of the error."""
    try:
        return None, function(*given)
    except RlrunError as e:
        return type(e).__name__, str(e)
    except Exception as e:
        return type(e).__name__, traceback.format_exc()


class _Served:
    """The commands."""

    def __init__(self, make: Make, far: Far) -> None:
        self.counters, self.link = Counters(), far()
        self.collector: Collector = make(self.counters)

    def gather(self, env_steps: int, weights: Any) -> tuple[Any, ...] | Lacking:
        collector = self.collector
        try:
            collector.policy.load(self.link.unpack(weights))
        except NeedKeyFrame as need:
            return Lacking(need.stream, need.have_seq, need.have_hash)
        collector.actor.refresh()
        self.counters.env_steps = env_steps
        chunk = collector.gather()
        brought, collector.brought = collector.brought, Brought()
        rows = self.link.pack(chunk)
        return rows, brought, dict(collector.seconds), settled(collector)

    def load(self, state: Settled, env_steps: int) -> None:
        self.counters.env_steps = env_steps
        self.collector.load_state_dict(state.collector)
        self.collector.policy.generator.bit_generator.state = state.generator
