"""The fork server: a process that has imported torch, from which jobs are forked.

Importing torch and rlrun takes seconds, a fork milliseconds. The server has one thread and starts
none, so that a child finds no lock held. It does not know about sweeps. ``Pool`` starts it as a
process and exchanges JSON lines with it.

Requests: ``{"job": 3, "call": "rlrun.cli.main:main", "arguments": [["seed=3"]], "argv": [...],
"cwd": "/x", "log": "/x/console.txt", "env": {}}`` starts a job, ``{"job": 3, "signal": 2}`` sends a
signal. Replies: ``{"job": 3, "pid": 123}`` and ``{"job": 3, "code": 0}``. At the end of its input
the server asks its jobs to save, waits for them and ends.

SIGTERM asks a job to save; a second one ends it at once. A signal that a cluster or a user sends to
all processes reaches the job both directly and through the sweep. So the server sends ``ASK``
instead of SIGTERM: the job takes it as SIGTERM unless it is stopping already. The kernel also sends
it if the server itself is killed.
"""

import atexit
import ctypes
import gc
import io
import json
import os
import platform
import selectors
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

from rlrun.errors import ResourceError
from rlrun.jit import build_tables
from rlrun.pipeline.forkserver import SIGNALS
from rlrun.pipeline.stop import StopRequest
from rlrun.run.loading import begin_loading_torch
from rlrun.version import begin_git_state, git_state

_BEFORE = "decimal", "mmap", "queue", "safetensors", "sqlite3", "unicodedata"  # see run/loading.py
_PRELOAD = (
    *("rlrun.config", "rlrun.run.start", "rlrun.run.evaluate"),
    *("rlrun.log.tensorboard", "rlrun.log.loggers", "rlrun.reports.runs"),
    *("rlrun.dataset", "rlrun.env.classic", "rlrun.env.diagnostic.memory"),
    *("rlrun.video.files", "PIL.ImageDraw", "PIL.ImageFont", "PIL.ImageSequence"),
    # these import what all others need
    *(f"rlrun.policy.{name}" for name in ("r2d2", "dqn", "ppo", "sac")),
    *(f"rlrun.kernels.{name}" for name in ("r2d2", "rollouts", "sac_td3")),
)
ASK = signal.SIGUSR2  # asks a job to save and end, however often it is sent
_BUG = 9
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class Server:
    """Forks jobs and reports their ends until its input ends."""

    def __init__(self, requests: int, replies: int) -> None:
        """``requests``, ``replies``: file descriptors."""
        self._requests, self._replies = requests, replies
        self._jobs: dict[int, int] = {}  # process id -> number of the job
        self._buffer = b""
        self._handlers: dict[int, Any] = {}
        self._own = [requests, replies]  # file descriptors closed in jobs

    def serve(self) -> None:
        """Serve until the input and all jobs have ended.

        Stop signals are ignored, because jobs get theirs from the pool.
        """
        self._handlers = {n: signal.signal(n, signal.SIG_IGN) for n in SIGNALS}
        waker, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        selector = selectors.SelectSelector()
        self._own += [waker, woken]
        selector.register(self._requests, selectors.EVENT_READ)
        selector.register(waker, selectors.EVENT_READ)
        is_open = True
        while is_open or self._jobs:
            for key, _ in selector.select():
                if key.fd == waker:
                    with suppress(BlockingIOError):
                        os.read(waker, 4096)
                elif not self._read():
                    is_open = False
                    selector.unregister(self._requests)
                    for job in [*self._jobs.values()]:
                        self._send(job, signal.SIGTERM)
            self._reap()

    def _read(self) -> bool:
        """Read and answer requests. Return False at the end of the input."""
        content = os.read(self._requests, 1 << 20)
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "signal" in request:
                self._send(request["job"], request["signal"])
            else:
                self._start(request)
        return bool(content)

    def _start(self, request: dict[str, Any]) -> None:
        ready, set_up = os.pipe()
        pid = _fork()
        if pid == 0:
            os.close(ready)
            self._become_job(request, set_up)
        os.close(set_up)
        os.read(ready, 1)  # from now on signals reach the job
        os.close(ready)
        if pid is None:
            self._reply(job=request["job"], code=ResourceError.exit_code)
            return
        self._jobs[pid] = request["job"]
        self._reply(job=request["job"], pid=pid)

    def _send(self, job: int, number: int) -> None:
        """Send a signal to a running job, SIGKILL to all processes of its session."""
        number = ASK if number == signal.SIGTERM else number
        for pid, running in self._jobs.items():
            if running == job:
                with suppress(ProcessLookupError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)

    def _reap(self) -> None:
        while self._jobs:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._jobs:
                code = os.waitstatus_to_exitcode(status)
                self._reply(job=self._jobs.pop(pid), code=code)

    def _reply(self, **fields: Any) -> None:
        with suppress(BrokenPipeError):  # the pool has ended, so the jobs end, too
            content = memoryview(json.dumps(fields).encode() + b"\n")
            while content:
                content = content[os.write(self._replies, content) :]

    def _become_job(self, request: dict[str, Any], set_up: int) -> NoReturn:
        code = _BUG
        try:
            os.setsid()  # Ctrl-C reaches the sweep only
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.signal(ASK, _stop_once)
            _signal_when_parent_dies(ASK)
            os.environ.update(request.get("env", {}))
            for handle in (*self._own, set_up):
                os.close(handle)
            os.chdir(request["cwd"])
            _redirect(request["log"])
            sys.argv[:] = request["argv"]
            code = int(call(request["call"])(*request["arguments"]))
        except BaseException as e:  # including SystemExit of other code: the job ends here
            code = _code_of(e)
        finally:
            for number in (*SIGNALS, ASK):  # all is written: signals would change the exit code
                signal.signal(number, signal.SIG_IGN)
            atexit._run_exitfuncs()  # multiprocessing's: worker processes and their sockets
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)


def _stop_once(number: int, frame: FrameType | None) -> None:
    """Pass ``ASK`` on as SIGTERM, unless the run has been asked to stop."""
    request = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not (isinstance(request, StopRequest) and request.since is not None):
        signal.raise_signal(signal.SIGTERM)


def _signal_when_parent_dies(number: int) -> None:
    """Let the kernel send a signal to this process when its parent dies; 0: none (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def _fork() -> int | None:
    """Return ``os.fork()``, or None if no memory or no process is left."""
    try:
        return os.fork()
    except OSError as e:
        print(f"rlrun: a job cannot be started: {e.strerror or e}", file=sys.stderr, flush=True)
        return None


def _redirect(log: str) -> None:
    """Make stdin empty and append stdout and stderr to the file ``log``."""
    empty = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    for source, targets in ((empty, (0,)), (out, (1, 2))):
        for target in targets:
            os.dup2(source, target)
        os.close(source)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)


def _code_of(e: BaseException) -> int:
    if isinstance(e, KeyboardInterrupt):
        return 130
    if isinstance(e, SystemExit):
        if not isinstance(e.code, int | None):
            print(e.code, file=sys.stderr)
        return e.code & 255 if isinstance(e.code, int) else int(e.code is not None)
    with suppress(OSError, ValueError):
        traceback.print_exception(e)
    return _BUG


def call(name: str) -> Callable[..., Any]:
    """Return the function ``package.module:function``."""
    module, _, function = name.partition(":")
    target: Callable[..., Any] = getattr(import_module(module), function)
    return target


def preload() -> None:
    """Import the modules that jobs need. No thread is left."""
    gc.disable()
    begin_git_state()
    for name in _BEFORE:
        import_module(name)
    loading = begin_loading_torch()
    import_module("rlrun.cli.sweep")
    if loading is not None:
        loading.join()
    import torch

    torch.set_num_threads(1)
    for name in _PRELOAD:
        import_module(name)
    import_module("PIL.Image").preinit()  # plugins that the first picture imports
    import_module("rlrun.config").Composer()  # Hydra's plugins
    build_tables()
    import_module("rlrun.log.event_records").crc32c(b"")  # builds tables
    git_state()  # the jobs' is that of the code which is imported here
    platform.platform()
    registry: Any = weakref.finalize
    for finalizer in [*registry._registry]:  # torch's and numba's, 40 ms at the end of every job
        finalizer.atexit = False
    gc.freeze()  # a collection in a job would copy all pages of what was imported
    gc.enable()


def main(argv: Sequence[str]) -> None:
    """Run the server, then exit: the main function of its process.

    stdin and stdout belong to the pool.
    """
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of imports must not be read as replies
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # Ray's workers inherit a blocked SIGINT
    os.set_inheritable(requests, False)
    os.set_inheritable(replies, False)
    if argv[2:]:  # begun by this parent while it composes a sweep, which a signal may end
        _signal_when_parent_dies(signal.SIGKILL)
        if os.getppid() != int(argv[2]):
            return
    preload()
    _signal_when_parent_dies(0)
    Server(requests, replies).serve()
    os._exit(0)  # nothing is left to do; taking apart what was imported takes 0.12 s
