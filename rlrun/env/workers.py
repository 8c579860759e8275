"""Rows of environments in worker processes; failures of a process become EnvError."""

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

from rlrun.env.contract import contract_error
from rlrun.env.rows import Env
from rlrun.errors import NO_GUARD, ConfigError, EnvError, end_if_importing_main

STEP_TIMEOUT_SECONDS = 60.0  # for one step or reset
EXIT_SECONDS = 5.0  # between a closed pipe and the end of its process

EnvFn = Callable[[], gym.Env[Any, Any]]


class WorkerEnvFn:
    """An ``env_fn`` that ignores signals in worker processes.

    Ctrl-C reaches every process of a terminal, but workers must outlive the step that the main
    process finishes before it saves. (Gymnasium calls one env_fn in the main process too.)
    """

    def __init__(self, make: EnvFn) -> None:
        self._make = make
        self._main = os.getpid()

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self._main:
            for name in ("SIGINT", "SIGUSR1"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
        return self._make()


def _start_method() -> str:
    """Return multiprocessing's start method; not fork, since torch's threads may hold locks."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return "spawn"
    multiprocessing.set_forkserver_preload(["rlrun.env"])  # workers then start within ms
    return "forkserver"


def _clear_frames(e: Exception) -> None:
    """Clear the local variables of the frames in ``e``'s traceback.

    A frame of the pipe holds a view of a BytesIO. CPython's garbage collector warns or crashes
    (3.12.1) when it frees both in one cycle (python/cpython#111049, #111331).
    """
    traceback.clear_frames(e.__traceback__)


class AsyncEnv(Env):
    """Rows of an AsyncVectorEnv (shared memory) of ``contract.CheckedEnv``.

    An EnvError ends the workers; afterwards only ``close`` is allowed.
    """

    _raw: AsyncVectorEnv

    def __init__(
        self, env_fns: Sequence[EnvFn], *, env_id: str, keep_info: tuple[str, ...]
    ) -> None:
        end_if_importing_main()
        self._raw = AsyncVectorEnv.__new__(AsyncVectorEnv)  # keeps its processes if __init__ fails
        try:
            self._raw.__init__(  # type: ignore[misc]
                [WorkerEnvFn(make) for make in env_fns],
                copy=False,
                context=_start_method(),
                autoreset_mode=AutoresetMode.NEXT_STEP,
            )
        except (EOFError, OSError) as e:
            _clear_frames(e)
            raise self._start_error(e, env_id, len(env_fns)) from e
        super().__init__(self._raw, env_id=env_id, keep_info=keep_info)
        self._failed = False

    def _start_error(self, e: Exception, env_id: str, num_envs: int) -> ConfigError | EnvError:
        """Return the error for workers that ended before their environments were made."""
        codes: set[int | None] = set()
        if getattr(self._raw, "processes", []):
            codes = {self._raw.processes[i].exitcode for i in self._ended()}
            self._end_workers()
        if NO_GUARD in codes:
            script = getattr(sys.modules["__main__"], "__file__", "the script")
            return ConfigError(
                f"env.backend = async: every worker process imports {script} again, which would "
                "start the workers again; a script needs a guard; put its code under "
                'if __name__ == "__main__":, or set env.backend=sync'
            )
        ended = "".join(f", exit code {code}" for code in codes)
        message = f"a worker ended while it made its environment ({type(e).__name__}: {e}{ended})"
        subject = f"environments 0 to {num_envs - 1}"
        return contract_error(env_id, subject, 0, f"{message}; env.backend=sync shows why")

    def _reset(self, seed: int) -> Any:
        with self._errors_converted():
            self._raw.reset_async(seed=seed)
            return self._raw.reset_wait(timeout=STEP_TIMEOUT_SECONDS)[0]

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self._errors_converted():
            self._raw.step_async(action)
            return self._raw.step_wait(timeout=STEP_TIMEOUT_SECONDS)

    def close(self) -> None:
        if not self._failed:
            self._failed = True  # so that the workers are ended in any case
            with suppress(EnvError), self._errors_converted():
                self._raw.close()

    @contextmanager
    def _errors_converted(self) -> Iterator[None]:
        level, failed = gym.logger.min_level, self._failed
        gym.logger.min_level = 50  # Gymnasium would print the worker's traceback as a warning
        self._failed = True
        try:
            yield
            self._failed = failed
        except EnvError as e:  # raised in a worker; its cause is not pickled
            raise EnvError(f"{e} (env.backend=sync shows its traceback)") from e
        except multiprocessing.TimeoutError as e:
            message = (
                f"no answer within {STEP_TIMEOUT_SECONDS:g} s; a step must return; fix the "
                "environment"
            )
            raise contract_error(
                self._id, self._names(self._unanswered()), self._steps, message
            ) from e
        except (EOFError, OSError) as e:
            _clear_frames(e)
            ended = self._ended()
            codes = ", ".join(str(self._raw.processes[i].exitcode) for i in ended)
            message = (
                f"its worker process ended (exit code {codes}); look for a crash or lack of memory"
            )
            raise contract_error(self._id, self._names(ended), self._steps, message) from e
        finally:
            gym.logger.min_level = level
            if self._failed:
                self._end_workers()

    def _unanswered(self) -> list[int]:
        return [i for i, pipe in enumerate(self._raw.parent_pipes) if not pipe.poll(0)]

    def _ended(self) -> list[int]:
        processes = self._raw.processes
        connection.wait([p.sentinel for p in processes], timeout=EXIT_SECONDS)
        return [i for i, process in enumerate(processes) if not process.is_alive()]

    @staticmethod
    def _names(indices: list[int]) -> str:
        return "environment " + (", ".join(map(str, indices)) or "?")

    def _end_workers(self) -> None:
        """Kill the workers and close their pipes."""
        for process in self._raw.processes:
            process.kill()
        for process in self._raw.processes:
            process.join()
        for pipe in self._raw.parent_pipes:
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._raw.closed = True
