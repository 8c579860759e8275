"""A pool of job processes on the nodes of Ray; the same interface as ``Pool``. Torch-free."""

import os
import signal
import sys
import time
from collections import Counter, deque
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rlrun.errors import ResourceError
from rlrun.pipeline.forkserver import SIGNALS
from rlrun.run.files import CONFIG
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.fork_server import ASK
from rlrun.sweeps.pool import MAIN, SETTLE_SECONDS, Job, make_request
from rlrun.sweeps.ray_connection import (
    connect,
    is_running,
    note_lost,
    quiet_driver,
    require_room,
    same_handlers,
)
from rlrun.sweeps.ray_host import End
from rlrun.sweeps.ray_slot import RaySlot

if TYPE_CHECKING:
    from rlrun.pipeline.ray.cluster import Cluster

POLL_SECONDS = 0.25
MOST_PLACING = 64  # actors that wait for resources at a time; each takes memory of the head
KILL_SECONDS = 3.0  # that killed jobs have to end before the sweep does
_LOST = "its worker or node was lost"
_KILLED = "its process was killed"


class RayPool:
    """Runs jobs at most ``workers`` at a time, None: as many as the resources of Ray hold.

    Each job is a process that an actor starts on its node (``JobHost``). An actor reserves what
    ``settings`` say and takes one job after another. A job whose node, actor or process was lost
    (SIGKILL) is begun again at most ``settings.retries`` times, from its checkpoint where it has
    one; then its code is -9. Signals and the end of the block are as in ``Pool``.
    """

    def __init__(
        self,
        settings: RayLauncherConfig,
        workers: int | None,
        threads: int | None,
        *,
        own_process: bool = True,
    ) -> None:
        """``threads``, ``own_process``: as in ``Pool``."""
        self.settings, self.workers, self.threads = settings, workers, threads
        self.own_process = own_process
        self.queue: deque[Job] = deque()
        self.running: dict[int, Job] = {}
        self._cluster: Cluster | None = None
        self._quiet = ExitStack()
        self._slots: list[RaySlot] = []
        self._ended: list[Job] = []
        self._count = 0
        self._lost: Counter[int] = Counter()  # number of a job -> times that it was lost
        self._stopped: dict[int, int] = {}  # number of a job -> the signal that it was sent
        self._closing = False
        self._failed = 0  # actors in a row that could not be placed
        self._kill: int | None = None  # the signal to kill all jobs and end
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with same_handlers():
            self._cluster = connect(self.settings, self.workers)
        self._quiet.enter_context(quiet_driver())
        try:
            require_room(self.settings)
        except BaseException:
            self._disconnect()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, argv: list[str], cwd: Path, log: Path) -> Job:
        """As in ``Pool``."""
        return self.submit_call(MAIN, [argv], ["rlrun", *argv], cwd, log)

    def submit_call(
        self,
        function: str,
        arguments: list[Any],
        argv: list[str],
        cwd: Path,
        log: Path,
        threads: int | None = None,
    ) -> Job:
        """As in ``Pool``."""
        threads = self.threads if threads is None else threads
        job = Job(self._count, make_request(function, arguments, argv, cwd, log, threads))
        self._count += 1
        self.queue.append(job)
        self._fill()
        return job

    def wait_any(self, timeout: float | None = None) -> list[Job]:
        """As in ``Pool``. Raises: ResourceError when the head of the cluster is lost."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended and (self.running or self.queue):
            self._check()
            left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
            self._advance(max(0.0, min(left, POLL_SECONDS)))
            if left <= 0:
                break
        ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job, number: int = signal.SIGTERM) -> None:
        """As in ``Pool``."""
        if job in self.queue:
            self.queue.remove(job)
            return
        self._stopped[job.num] = int(number)
        for slot in self._slots:
            if slot.job is job:
                slot.signal(number)

    def stop_all(self) -> None:
        """As in ``Pool``."""
        self._drop_waiting()
        self._closing = True
        self._kill_on_signals()
        time.sleep(SETTLE_SECONDS)
        for job in [*self.running.values()]:
            self.stop(job)

    def close(self) -> None:
        """Stop what runs; end the actors, and a Ray of our own."""
        if self._cluster is None:
            return
        try:
            if self.running and not self._closing:
                self.stop_all()
            self._closing = True
            self._drop_waiting()
            while self.running:
                self._check()
                self._advance(POLL_SECONDS)
        finally:
            self._disconnect()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()

    def _disconnect(self) -> None:
        cluster, self._cluster = self._cluster, None
        assert cluster is not None
        if not cluster.lost:
            for slot in [*self._slots]:
                self._release(slot)
        self._slots.clear()
        cluster.close()
        self._quiet.close()

    def _drop_waiting(self) -> None:
        """Drop the jobs that wait, and the actors that wait for a node."""
        self.queue.clear()
        for slot in [s for s in self._slots if s.state == "placing"]:
            self._release(slot)

    def _release(self, slot: RaySlot) -> None:
        self._slots.remove(slot)
        if self._cluster is None or not self._cluster.lost:  # else the call would wait for the head
            slot.end()

    def _fill(self) -> None:
        """Give waiting jobs to idle actors; make as many actors as jobs may run."""
        for slot in [s for s in self._slots if s.state == "idle"]:
            if self.queue:
                job = self.queue.popleft()
                self.running[job.num] = job
                slot.start(job, again=self._lost[job.num] > 0)
            elif not self._is_own:  # others may want the resources
                self._release(slot)
        placing = sum(slot.state == "placing" for slot in self._slots)
        wanted = len(self.running) + len(self.queue)
        most = wanted if self.workers is None else min(self.workers, wanted)
        for _ in range(min(most - len(self._slots), MOST_PLACING - placing)):
            self._slots.append(RaySlot(self.settings, [*sys.path] if self._is_own else None))

    @property
    def _is_own(self) -> bool:
        return self._cluster is not None and self._cluster.local

    def _advance(self, seconds: float) -> None:
        """Take what actors returned, waiting at most ``seconds``."""
        import ray

        self._fill()
        of = {slot.ref: slot for slot in self._slots if slot.ref is not None}
        if not of:
            time.sleep(seconds)
            return
        found, _ = ray.wait([*of], timeout=seconds)
        for ref in found:
            slot = of[ref]
            try:
                value = ray.get(ref)
            except ray.exceptions.RayTaskError:
                raise  # a bug of ours
            except ray.exceptions.RayError as e:
                self._lose(slot, e)
            else:
                self._note(slot, value)
        self._fill()

    def _note(self, slot: RaySlot, value: Any) -> None:
        """Take the answer of an actor to its last call."""
        if slot.state == "placing":
            self._failed = 0
            slot.rest()
            return
        assert slot.job is not None
        job, end = slot.job, value
        if slot.state == "starting":
            job.pid, end = value
            if job.pid is not None:
                job.started = time.monotonic() if job.started is None else job.started
                slot.wait()
                return
        slot.rest()
        self._end(job, end)

    def _end(self, job: Job, end: End) -> None:
        code, line = end
        if line:
            job.note(f"rlrun: error: {line}")
        if code == -signal.SIGKILL and job.num not in self._stopped:
            self._begin_again(job, _KILLED)
        else:
            self._finish(job, code)

    def _lose(self, slot: RaySlot, e: Exception) -> None:
        """Give up an actor that died; its job is begun again."""
        self._release(slot)
        if slot.job is None:
            self._failed += 1
            if self._failed > self.settings.retries:
                text = " ".join(str(e).split())[:300]
                raise ResourceError(
                    f"hydra/launcher = ray: no worker can be started ({text}); nodes with the same "
                    "rlrun, Ray and Python are needed; see Ray's logs, or use hydra/launcher=local"
                ) from e
        elif slot.job.num in self._stopped:
            self._finish(slot.job, -self._stopped[slot.job.num])
        else:
            self._begin_again(slot.job, _LOST)

    def _begin_again(self, job: Job, why: str) -> None:
        """Let a job that was lost go on from its checkpoint, or end it with -9."""
        self._lost[job.num] += 1
        times, most = self._lost[job.num], self.settings.retries
        if times > most:
            job.why = f"{why} ({times} times; hydra.launcher.retries = {most})"
            self._finish(job, -signal.SIGKILL)
            return
        job.note(f"rlrun: {why}; it is begun again ({times} of {most} retries)")
        del self.running[job.num]
        job.pid = None
        run_dir, words = job.log.parent, job.request["arguments"]
        is_resume = job.request["call"] == MAIN and words[0][:1] == ["resume"]
        if (run_dir / CONFIG).is_file() and not is_resume:
            job.request.update(call=MAIN, arguments=[["resume", str(run_dir)]])
        self.queue.appendleft(job)

    def _finish(self, job: Job, code: int) -> None:
        del self.running[job.num]
        job.code = code
        job.seconds = None if job.started is None else time.monotonic() - job.started
        self._ended.append(job)

    def _kill_on_signals(self) -> None:
        """Let signals kill the jobs and end this process, until the pool is closed."""

        def end(number: int, frame: FrameType | None) -> None:
            if self._kill is not None and self.own_process:
                os._exit(130 if number == signal.SIGINT else 128 + number)
            self._kill = number  # calls of Ray do not belong into a handler

        with suppress(ValueError):  # outside the main thread Python refuses handlers
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers.setdefault(number, signal.signal(number, end))

    def _check(self) -> None:
        """Kill all jobs and end, after a second signal; end jobs whose cluster is lost.

        Raises: ResourceError when it is lost, unless the jobs are to stop anyway.
        """
        assert self._cluster is not None
        if self._kill is not None:
            self._kill_jobs()
            if not self.own_process:
                raise KeyboardInterrupt
            self._disconnect()
            os._exit(130 if self._kill == signal.SIGINT else 128 + self._kill)
        if not self._cluster.lost:
            return
        note_lost()
        if self._is_own:  # their workers may live on for a while
            self._signal_processes(ASK)
            while any(is_running(job.pid) for job in self.running.values()) and self._kill is None:
                time.sleep(POLL_SECONDS)
            if self._kill is not None:
                self._check()
        was_closing, self._closing = self._closing, True
        for job in [*self.running.values()]:
            self._finish(job, -signal.SIGTERM)
        self._drop_waiting()
        if not was_closing:
            raise ResourceError(
                f"hydra/launcher = ray: {self._cluster.lost}; jobs whose worker is lost save and "
                "end; a cluster that runs is needed"
            )

    def _signal_processes(self, number: int) -> None:
        """Send a signal to the jobs of this machine, without Ray."""
        for job in self.running.values():
            if job.pid is not None and is_running(job.pid):
                with suppress(ProcessLookupError, PermissionError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(job.pid, number)

    def _kill_jobs(self) -> None:
        import ray

        assert self._cluster is not None
        if self._is_own:
            self._signal_processes(signal.SIGKILL)
        elif not self._cluster.lost:
            slots = [slot for slot in self._slots if slot.job is not None]
            for slot in slots:
                slot.signal(signal.SIGKILL)
            refs = [slot.ref for slot in slots]
            ray.wait(refs, num_returns=len(refs), timeout=KILL_SECONDS) if refs else None
