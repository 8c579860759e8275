"""The roles of a run on Ray, each in its own process: collectors, predictor, evaluator.

With central inference the predictor selects the actions of all collectors, in batches. ``Worker``
is the process of a role, ``Role`` the driver's handle.
"""

import asyncio
import inspect
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.errors import ResourceError, error_named
from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.overlapped import CollectorWorker, MakeCollector, MakeCollectorSide, attempt
from rlrun.pipeline.ray.cluster import Cluster
from rlrun.pipeline.transport import CollectorSide
from rlrun.policy.compute import keep_freed_memory
from rlrun.schema import RoleConfig
from rlrun.types import Act, Actor, ActRow, Policy, generator, tree_map

Weights = dict[str, np.ndarray]
ORDER_SECONDS = 0.001  # until a call that came too early looks again


class PredictorLost(Exception):
    """Raised when the predictor's process has ended or has no weights yet."""


@dataclass(frozen=True, slots=True)
class Question:
    """The next rows of a collector's environments."""

    number: int  # of the collector
    rows: ActRow
    explore: np.ndarray
    generator: Mapping[str, Any]  # state of the exploration's random numbers


@dataclass(slots=True)
class PredictorRole:
    """Selects actions with the published weights.

    In rounds, the rows of every collector are a batch of their own, with that collector's random
    numbers, whose state is returned: the actions equal those that the collector would compute.
    Otherwise the rows of all waiting collectors are one batch, padded to a power of two of
    collectors. The role keeps no state between questions, so a lost process loses nothing.
    """

    policies: Sequence[Policy]  # one per collector in rounds, else one
    side: CollectorSide
    columns: int  # of each collector
    rounds: bool
    seed: int
    # (policy, collectors in a batch) -> actor
    actors: dict[tuple[int, int], Actor] = field(default_factory=dict)
    waiting: list[tuple[Question, asyncio.Future[Any]]] = field(default_factory=list)
    ready: bool = False

    def load(self, env_steps: int, *messages: Any) -> None:
        """Load successive versions of the weights; the last one is used."""
        for message in messages:
            self.policies[0].load(self.side.unpack(message))
        for policy in self.policies[1:]:
            policy.load(self.policies[0].weights())
        for actor in self.actors.values():
            actor.refresh()
        if not self.ready:  # a resumed run or a new process must not repeat random numbers
            rng = generator(self.seed, f"predictor/{env_steps}")
            self.policies[0].generator.bit_generator.state = rng.bit_generator.state
        self.ready = True

    def act(self, question: Question) -> Any:
        """Return a future of (actions, extras, state, generator), or None without weights."""
        if not self.ready:
            return None
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((question, future))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self._answer)
        return future

    def _answer(self) -> None:
        """Answer all waiting questions. Those that arrive meanwhile form the next batch."""
        waiting, self.waiting = self.waiting, []
        for batch in [[w] for w in waiting] if self.rounds else [waiting]:
            error, replies = attempt(self._act, [question for question, _ in batch])
            for i, (_, future) in enumerate(batch):
                future.set_result((error, replies if error is not None else replies[i]))

    def _act(self, questions: list[Question]) -> list[Any]:
        """Return (actions, extras, state, generator) for each of ``questions``."""
        size = 1 << (len(questions) - 1).bit_length()
        padded = [*questions, *[questions[-1]] * (size - len(questions))]
        number = questions[0].number if self.rounds else 0
        policy, actor = self.policies[number], self._actor(number, size)
        if self.rounds:
            policy.generator.bit_generator.state = questions[0].generator
        rows = tree_map(lambda *x: np.concatenate(x), *[question.rows for question in padded])
        explore = np.concatenate([question.explore for question in padded])
        out = actor.act(*rows, explore=explore.view(type(questions[0].explore)))
        replies = []
        for i, question in enumerate(questions):
            part = slice(i * self.columns, (i + 1) * self.columns)
            state = policy.generator.bit_generator.state if self.rounds else question.generator
            extras = {name: x[part] for name, x in out.extras.items()}
            memory_state = tree_map(lambda x, part=part: x[part], out.state)
            replies.append((out.action[part], extras, memory_state, state))
        return replies

    def _actor(self, policy: int, size: int) -> Actor:
        if (policy, size) not in self.actors:
            self.actors[policy, size] = self.policies[policy].actor(size * self.columns)
            self.actors[policy, size].refresh()
        return self.actors[policy, size]


class RemoteActor:
    """A collector's actor that asks the predictor."""

    def __init__(
        self, local: Actor, predictor: Any, number: int, generator: np.random.Generator
    ) -> None:
        """``local``: defines shapes. ``predictor``: handle of the role.

        ``generator``: of the collector's policy; in rounds it follows the predictor's.
        """
        self.local, self.extras, self.initial_state = local, local.extras, local.initial_state
        self.predictor, self.number, self.generator = predictor, number, generator

    def refresh(self) -> None:
        """Do nothing: the driver refreshes the predictor's weights."""

    def act(self, *row: *ActRow, explore: np.ndarray | None) -> Act:
        """Select actions as ``Actor.act``. Raises: PredictorLost."""
        import ray

        assert explore is not None, "evaluations do not use the predictor"
        question = Question(self.number, row, explore, self.generator.bit_generator.state)
        try:
            error, value, _ = ray.get(self.predictor.call.remote("act", question))
        except ray.exceptions.RayError as e:
            raise PredictorLost(str(e)) from e
        if error is not None:
            raise RuntimeError(f"in the predictor:\n{value}")
        if value is None:
            raise PredictorLost("it has no weights")
        action, extras, after, self.generator.bit_generator.state = value
        return Act(action, {n: np.array(x) for n, x in extras.items()}, tree_map(np.array, after))


class CollectorRole(CollectorWorker):
    """Collects a chunk per order, with the weights that come with it."""

    def __init__(
        self, make_collector: MakeCollector, make_side: MakeCollectorSide, number: int
    ) -> None:
        super().__init__(make_collector, make_side)
        self.number = number

    def collect_for(self, env_steps: int, with_env: bool, predictor: Any, *weights: Any) -> Any:
        """Collect as ``collect`` does. None: the predictor was lost; the rows so far are kept for
        the next order.

        ``predictor``: the actor that selects actions; None: this role.
        """
        actor = self.collector.actor
        if predictor is not None:
            local = actor.local if isinstance(actor, RemoteActor) else actor
            generator = self.collector.policy.generator
            self.collector.actor = RemoteActor(local, predictor, self.number, generator)
        try:
            return self.collect(env_steps, *weights, with_env=with_env)
        except PredictorLost:
            return None


class CollectorThreads:
    """Collectors that share a process, a thread each, by their index in it.

    A step after a wait of 5 ms takes a process of its own several times the CPU time of a step
    without, probably because its caches are cold. Collectors of one process share what is in them.
    """

    def __init__(self, collectors: Sequence[CollectorRole]) -> None:
        self.collectors, self.calls = collectors, [0] * len(collectors)
        settings: Any = {"initializer": torch.set_flush_denormal, "initargs": (True,)}
        self.threads = [ThreadPoolExecutor(1, **settings) for _ in collectors]

    async def call(self, index: int, number: int, method: str, *arguments: Any) -> Any:
        """Return (class of an error, value) of call ``number`` of a collector.

        Ray may deliver a call before an earlier one whose weights are not here yet.
        """
        while self.calls[index] != number:
            await asyncio.sleep(ORDER_SECONDS)
        self.calls[index] += 1
        return await self._in_thread(index, method, *arguments)

    async def close(self) -> tuple[str | None, Any]:
        """Close the environments, each after the chunk that is being collected."""
        await asyncio.gather(*(self._in_thread(i, "close") for i in range(len(self.threads))))
        return None, None

    def _in_thread(self, index: int, method: str, *arguments: Any) -> "asyncio.Future[Any]":
        function = partial(attempt, getattr(self.collectors[index], method), *arguments)
        return asyncio.get_running_loop().run_in_executor(self.threads[index], function)


class EvaluatorRole:
    """Plays evaluation episodes in its own environments."""

    def __init__(self, evaluator: Evaluator, policy: Policy) -> None:
        """``policy``: receives the weights to evaluate."""
        self.evaluator, self.policy = evaluator, policy

    def run(self, weights: Weights, env_steps: int) -> Evaluation:
        """Return the evaluation of ``weights``."""
        self.policy.load({name: torch.from_numpy(np.array(w)) for name, w in weights.items()})
        return self.evaluator.run(self.policy, env_steps=env_steps)

    def close(self) -> None:
        self.evaluator.close()


# -- processes and handles of roles ----------------------------------------------------------------

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

    def call(self, method: str, *arguments: Any) -> Reply:
        return *self._attempt(method, *arguments), self.log.take()

    def _attempt(self, method: str, *arguments: Any) -> tuple[str | None, Any]:
        if self.error is not None:
            return self.error, self.role
        return attempt(getattr(self.role, method), *arguments)


class AsyncWorker(Worker):
    """A process of a role whose methods may return a future of (error class, value)."""

    async def call(self, method: str, *arguments: Any) -> Reply:  # type: ignore[override]
        error, value = self._attempt(method, *arguments)
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

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the role and return the reference to its reply."""
        return self.handle.call.remote(method, *arguments)

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
