"""A pool of job processes on the nodes of Ray; the same interface as ``Pool``. Torch-free.

``connect``: a cluster, or a Ray of our own. ``JobHost``: the actor that runs the jobs on a node;
it imports no Ray. Its jobs are processes of their own, forked by a ``Pool``: what ends one of them
does not end the actor. When the actor is killed, the pool's fork server asks its job to save and
end, as it does when a sweep on one machine was killed. ``RaySlot``: such an actor, as ``RayPool``
sees it.
"""

import os
import platform
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Self

from rlrun.config.ray import no_cluster, require_head
from rlrun.errors import Interrupted, LockedError, ResourceError, RlrunError, StorageError
from rlrun.pipeline.forkserver import SIGNALS
from rlrun.run.files import CONFIG, lock_run_dir
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.fork_server import ASK
from rlrun.sweeps.pool import CORES, MAIN, SETTLE_SECONDS, Job, Pool, make_request

if TYPE_CHECKING:
    from rlrun.pipeline.ray.cluster import Cluster


is_lost = False  # whether the head of a cluster of this process was lost


@contextmanager
def same_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, which ``ray.init`` replaces by one that exits.

    Raises: Interrupted for a SIGTERM within the block.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as e:
        error = Interrupted("interrupted while Ray was starting")
        error.exit_code = 75
        raise error from e
    finally:
        with suppress(ValueError):  # outside the main thread Python refuses handlers
            signal.signal(signal.SIGTERM, before)


def connect(settings: RayLauncherConfig, workers: int | None) -> "Cluster":
    """Connect to the cluster of ``settings``, or start a Ray on this machine.

    Raises: ResourceError.
    """
    from rlrun.pipeline.ray.cluster import Cluster

    address = settings.address
    cpus = settings.num_cpus * (workers or 1) if address is None else 0.0
    require_head(address, "hydra.launcher.address")
    try:
        return Cluster(address, cpus=cpus, gpus=0, custom={})
    except ResourceError as e:
        text = " ".join(f"{type(e.__cause__).__name__}: {e.__cause__}".split())[:300]
        if address is None:
            raise ResourceError(
                f"hydra/launcher = ray: Ray did not start ({text}); it needs free memory, /dev/shm "
                "or /tmp; hydra/launcher=local runs without it"
            ) from e
        raise no_cluster("hydra.launcher.address", address, text) from e


@contextmanager
def quiet_driver() -> Iterator[None]:
    """Keep Ray from printing lost workers into the table of a sweep; its jobs' output has them."""
    import ray._private.worker as driver

    before = driver.print_to_stdstream
    driver.print_to_stdstream = lambda *given, **named: None
    try:
        yield
    finally:
        driver.print_to_stdstream = before


def note_lost() -> None:
    """Note that Ray cannot be shut down in this process any more."""
    global is_lost
    is_lost = True


def require_room(settings: RayLauncherConfig) -> None:
    """Raise ResourceError when no node has what a job reserves."""
    import ray

    found = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in found if node["Alive"]]
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
    """Return whether a process of this machine runs."""
    import psutil

    try:
        return pid is not None and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


HOST_POLL_SECONDS = 0.1
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
                self._pool.wait_any(HOST_POLL_SECONDS)
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
                self._pool.wait_any(HOST_POLL_SECONDS)
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
                time.sleep(HOST_POLL_SECONDS)
            except StorageError:
                break  # the job will say so
        return True


class RaySlot:
    """An actor, its job, and ``ref``: the call whose answer is awaited, None while idle."""

    def __init__(self, settings: RayLauncherConfig, path: list[str] | None) -> None:
        """``path``: as of ``JobHost``. The actor waits until a node has what it reserves."""
        import ray

        options: dict[str, Any] = {
            "num_cpus": settings.num_cpus,
            "num_gpus": settings.num_gpus,
            "resources": dict(settings.resources),
            "max_restarts": 0,
            "max_concurrency": 4,  # a signal passes a call that waits
        }
        make: Any = ray.remote(JobHost)
        self._actor = make.options(**options).remote(path, command_environment())
        self.state: Literal["placing", "idle", "starting", "running"] = "placing"
        self.job: Job | None = None
        self.ref: Any = self._actor.node.remote()

    def start(self, job: Job, *, again: bool) -> None:
        """Begin to start a job. ``again``: an earlier process of it may still be saving."""
        self.job, self.state = job, "starting"
        self.ref = self._actor.start.remote(job.num, job.request, again)

    def wait(self) -> None:
        """Begin to wait for the end of the job."""
        assert self.job is not None
        self.state, self.ref = "running", self._actor.wait.remote()

    def rest(self) -> None:
        """Note that the actor has no job."""
        self.state, self.ref, self.job = "idle", None, None

    def signal(self, number: int) -> None:
        """Send a signal to the job."""
        assert self.job is not None
        self._actor.signal.remote(self.job.num, int(number))

    def end(self) -> None:
        """End the actor, whose resources are free then."""
        import ray

        with suppress(Exception):  # it, or its node, may be gone
            ray.kill(self._actor)


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
