"""Rows of environments in worker processes, supervised: one process per environment.

Observations, actions, rewards and flags are in one shared memory without a name; the pipes carry a
byte per step. There is no semaphore and no lock, so that nothing is left behind whatever ends the
processes. A worker ends with its parent, even during a step that never ends.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun import errors
from rlrun.env.checked import CheckedEnv
from rlrun.env.contract import contract_error
from rlrun.env.rows import Env
from rlrun.env.serving import STEP, Failure, SharedRows, serve
from rlrun.errors import NO_GUARD, RlrunError, end_if_importing_main, unguarded
from rlrun.schema import EnvConfig

EXIT_SECONDS = 5.0  # between a closed pipe and the end of its process
_LOAD_SECONDS = 3600.0
LOOP_STEPS, LOOP_RESTARTS = 10, 3  # restarts in a row, each within so many steps: a crash loop

EnvFn = Callable[[], CheckedEnv]


def _start_method() -> str:
    """Return multiprocessing's start method; not fork, since torch's threads may hold locks."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return "spawn"
    multiprocessing.set_forkserver_preload(["rlrun.env"])  # workers then start within ms
    return "forkserver"


class Worker:
    """The process of one environment; ``failed`` says why it does not answer any more."""

    def __init__(
        self, index: int, make: EnvFn, shared: SharedRows, keep_info: tuple[str, ...], wait: float
    ) -> None:
        self._index, self._make, self._shared, self._keep_info = index, make, shared, keep_info
        self._wait = wait
        self.started_at = -LOOP_STEPS  # the step at which it was started again
        self.restarts_in_a_row = 0
        self.start()

    def start(self) -> None:
        """Start the process, which makes its environment and then sends None."""
        context: Any = multiprocessing.get_context(_start_method())
        self.pipe, child = context.Pipe()
        given = (self._index, self._make, self._shared, self._keep_info, child)
        self.process = context.Process(target=serve, args=given, daemon=True)
        self.failed: str | None = None
        try:
            self.process.start()
        finally:
            child.close()

    def send(self, command: Any) -> None:
        """Send a command, see ``serving.EnvServer.answer``."""
        try:
            self.pipe.send(command)
        except OSError:
            self.failed = self._end_text()

    def reply(self, deadline: float) -> Any:
        """Return the answer to the last command; None too when there is none, see ``failed``."""
        if self.failed is None:
            try:
                if self.pipe.poll(max(0.0, deadline - time.monotonic())):
                    return self.pipe.recv()
                self.failed = (
                    f"no answer within {self._wait:g} s (env.worker_seconds); a step must return; "
                    "fix the environment"
                )
            except (EOFError, OSError):
                self.failed = self._end_text()
        return None

    def _end_text(self) -> str:
        connection.wait([self.process.sentinel], timeout=EXIT_SECONDS)
        code = self.process.exitcode
        return f"its worker process ended (exit code {code}); look for a crash or lack of memory"

    def end(self) -> None:
        """Kill the process."""
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
        self.pipe.close()


class WorkerVector:
    """The vector environment that ``AsyncEnv`` has as its ``raw``: workers and their spaces."""

    def __init__(
        self, env_fns: Sequence[EnvFn], config: EnvConfig, keep_info: tuple[str, ...]
    ) -> None:
        """Raises: ConfigError, EnvError: the environments cannot be made, or differ."""
        end_if_importing_main()
        example = env_fns[0]()
        self.single_observation_space: gym.Space[Any] = example.observation_space
        self.single_action_space: gym.Space[Any] = example.action_space
        example.close()
        self.num_envs, self.config = len(env_fns), config
        context = multiprocessing.get_context(_start_method())
        self.shared = SharedRows(
            self.single_observation_space, self.single_action_space, self.num_envs, context
        )
        self.workers: list[Worker] = []
        try:
            for i, make in enumerate(env_fns):
                wait = config.worker_seconds
                self.workers.append(Worker(i, make, self.shared, keep_info, wait))
            self.gather(0, config.worker_seconds)
        except BaseException:
            self.end()
            raise
        self.shared.open()

    def gather(self, step: int, seconds: float) -> list[Any]:
        """Return the answers of all workers. Raises: EnvError, ConfigError."""
        deadline = time.monotonic() + seconds
        replies = [worker.reply(deadline) for worker in self.workers]
        self.require_answers(step)
        return self.checked(replies)

    def checked(self, replies: list[Any]) -> list[Any]:
        """Return ``replies``. Raises: the error that one of them carries."""
        for reply in replies:
            if isinstance(reply, Failure):
                kind = getattr(errors, reply.kind, None)
                self.end()
                if isinstance(kind, type) and issubclass(kind, RlrunError):
                    raise kind(f"{reply.text} (env.backend=sync shows its traceback)")
                raise RuntimeError(f"in a worker process:\n{reply.text}")
        return replies

    def require_answers(self, step: int) -> None:
        """Raise EnvError, and end all workers, unless all have answered."""
        failed = [i for i, worker in enumerate(self.workers) if worker.failed is not None]
        if not failed:
            return
        message = self.workers[failed[0]].failed or ""
        if step == 0:
            message += "; env.backend=sync shows why"
        codes = {self.workers[i].process.exitcode for i in failed}
        self.end()
        if NO_GUARD in codes:
            raise unguarded("env.backend = async", "env.backend=sync")
        subject = f"environment {', '.join(map(str, failed))}"
        raise contract_error(self.config.id, subject, step, message)

    def call(self, arguments: list[tuple[Any, ...]], name: str, step: int) -> list[Any]:
        """Return ``name(*arguments[i])`` of every worker's ``serving.EnvServer``."""
        for worker, given in zip(self.workers, arguments, strict=True):
            worker.send((name, given))
        slow = name == "load_state_dict"  # it may replay an episode
        seconds = _LOAD_SECONDS if slow else self.config.worker_seconds
        return self.gather(step, seconds)

    @property
    def processes(self) -> list[Any]:
        """The workers' processes."""
        return [worker.process for worker in self.workers]

    def end(self) -> None:
        """Kill all workers."""
        for worker in self.workers:
            worker.end()

    def close(self) -> None:
        """Let the environments close. Raises: EnvError: one raised in close()."""
        if any(worker.pipe.closed for worker in self.workers):
            return
        deadline = time.monotonic() + EXIT_SECONDS
        for worker in self.workers:
            worker.send(("close", ()))
        replies = [worker.reply(deadline) for worker in self.workers]
        self.end()
        self.checked(replies)


class AsyncEnv(Env):
    """Rows of environments in processes of their own (``checked.CheckedEnv``).

    ``env.on_worker_failure=restart``: a process that ended, or does not answer, is started again.
    The open episode of its environment ends with the row before. After an EnvError only ``close``
    is allowed.
    """

    _raw: Any  # WorkerVector

    def __init__(
        self, env_fns: Sequence[EnvFn], config: EnvConfig, *, keep_info: tuple[str, ...]
    ) -> None:
        super().__init__(
            WorkerVector(env_fns, config, keep_info),  # type: ignore[arg-type]
            env_id=config.id,
            keep_info=keep_info,
        )
        self._restart = config.on_worker_failure == "restart"

    def _reset(self, seed: int) -> Any:
        seeds = [(seed + i,) for i in range(self.num_envs)]
        self._raw.call(seeds, "reset", self._steps)
        return self._raw.shared.obs

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        raw = self._raw
        raw.shared.action[:] = action
        for worker in raw.workers:
            worker.send(STEP)
        deadline = time.monotonic() + raw.config.worker_seconds
        replies = [worker.reply(deadline) for worker in raw.workers]
        self.restarted = None
        if any(worker.failed is not None for worker in raw.workers):
            self._restart_workers()
        info: dict[str, Any] = {}
        if any(reply is not None for reply in replies):
            info = self._infos(raw.checked(replies))
        shared = raw.shared
        return shared.obs, shared.reward.copy(), *shared.flags.T.copy(), info

    def _infos(self, replies: list[Any]) -> dict[str, Any]:
        """Return Gymnasium's vector info of what the workers kept."""
        found = [reply or {} for reply in replies]
        info: dict[str, Any] = {}
        for key in self._keep_info:
            present = np.array([key in one for one in found])
            if present.any():
                values = np.array([one.get(key, 0.0) for one in found], object)
                info |= {key: values, f"_{key}": present}
        return info

    def _restart_workers(self) -> None:
        """Start the workers again that did not answer."""
        raw = self._raw
        if not self._restart:
            raw.require_answers(self._steps)
        self.restarted = np.array([worker.failed is not None for worker in raw.workers])
        for i in np.flatnonzero(self.restarted):
            self._restart_worker(int(i))

    def _restart_worker(self, i: int) -> None:
        """Start worker i again, with an episode of its own. Raises: EnvError: a crash loop."""
        raw, worker = self._raw, self._raw.workers[i]
        while worker.failed is not None:
            soon = self._steps - worker.started_at < LOOP_STEPS
            worker.restarts_in_a_row = worker.restarts_in_a_row + 1 if soon else 1
            if worker.restarts_in_a_row > LOOP_RESTARTS:
                worker.failed += (
                    f"; it was restarted {LOOP_RESTARTS} times in a row and failed within "
                    f"{LOOP_STEPS} steps each time"
                )
                raw.require_answers(self._steps)
            worker.end()
            worker.start()
            worker.started_at = self._steps
            self.restarts += 1
            deadline = time.monotonic() + raw.config.worker_seconds
            raw.checked([worker.reply(deadline)])
            worker.send(("reopen", (self._seed + i, self._steps + self.restarts)))
            raw.checked([worker.reply(deadline)])
        self.inexact = self.inexact or f"environment {i} was restarted at step {self._steps}"

    def _raw_state(self) -> dict[str, Any]:
        states = self._raw.call([()] * self.num_envs, "state_dict", self._steps)
        self.inexact = self.inexact or next((s["reason"] for s in states if "reason" in s), None)
        return {"environments": states}

    def _load_raw(self, state: dict[str, Any]) -> list[str]:
        given = [(one,) for one in state["environments"]]
        reasons = self._raw.call(given, "load_state_dict", self._steps)
        self.cut = np.array([reason is not None for reason in reasons])
        return list(dict.fromkeys(r for r in reasons if r is not None))
