"""Main function of a process that ends a Ray whose owner has died."""

import os
import signal
import sys
from pathlib import Path

from rlrun.pipeline.ray.cluster import remove


def main(name: str) -> None:
    """Wait until the owner closes its end of stdin, by ``close`` or by dying.

    ``name``: of the directory of its Ray, in /tmp.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    remove(Path("/tmp") / name)
