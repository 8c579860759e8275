"""A pool of job processes, forked from one server. Torch-free."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rlrun.errors import ResourceError

CORES = "RLRUN_CORES"  # environment variable: the cores that a job counts as its own
GRACE_SECONDS = 120.0  # for jobs to save when the pool is closed
_MAIN = "rlrun.cli.main:main"
_SERVER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); " \
    "from rlrun.sweep.server import main; main(sys.argv)"  # fmt: skip


class Job:
    """A job of a pool. ``code`` is None until it ends; a signal's is negative: -9 is SIGKILL."""

    def __init__(self, num: int, request: dict[str, Any]) -> None:
        self.num = num
        self.pid: int | None = None
        self.code: int | None = None
        self.started: float | None = None  # time.monotonic() of the fork
        self.seconds: float | None = None  # it took
        self.log = Path(request["log"])
        self._request = request

    @property
    def line(self) -> str:
        """The request to the server, as JSON."""
        return json.dumps({"job": self.num, **self._request})


class Pool:
    """Runs at most ``workers`` jobs at a time; each is a process in a session of its own.

    The end of a job, however it comes about, never ends the pool. ``threads``: cores that each job
    counts as its own (the rule of ``learner.threads=null``); None: all.

    Leaving the block stops the jobs that still run (SIGTERM: a run saves) and waits for them.
    """

    def __init__(self, workers: int, threads: int | None) -> None:
        self.workers, self.threads = workers, threads
        self.queue: deque[Job] = deque()
        self.running: dict[int, Job] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._ended: list[Job] = []
        self._count, self._buffer = 0, b""

    def __enter__(self) -> Self:
        self._start_server()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, argv: list[str], cwd: Path, log: Path) -> Job:
        """Start ``rlrun *argv`` in ``cwd`` now, or when a worker is free.

        Its stdout and stderr are appended to the file ``log``.
        """
        return self.submit_call(_MAIN, [argv], ["rlrun", *argv], cwd, log)

    def submit_call(
        self, function: str, arguments: list[Any], argv: list[str], cwd: Path, log: Path
    ) -> Job:
        """Like ``submit``, for a function ``package.module:function`` that returns an exit code.

        ``arguments``: of JSON's types. ``argv``: becomes sys.argv.
        """
        request = {"call": function, "arguments": arguments, "argv": argv}
        job = Job(self._count, {**request, "cwd": str(cwd), "log": str(log)})
        self._count += 1
        self.queue.append(job)
        self._fill()
        return job

    def wait_any(self, timeout: float | None = None) -> list[Job]:
        """Return the jobs that ended since the last call.

        Waits for the first, at most ``timeout`` seconds (None: for ever); [] when none ended, also
        when none is running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended and self.running:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._receive(left):
                break
        ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job, number: int = signal.SIGTERM) -> None:
        """Send a signal to a job; one that waits is dropped (its code stays None)."""
        if job in self.queue:
            self.queue.remove(job)
        elif job.num in self.running:
            self._send(json.dumps({"job": job.num, "signal": int(number)}))

    def drop_waiting(self) -> list[Job]:
        """Remove and return the jobs that have not started."""
        dropped = list(self.queue)
        self.queue.clear()
        return dropped

    def close(self) -> None:
        """Stop what runs and end the server."""
        self.drop_waiting()
        server, self._server = self._server, None
        if server is None:
            return
        assert server.stdin is not None
        assert server.stdout is not None
        with suppress(BrokenPipeError):
            server.stdin.close()  # the server asks its jobs to save and end
        try:
            server.wait(GRACE_SECONDS if self.running else 10)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._kill(self.running.values())
            server.kill()
            server.wait()
        server.stdout.close()

    def _start_server(self) -> None:
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        if self.threads is not None:
            env[CORES] = str(self.threads)
        self._buffer = b""
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )

    def _fill(self) -> None:
        while self.queue and len(self.running) < self.workers:
            job = self.queue.popleft()
            self.running[job.num] = job
            self._send(job.line)

    def _send(self, line: str) -> None:
        if self._server is None:
            self._start_server()
        assert self._server is not None
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):  # the server has died, which ``_receive`` finds
            self._server.stdin.write(line.encode() + b"\n")
            self._server.stdin.flush()

    def _receive(self, timeout: float | None) -> bool:
        """Read replies, waiting at most ``timeout`` seconds for one; False: none came."""
        assert self._server is not None
        assert self._server.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._server.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                return False
        content = os.read(self._server.stdout.fileno(), 1 << 16)
        if not content:
            self._bury_server()
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        for line in lines:
            self._note(json.loads(line))
        self._fill()
        return True

    def _note(self, reply: dict[str, Any]) -> None:
        job = self.running[reply["job"]]
        if "pid" in reply:
            job.pid, job.started = reply["pid"], time.monotonic()
        if "code" in reply:
            del self.running[job.num]
            self._end(job, reply["code"])

    def _end(self, job: Job, code: int) -> None:
        job.code = code
        job.seconds = None if job.started is None else time.monotonic() - job.started
        self._ended.append(job)

    def _bury_server(self) -> None:
        """End the jobs of a server that was killed; the next job gets another one.

        Raises: ResourceError when it ended before any job of it began.
        """
        assert self._server is not None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        code = self._server.wait()
        self._server.stdout.close()
        with suppress(BrokenPipeError):
            self._server.stdin.close()
        lost, self._server = [*self.running.values()], None
        self.running.clear()
        if lost and all(job.pid is None for job in lost):
            raise ResourceError(
                f"the process that starts jobs ended (exit code {code}) before it started one; it "
                "needs the memory of one idle run; see the lines above, or use "
                "hydra/launcher=basic"
            )
        self._kill(lost)
        for job in lost:
            self._end(job, -signal.SIGKILL)

    def _kill(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(job.pid, signal.SIGKILL)
