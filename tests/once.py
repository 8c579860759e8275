"""What one worker makes for all: built once in a run of the tests, not once in each process."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The directory ``name`` of this run of the tests; ``make`` fills it if nobody has."""
    top = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent  # every worker has a directory of its own below it
    with (top / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (top / name).exists():
            partly = top / f"{name}.partly"
            partly.mkdir()
            make(partly)
            partly.rename(top / name)
    return top / name
