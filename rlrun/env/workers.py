"""Rows of environments in worker processes, supervised: one process per environment.

Observations, actions, rewards and flags are in one shared memory without a name; the pipes carry a
byte per step. There is no semaphore and no lock, so that nothing is left behind whatever ends the
processes. A worker ends with its parent, even during a step that never ends.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process, reduction
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import create_empty_array

from rlrun import errors
from rlrun.env.checked import CheckedEnv
from rlrun.env.contract import KEPT, Spaces, contract_error, different_copies, numbered
from rlrun.env.rows import Env, checked_numbers
from rlrun.errors import NO_GUARD, RlrunError, end_if_importing_main, known_error, unguarded
from rlrun.schema import EnvConfig
from rlrun.tree import Tree, tree_leaves, tree_map

_logger = logging.getLogger(__name__)

STEP = "step"  # the one command without arguments, answered by None or the kept info
_ALIGNMENT = 64  # bytes, of every array
_IGNORED = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")  # sent to all processes; the main one saves


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer of a worker whose command raised: the name of the error's class, and its text."""

    kind: str
    text: str


class SharedRows:
    """Arrays of E environments in shared memory, which both sides ``open``.

    ``obs`` [E, *O] is a tree, ``action`` [E, *A]; ``reward`` float64 [E], ``flags`` bool [E, 2]
    are terminated and truncated. The memory's file is unlinked as soon as it is made.
    """

    def __init__(
        self, obs_space: gym.Space[Any], action_space: gym.Space[Any], num_envs: int, context: Any
    ) -> None:
        arrays: Tree = (
            create_empty_array(obs_space, num_envs),
            create_empty_array(action_space, num_envs),
            np.zeros(num_envs),
            np.zeros((num_envs, 2), np.bool_),
        )
        self.slots = tree_map(lambda x: Slot(x.shape, x.dtype.str), arrays)
        size = sum(_padded(x.nbytes) for x in tree_leaves(arrays))
        self.memory = context.RawArray(ctypes.c_byte, max(size, 1))

    def __getstate__(self) -> dict[str, Any]:
        return {"slots": self.slots, "memory": self.memory}

    def open(self) -> None:
        """Make the arrays."""
        buffer, start = memoryview(self.memory), 0

        def view(slot: Slot) -> np.ndarray:
            nonlocal start
            x: np.ndarray = np.ndarray(slot.shape, slot.dtype, buffer, start)
            start += _padded(x.nbytes)
            return x

        arrays: Any = tree_map(view, self.slots)
        self.obs, self.action, self.reward, self.flags = arrays


@dataclass(frozen=True, slots=True)
class Slot:
    """An array's shape and dtype."""

    shape: tuple[int, ...]
    dtype: str


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def serve(
    index: int,
    make: Callable[[], CheckedEnv],
    shared: SharedRows,
    pipe: Connection,
) -> None:
    """Main function of a worker: make the environment, send its spaces, answer commands.

    It ends when the pipe is closed.
    """
    for name in _IGNORED:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    shared.open()
    server: EnvServer | None = None
    greeting: Any = None
    try:
        env = make()
        server = EnvServer(index, env, shared)
        greeting = _sendable((env.observation_space, env.action_space))
    except BaseException as e:
        greeting = _failure(e)
    with suppress(EOFError, OSError):
        pipe.send(greeting)
        while server is not None:
            pipe.send(server.answer(pipe.recv()))


def _sendable(spaces: Any) -> Any:
    """Return ``spaces``, None where a pipe does not take them (a user's own class of spaces)."""
    try:
        reduction.ForkingPickler.dumps(spaces)
    except Exception:
        return None
    return spaces


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _failure(e: BaseException) -> Failure:
    if isinstance(e, RlrunError):
        return Failure(known_error(e), str(e))
    return Failure(type(e).__name__, traceback.format_exc())


class EnvServer:
    """The commands of a worker."""

    def __init__(self, index: int, env: CheckedEnv, shared: SharedRows) -> None:
        self.index, self.env, self.shared = index, env, shared
        self.done = False  # the next step is a reset

    def answer(self, command: Any) -> Any:
        """Return the reply to ``STEP`` or (name of a method, arguments)."""
        try:
            if command == STEP:
                return self.step().get(KEPT)
            name, arguments = command
            return getattr(self, name)(*arguments)
        except BaseException as e:
            return _failure(e)

    def step(self) -> dict[str, Any]:
        """Take a step, or open the next episode; return its info."""
        shared, i = self.shared, self.index
        if self.done:
            obs, info = self.env.reset()
            reward, terminated, truncated = 0.0, False, False
        else:
            action = shared.action[i]
            action = action.copy() if isinstance(action, np.ndarray) else action
            obs, reward, terminated, truncated, info = self.env.step(action)
        self.done = terminated or truncated
        self._put(obs)
        shared.reward[i], shared.flags[i] = reward, (terminated, truncated)
        return info

    def _put(self, obs: Tree) -> None:
        def write(rows: np.ndarray, x: Any) -> None:
            rows[self.index] = x

        tree_map(write, self.shared.obs, obs)

    def reset(self, seed: int) -> None:
        """Reset with a seed."""
        self.done = False
        self._put(self.env.reset(seed=seed)[0])

    def reopen(self, seed: int, episode: int) -> None:
        """Open an episode that no other start of this worker had; as a step, it is a reset."""
        self._put(self.env.reopen(seed, episode))
        self.shared.reward[self.index] = 0
        self.shared.flags[self.index] = False

    def state_dict(self) -> dict[str, Any]:
        """Return the environment's state."""
        return self.env.state_dict() | {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Continue from ``state``; return why that is not exact: then the next step is a reset."""
        reason = self.env.load_state_dict(state)
        self.done = bool(state["done"]) or reason is not None
        return reason

    def close(self) -> None:
        """Close the environment. Raises: EnvError."""
        self.env.close()


EXIT_SECONDS = 5.0  # between a closed pipe and the end of its process
_LOAD_SECONDS = 3600.0
_LOST = "its worker process was restarted"  # why a state does not continue an episode
LOOP_STEPS, LOOP_RESTARTS = 10, 3  # restarts in a row, each within so many steps: a crash loop

EnvFn = Callable[[], CheckedEnv]
Command = tuple[str, tuple[Any, ...]]  # a method of ``serving.EnvServer``, and its arguments


def _start_method() -> str:
    """Return multiprocessing's start method; not fork, since torch's threads may hold locks."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return "spawn"
    multiprocessing.set_forkserver_preload(["rlrun.env"])  # workers then start within ms
    return "forkserver"


def start_process(process: Any) -> None:
    """Start a process, once more where the server that forks it was killed.

    Raises: EOFError, OSError.
    """
    try:
        process.start()
    except (EOFError, OSError):
        time.sleep(0.5)  # until that one is gone; another one is started then
        process.start()


class Worker:
    """The process of one environment; ``failed`` says why it does not answer any more."""

    def __init__(self, index: int, make: EnvFn, shared: SharedRows, wait: float) -> None:
        self._index, self._make, self._shared = index, make, shared
        self._wait = wait
        self.started_at = -LOOP_STEPS  # ``WorkerVector.steps`` when it was started again
        self.restarts_in_a_row = 0
        self.start()

    def start(self) -> None:
        """Start the process, which makes its environment and then sends its spaces."""
        context: Any = multiprocessing.get_context(_start_method())
        self.pipe, child = context.Pipe()
        given = (self._index, self._make, self._shared, child)
        self.process = context.Process(target=serve, args=given, daemon=True)
        self.failed: str | None = None
        try:
            start_process(self.process)
        except (EOFError, OSError) as e:
            self.failed = (
                f"a worker process could not be started ({type(e).__name__}: {e}); look for a lack "
                "of memory or processes"
            )
        finally:
            child.close()

    def send(self, command: Any) -> None:
        """Send a command, see ``serving.EnvServer.answer``; not to a process that has failed."""
        try:
            if self.failed is None:
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
        return f"a worker process ended (exit code {code}); look for a crash or lack of memory"

    def end(self) -> None:
        """Kill the process."""
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
        self.pipe.close()


class WorkerVector:
    """The vector environment that ``AsyncEnv`` has as its ``raw``: workers and their spaces."""

    def __init__(self, env_fns: Sequence[EnvFn], config: EnvConfig) -> None:
        """Raises: ConfigError, EnvError: the environments cannot be made, or differ."""
        end_if_importing_main()
        example = env_fns[0]()
        self.single_observation_space: gym.Space[Any] = example.observation_space
        self.single_action_space: gym.Space[Any] = example.action_space
        example.close()
        self.num_envs, self.config = len(env_fns), config
        self.steps = 0  # since it was made
        self.restarts = 0  # of workers
        context = multiprocessing.get_context(_start_method())
        self.shared = SharedRows(
            self.single_observation_space, self.single_action_space, self.num_envs, context
        )
        self.workers: list[Worker] = []
        try:
            for i, make in enumerate(env_fns):
                wait = config.worker_seconds
                self.workers.append(Worker(i, make, self.shared, wait))
            self._greet(range(self.num_envs), time.monotonic() + config.worker_seconds)
            self.restart_failed(0, lambda i: None)
        except BaseException:
            self.end()
            raise
        self.shared.open()

    def _greet(self, started: Sequence[int], deadline: float) -> None:
        """Receive the spaces of environments that processes have made.

        Raises: EnvError, after all workers are ended: they differ from those of this process.
        """
        copies: list[Spaces | None] = [None] * self.num_envs
        replies = self.checked([self.workers[i].reply(deadline) for i in started])
        for i, reply in zip(started, replies, strict=True):
            copies[i] = reply
        first = self.single_observation_space, self.single_action_space
        if (error := different_copies(self.config.id, copies, first)) is not None:
            self.end()
            raise error

    def replies(self, seconds: float) -> list[Any]:
        """Return the workers' answers, None of one that does not answer (``Worker.failed``).

        Raises: the error that an answer carries.
        """
        deadline = time.monotonic() + seconds
        return self.checked([worker.reply(deadline) for worker in self.workers])

    def checked(self, replies: list[Any]) -> list[Any]:
        """Return ``replies``. Raises: the error that one of them carries."""
        for reply in replies:
            if isinstance(reply, Failure):
                self.end()
                text = f"{reply.text} (env.backend=sync shows its traceback)"
                raise errors.error_named(reply.kind, text) or RuntimeError(
                    f"in a worker process:\n{reply.text}"
                )
        return replies

    def call(self, arguments: list[tuple[Any, ...]], name: str) -> list[Any]:
        """Return ``name(*arguments[i])`` of every worker's ``serving.EnvServer``, see ``replies``.

        ``restart_failed`` must follow.
        """
        for worker, values in zip(self.workers, arguments, strict=True):
            worker.send((name, values))
        slow = name == "load_state_dict"  # it may replay an episode
        return self.replies(_LOAD_SECONDS if slow else self.config.worker_seconds)

    def restart_failed(
        self, step: int, command: Callable[[int], Command | None]
    ) -> np.ndarray | None:
        """Start the workers again that do not answer; return which [E], None where all do.

        Each of them executes ``command(i)``. ``step``: of the vector, for messages.

        Raises: EnvError: env.on_worker_failure forbids it, or they fail again and again.
        """
        failed = self._failed()
        if not failed:
            return None
        restarted = np.zeros(self.num_envs, np.bool_)
        restarted[failed] = True
        while failed:
            self._require_restartable(failed, step)
            for i in failed:
                self.workers[i].end()
                self.workers[i].start()
            self.restarts += len(failed)
            deadline = time.monotonic() + self.config.worker_seconds
            self._greet(failed, deadline)
            commands = {i: sent for i in failed if (sent := command(i)) is not None}
            for i, sent in commands.items():
                self.workers[i].send(sent)
            self.checked([self.workers[i].reply(deadline) for i in commands])
            failed = self._failed()
        return restarted

    def _failed(self) -> list[int]:
        return [i for i, worker in enumerate(self.workers) if worker.failed is not None]

    def _require_restartable(self, failed: list[int], step: int) -> None:
        """Count the restart of ``failed``. Raises: EnvError, after all workers are ended."""
        message, looping = self.workers[failed[0]].failed or "", []
        for i in failed:
            worker = self.workers[i]
            soon = self.steps - worker.started_at < LOOP_STEPS
            worker.restarts_in_a_row = worker.restarts_in_a_row + 1 if soon else 1
            worker.started_at = self.steps
            if worker.restarts_in_a_row > LOOP_RESTARTS:
                looping.append(i)
        codes = {self.workers[i].process.exitcode for i in failed}
        if self.config.on_worker_failure == "restart" and NO_GUARD not in codes and not looping:
            if not self.restarts:
                text = "%s failed at step %d; starting again (env.on_worker_failure): %s"
                _logger.warning(text, numbered(failed), step, message)
            return
        if looping:
            failed, message = looping, self.workers[looping[0]].failed or ""
            times = f"restarted {LOOP_RESTARTS} times in a row"
            message += f"; it was {times} and failed within {LOOP_STEPS} steps each time"
        if step == 0:
            message += "; env.backend=sync shows why"
        self.end()
        if NO_GUARD in codes:
            raise unguarded("env.backend = async", "env.backend=sync")
        raise contract_error(self.config.id, numbered(failed), step, message)

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

    ``env.on_worker_failure=restart``: a process that ended, or does not answer, is started again,
    whatever it was asked to do. The open episode of its environment ends with the row before. After
    an EnvError only ``close`` is allowed.
    """

    _raw: Any  # WorkerVector

    def __init__(
        self, env_fns: Sequence[EnvFn], config: EnvConfig, *, keep_info: tuple[str, ...]
    ) -> None:
        super().__init__(
            WorkerVector(env_fns, config),  # type: ignore[arg-type]
            env_id=config.id,
            keep_info=keep_info,
        )
        self.restarts = self._raw.restarts
        # [E] restarted since the last step: the next one shows the episode that was opened then
        self._lost = np.zeros(self.num_envs, np.bool_)

    def _reset(self, seed: int) -> Any:
        self._raw.call([(seed + i,) for i in range(self.num_envs)], "reset")
        self._restart_failed(lambda i: ("reset", (seed + i,)))
        self._lost = np.zeros(self.num_envs, np.bool_)
        return self._raw.shared.obs

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        raw, lost = self._raw, self._lost
        raw.shared.action[:] = action
        raw.steps += 1
        stepping = [raw.workers[i] for i in np.flatnonzero(~lost)] if lost.any() else raw.workers
        for worker in stepping:
            worker.send(STEP)
        deadline = time.monotonic() + raw.config.worker_seconds
        replies = raw.checked([worker.reply(deadline) for worker in stepping])
        failed = self._restart_failed(self._reopen)
        self.restarted = None
        if failed is not None or stepping is not raw.workers:
            self.restarted = lost if failed is None else lost | failed
            self._lost = np.zeros(self.num_envs, np.bool_)
            replies = _spread(replies, lost)
        info: dict[str, Any] = {}
        if any(reply is not None for reply in replies):
            none = np.zeros(len(self._keep_info), np.float32)
            info[KEPT] = np.stack([none if reply is None else reply for reply in replies])
        shared = raw.shared
        return shared.obs, shared.reward.copy(), *shared.flags.T.copy(), info

    def _kept(self, info: Any) -> dict[str, np.ndarray]:
        return checked_numbers(info, self._keep_info, self.num_envs)

    def _restart_failed(self, command: Callable[[int], Command]) -> np.ndarray | None:
        """Start the workers again that do not answer (``WorkerVector.restart_failed``)."""
        failed: np.ndarray | None = self._raw.restart_failed(self._steps, command)
        if failed is not None:
            self.restarts = self._raw.restarts
            subject = numbered(np.flatnonzero(failed).tolist())
            verb = "was" if np.count_nonzero(failed) == 1 else "were"
            text = f"{subject} {verb} restarted at step {self._steps}"
            self.inexact = self.inexact or text
        return failed

    def _reopen(self, i: int) -> Command:
        """Return the command of a restarted worker: open an episode that had no other start."""
        return "reopen", self._fresh_episode(i)

    def _fresh_episode(self, i: int) -> tuple[int, int]:
        return self._seed + i, self._steps + self._raw.restarts

    def _raw_state(self) -> dict[str, Any]:
        states = self._raw.call([()] * self.num_envs, "state_dict")
        failed = self._restart_failed(self._reopen)
        if failed is not None:
            self._lost = self._lost | failed
        for i in np.flatnonzero(self._lost):
            states[i] = self._lost_state(int(i))
        self.inexact = self.inexact or next((s["reason"] for s in states if "reason" in s), None)
        return {"environments": states}

    def _lost_state(self, i: int) -> dict[str, Any]:
        """Return the state of an environment whose open episode is lost: the next one is opened."""
        seed, episode = self._fresh_episode(i)
        state = {"seed": seed, "episode": episode, "steps": 0, "obs": "", "reseed": True}
        return state | {"done": True, "reason": _LOST}

    def _load_raw(self, state: dict[str, Any]) -> list[str]:
        states = state["environments"]
        reasons = self._raw.call([(one,) for one in states], "load_state_dict")
        failed = self._restart_failed(
            lambda i: ("load_state_dict", (states[i] | {"reason": _LOST},))
        )
        for i in [] if failed is None else np.flatnonzero(failed):
            reasons[i] = _LOST
        self._lost = np.zeros(self.num_envs, np.bool_)
        self.cut = np.array([reason is not None for reason in reasons])
        return list(dict.fromkeys(r for r in reasons if r is not None))


def _spread(replies: list[Any], lost: np.ndarray) -> list[Any]:
    """Return ``replies`` with None in the places ``lost`` [E], which were not asked."""
    remaining = iter(replies)
    return [None if gone else next(remaining) for gone in lost]
