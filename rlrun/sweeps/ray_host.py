"""The actor that runs the jobs of a sweep on a node of Ray. Torch-free; imports no Ray.

The jobs are processes of their own, forked by a ``Pool``: what ends one of them does not end the
actor. When the actor is killed, the pool's fork server asks its job to save and end, as it does
when a sweep on one machine was killed.
"""

import os
import platform
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rlrun.errors import LockedError, RlrunError, StorageError
from rlrun.run.files import lock_run_dir
from rlrun.sweeps.pool import CORES, Job, Pool

POLL_SECONDS = 0.1
LOCK_SECONDS = 120.0  # that a lost process of a job has to save and end before the next begins
_OF_THE_COMMAND = ("RLRUN_", "OMP_NUM_THREADS")  # variables a job has as on the sweep's machine
_OF_RAY = ("RAY_AUTH_", "RAY_ADDRESS")  # the only ones of Ray that a job keeps

End = tuple[int, str]  # exit code, and a line about it that the job could not write


def command_environment() -> dict[str, str]:
    """The environment variables of the sweep's process that jobs get on every node."""
    return {name: v for name, v in os.environ.items() if name.startswith(_OF_THE_COMMAND)}


def job_environment(own: Mapping[str, str], command: Mapping[str, str]) -> dict[str, str]:
    """The variables of a worker of Ray without what Ray adds, and those of the command."""
    added = ("RAY_", *_OF_THE_COMMAND)
    kept = {n: v for n, v in own.items() if n.startswith(_OF_RAY) or not n.startswith(added)}
    return {**kept, **command}


class JobHost:
    """Runs one job at a time. Ray calls its methods in several threads."""

    def __init__(self, path: list[str] | None, command: dict[str, str]) -> None:
        """``path``: sys.path of the sweep's process where that is on this machine.

        ``command``: of ``command_environment``.
        """
        if path is not None:
            sys.path[:] = path
        self._pool = Pool(1, None, env=job_environment(os.environ, command))
        self._pool.__enter__()  # imports what jobs need meanwhile
        self._signals: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._job: Job | None = None
        self._num = -1  # of the job in the pool of the sweep

    def node(self) -> str:
        """The name of this machine."""
        return platform.node()

    def start(self, num: int, request: dict[str, Any], again: bool) -> tuple[int | None, End]:
        """Start a job; return its process id, or None and how it ended.

        ``again``: an earlier process of it may still be saving.
        """
        self._num, self._job = num, None
        for name in (str(Path(request["log"]).parent), request["cwd"]):
            if not os.path.isdir(name):
                wrong = f"{name}: no such directory on the node {platform.node()}"
                allowed = "directories on a file system that all nodes share are allowed"
                return None, (StorageError.exit_code, f"{wrong}; {allowed}; use sweep.dir=PATH")
        if again and not self._wait_for_lock(Path(request["log"]).parent):
            return None, (-signal.SIGTERM, "")
        cores = request["env"].get(CORES)
        try:
            self._job = self._pool.submit_call(
                request["call"],
                request["arguments"],
                request["argv"],
                Path(request["cwd"]),
                Path(request["log"]),
                None if cores is None else int(cores),
            )
            while self._job.pid is None and self._job.code is None:
                self._pool.wait_any(POLL_SECONDS)
        except RlrunError as e:
            return None, (e.exit_code, str(e))
        return self._job.pid, (0, "")

    def wait(self) -> End:
        """Wait for the job that was started."""
        assert self._job is not None
        try:
            while self._job.code is None:
                for number in self._received():
                    self._pool.stop(self._job, number)
                self._pool.wait_any(POLL_SECONDS)
        except RlrunError as e:
            return e.exit_code, str(e)
        return self._job.code, ""

    def signal(self, num: int, number: int) -> None:
        """Send a signal to job ``num``, unless another is running by now."""
        self._signals.put((num, number))

    def _received(self) -> list[int]:
        """The signals for the present job that came since the last call."""
        found = []
        with suppress(Empty):
            while True:
                num, number = self._signals.get_nowait()
                if num == self._num:
                    found.append(number)
        return found

    def _wait_for_lock(self, run_dir: Path) -> bool:
        """Wait until no process uses the directory; False when the job is to stop."""
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            if self._received():
                return False
            try:
                with lock_run_dir(run_dir):
                    return True
            except LockedError:
                time.sleep(POLL_SECONDS)
            except StorageError:
                break  # the job will say so
        return True
