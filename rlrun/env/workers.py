"""Rows out of worker processes: what can go wrong with a process becomes an EnvError."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rlrun.env.contract import fault
from rlrun.env.rows import Env
from rlrun.errors import NO_GUARD, ConfigError, EnvError, end_if_importing_main

ANSWER_SECONDS = 60.0  # a worker that takes longer for one step or reset counts as hung
EXIT_SECONDS = 5.0  # how long a closed pipe may precede the end of its process

MakeOne = Callable[[], gym.Env[Any, Any]]


class InWorker:
    """An ``env_fn`` that leaves the handling of signals to the main process.

    Ctrl-C reaches every process of a terminal; the main process finishes its step and saves, so
    its workers must not fall over first. (Gymnasium calls one env_fn in the main process too.)
    """

    def __init__(self, make: MakeOne) -> None:
        self._make = make
        self._main = os.getpid()

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self._main:
            for name in ("SIGINT", "SIGUSR1"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
        return self._make()


def _context() -> str:
    """How workers start: not by forking this process, whose threads (torch) may hold locks."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return "spawn"
    multiprocessing.set_forkserver_preload(["rlrun.env"])  # each worker then starts in ms
    return "forkserver"


def _let_go(e: Exception) -> None:
    """Empty the frames that ``e`` came through.

    One of a pipe's holds a view of a BytesIO, which CPython's garbage collector complains of, or
    dies of (3.12.1), when both go in one cycle (python/cpython#111049, #111331).
    """
    traceback.clear_frames(e.__traceback__)


class AsyncEnv(Env):
    """Rows of an AsyncVectorEnv (shared memory); its environments check themselves.

    After an EnvError its workers are gone and it can only be closed.
    """

    _raw: AsyncVectorEnv

    def __init__(
        self, env_fns: Sequence[MakeOne], *, env_id: str, keep_info: tuple[str, ...]
    ) -> None:
        end_if_importing_main()
        self._raw = AsyncVectorEnv.__new__(AsyncVectorEnv)  # whose processes are then known
        try:
            self._raw.__init__(  # type: ignore[misc]
                [InWorker(make) for make in env_fns],
                copy=False,
                context=_context(),
                autoreset_mode=AutoresetMode.NEXT_STEP,
            )
        except (EOFError, OSError) as e:
            _let_go(e)
            raise self._start_error(e, env_id, len(env_fns)) from e
        super().__init__(self._raw, env_id=env_id, keep_info=keep_info)
        self._broken = False

    def _start_error(self, e: Exception, env_id: str, num_envs: int) -> ConfigError | EnvError:
        """The error for workers that could not start, or ended before their environments were."""
        codes: set[int | None] = set()
        if getattr(self._raw, "processes", []):
            codes = {self._raw.processes[i].exitcode for i in self._dead()}
            self._kill()
        if NO_GUARD in codes:
            script = getattr(sys.modules["__main__"], "__file__", "the script")
            return ConfigError(
                f"env.backend = async: every worker process imports {script} again, which would "
                "start the workers anew; what a script runs stands under a guard; put it under "
                'if __name__ == "__main__":, or set env.backend=sync'
            )
        ended = "".join(f", exit code {code}" for code in codes)
        what = f"a worker ended while it made its environment ({type(e).__name__}: {e}{ended})"
        who = f"environments 0 to {num_envs - 1}"
        return fault(env_id, who, 0, f"{what}; env.backend=sync shows why")

    def _reset(self, seed: int) -> Any:
        with self._watched():
            self._raw.reset_async(seed=seed)
            return self._raw.reset_wait(timeout=ANSWER_SECONDS)[0]

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self._watched():
            self._raw.step_async(action)
            return self._raw.step_wait(timeout=ANSWER_SECONDS)

    def close(self) -> None:
        if not self._broken:
            self._broken = True  # whatever comes of it, _watched ends the workers
            with suppress(EnvError), self._watched():
                self._raw.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        level, broken = gym.logger.min_level, self._broken
        gym.logger.min_level = 50  # Gymnasium would print the worker's traceback as a warning
        self._broken = True
        try:
            yield
            self._broken = broken
        except EnvError as e:  # a worker's own, without its cause: that stayed in the worker
            raise EnvError(f"{e} (env.backend=sync shows its traceback)") from e
        except multiprocessing.TimeoutError as e:
            what = f"no answer within {ANSWER_SECONDS:g} s; a step must return; fix the environment"
            raise fault(self._id, self._names(self._silent()), self._steps, what) from e
        except (EOFError, OSError) as e:
            _let_go(e)
            dead = self._dead()
            codes = ", ".join(str(self._raw.processes[i].exitcode) for i in dead)
            what = (
                f"its worker process ended (exit code {codes}); look for a crash or lack of memory"
            )
            raise fault(self._id, self._names(dead), self._steps, what) from e
        finally:
            gym.logger.min_level = level
            if self._broken:
                self._kill()

    def _silent(self) -> list[int]:
        return [i for i, pipe in enumerate(self._raw.parent_pipes) if not pipe.poll(0)]

    def _dead(self) -> list[int]:
        processes = self._raw.processes
        connection.wait([p.sentinel for p in processes], timeout=EXIT_SECONDS)
        return [i for i, process in enumerate(processes) if not process.is_alive()]

    @staticmethod
    def _names(indices: list[int]) -> str:
        return "environment " + (", ".join(map(str, indices)) or "?")

    def _kill(self) -> None:
        """End what still runs; nothing is waited for."""
        for process in self._raw.processes:
            process.kill()
        for process in self._raw.processes:
            process.join()
        for pipe in self._raw.parent_pipes:
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._raw.closed = True
