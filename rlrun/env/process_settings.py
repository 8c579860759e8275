"""Settings of the whole process that an environment may change, kept apart from those of the run.

An environment may compute in float64 (``torch.set_default_dtype``), without gradients, on one
thread, in a directory of its own. The run must not, and the environment must find its settings
again in its next call: they are exchanged around every call. A step is compared in what costs 1 us;
the other calls in all of it.
"""

import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from numpy._core import _ufunc_config

from rlrun import blas

# The object that holds np.seterr's state: compared in 30 ns, np.geterr takes 1 us
_error_state: Any = getattr(_ufunc_config, "_extobj_contextvar", None)


class _NumpyErrors:
    """np.seterr."""

    @staticmethod
    def read() -> Any:
        return np.geterr() if _error_state is None else _error_state.get(None)

    @staticmethod
    def write(value: Any) -> None:
        if _error_state is None:
            np.seterr(**value)
        elif value is None:  # never set in this thread
            np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
        else:
            _error_state.set(value)


class _Torch:
    """Default dtype and device, gradients, threads and deterministic algorithms, once imported."""

    @staticmethod
    def read() -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "_GLOBAL_DEVICE_CONTEXT"):
            return None
        return (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        )

    @staticmethod
    def write(value: Any) -> None:
        torch: Any = sys.modules.get("torch")
        if value is None:  # the environment has imported torch: the settings it begins with
            value = torch.float32, True, torch.get_num_threads(), False, False, None
        dtype, gradients, threads, deterministic, warn_only, device = value
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_default_device(None if device is None else device.device)


class _Directory:
    """The working directory."""

    @staticmethod
    def read() -> Any:
        with suppress(OSError):  # it was deleted
            return os.getcwd()

    @staticmethod
    def write(value: Any) -> None:
        with suppress(OSError, TypeError):
            os.chdir(value)


class _Blas:
    """Threads of numpy's matrix products."""

    @staticmethod
    def read() -> Any:
        return [library.get_num_threads() for library in blas.libraries()]

    @staticmethod
    def write(value: Any) -> None:
        for library, threads in zip(blas.libraries(), value, strict=False):
            library.set_num_threads(threads)


_SETTINGS: Any = (_NumpyErrors, _Torch, _Directory, _Blas)
_of_environments: dict[Any, Any] = {}  # what environments of this process have set last
_of_run: dict[Any, Any] = {}  # what was set before the last block that was compared in full
_TORCH = None, True, 0, False, False, None  # as torch begins


class SettingsKept:
    """Block of environment code: it has the settings it made, the code after it those before."""

    def __init__(self) -> None:
        self._before: list[list[tuple[Any, Any]]] = []

    def __enter__(self) -> None:
        self._before.append([(setting, setting.read()) for setting in _SETTINGS])
        _of_run.update(self._before[-1])
        for setting, value in _of_environments.items():
            setting.write(value)

    def __exit__(self, *error: object) -> None:
        for setting, before in self._before.pop():
            after = setting.read()
            if after is before or after == before:
                _of_environments.pop(setting, None)
            else:
                _of_environments[setting] = after
                setting.write(before)


class StepSettingsKept(SettingsKept):
    """The same for a step: where no environment has set anything, only ``_quick`` is compared."""

    def __init__(self) -> None:
        super().__init__()
        self._now: Any = None

    def __enter__(self) -> None:
        if _of_environments:
            super().__enter__()
        self._now = _quick()

    def __exit__(self, *error: object) -> None:
        if self._before:
            super().__exit__(*error)
        elif (after := _quick()) != self._now:
            before, self._now = self._now, None
            if after[0] is not before[0]:
                _of_environments[_NumpyErrors] = after[0]
                _NumpyErrors.write(before[0])
            if after[1:] != before[1:]:
                _of_environments[_Torch] = _Torch.read()
                rest = (_of_run.get(_Torch) or _TORCH)[3:]
                _Torch.write(None if before[1] is None else (*before[1:], *rest))


def _quick() -> tuple[Any, ...]:
    """Return numpy's error state, torch's default dtype, gradients and threads, in 0.4 us."""
    torch: Any = sys.modules.get("torch")
    errors = _NumpyErrors.read()
    if torch is None or not hasattr(torch, "_GLOBAL_DEVICE_CONTEXT"):
        return errors, None
    return errors, torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()


def changes_nothing(env: Any) -> bool:
    """Return True for an environment all of whose layers are Gymnasium's or rlrun's own."""
    if not type(env).__module__.startswith(("gymnasium.", "rlrun.")):
        return False
    inner = [getattr(env, name, None) for name in ("env", "joint", "parallel_env")]
    return all(changes_nothing(x) for x in (*inner, *getattr(env, "envs", ())) if x is not None)
