"""Signals and a time limit as requests to stop: the loop finishes its step and saves."""

import math
import os
import signal
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

    def __init__(self, deadline: float = math.inf) -> None:
        """``deadline``: time.monotonic() from which on to stop."""
        self.deadline = deadline

    def __call__(self) -> bool:
        if self.error is not None:
            raise self.error
        if self.code is None and time.monotonic() >= self.deadline:
            self._request(75)
        return self.code is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; the second ends the process at once."""
        if self.since is not None:
            os._exit(130 if number == signal.SIGINT else 128 + number)
        self._request(130 if number == signal.SIGINT else 75)

    def _request(self, code: int) -> None:
        self.code, self.since = code, time.monotonic()


@contextmanager
def stop_on_signals(deadline: float = math.inf) -> Iterator[StopRequest]:
    """Catch SIGINT, SIGTERM, SIGUSR1 and SIGHUP within the block (main thread only).

    A signal that is ignored stays ignored (SIGHUP under nohup).
    """
    request, before = StopRequest(deadline), {}
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, request.receive)
    except ValueError:  # outside the main thread Python refuses handlers
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
