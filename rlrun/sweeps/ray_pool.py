"""A pool of job processes on the nodes of Ray, with the interface of ``Pool``. Torch-free.

``JobActor`` is the actor that runs one job on a node. It does not import Ray. The job is a process
forked by a ``Pool``, so its end does not end the actor. When the actor is killed, the pool's fork
server asks its job to save and end, as when a sweep on one machine is killed.
"""

import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rlrun.config.ray import require_head
from rlrun.errors import LockedError, ResourceError, RlrunError, StorageError
from rlrun.run.files import CONFIG, lock_run_dir
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.fork_server import ASK
from rlrun.sweeps.pool import MAIN, Job, Pool

if TYPE_CHECKING:
    from rlrun.pipeline.ray.cluster import Cluster


is_lost = False  # a cluster's head was lost, so Ray cannot be shut down in this process


def require_room(settings: RayLauncherConfig) -> None:
    """Raise ResourceError if no node has the resources that a job reserves."""
    import ray

    all_nodes = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in all_nodes if node["Alive"]]
    need = settings.reserved
    if any(all(node.get(n, 0.0) + 1e-9 >= x for n, x in need.items()) for node in nodes):
        return
    largest = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in need}
    name = next((n for n, x in need.items() if x > largest[n] + 1e-9), "CPU")
    keys = {"CPU": "num_cpus", "GPU": "num_gpus"}
    raise ResourceError(
        f"hydra.launcher.{keys.get(name, f'resources.{name}')} = {need[name]:g}: no node has what "
        f"a job reserves; the largest has {largest[name]:g} {name}; reserve less, or add a node"
    )


def is_running(pid: int | None) -> bool:
    """Return whether a process of this machine is running."""
    import psutil

    try:
        return pid is not None and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


POLL_SECONDS = 0.25
HOST_POLL_SECONDS = 0.1
LOCK_SECONDS = 120.0  # for a lost process of a job to save and end before the next begins
KILL_SECONDS = 3.0  # for killed jobs to end before the sweep does
MOST_PLACING = 64  # most actors waiting for resources; each uses memory of the head
_OF_THE_COMMAND = ("RLRUN_", "OMP_NUM_THREADS")  # variables copied from the sweep's machine
_OF_RAY = ("RAY_AUTH_", "RAY_ADDRESS")  # the only variables of Ray that a job keeps

End = tuple[int, str]  # exit code, and a line on it that the job could not write


def command_environment() -> dict[str, str]:
    """Return the environment variables of the sweep's process that jobs get on every node."""
    return {name: v for name, v in os.environ.items() if name.startswith(_OF_THE_COMMAND)}


def job_environment(worker: Mapping[str, str], command: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a Ray worker without Ray's own, and those of the command."""
    added = ("RAY_", *_OF_THE_COMMAND)
    kept = {n: v for n, v in worker.items() if n.startswith(_OF_RAY) or not n.startswith(added)}
    return {**kept, **command}


class JobActor:
    """Runs a job. Ray calls its methods in several threads."""

    def __init__(self, path: list[str] | None, command: dict[str, str]) -> None:
        """``path``: sys.path of the sweep's process if that is on this machine.

        ``command``: from ``command_environment``.
        """
        if path is not None:
            sys.path[:] = path
        self._pool = Pool(1, env=job_environment(os.environ, command))
        self._pool.__enter__()  # imports the modules of jobs meanwhile
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._job: Job | None = None

    def ready(self) -> None:
        """Return once the actor exists."""

    def start(self, request: dict[str, Any], again: bool) -> tuple[int | None, End]:
        """Start the job. Return its process id, or None and how it ended.

        ``again``: an earlier process of it may still be saving.
        """
        for name in (str(Path(request["log"]).parent), request["cwd"]):
            if not os.path.isdir(name):
                wrong = f"{name}: no such directory on the node {platform.node()}"
                allowed = "directories on a file system that all nodes share are allowed"
                return None, (StorageError.exit_code, f"{wrong}; {allowed}; use sweep.dir=PATH")
        if again and not self._wait_for_lock(Path(request["log"]).parent):
            return None, (-signal.SIGTERM, "")
        try:
            self._job = self._pool.submit_request(request)
            while self._job.pid is None and self._job.code is None:
                self._pool.wait_any(HOST_POLL_SECONDS)
        except RlrunError as e:
            return None, (e.exit_code, str(e))
        return self._job.pid, (0, "")

    def wait(self) -> End:
        """Wait for the end of the job."""
        assert self._job is not None
        try:
            while self._job.code is None:
                for number in self._received():
                    self._pool.stop(self._job, number)
                self._pool.wait_any(HOST_POLL_SECONDS)
        except RlrunError as e:
            return e.exit_code, str(e)
        return self._job.code, ""

    def signal(self, number: int) -> None:
        """Send a signal to the job."""
        self._signals.put(number)

    def _received(self) -> list[int]:
        """Return the signals since the last call."""
        return [self._signals.get() for _ in range(self._signals.qsize())]

    def _wait_for_lock(self, run_dir: Path) -> bool:
        """Wait until no process uses the directory. Return False if the job is to stop."""
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            if self._received():
                return False
            try:
                with lock_run_dir(run_dir):
                    return True
            except LockedError:
                time.sleep(HOST_POLL_SECONDS)
            except StorageError:
                break  # the job will report it
        return True


@dataclass(slots=True, eq=False)
class Slot:
    """An actor, the call whose answer is awaited, and its job; None: it waits for a node."""

    actor: Any
    reply: Any
    job: Job | None = None
    is_started: bool = False


class RayPool(Pool):
    """Runs at most ``workers`` jobs at a time; None: as many as Ray's resources allow.

    Each job is a process that its own actor starts on a node. The actor reserves the resources of
    ``settings``. A job whose node, actor or process was lost (SIGKILL) is restarted at most
    ``settings.retries`` times, from its checkpoint if it has one. After that its code is -9.
    """

    def __init__(
        self, settings: RayLauncherConfig, workers: int | None, *, own_process: bool = True
    ) -> None:
        super().__init__(workers or sys.maxsize, own_process=own_process)
        self.settings, self.most = settings, workers
        self._cluster: Cluster | None = None
        self._slots: list[Slot] = []
        self._lost: Counter[int] = Counter()  # number of a job -> how often it was lost
        self._stopped: dict[int, int] = {}  # number of a job -> signal sent to it
        self._failed = 0  # successive actors that could not be placed
        self._closing = False
        self._signal: int | None = None  # the signal to kill all jobs and end

    def __enter__(self) -> Self:
        from rlrun.pipeline.ray.cluster import Cluster

        s = self.settings
        require_head(s.address, "hydra.launcher.address")
        cpus = s.num_cpus * (self.most or 1) if s.address is None else 0.0
        self._cluster = Cluster(s.address, cpus=cpus, gpus=0, custom={}, key="hydra/launcher")
        try:
            require_room(self.settings)
        except BaseException:
            self._disconnect()
            raise
        return self

    def wait_any(self, timeout: float) -> list[Job]:
        """Return the jobs that ended, as ``Pool.wait_any``.

        Raises: ResourceError if the head of the cluster is lost.
        """
        deadline = time.monotonic() + timeout
        while not self._ended and (self.running or self.queue):
            self._check()
            left = deadline - time.monotonic()
            self._advance(max(0.0, min(left, POLL_SECONDS)))
            if left <= 0:
                break
        ended, self._ended = self._ended, []
        return ended

    def stop(self, job: Job, number: int = signal.SIGTERM) -> None:
        if job in self.queue:
            self.queue.remove(job)
            return
        self._stopped[job.num] = int(number)
        for slot in self._slots:
            if slot.job is job:
                slot.actor.signal.remote(int(number))

    def stop_all(self) -> None:
        self._drop_waiting()
        self._closing = True
        super().stop_all()

    def close(self) -> None:
        """Stop running jobs, and end the actors and a Ray started here."""
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
        for slot in [*self._slots]:
            self._release(slot, alive=not cluster.lost)
        cluster.close()

    # -- actors ------------------------------------------------------------------------------------

    @property
    def _is_own(self) -> bool:
        return self._cluster is not None and self._cluster.local

    def _fill(self) -> None:
        """Make as many actors as jobs may run. They take their jobs when they have a node."""
        import ray

        wanted = min(self.workers, len(self.running) + len(self.queue))
        placing = sum(slot.job is None for slot in self._slots)
        options: dict[str, Any] = {
            "num_cpus": self.settings.num_cpus,
            "num_gpus": self.settings.num_gpus,
            "resources": dict(self.settings.resources),
            "max_restarts": 0,
            "max_concurrency": 4,  # signals must pass waiting calls
        }
        for _ in range(min(wanted - len(self._slots), MOST_PLACING - placing)):
            make: Any = ray.remote(JobActor)
            path = [*sys.path] if self._is_own else None
            actor = make.options(**options).remote(path, command_environment())
            self._slots.append(Slot(actor, actor.ready.remote()))

    def _release(self, slot: Slot, *, alive: bool = True) -> None:
        """End an actor, which frees its resources."""
        import ray

        self._slots.remove(slot)
        if alive:  # otherwise the call would wait for the head
            with suppress(Exception):  # it, or its node, may be gone
                ray.kill(slot.actor)

    def _drop_waiting(self) -> None:
        """Drop the waiting jobs, and the actors that wait for a node."""
        self.queue.clear()
        assert self._cluster is not None
        for slot in [slot for slot in self._slots if slot.job is None]:
            self._release(slot, alive=not self._cluster.lost)

    def _advance(self, seconds: float) -> None:
        """Process replies of actors, waiting at most ``seconds``."""
        import ray

        self._fill()
        of = {slot.reply: slot for slot in self._slots}
        if not of:
            time.sleep(seconds)
            return
        for reply in ray.wait([*of], num_returns=1, timeout=seconds)[0]:
            try:
                value = ray.get(reply)
            except ray.exceptions.RayTaskError:
                raise  # a bug in rlrun
            except ray.exceptions.RayError as e:
                self._lose(of[reply], e)
            else:
                self._take(of[reply], value)
        self._fill()

    def _take(self, slot: Slot, value: Any) -> None:
        """Take the answer of an actor to its last call, and make the next call."""
        if slot.job is None:
            self._failed = 0
            if not self.queue:
                self._release(slot)
                return
            job = slot.job = self.queue.popleft()
            self.running[job.num] = job
            slot.reply = slot.actor.start.remote(job.request, self._lost[job.num] > 0)
            return
        job, end = slot.job, value
        if not slot.is_started:
            job.pid, end = value
            if job.pid is not None:
                job.started = time.monotonic() if job.started is None else job.started
                slot.is_started, slot.reply = True, slot.actor.wait.remote()
                return
        self._release(slot)
        code, line = end
        if line:
            job.note(f"rlrun: error: {line}")
        if code == -signal.SIGKILL and job.num not in self._stopped:
            self._begin_again(job, "its process was killed")
        else:
            self._end(job, code)

    # -- ends --------------------------------------------------------------------------------------

    def _lose(self, slot: Slot, e: Exception) -> None:
        """Give up an actor that died, and restart its job."""
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
            self._end(slot.job, -self._stopped[slot.job.num])
        else:
            self._begin_again(slot.job, "its worker or node was lost")

    def _begin_again(self, job: Job, why: str) -> None:
        """Restart a lost job from its checkpoint, or end it with -9."""
        self._lost[job.num] += 1
        times, most = self._lost[job.num], self.settings.retries
        if times > most:
            job.why = f"{why} ({times} times; hydra.launcher.retries = {most})"
            self._end(job, -signal.SIGKILL)
            return
        job.note(f"rlrun: {why}; it is restarted ({times} of {most} retries)")
        del self.running[job.num]
        job.pid = None
        run_dir, words = job.log.parent, job.request["arguments"]
        is_resume = job.request["call"] == MAIN and words[0][:1] == ["resume"]
        if (run_dir / CONFIG).is_file() and not is_resume:
            job.request.update(call=MAIN, arguments=[["resume", str(run_dir)]])
        self.queue.appendleft(job)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and self.own_process:
            os._exit(128 + number)
        self._signal = number  # a signal handler must not call Ray

    def _check(self) -> None:
        """Kill all jobs and end after a second signal. End jobs whose cluster is lost.

        Raises: ResourceError if the cluster is lost, unless the jobs are to stop anyway.
        """
        global is_lost
        assert self._cluster is not None
        self._end_after_signal()
        if not self._cluster.lost:
            return
        is_lost = True
        if self._is_own:  # their workers may still run for a while
            self._signal_processes(ASK)
            while any(is_running(job.pid) for job in self.running.values()):
                time.sleep(POLL_SECONDS)
                self._end_after_signal()
        for job in [*self.running.values()]:
            self._end(job, -signal.SIGTERM)
        self._drop_waiting()
        if not self._closing:
            raise ResourceError(
                f"hydra/launcher = ray: {self._cluster.lost}; jobs whose worker is lost save and "
                "end; a running cluster is needed"
            )

    def _end_after_signal(self) -> None:
        """Kill all jobs and end if a signal came after the jobs were asked to stop."""
        if self._signal is None:
            return
        self._kill_jobs()
        if not self.own_process:
            raise KeyboardInterrupt
        self._disconnect()
        os._exit(128 + self._signal)

    def _signal_processes(self, number: int) -> None:
        """Send a signal to the jobs on this machine, without Ray."""
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
            for job in self.running.values():
                self.stop(job, signal.SIGKILL)
            replies = [slot.reply for slot in self._slots if slot.job is not None]
            ray.wait(replies, num_returns=len(replies), timeout=KILL_SECONDS) if replies else None
