"""An end for tests that hang."""

import signal
from collections.abc import Iterator

import pytest

SECONDS = 900  # on a busy machine


class Hang(BaseException):
    """A call that did not return: no ``except Exception`` catches it."""


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """End a test that hangs."""

    def ring(number: int, frame: object) -> None:
        raise Hang(f"no answer after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
