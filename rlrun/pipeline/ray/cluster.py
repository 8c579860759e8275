"""Connection to a Ray cluster, or to a Ray that the run starts on this machine.

A Ray started here listens on the loopback interface only, has no dashboard, sends no usage
statistics and requires a token. None of its processes outlives the one that started it.
"""

import atexit
import contextlib
import functools
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import psutil

from rlrun.errors import Interrupted, ResourceError, no_cluster

LOST_SECONDS = 6.0  # without an answer until the head counts as lost
ENDED_SECONDS = 3.0  # for Ray to report that its head has ended
POLL_SECONDS = 0.2
ASK_SECONDS = 1.0  # between two connections to the head
STORE_BYTES = 2**31  # most shared memory for objects, within 30 % of the memory
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # this module checks the head itself
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # roles are not background work
}
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray uses 127.0.0.1, on any system


class Cluster:
    """An open connection to Ray. ``close`` ends it, and the Ray that it started."""

    def __init__(
        self,
        address: str | None,
        *,
        cpus: float,
        gpus: float,
        custom: dict[str, Any],
        key: str = "pipeline",
    ) -> None:
        """``address``: host:port, ``auto``, or None to start Ray on this machine.

        ``cpus``, ``gpus``, ``custom``: resources that all roles together reserve. ``key``: config
        key that errors name.

        Raises: ResourceError if Ray cannot be reached or started, or lacks these resources.
        """
        self.key = key
        os.environ.update(_ENVIRONMENT)
        self.local, self.lost = address is None, ""
        self.files: Path | None = None  # private directory with the files of a Ray started here
        self._done = threading.Event()
        self._reaper: subprocess.Popen[bytes] | None = None
        before = os.environ.get(_LOOPBACK)
        if self.local and "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
            _require_running()
        if self.local:
            os.environ |= {_LOOPBACK: "0", "RAY_AUTH_MODE": "token"}
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        import ray

        self.shared = ray.is_initialized()  # in a user's process, or a test's
        if self.local and not self.shared:
            _forget_token()
        try:
            if not self.shared:
                self._connect(address, cpus, gpus, custom)
        finally:
            if self.local:  # Ray's processes have inherited it
                os.environ.pop(_LOOPBACK)
                os.environ |= {} if before is None else {_LOOPBACK: before}
        self.gcs = str(ray.get_runtime_context().gcs_address)
        self.raylet, self.head = self._daemon("raylet"), self._daemon("gcs_server")
        if not self.local or self.shared:
            self._require(cpus, gpus, custom)
        self._watch = threading.Thread(target=self._watch_head, name="ray-head", daemon=True)
        self._watch.start()

    def _connect(
        self, address: str | None, cpus: float, gpus: float, custom: dict[str, Any]
    ) -> None:
        import ray

        connected = threading.Event()
        options: dict[str, Any] = {"address": address or "local"}
        prefixes = ("RLRUN_", "OPENBLAS_NUM_THREADS")  # trust, limits: a local Ray inherits them
        environment = {name: v for name, v in os.environ.items() if name.startswith(prefixes)}
        if address is not None and environment:
            options["runtime_env"] = {"env_vars": environment}
        if address is None:
            # Sockets in it have names of at most 107 bytes: TMPDIR may be too long for them. Ray
            # makes the directory that it is given writable for everybody: that is one inside.
            self.files = Path(tempfile.mkdtemp(prefix="rlrun-ray-", dir="/tmp"))
            self._reaper = _start_reaper(self.files)
            free = int(psutil.virtual_memory().available * 0.3)
            cores = max(_whole(cpus) + 1, os.cpu_count() or 1)
            options |= {"num_cpus": cores, "include_dashboard": False}
            options |= {"_temp_dir": str(self.files / "ray")}
            options |= {"object_store_memory": max(min(free, STORE_BYTES), 80 * 2**20)}
            options |= {"num_gpus": _whole(gpus)} if gpus else {}
            options |= {"resources": {n: _whole(x) for n, x in custom.items()}} if custom else {}
            arguments = connected, sys.stderr
            threading.Thread(target=self._watch_start, args=arguments, daemon=True).start()
        try:
            with (
                open(os.devnull, "w") as null, contextlib.redirect_stderr(null),
                _own_groups(), _same_handler(),
            ):  # fmt: skip
                try:
                    ray.init(**options, log_to_driver=False, configure_logging=False)
                finally:
                    connected.set()
            _silence()
        except Interrupted:
            raise
        except Exception as e:
            text = " ".join(f"{type(e).__name__}: {e}".split())[:300]
            self._end_processes()
            if address is None:
                raise self._not_started(text) from e
            raise no_cluster(f"{self.key.replace('/', '.')}.address", address, text) from e

    def _not_started(self, text: str) -> ResourceError:
        without = "pipeline=serial" if self.key == "pipeline" else f"{self.key}=local"
        return ResourceError(
            f"{self.key} = ray: Ray did not start ({text}); it needs free memory, /dev/shm or "
            f"/tmp; {without} runs without it"
        )

    def _watch_start(self, connected: threading.Event, stderr: TextIO) -> None:
        """End this process if the head of a starting Ray ends.

        Ray waits for the head in calls that cannot be interrupted, and ends this process only after
        10 minutes.
        """
        head: psutil.Process | None = None
        while not connected.wait(POLL_SECONDS):
            head = self._daemon("gcs_server") if head is None else head
            if head is None or _runs(head) or connected.wait(ENDED_SECONDS):
                continue
            with contextlib.suppress(OSError, ValueError):
                error = self._not_started("its head, gcs_server, has ended")
                print(f"rlrun: error: {error}", file=stderr, flush=True)
            self._end_processes()
            os._exit(ResourceError.exit_code)

    def _require(self, cpus: float, gpus: float, custom: dict[str, Any]) -> None:
        """Raise ResourceError if the cluster as a whole is too small."""
        import ray

        have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        for name, need in {"CPU": cpus, "GPU": gpus, **custom}.items():
            if need > have.get(name, 0.0) + 1e-9:
                if not self.shared:
                    ray.shutdown()
                raise ResourceError(
                    f"pipeline.num_actors: the roles reserve {need:g} {name}, the cluster has "
                    f"{have.get(name, 0.0):g}; fewer collectors, or smaller num_cpus and num_gpus "
                    "of pipeline.collector, evaluator and predictor, are allowed"
                )

    def check(self) -> None:
        """Raise ResourceError if the head, or Ray on this node, is gone."""
        if self.lost:
            raise ResourceError(f"pipeline = ray: {self.lost}")

    def close(self) -> None:
        """End the connection. A Ray started here ends with all of its processes."""
        if self._done.is_set():
            return
        self._done.set()
        if self.shared:
            return
        import ray

        if self.lost:  # its shutdown would wait for the head, its destructors crash without it
            atexit.unregister(ray.shutdown)
            atexit.register(self._exit_now)
            return  # Ray ends this process once its daemons end: the reaper ends them later
        with contextlib.suppress(Exception):
            ray.shutdown()
        self._end_processes()

    def _end_processes(self) -> None:
        if self.files is not None:
            remove(self.files)
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            with contextlib.suppress(OSError):
                self._reaper.stdin.close()
            self._reaper.wait()
            self._reaper = None

    def _exit_now(self) -> None:
        """End a process whose Ray cannot be shut down. The reaper then ends Ray."""
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ResourceError.exit_code)

    def _daemon(self, name: str) -> psutil.Process | None:
        """Return a daemon of the Ray started here, or None."""
        if not self.local or self.shared:
            return None
        daemons = (p for p in psutil.Process().children() if name in p.name())
        return next(daemons, None)

    def _watch_head(self) -> None:
        """Set ``lost`` when the head does not answer, before Ray itself ends this process.

        A daemon started here is checked often: without it Ray may end this process at any call.
        """
        host, _, port = self.gcs.rpartition(":")
        since = asked = time.monotonic()
        while not self._done.wait(POLL_SECONDS):
            now = time.monotonic()
            if now - asked >= ASK_SECONDS:
                asked = now
                try:
                    socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
                    since = now
                except OSError:
                    if now - since >= LOST_SECONDS:
                        self.lost = f"the cluster's head at {self.gcs} does not answer"
            if self.head is not None and not _runs(self.head):
                self.lost = f"the cluster's head at {self.gcs} does not answer: it has ended"
            if self.raylet is not None and not _runs(self.raylet):
                self.lost = "Ray's daemon on this machine (raylet) has ended"
            if self.lost:
                return


def _whole(amount: float) -> int:
    """Round up: nodes have whole resources, but roles may reserve fractions (of 0.0001)."""
    return math.ceil(round(amount, 4))


def _require_running() -> None:
    """Raise ResourceError unless Ray runs: a Ray started now could not require a token."""
    import ray

    if not ray.is_initialized():
        raise ResourceError(
            "pipeline = ray: ray was imported before the run, and so asks for no token; one is "
            "needed; set RAY_AUTH_MODE=token before `import ray`, or remove that import"
        )


@contextlib.contextmanager
def _same_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM. ``ray.init`` replaces it by one that exits without saving.

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
        with contextlib.suppress(ValueError):  # not the main thread: Ray took no signal
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _own_groups() -> Iterator[None]:
    """Start processes in their own process groups.

    A signal to this process's group, from a terminal or a job scheduler, would otherwise end Ray's
    daemons before the run is saved.
    """
    popen: Any = subprocess.Popen
    start = popen.__init__
    popen.__init__ = functools.partialmethod(start, process_group=0)
    try:
        yield
    finally:
        popen.__init__ = start


def _forget_token() -> None:
    """Let Ray read the token of the Ray to be started, not an earlier one."""
    from ray import _raylet

    private: Any = _raylet
    with contextlib.suppress(AttributeError):  # a private part of Ray, which may change
        private.AuthenticationTokenLoader.instance().reset_cache()


def _silence() -> None:
    """Stop Ray's thread that prints which processes have died: the driver reports that."""
    from ray._private.worker import global_worker

    worker: Any = global_worker
    with contextlib.suppress(AttributeError):  # a private part of Ray, which may change
        worker.threads_stopped.set()
        worker.gcs_error_subscriber.close()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def remove(files: Path) -> None:
    """Kill every process of the Ray whose directory is ``files``, and delete the directory."""
    processes = [p for p in psutil.process_iter() if p.pid != os.getpid() and _uses(p, files)]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=5)
    shutil.rmtree(files, ignore_errors=True)


def reap(name: str) -> None:
    """End a Ray whose owner has died: the main function of the reaper process.

    It waits until the owner closes its end of stdin, by ``close`` or by dying. ``name``: directory
    of the Ray in /tmp.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    remove(Path("/tmp") / name)


def _uses(process: psutil.Process, files: Path) -> bool:
    """Return whether a process was started with the directory or has files in it open.

    The environment does not show it: Ray's processes overwrite it with their titles.
    """
    try:
        words = [*process.cmdline(), *(file.path for file in process.open_files())]
    except (psutil.Error, OSError):
        return False
    return any(str(files) in word for word in words)


def _start_reaper(files: Path) -> "subprocess.Popen[bytes]":
    """Start a process that calls ``remove`` when this one ends, in whatever way."""
    code = "import sys; sys.path[:] = sys.argv[2:]; from rlrun.pipeline.ray.cluster import reap; " \
        "reap(sys.argv[1])"  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, files.name, *sys.path],
        stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


LINK_BYTES = 2**23  # of a message that measures a link


def link_speed() -> float:
    """Measure the bytes/s from this node to another one; infinite if there is no other."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    this_node = ray.get_runtime_context().get_node_id()
    nodes: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    others = [n["NodeID"] for n in nodes if n["Alive"] and n["NodeID"] != this_node]
    if not others:
        return math.inf
    strategy = NodeAffinitySchedulingStrategy(others[0], soft=True)
    receive: Any = ray.remote(len).options(num_cpus=0, scheduling_strategy=strategy)
    ray.get(receive.remote(b""))  # starts the worker
    took = []
    for _ in range(3):
        reference = ray.put(os.urandom(LINK_BYTES))
        began = time.perf_counter()
        ray.get(receive.remote(reference))
        took.append(time.perf_counter() - began)
    return float(LINK_BYTES / sorted(took)[1])
