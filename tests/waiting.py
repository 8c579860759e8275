"""Waiting for other processes."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object], pool=None) -> None:
    """At most three minutes; ``pool``: receives meanwhile."""
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01) if pool is None else pool.wait_any(0.05)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
