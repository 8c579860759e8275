"""Signals and a time limit as requests to stop: the loop finishes its step and saves."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rlrun.errors import RlrunError

SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
    if hasattr(signal, name)
]


class StopRequest:
    """Calling it asks whether to stop.

    ``code``: None, or the exit code of the reason (130 Ctrl-C, 75 other signals and the time).
    ``error``: raised by the next call (the run directory is gone).
    """

    code: int | None = None
    error: RlrunError | None = None
    since: float | None = None  # time.monotonic() of the request
    catches = False  # signals, in the main thread

    def __init__(self, deadline: float = math.inf, *, own_process: bool = True) -> None:
        """``deadline``: time.monotonic() from which on to stop.

        ``own_process``: see ``receive``.
        """
        self.deadline, self.own_process = deadline, own_process

    def __call__(self) -> bool:
        if self.error is not None:
            raise self.error
        if self.code is None and time.monotonic() >= self.deadline:
            self._request(75)
        return self.code is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; the second ends the process at once.

        In a process that is not the run's own, but that of a user's script, it raises
        KeyboardInterrupt, as does the first one after ``interrupt``.
        """
        if not self.own_process and (self.error is not None or self.since is not None):
            raise KeyboardInterrupt
        if self.since is not None:
            os._exit(130 if number == signal.SIGINT else 128 + number)
        self._request(130 if number == signal.SIGINT else 75)

    def interrupt(self, error: RlrunError) -> None:
        """Let ``stop_on_signals`` raise ``error`` in the main thread, wherever that waits.

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

    A signal that is ignored stays ignored (SIGHUP under nohup). ``own_process``: see
    ``StopRequest.receive``.
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
