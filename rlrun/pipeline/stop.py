"""Signals as a wish to stop: the loop finishes its step and saves before it leaves."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopWish:
    """``code`` is None, or the exit code that the signal stands for (130 Ctrl-C, 75 SIGTERM)."""

    code: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The first signal is a wish; the second ends the process at once."""
        if self.code is not None:
            os._exit(130 if number == signal.SIGINT else 128 + number)
        self.code = 130 if number == signal.SIGINT else 75


@contextmanager
def stop_wish() -> Iterator[StopWish]:
    """Catches SIGINT, SIGTERM and SIGUSR1 within the block (main thread only)."""
    wish = StopWish()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    try:
        before = [signal.signal(n, wish.receive) for n in numbers]
    except ValueError:  # not the main thread: signals are somebody else's
        yield wish
        return
    try:
        yield wish
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
