"""A pool of job processes, forked from one server, and the cores it may divide. Torch-free."""

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rlrun.errors import ResourceError
from rlrun.pipeline.forkserver import SIGNALS
from rlrun.run.files import no_follow

CORES = "RLRUN_CORES"  # environment variable: the cores that a job may use
SETTLE_SECONDS = 0.5  # by then a signal to all processes has reached the jobs
MAIN = "rlrun.cli.main:main"
_SERVER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); " \
    "from rlrun.sweeps.fork_server import main; main(sys.argv)"  # fmt: skip


_Call = tuple[str, dict[str, str]]  # sys.path as JSON, and environment variables of a server
_begun: list[tuple[_Call, "subprocess.Popen[bytes]"]] = []


def begin_server() -> None:
    """Start the server of the first pool, which imports torch while a sweep is composed."""
    if not _begun:
        call = _server_call(os.environ)
        _begun.append((call, _server(call, str(os.getpid()))))


def end_server() -> None:
    """End the server that ``begin_server`` started, if no pool has taken it."""
    while _begun:
        with _begun.pop()[1] as server:
            server.kill()


def _server_call(variables: Mapping[str, str]) -> _Call:
    return json.dumps(sys.path), {**variables, "OPENBLAS_NUM_THREADS": "1"}


def _server(call: _Call, *words: str) -> "subprocess.Popen[bytes]":
    path, variables = call
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVER, path, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables,
        start_new_session=True,
    )


class Job:
    """A job of a pool. ``request``: to the fork server, in JSON's types.

    ``code`` is None until it ends; a signal's is negative: -9 is SIGKILL.
    """

    def __init__(self, num: int, request: dict[str, Any]) -> None:
        self.num, self.request = num, request
        self.pid: int | None = None
        self.code: int | None = None
        self.started: float | None = None  # time.monotonic() of the fork
        self.seconds: float | None = None  # duration
        self.why: str | None = None  # reason of a loss that its output does not contain
        self.log = Path(request["log"])

    def note(self, line: str) -> None:
        """Add a line to the output of the job."""
        with suppress(OSError), open(self.log, "a", encoding="utf-8", opener=no_follow) as file:
            file.write(f"{line}\n")


class Pool:
    """Runs at most ``workers`` jobs at a time, each a process in its own session.

    The end of a job, whatever its cause, never ends the pool.

    Jobs are asked once to save and end, and have the time that they need. Leaving the block asks
    the running ones and waits for them. A signal during that time kills them.
    """

    def __init__(
        self, workers: int, *, own_process: bool = True, env: Mapping[str, str] | None = None
    ) -> None:
        """``own_process``: False if a second signal must not end the process of the pool.

        ``env``: the environment variables of the server and its jobs; None: those of this process.
        """
        self.workers, self.own_process = workers, own_process
        self._env = env
        self.queue: deque[Job] = deque()
        self.running: dict[int, Job] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._later: dict[str, str] = {}  # environment variables set since the server began
        self._ended: list[Job] = []
        self._count, self._buffer = 0, b""
        self._has_replied = False  # whether the present server has replied
        self._handlers: dict[int, Any] = {}  # signal handlers before ``_kill_on_signals``

    def __enter__(self) -> Self:
        self._start_server()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(
        self,
        function: str,
        arguments: list[Any],
        argv: list[str],
        cwd: Path,
        log: Path,
        threads: int | None,
    ) -> Job:
        """Call ``package.module:function``, which returns an exit code, when a worker is free.

        ``arguments``: in JSON's types. ``argv``: becomes sys.argv. ``log``: the file to which its
        stdout and stderr are appended. ``threads``: cores that it may use (the rule of
        ``learner.threads=null``); None: all.
        """
        env = {} if threads is None else {CORES: str(threads)}
        request = {"call": function, "arguments": arguments, "argv": argv, "cwd": str(cwd)}
        return self.submit_request({**request, "log": str(log), "env": env})

    def submit_request(self, request: dict[str, Any]) -> Job:
        """Submit a request to the fork server; see ``submit``."""
        job = Job(self._count, request)
        self._count += 1
        self.queue.append(job)
        self._fill()
        return job

    def wait_any(self, timeout: float) -> list[Job]:
        """Return the jobs that ended since the last call.

        Waits for the first, at most ``timeout`` seconds. Returns [] if none ended or none is
        running.
        """
        deadline = time.monotonic() + timeout
        while not self._ended and self.running:
            if not self._receive(max(0.0, deadline - time.monotonic())):
                break
        ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job, number: int = signal.SIGTERM) -> None:
        """Ask a job to save and end (SIGTERM: at most once), or send it another signal.

        A waiting job is dropped (its code stays None).
        """
        if job in self.queue:
            self.queue.remove(job)
        elif job.num in self.running:
            self._send(job=job.num, signal=int(number))

    def stop_all(self) -> None:
        """Drop the waiting jobs and ask the running ones to save and end.

        A later signal kills them and ends this process at once.
        """
        self.queue.clear()
        self._kill_on_signals()
        time.sleep(SETTLE_SECONDS)
        for job in [*self.running.values()]:
            self.stop(job)

    def close(self) -> None:
        """Stop running jobs and end the server."""
        self.queue.clear()
        server, self._server = self._server, None
        if server is None:
            return
        assert server.stdin is not None
        assert server.stdout is not None
        if self.running:
            self._kill_on_signals()
            time.sleep(SETTLE_SECONDS)
        with suppress(BrokenPipeError):
            server.stdin.close()  # makes the server ask its jobs to save and end
        try:
            server.wait(None if self.running else 10)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._kill(self.running.values())
            server.kill()
            server.wait()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()
        server.stdout.close()

    def _kill_on_signals(self) -> None:
        """Let signals kill the jobs and end this process, until the pool is closed."""
        with suppress(ValueError):  # outside the main thread Python refuses handlers
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers.setdefault(number, signal.signal(number, self._signalled))

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._kill(self.running.values())
        if not self.own_process:
            raise KeyboardInterrupt
        os._exit(128 + number)

    def _start_server(self) -> None:
        call = _server_call(os.environ if self._env is None else self._env)
        self._buffer, self._has_replied = b"", False
        if _begun and _begun[0][0][0] == call[0] and _begun[0][0][1].keys() <= call[1].keys():
            (_, earlier), self._server = _begun.pop()
            self._later = {name: x for name, x in call[1].items() if x != earlier.get(name)}
        else:
            end_server()
            self._server, self._later = _server(call), {}

    def _fill(self) -> None:
        while self.queue and len(self.running) < self.workers:
            job = self.queue.popleft()
            self.running[job.num] = job
            variables = {"env": self._later | job.request.get("env", {})}
            self._send(job=job.num, **job.request | variables)

    def _send(self, **request: Any) -> None:
        if self._server is None:
            self._start_server()
        assert self._server is not None
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):  # the server has died, which ``_receive`` finds
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()

    def _receive(self, timeout: float) -> bool:
        """Read replies, waiting at most ``timeout`` seconds for one. Return False if none came."""
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
        job, self._has_replied = self.running[reply["job"]], True
        if "pid" in reply:
            job.pid, job.started = reply["pid"], time.monotonic()
        if "code" in reply:
            self._end(job, reply["code"])

    def _end(self, job: Job, code: int) -> None:
        self.running.pop(job.num, None)
        job.code = code
        job.seconds = None if job.started is None else time.monotonic() - job.started
        self._ended.append(job)

    def _bury_server(self) -> None:
        """End the jobs of a server that was killed. Jobs it has not started go to another one.

        Raises: ResourceError if it ended before it answered.
        """
        assert self._server is not None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        code = self._server.wait()
        self._server.stdout.close()
        with suppress(BrokenPipeError):
            self._server.stdin.close()
        lost, self._server = [job for job in self.running.values() if job.pid is not None], None
        self.queue.extendleft(job for job in [*self.running.values()][::-1] if job.pid is None)
        self.running.clear()
        if not self._has_replied:
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


_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the whole cores by affinity and cgroup quota, at least 1."""
    share = cgroup_quota()
    return affinity() if share is None else max(1, min(affinity(), int(share)))


def affinity() -> int:
    """Return the cores on which the scheduler may run this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path = _CGROUP) -> float | None:
    """Return the cores' worth of time of the cgroup at ``root`` (version 2 or 1); None: all."""
    text = _read(root / "cpu.max") or " ".join(
        _read(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    match = re.fullmatch(r"\s*(\d+)\s+(\d+)\s*", text)  # "max" and -1: no limit
    return int(match[1]) / int(match[2]) if match and int(match[2]) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
