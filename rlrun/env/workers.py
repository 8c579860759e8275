"""Copies of one environment as rows: in this process, or in one supervised process each.

``Copies`` (env.backend=sync) steps them one after the other, ``Workers`` (async) in parallel.
Gymnasium's AsyncVectorEnv is not used: it ends when a worker does, cannot restart one, and waits on
locks that a killed process leaves held. Observations, actions, rewards and flags are in shared
memory without a name, and the pipes carry a byte per step. There are no semaphores or locks, so
nothing is left behind however the processes end. A worker ends with its parent, even during a step
that does not return.
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
from functools import partial
from multiprocessing import connection, parent_process, reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_empty_array

from rlrun import errors
from rlrun.env.checked import CheckedEnv
from rlrun.env.contract import Spaces, contract_error, numbered, unequal_copies
from rlrun.env.rows import NotContinued, Rows, RowSource
from rlrun.errors import NO_GUARD, RlrunError, end_if_importing_main, known_error, unguarded
from rlrun.schema import EnvConfig
from rlrun.spaces import Tree, tree_map

_logger = logging.getLogger(__name__)

STEP = "step"  # the command without arguments; the reply is the kept info
# Signals reach all processes of the group; the main process saves.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
EXIT_SECONDS = 5.0  # from closing a pipe to the end of its process
_LOAD_SECONDS = 3600.0
_LOST = "its worker process was restarted"  # why a state does not continue an episode
LOOP_STEPS, LOOP_RESTARTS = 10, 3  # a crash loop: so many restarts, each within so many steps

EnvFn = Callable[[], CheckedEnv]
Command = tuple[str, tuple[Any, ...]]  # a method of ``EnvServer``, and its arguments


class SharedRows:
    """Arrays of E environments, which processes may share.

    ``obs`` [E, *O] is a tree, ``action`` [E, *A]. ``reward`` float64 [E]; ``flags`` bool [E, 2] are
    terminated and truncated. The file of a shared memory is unlinked as soon as it is made.
    """

    def __init__(self, spaces: Spaces, num_envs: int, context: Any) -> None:
        """``context``: of the processes that share the memory; None: it is not shared."""
        space_arrays = (create_empty_array(space, num_envs) for space in spaces)
        arrays: Tree = (*space_arrays, np.zeros(num_envs), np.zeros((num_envs, 2), np.bool_))
        dtypes = tree_map(lambda x: np.dtype((x.dtype, x.shape)), arrays)
        new = bytearray if context is None else partial(context.RawArray, ctypes.c_byte)
        self.__setstate__((dtypes, tree_map(lambda x: new(max(x.nbytes, 1)), arrays)))

    def __getstate__(self) -> tuple[Tree, Tree]:
        return self.layout

    def __setstate__(self, layout: tuple[Tree, Tree]) -> None:
        """Make the arrays of this process from their dtypes, shapes included, and memory."""
        self.layout = layout
        arrays: Any = tree_map(lambda dtype, memory: np.ndarray((), dtype, memory), *layout)
        self.obs, self.action, self.reward, self.flags = arrays


class EnvServer:
    """Environment ``index`` as NEXT_STEP rows, which it writes into ``shared``."""

    def __init__(self, index: int, env: CheckedEnv, shared: SharedRows) -> None:
        self.index, self.env, self.shared = index, env, shared
        self.done = False  # the next step is a reset

    def step(self) -> dict[str, Any]:
        """Take a step, or open the next episode. Return the numbers kept of its info."""
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
        rows = self.shared.obs
        if isinstance(rows, np.ndarray):
            rows[self.index] = obs
        else:
            tree_map(lambda x, value: x.__setitem__(self.index, value), rows, obs)

    def reset(self, seed: int) -> None:
        self.done = False
        self._put(self.env.reset(seed=seed)[0])

    def reopen(self, seed: int, episode: int) -> None:
        """Open an episode that no earlier start of this worker had, as a step that resets."""
        self._put(self.env.reopen(seed, episode))
        self.shared.reward[self.index] = 0
        self.shared.flags[self.index] = False

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict() | {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Continue from ``state``. Return why that is not exact; then the next step resets."""
        reason = self.env.load_state_dict(state)
        self.done = reason is not None or bool(state["done"])
        return reason

    def close(self) -> None:
        self.env.close()


class Copies(RowSource):
    """Copies of one environment, stepped one after the other in this process."""

    def __init__(self, env_fns: Sequence[EnvFn], config: EnvConfig) -> None:
        """Raises: ConfigError, EnvError if the environments cannot be made, or differ."""
        self.num_envs, self.config = len(env_fns), config
        self._seed = self._steps = 0
        # Restarted since the last step: the next one shows the episode that was opened then.
        self._lost: set[int] = set()
        self._start(env_fns)

    def _start(self, env_fns: Sequence[EnvFn]) -> None:
        self.envs = [make() for make in env_fns]
        spaces = [(env.observation_space, env.action_space) for env in self.envs]
        self.single_observation_space, self.single_action_space = spaces[0]
        if (error := unequal_copies(self.config.id, spaces, spaces[0])) is not None:
            self.close()
            raise error
        self.shared = SharedRows(spaces[0], self.num_envs, None)
        self._servers = [EnvServer(i, env, self.shared) for i, env in enumerate(self.envs)]

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return ``name(*arguments[i])`` of every ``EnvServer``."""
        pairs = zip(self._servers, arguments, strict=True)
        return [getattr(server, name)(*values) for server, values in pairs]

    def _step_all(self) -> list[dict[str, Any] | None]:
        """Step every environment. Return the kept numbers of each, or None."""
        resting = self.resting
        return [None if x.index in resting else x.step() for x in self._servers]

    def _restart_failed(self, command: Callable[[int], Command | None]) -> set[int]:
        """Restart the workers that do not answer. Return which."""
        return set()

    def reset(self, seed: int) -> Any:
        self._seed, self._steps, self._lost, self.resting = seed, 0, set(), frozenset()
        self._call("reset", [(seed + i,) for i in range(self.num_envs)])
        self._restart_failed(lambda i: ("reset", (seed + i,)))
        return self.shared.obs

    def step(self, action: np.ndarray, number: int) -> Rows:
        self._steps = number
        self.shared.action[:] = action
        infos = self._step_all()
        if self.resting:
            self.shared.reward[[*self.resting]] = 0
        lost, self._lost = self._lost | self._restart_failed(self._reopen), set()
        self.restarted = np.isin(range(self.num_envs), [*lost]) if lost else None
        shared = self.shared
        info = _stacked(infos) if any(infos) else {}
        return shared.obs, shared.reward, *shared.flags.T.copy(), info

    def _reopen(self, i: int) -> Command:
        """Return the command of a restarted worker: open an episode that no earlier start had."""
        return "reopen", (self._seed + i, self._steps + self.restarts)

    def state_dict(self) -> dict[str, Any]:
        states = self._call("state_dict", [()] * self.num_envs)
        self._lost |= self._restart_failed(self._reopen)
        for i in self._lost:
            seed, episode = self._reopen(i)[1]  # the open episode is lost
            states[i] = {"seed": seed, "episode": episode, "steps": 0, "obs": "", "reason": _LOST}
        self.inexact = self.inexact or next((s["reason"] for s in states if "reason" in s), None)
        return {"environments": states}

    def load_state_dict(self, state: dict[str, Any], *, seed: int, steps: int) -> NotContinued:
        self._seed, self._steps, self._lost = seed, steps, set()
        states = state["environments"]
        reasons = self._call("load_state_dict", [(saved,) for saved in states])
        lost = [saved | {"reason": _LOST} for saved in states]
        for i in self._restart_failed(lambda i: ("load_state_dict", (lost[i],))):
            reasons[i] = _LOST
        cut = np.array([reason is not None for reason in reasons])
        return list(dict.fromkeys(r for r in reasons if r is not None)), cut

    def close(self) -> None:
        """Close all environments. Raises: EnvError if one raised in close()."""
        envs, self.envs = self.envs, []
        for env in envs:
            env.close()


def _stacked(infos: Sequence[dict[str, Any] | None]) -> dict[str, np.ndarray]:
    """Return every entry of the infos as an array [E, ...], zero for environments without it."""
    shapes = {key: x for info in infos for key, x in (info or {}).items()}
    return {
        key: np.stack([(info or {}).get(key, np.zeros_like(x)) for info in infos])
        for key, x in shapes.items()
    }


# -- worker processes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's reply to a command that raised: the error's class name and its text."""

    kind: str
    text: str


def serve(index: int, make: EnvFn, shared: SharedRows, pipe: Connection) -> None:
    """Make the environment, send its spaces and answer commands: the main function of a worker.

    It ends when the pipe is closed.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    server: EnvServer | None = None
    greeting: Any = None
    try:
        env = make()
        server = EnvServer(index, env, shared)
        greeting = env.observation_space, env.action_space
        try:
            reduction.ForkingPickler.dumps(greeting)
        except Exception:  # a user's own class of spaces, which a pipe cannot send
            greeting = None
    except BaseException as e:
        greeting = _failure(e)
    with suppress(EOFError, OSError):
        pipe.send(greeting)
        while server is not None:
            pipe.send(_answer(server, pipe.recv()))


def _answer(server: EnvServer, command: Any) -> Any:
    """Return the reply to ``STEP`` or to (method name, arguments)."""
    try:
        if command == STEP:
            return server.step() or None
        name, arguments = command
        return getattr(server, name)(*arguments)
    except BaseException as e:
        return _failure(e)


def exit_with_parent() -> None:
    """Exit when the parent process ends, even during a step that does not return."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _failure(e: BaseException) -> Failure:
    if isinstance(e, RlrunError):
        return Failure(known_error(e), str(e))
    return Failure(type(e).__name__, traceback.format_exc())


def _context() -> Any:
    """Return the context that starts processes: not fork, as torch's threads hold locks."""
    multiprocessing.set_forkserver_preload(["rlrun.env"])  # workers then start within milliseconds
    return multiprocessing.get_context("forkserver")


def start_process(process: Any) -> None:
    """Start a process. Try again if the server that forks it was killed.

    Raises: EOFError, OSError.
    """
    try:
        process.start()
    except (EOFError, OSError):
        time.sleep(0.5)  # until that server is gone and another can start
        process.start()


class Worker:
    """The process of one environment. ``failed`` says why it does not answer any more."""

    def __init__(self, index: int, make: EnvFn, shared: SharedRows, wait: float) -> None:
        self._served, self._wait = (index, make, shared), wait
        self.started_at = -LOOP_STEPS  # steps of all workers when it was started again
        self.restarts_in_a_row = 0
        self.start()

    def start(self) -> None:
        """Start the process. It makes its environment and then sends its spaces."""
        context = _context()
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=serve, args=(*self._served, child), daemon=True)
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
        """Send a command (see ``_answer``) unless the process has failed."""
        try:
            if self.failed is None:
                self.pipe.send(command)
        except OSError:
            self.failed = self._end_text()

    def reply(self, deadline: float) -> Any:
        """Return the answer to the last command, or None if it failed (see ``failed``)."""
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
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
        self.pipe.close()


class Workers(Copies):
    """Copies of one environment in separate processes.

    With ``env.on_worker_failure=restart`` a process that ended or does not answer is restarted,
    whatever its command was. The open episode of its environment ends with the row before. After an
    EnvError only ``close`` is allowed.
    """

    def _start(self, env_fns: Sequence[EnvFn]) -> None:
        end_if_importing_main()
        example = env_fns[0]()
        self.single_observation_space = example.observation_space
        self.single_action_space = example.action_space
        example.close()
        self._all_steps = 0  # since construction
        spaces = self.single_observation_space, self.single_action_space
        self.shared = SharedRows(spaces, self.num_envs, _context())
        self.workers: list[Worker] = []
        try:
            for i, make in enumerate(env_fns):
                self.workers.append(Worker(i, make, self.shared, self.config.worker_seconds))
            self._greet(range(self.num_envs), self._deadline())
            self._restart_failed(lambda i: None)
            self.inexact = None  # no episode was lost
        except BaseException:
            self.end()
            raise

    def _deadline(self) -> float:
        return time.monotonic() + self.config.worker_seconds

    def _greet(self, started: Sequence[int], deadline: float) -> None:
        """Receive the spaces of the environments that processes have made.

        Raises: EnvError, after ending all workers, if they differ from those of this process.
        """
        replies = self._checked([self.workers[i].reply(deadline) for i in started])
        greeted = dict(zip(started, replies, strict=True))
        copies: list[Spaces | None] = [greeted.get(i) for i in range(self.num_envs)]
        first = self.single_observation_space, self.single_action_space
        if (error := unequal_copies(self.config.id, copies, first)) is not None:
            self.end()
            raise error

    def _checked(self, replies: list[Any]) -> list[Any]:
        """Return ``replies``. Raises: the error that one of them carries."""
        for reply in replies:
            if isinstance(reply, Failure):
                self.end()
                text = f"{reply.text} (env.backend=sync shows its traceback)"
                raise errors.error_named(reply.kind, text) or RuntimeError(
                    f"in a worker process:\n{reply.text}"
                )
        return replies

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call as ``Copies``. None where none answers; ``_restart_failed`` follows."""
        for worker, values in zip(self.workers, arguments, strict=True):
            worker.send((name, values))
        replays = name == "load_state_dict"  # an episode, at most
        deadline = time.monotonic() + _LOAD_SECONDS if replays else self._deadline()
        return self._checked([worker.reply(deadline) for worker in self.workers])

    def _step_all(self) -> list[dict[str, Any] | None]:
        self._all_steps += 1
        waiting = self._lost | self.resting  # the lost have opened an episode
        asked = [worker for i, worker in enumerate(self.workers) if i not in waiting]
        for worker in asked:
            worker.send(STEP)
        deadline = self._deadline()
        replies = iter(self._checked([worker.reply(deadline) for worker in asked]))
        return [None if i in waiting else next(replies) for i in range(self.num_envs)]

    def _restart_failed(self, command: Callable[[int], Command | None]) -> set[int]:
        """Restart the workers that do not answer. Return which.

        Each of them executes ``command(i)``.

        Raises: EnvError if env.on_worker_failure forbids it, or they fail repeatedly.
        """
        restarted: set[int] = set()
        while failed := [i for i, worker in enumerate(self.workers) if worker.failed is not None]:
            self._require_restartable(failed)
            restarted.update(failed)
            for i in failed:
                self.workers[i].end()
                self.workers[i].start()
            self.restarts += len(failed)
            deadline = self._deadline()
            self._greet(failed, deadline)
            commands = {i: sent for i in failed if (sent := command(i)) is not None}
            for i, sent in commands.items():
                self.workers[i].send(sent)
            self._checked([self.workers[i].reply(deadline) for i in commands])
        if restarted and self.inexact is None:
            verb = "was" if len(restarted) == 1 else "were"
            self.inexact = f"{numbered(sorted(restarted))} {verb} restarted at step {self._steps}"
        return restarted

    def _require_restartable(self, failed: list[int]) -> None:
        """Count the restart of ``failed``. Raises: EnvError, after ending all workers."""
        message, looping = self.workers[failed[0]].failed or "", []
        for i in failed:
            worker = self.workers[i]
            soon = self._all_steps - worker.started_at < LOOP_STEPS
            worker.restarts_in_a_row = worker.restarts_in_a_row + 1 if soon else 1
            worker.started_at = self._all_steps
            if worker.restarts_in_a_row > LOOP_RESTARTS:
                looping.append(i)
        codes = {self.workers[i].process.exitcode for i in failed}
        if self.config.on_worker_failure == "restart" and NO_GUARD not in codes and not looping:
            if not self.restarts:
                text = "%s failed at step %d; starting again (env.on_worker_failure): %s"
                _logger.warning(text, numbered(failed), self._steps, message)
            return
        if looping:
            failed = looping
            message = (
                f"{self.workers[looping[0]].failed}; it was restarted {LOOP_RESTARTS} times in a "
                f"row and failed within {LOOP_STEPS} steps each time"
            )
        if self._steps == 0:
            message += "; env.backend=sync shows why"
        self.end()
        if NO_GUARD in codes:
            raise unguarded("env.backend = async", "env.backend=sync")
        raise contract_error(self.config.id, failed, self._steps, message)

    @property
    def processes(self) -> list[Any]:
        return [worker.process for worker in self.workers]

    def end(self) -> None:
        for worker in self.workers:
            worker.end()

    def close(self) -> None:
        """Let the environments close. Raises: EnvError if one raised in close()."""
        if any(worker.pipe.closed for worker in self.workers):
            return
        deadline = time.monotonic() + EXIT_SECONDS
        for worker in self.workers:
            worker.send(("close", ()))
        replies = [worker.reply(deadline) for worker in self.workers]
        self.end()
        self._checked(replies)
