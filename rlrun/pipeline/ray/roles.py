"""The driver's side of the roles: their handles, and what is known of each."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.errors import ResourceError
from rlrun.pipeline.ray.cluster import Cluster
from rlrun.pipeline.ray.collecting import CollectorRole
from rlrun.pipeline.ray.evaluating import EvaluatorRole
from rlrun.pipeline.ray.learning import LearnerRole
from rlrun.pipeline.ray.messages import RoleFailure, Stored
from rlrun.pipeline.ray.predicting import PredictorRole
from rlrun.pipeline.ray.process import packed
from rlrun.pipeline.ray.pump import Lost, Pump
from rlrun.pipeline.ray.replaying import ReplayRole
from rlrun.schema import RayConfig, RoleConfig

_logger = logging.getLogger(__name__)

LOGS = "roles"  # directory of the roles' logs in a run directory
GIVE_UP_SECONDS = 180.0  # until a role that is lost ends the run
STOP_SECONDS = 3.0  # the same after a signal, and until a round that is under way is given up
RETRY_SECONDS = 0.2  # until a role that is being restarted is called again


@dataclass(slots=True)
class Role:
    """One Ray actor, which Ray restarts when its process ends."""

    name: str
    handle: Any
    restarts: int = 0  # seen by the driver
    down: bool = False  # it was lost and has not answered since
    down_since: float = 0.0  # on the clock of time.monotonic
    refill: Callable[[], None] | None = None  # loads the state of a process that was replaced


@dataclass(slots=True)
class ShardHandle(Role):
    """A replay shard and what its last reply said."""

    incarnation: int = 0
    steps: int = 0
    windows: int = 0
    mass: float = 0.0

    def update(self, found: Stored) -> None:
        """Take over what the shard says of itself."""
        self.incarnation, self.mass = found.incarnation, found.mass
        self.steps, self.windows = found.steps, found.windows


@dataclass(slots=True)
class CollectorHandle(Role):
    """A collector and its progress."""

    number: int = 0
    seq: int = 0  # of its next chunk
    state: dict[str, Any] | None = None  # after its last chunk
    sent: int = -1  # version of the weights sent last
    incarnation: int | None = None  # of the shard that stores its chunks
    since: int = 0  # seq of the first chunk for that incarnation
    busy: bool = False  # an order is under way, or it is being restarted
    goes_back: bool = False  # what is under way is of no use: ``state`` is an earlier one
    waiting: int = 0  # chunks on their way, or not taken by the loop yet
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class WeightFrames:
    """The versions of the weights that were published last, as objects of the driver."""

    keep: int
    versions: list[tuple[int, Any, bool]] = field(default_factory=list)  # version, object, coded
    count: int = 0

    def add(self, frame: Any) -> int:
        """Publish a message; return its version."""
        import ray

        self.versions.append((self.count, ray.put(frame), isinstance(frame, bytes)))
        self.versions = self.versions[-self.keep :]
        self.count += 1
        return self.count - 1

    def since(self, version: int) -> list[tuple[int, Any]]:
        """Frames for a role with that version: those after it, or the newest alone."""
        new = [v for v in self.versions if v[0] > version]
        whole = bool(new) and new[0][0] == version + 1
        if not new or (all(coded for _, _, coded in new) and whole):
            return [(v, reference) for v, reference, _ in new]
        return [(new[-1][0], new[-1][1])]

    @property
    def newest(self) -> int:
        return self.count - 1


@dataclass(slots=True)
class Makers:
    """Functions that make the parts of each role in its process; all are pickled."""

    collector: Sequence[Callable[..., Any]]
    shard: Sequence[Callable[[], Any]]
    learner: Callable[[], Any]
    evaluator: Callable[[], Any]
    predictor: Callable[[], Any]


class Roles:
    """All roles of a run, placed on the cluster."""

    stop: Callable[[], bool] = staticmethod(lambda: False)  # whether a signal has asked to end
    stop_seen: float | None = None  # when that was seen first, on the clock of time.monotonic

    def __init__(
        self,
        config: RayConfig,
        makers: Makers,
        run_dir: Path,
        *,
        cluster: Cluster,
        threads: int,
        seed: int,
        prefetch: int,
        keep: int,
        throttle: float,
    ) -> None:
        """``threads``, ``prefetch``, ``seed``: of the learner; ``keep``: versions of the weights
        that are kept; ``throttle``: bytes/s of every link, in tests; 0: none."""
        self.config, self.cluster, self.directory = config, cluster, run_dir / LOGS
        self.pump, self.frames = Pump(cluster.check), WeightFrames(keep)
        self.ready = self.closed = False  # ready: the run may begin
        c, self.run = config, secrets.token_hex(6)
        self.shards = [
            ShardHandle(name, self._place(ReplayRole, c.replay, name, make, i))
            for i, make in enumerate(makers.shard)
            if (name := f"replay {i}")
        ]
        self.predictor: Role | None = None
        if c.inference == "central":
            name = "predictor"
            self.predictor = Role(
                name, self._place(PredictorRole, c.predictor, name, makers.predictor)
            )
        acting = None if self.predictor is None else self._full("predictor")
        self.collectors = [
            CollectorHandle(
                name,
                self._place(
                    CollectorRole, c.collector, name, make, i, predictor=acting, throttle=throttle
                ),
                number=i,
            )
            for i, make in enumerate(makers.collector)
            if (name := f"collector {i}")
        ]
        name, shards = "learner", [self._full(shard.name) for shard in self.shards]
        actor = self._place(
            LearnerRole, c.learner, name, makers.learner, shards,
            threads=threads, seed=seed, prefetch=prefetch, throttle=throttle,
        )  # fmt: skip
        self.learner = Role(name, actor)
        name = "evaluator"
        self.evaluator = Role(name, self._place(EvaluatorRole, c.evaluator, name, makers.evaluator))

    def _full(self, name: str) -> str:
        """The name by which Ray knows a role of this run: a restarted role finds others by it."""
        return f"{self.run}/{name}"

    def _place(
        self, role: type, resources: RoleConfig, name: str, *arguments: Any, **given: Any
    ) -> Any:
        """Create the actor of a role on a node that has its resources."""
        import ray

        options: dict[str, Any] = {
            "num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus,
            "max_restarts": -1, "max_task_retries": 0, "name": self._full(name),
        }  # fmt: skip
        if resources.resources:
            options["resources"] = resources.resources
        given_arguments = [packed(x) if callable(x) else x for x in arguments]
        if role is PredictorRole:
            options["max_concurrency"] = 1000
        return ray.remote(role).options(**options).remote(*given_arguments, **given)

    def ask(self, role: Role, method: str, *arguments: Any) -> Any:
        """Call a method and wait; the call is repeated while the role is being restarted.

        Raises: the error that the role answers with; ResourceError where it does not come back.
        """
        began = time.monotonic()
        while True:
            found = self.pump.wait(getattr(role.handle, method).remote(*arguments))
            if not isinstance(found, Lost):
                return self.value(role, found)
            self._require_soon(role, began, found)
            self.pump.run(RETRY_SECONDS)
            if method == "load":
                self.note_lost(role, found)
            else:
                self.lost(role, found)

    def lost(self, role: Role, lost: Lost) -> None:
        """Report that a role's process has ended, and load the state of the one in its place."""
        self.note_lost(role, lost)
        if role.refill is not None:
            role.refill()

    def value(self, role: Role, found: Any) -> Any:
        """``found``, unless it is an error of the role, which is raised."""
        role.down = False
        if isinstance(found, RoleFailure):
            raise found.error(role.name)
        return found

    def note_lost(self, role: Role, lost: Lost) -> None:
        """Report that a role's process has ended, once until it answers.

        Raises: ResourceError where it has not answered for long.
        """
        if role.down:
            self._require_soon(role, role.down_since, lost)
            return
        role.down, role.down_since = True, time.monotonic()
        role.restarts += 1
        _logger.warning("%s was lost and is restarted (%s)", role.name, lost)

    def stopping(self) -> float:
        """Return the seconds since a signal has asked to end, 0: none has."""
        if not self.stop():
            return 0.0
        if self.stop_seen is None:
            self.stop_seen = time.monotonic()
        return time.monotonic() - self.stop_seen

    def _require_soon(self, role: Role, since: float, lost: Lost) -> None:
        """Raise ResourceError where a role that was lost ``since`` then has had time to come back:
        little after a signal, as nothing is saved without it."""
        away, stopping = time.monotonic() - since, self.stopping()
        limit = STOP_SECONDS if min(away, stopping) > STOP_SECONDS else GIVE_UP_SECONDS
        if away > limit:
            raise ResourceError(
                f"pipeline = ray: the {role.name} was lost and does not come back for "
                f"{limit:g} s ({lost}); a node with its resources must be there; add one, or "
                "see the logs of Ray"
            )

    def write_log(self, role: Role, lines: Sequence[str]) -> None:
        """Append what a role has logged to its file in the run directory."""
        if not lines:
            return
        self.directory.mkdir(exist_ok=True)
        path = self.directory / f"{role.name.replace(' ', '_')}.log"
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    @property
    def every(self) -> list[Role]:
        """All roles of the run."""
        predictor = [] if self.predictor is None else [self.predictor]
        return [*self.collectors, *self.shards, self.learner, self.evaluator, *predictor]

    def shard_of(self, collector: CollectorHandle) -> ShardHandle:
        """The shard that stores the trajectories of a collector."""
        return self.shards[collector.number % len(self.shards)]

    def close(self) -> None:
        """End all roles and, where it is our own, Ray."""
        if self.closed:
            return
        self.closed = True
        try:
            if not self.cluster.lost:
                self._close_roles()
        finally:
            self.cluster.close()

    def _close_roles(self) -> None:
        import ray

        if self.ready:
            last = [c.handle.close.remote() for c in self.collectors if not c.busy]
            last.append(self.evaluator.handle.close.remote())
            ray.wait(last, num_returns=len(last), timeout=2.0)
        for role in self.every:
            ray.kill(role.handle)
