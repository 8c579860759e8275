"""Ray actors of a run: the process of a role (``Worker``) and the driver's handle (``Role``)."""

import inspect
import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rlrun.errors import ResourceError, error_named
from rlrun.pipeline.overlapped import attempt
from rlrun.pipeline.ray.cluster import Cluster
from rlrun.policy.compute import keep_freed_memory
from rlrun.schema import RoleConfig

_logger = logging.getLogger(__name__)

LOGS = "roles"  # directory of logs in a run directory
GIVE_UP_SECONDS = 180.0  # for a lost role to answer again
STOP_SECONDS = 3.0  # the same after a signal, and for the last round
POLL_SECONDS = 0.25
MOST_LINES = 1000  # of a role's log between two replies

Reply = tuple[str | None, Any, list[str]]
"""(class of an error, the value or the error's text, lines of the log)"""


def allow_read_only() -> None:
    """Silence torch's warning about read-only arrays: messages are copied before writing."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class Worker:
    """The process of a role. Replies carry errors: one of Ray itself means a lost process."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        keep_freed_memory()
        logging.captureWarnings(True)
        allow_read_only()
        self.log = _Lines()
        text = "%s: process %d on %s"
        logging.getLogger(__name__).info(text, name, os.getpid(), os.uname().nodename)
        self.error, self.role = attempt(make)

    def call(self, method: str, *arguments: Any, **named: Any) -> Reply:
        return *self._attempt(method, *arguments, **named), self.log.take()

    def _attempt(self, method: str, *arguments: Any, **named: Any) -> tuple[str | None, Any]:
        if self.error is not None:
            return self.error, self.role
        return attempt(lambda: getattr(self.role, method)(*arguments, **named))


class AsyncWorker(Worker):
    """A process of a role whose methods may return a future of (error class, value)."""

    async def call(self, method: str, *arguments: Any, **named: Any) -> Reply:  # type: ignore[override]
        error, value = self._attempt(method, *arguments, **named)
        if inspect.isawaitable(value):
            error, value = await value
        return error, value, self.log.take()


class _Lines(logging.Handler):
    """A log handler that keeps lines until the next reply takes them to the driver."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.lines: list[str] = []
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) < MOST_LINES:
            self.lines.append(self.format(record))

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines


class Lost(Exception):
    """Raised when the process of a role, or the node with its reply, is gone."""


class Role:
    """A Ray actor. ``replace`` starts another after its process was lost."""

    def __init__(
        self,
        name: str,
        resources: RoleConfig,
        make: Callable[[], Any],
        *,
        log: Path,
        worker: type = Worker,
    ) -> None:
        """``make``: creates the role in its process; pickled. ``log``: path of its log."""
        self.name, self.make, self.log, self.worker = name, make, log, worker
        self.options = {
            "num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus,
            "resources": dict(resources.resources), "max_restarts": 0, "max_task_retries": 0,
        }  # fmt: skip
        self.restarts = 0
        self.lost_since: float | None = None  # None: it answers
        self.handle = self._place()

    def _place(self) -> Any:
        import ray

        actor: Any = ray.remote(self.worker)
        return actor.options(**self.options).remote(self.name, self.make)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the role and return the reference to its reply."""
        return self.handle.call.remote(method, *arguments, **named)

    def value(self, reply: Any) -> Any:
        """Return the value of a reply that has arrived.

        Raises: Lost, or the error that the role raised.
        """
        import ray

        try:
            error, value, lines = ray.get(reply)
        except ray.exceptions.RayError as e:
            raise self._failure(e) from e
        self.lost_since = None
        self._write_log(lines)
        if error is not None:
            raise error_named(error, value) or RuntimeError(f"in {self.name}:\n{value}")
        return value

    def _failure(self, e: Exception) -> Exception:
        """Return ``Lost`` for a lost process, RuntimeError for a bug in what was sent."""
        from ray.exceptions import RayActorError, RayError, RayTaskError

        broken = isinstance(e, RayActorError) and e.actor_init_failed
        if isinstance(e, RayTaskError):
            broken = not isinstance(e.cause, RayError) or type(e.cause) is RayError
        text = f"{type(e).__name__}: {e}"
        return RuntimeError(f"in {self.name}:\n{text}") if broken else Lost(text.split("\n")[0])

    def replace(self, why: object) -> None:
        """Start another process in place of the lost one."""
        import ray

        _logger.warning("%s was lost and is started again (%s)", self.name, str(why)[:200])
        self.restarts += 1
        self.lost_since = self.lost_since or time.monotonic()
        ray.kill(self.handle)
        self.handle = self._place()

    def require(self, stopping: float) -> None:
        """Raise ResourceError if a lost role has not answered again in time.

        ``stopping``: seconds since a stop signal; then the limit is shorter.
        """
        away = 0.0 if self.lost_since is None else time.monotonic() - self.lost_since
        limit = STOP_SECONDS if min(away, stopping) > STOP_SECONDS else GIVE_UP_SECONDS
        if away > limit:
            raise ResourceError(
                f"pipeline = ray: the {self.name} was lost and has not come back for {limit:g} s; "
                "a node with its resources is needed; add one, or see Ray's logs"
            )

    def _write_log(self, lines: Sequence[str]) -> None:
        if lines:
            self.log.parent.mkdir(exist_ok=True)
            with self.log.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)


class Member:
    """One of several collectors in the process of ``role``, with the methods of ``Role``."""

    def __init__(self, name: str, role: Role, index: int) -> None:
        """``index``: of the collector in its process (``CollectorThreads``)."""
        self.name, self.role, self.index = name, role, index
        self.handle, self.calls = role.handle, 0

    @property
    def restarts(self) -> int:
        return self.role.restarts

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the collector, after the earlier calls. Return the reply's reference."""
        self.calls += 1
        return self.handle.call.remote("call", self.index, self.calls - 1, method, *arguments)

    def value(self, reply: Any) -> Any:
        return self.role.value(reply)

    def replace(self, why: object) -> None:
        """Start another process, unless another member has."""
        if self.handle is self.role.handle:
            self.role.replace(why)
        self.handle, self.calls = self.role.handle, 0


class Roles:
    """All roles of a run on a cluster."""

    def __init__(self, cluster: Cluster, run_dir: Path) -> None:
        allow_read_only()
        self.cluster, self.directory, self.roles = cluster, run_dir / LOGS, list[Role]()
        self.stop: Callable[[], bool] = lambda: False  # whether a signal has asked to end
        self.stop_seen: float | None = None  # time when ``stop`` was first seen
        self.replies = 0  # so far, for the watchdog

    def add(
        self, name: str, resources: RoleConfig, make: Callable[[], Any], worker: type = Worker
    ) -> Role:
        log = self.directory / f"{name.replace(' ', '_')}.log"
        self.roles.append(Role(name, resources, make, log=log, worker=worker))
        return self.roles[-1]

    def wait(self, replies: Sequence[Any], seconds: float = POLL_SECONDS) -> list[Any]:
        """Return the ``replies`` that have arrived, waiting at most ``seconds`` for the first.

        Raises: ResourceError if the cluster is lost, or a role for too long.
        """
        import ray

        self.cluster.check()
        for role in self.roles:
            role.require(self.stopping())
        ready = ray.wait(list(replies), timeout=seconds)[0]
        if ready and len(replies) > 1:
            ready = ray.wait(list(replies), num_returns=len(replies), timeout=0)[0]
        self.replies += len(ready)
        return list(ready)

    def stopping(self) -> float:
        """Seconds since a stop signal, 0 before one."""
        if not self.stop():
            return 0.0
        self.stop_seen = self.stop_seen or time.monotonic()
        return time.monotonic() - self.stop_seen

    @property
    def restarts(self) -> int:
        return sum(role.restarts for role in self.roles)

    def close(self) -> None:
        """End all roles, and Ray if this run started it."""
        import ray

        if not self.cluster.lost:
            closing = [r.call("close") for r in self.roles if r.lost_since is None]
            ray.wait(closing, num_returns=len(closing), timeout=2.0) if closing else None
            for role in self.roles:
                ray.kill(role.handle)
        self.cluster.close()
