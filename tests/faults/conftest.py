"""Fixtures: an in-process ``rlrun`` in an empty directory."""

import signal
from collections.abc import Iterator

import pytest

from tests.in_process import build as build
from tests.in_process import composer as composer
from tests.in_process import rlrun as rlrun

SECONDS = 120


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
