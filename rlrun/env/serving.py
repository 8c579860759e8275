"""The worker's side of ``env.backend=async``: one environment, served through a pipe."""

import ctypes
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process, reduction
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import create_empty_array

from rlrun.env.checked import CheckedEnv
from rlrun.env.contract import KEPT
from rlrun.errors import RlrunError, known_error
from rlrun.tree import Tree, tree_leaves, tree_map

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
