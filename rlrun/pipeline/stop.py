"""Stop requests by signals and time limits, and a watchdog for runs that make no progress.

The loop cannot end while an environment's step does not return; the watchdog can end the process.
Code that holds Python's interpreter lock (a C extension in a loop) stops the watchdog too. Only
SIGKILL ends it; use ``env.backend=async`` to keep it in another process.
"""

import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from types import FrameType
from typing import Any, Self

from rlrun.errors import EnvError, RlrunError
from rlrun.jit import compilations
from rlrun.pipeline.forkserver import SIGNALS
from rlrun.schema import WatchdogConfig

_logger = logging.getLogger(__name__)


class StopRequest:
    """A request to stop. Calling it returns whether to stop.

    ``code``: exit code of the reason (130 Ctrl-C, 75 other signals and the time limit), or None.
    ``error``: raised by the next call (the run directory is gone).
    """

    code: int | None = None
    error: RlrunError | None = None
    since: float | None = None  # time.monotonic() of the request
    catches = False  # signals, in the main thread

    def __init__(self, deadline: float = math.inf, *, own_process: bool = True) -> None:
        """``deadline``: of time.monotonic(), when to stop. ``own_process``: see ``receive``."""
        self.deadline, self.own_process = deadline, own_process

    def __call__(self) -> bool:
        if self.error is not None:
            raise self.error
        if self.code is None and time.monotonic() >= self.deadline:
            self._request(75)
        return self.code is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal. The second ends the process at once.

        In a user's process (``own_process`` False), the second signal raises KeyboardInterrupt. So
        does the first one after ``interrupt``.
        """
        if not self.own_process and (self.error is not None or self.since is not None):
            raise KeyboardInterrupt
        if self.since is not None:
            os._exit(130 if number == signal.SIGINT else 128 + number)
        self._request(130 if number == signal.SIGINT else 75)

    def interrupt(self, error: RlrunError) -> None:
        """Let ``stop_on_signals`` raise ``error`` in the main thread, whatever it waits for.

        A run in another thread is not interrupted: its next call raises ``error``.
        """
        self.error = error
        ident = threading.main_thread().ident
        if self.catches and ident is not None:
            signal.pthread_kill(ident, signal.SIGINT)

    def _request(self, code: int) -> None:
        self.code, self.since = code, time.monotonic()


@contextmanager
def stop_on_signals(
    deadline: float = math.inf, *, own_process: bool = True
) -> Iterator[StopRequest]:
    """Catch SIGINT, SIGTERM, SIGUSR1 and SIGHUP within the block (main thread only).

    Ignored signals stay ignored (SIGHUP under nohup). ``own_process``: see ``StopRequest.receive``.
    """
    request, before = StopRequest(deadline, own_process=own_process), {}
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, request.receive)
    except ValueError:  # outside the main thread Python refuses handlers
        yield request
        return
    try:
        request.catches = True
        yield request
    except KeyboardInterrupt:
        if request.error is None:
            raise
        raise request.error from None
    finally:
        request.catches = False
        for number, handler in before.items():
            signal.signal(number, handler)


POLL_SECONDS = 0.5
COMPILING_SECONDS = 60.0  # another process may compile kernels for its first chunk
TELL_SECONDS = 2.0  # of compiling, after which the terminal says so
GRACE_SECONDS = 4.0  # from a signal to the end of a run that still waits

Pulse = tuple[str, Any]  # phase, and a value that changes with progress
End = Callable[[int, str], None]

WAITS_FOR = {  # phase of the loop -> what it waits for
    "collect": "step of the environment",
    "chunk": "chunk from the collector's process",
    "evaluate": "step of an evaluation environment",
    "learn": "update",
    "save": "written checkpoint",
}
_ENVIRONMENTS = ("collect", "chunk", "evaluate")  # phases in which users' code may never return


@dataclass(eq=False)
class Watchdog:
    """A thread that watches ``pulse`` within the block.

    After ``warn_seconds`` without progress it logs the phase that the run waits in, and another
    line when the wait is over. Later waits in the same phase are logged only when more than twice
    as long. While kernels may compile, these lines have level INFO. After ``max_seconds`` without
    progress of an environment, or ``GRACE_SECONDS`` after a signal, it calls ``end`` with the exit
    code and a text. ``end`` does not return.
    """

    config: WatchdogConfig
    pulse: Callable[[], Pulse]
    stop: StopRequest
    end: End
    _: KW_ONLY
    env_id: str
    in_place: Callable[[], None] = lambda: None  # raises if the run directory has moved
    report: Callable[[], None] = lambda: None  # called at every check while it has not
    tell: Callable[[str], None] = lambda line: None  # gets a line for the terminal

    def __post_init__(self) -> None:
        self.waited, self.signalled, self.watched = 0.0, 0.0, 0.0
        self.compiled = compilations.ended  # kernels, when the present wait began
        self.compile_reported = False  # that kernels are compiled
        self.warned: int | None = None  # level of the line about the present wait
        self.reported: dict[str, float] = {}  # phase -> seconds of the longest wait reported
        self.last: Pulse | None = None
        self.pipe: tuple[int, int] | None = None  # signal numbers, written as soon as they arrive
        self.wakeup = -1
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self.pipe = read, write
        if threading.current_thread() is threading.main_thread():  # only it handles signals
            self.wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the thread."""
        assert self.pipe is not None
        self.done.set()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self.wakeup)
        os.write(self.pipe[1], b"\0")
        self.thread.join()
        for handle in self.pipe:
            os.close(handle)

    def _watch(self) -> None:
        assert self.pipe is not None
        before = time.monotonic()
        while not self.done.is_set():
            ready = select.select([self.pipe[0]], [], [], POLL_SECONDS)[0]
            if ready and any(number in SIGNALS for number in os.read(self.pipe[0], 64)):
                self.signalled = self.signalled or 1e-9
            now = time.monotonic()
            # Time in which this process was suspended is not waiting time.
            self.look(min(now - before, 2 * POLL_SECONDS))
            before = now

    def look(self, seconds: float) -> None:
        """Check the pulse, ``seconds`` after the last check."""
        try:
            self.in_place()
            self.report()
        except RlrunError as e:
            self.stop.error = self.stop.error or e
        self.watched += seconds
        pulse = self.pulse()
        if self.signalled:
            self.signalled += seconds
        if pulse == self.last:
            self.waited += seconds
            self._judge(pulse[0])
            return
        if self.warned is not None and self.last is not None:  # a long wait is over
            phase, waited = self.last[0], self.waited + seconds
            self.reported[phase] = max(waited, self.reported.get(phase, 0.0))
            _logger.log(self.warned, "the next %s came after %.0f s", self._what(phase), waited)
        self.last, self.waited, self.warned = pulse, 0.0, None
        self.compiled = compilations.ended

    def _judge(self, phase: str) -> None:
        what = self._what(phase)
        limit = self.config.max_seconds if phase in _ENVIRONMENTS else None
        quiet = max(self.config.warn_seconds, 2 * self.reported.get(phase, 0.0))
        compiles = compilations.begun > self.compiled  # kernels, in this wait
        if self.waited >= TELL_SECONDS and not self.compile_reported and compiles:
            self.compile_reported = True
            self.tell("compiling kernels, once for each algorithm: some 5 to 30 s")
        if self.waited >= quiet and self.warned is None:
            ends = "" if limit is None else f" (watchdog.max_seconds = {limit:g} ends the run)"
            self.warned = logging.WARNING
            if compiles or (phase == "chunk" and self.watched < COMPILING_SECONDS):
                self.warned = logging.INFO
                ends += "; the first run after an installation compiles kernels"
            _logger.log(self.warned, "no %s for %.0f s%s", what, self.waited, ends)
        if phase in _ENVIRONMENTS and self.signalled >= GRACE_SECONDS <= self.waited:
            self.end(143, f"stopped by a signal while waiting for the next {what}")
        elif (
            limit is not None and self.waited >= limit + 2 * POLL_SECONDS
        ):  # the loop's limit is first
            self.end(
                EnvError.exit_code,
                f"watchdog.max_seconds = {limit:g}: no {what} within that time; a step must "
                "return; fix the environment, or raise the limit (null: none)",
            )

    def _what(self, phase: str) -> str:
        what = WAITS_FOR.get(phase, phase)
        return f"{what} (env.id = {self.env_id})" if phase in _ENVIRONMENTS else what
