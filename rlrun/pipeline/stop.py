"""Signals as requests to stop: the loop finishes its step and saves before it ends."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """``code``: None, or the exit code of the signal received (130 Ctrl-C, 75 SIGTERM)."""

    code: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; the second ends the process at once."""
        if self.code is not None:
            os._exit(130 if number == signal.SIGINT else 128 + number)
        self.code = 130 if number == signal.SIGINT else 75


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT, SIGTERM and SIGUSR1 within the block (main thread only)."""
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    try:
        before = [signal.signal(n, request.receive) for n in numbers]
    except ValueError:  # outside the main thread Python refuses handlers
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
