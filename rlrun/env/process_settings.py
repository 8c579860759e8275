"""Process-wide settings that an environment may change, kept separate from those of the run.

An environment may compute in float64 (``torch.set_default_dtype``), without gradients, on one
thread, or in another directory. The run must not, and the environment must find its settings again
in its next call, so the settings are exchanged around every call. Directory and BLAS threads, which
no step of the run reads, are compared only once in 64 steps. The rest costs 2 us per step.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rlrun import blas


class Setting(NamedTuple):
    """A setting of the process: the functions that read and set it."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _read_torch() -> Any:
    """Return torch's dtype, gradient mode, threads, determinism and device, once imported."""
    torch: Any = sys.modules.get("torch")
    context = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    if context is None:  # not (completely) imported
        return None
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        context.__dict__.get("device_context"),
    )


def _write_torch(value: Any) -> None:
    torch: Any = sys.modules.get("torch")
    if value is None:  # the environment has imported torch: keep its first settings
        value = torch.float32, True, torch.get_num_threads(), False, False, None
    dtype, gradients, threads, deterministic, warn_only, device = value
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(gradients)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.set_default_device(None if device is None else device.device)


def _read_directory() -> Any:
    with suppress(OSError):  # it was deleted
        return os.getcwd()


def _write_directory(value: Any) -> None:
    with suppress(OSError, TypeError):
        os.chdir(value)


def _write_blas(value: Any) -> None:
    for library, threads in zip(blas.libraries(), value, strict=False):
        library.set_num_threads(threads)


_ERRORS = Setting(np.geterr, lambda value: np.seterr(**value))
_TORCH = Setting(_read_torch, _write_torch)
_DIRECTORY = Setting(_read_directory, _write_directory)
_BLAS = Setting(lambda: [x.get_num_threads() for x in blas.libraries()], _write_blas)
_QUICK, _SLOW = (_ERRORS, _TORCH), (_DIRECTORY, _BLAS)  # reading the quick ones takes 0.5 us
_REST = 63  # the slow ones are compared in one step of 64
_of_environments: dict[Setting, Any] = {}  # what environments of this process have set last
_of_run: dict[Setting, Any] = {}  # what was set before the last block that was compared in full


def _exchange(setting: Setting, before: Any) -> None:
    """Restore ``before`` if an environment changed it, and keep the environment's value."""
    after = setting.read()
    if after is before or after == before:
        _of_environments.pop(setting, None)
    else:
        _of_environments[setting] = after
        setting.write(before)


def _quick() -> tuple[Any, Any]:
    return np.geterr(), _read_torch()


class SettingsKept:
    """A block of environment code with its own settings, after which the run's return."""

    def __enter__(self) -> None:
        self._before = [(setting, setting.read()) for setting in (*_QUICK, *_SLOW)]
        _of_run.update(self._before)
        for setting, value in _of_environments.items():
            setting.write(value)

    def __exit__(self, *error: object) -> None:
        for setting, before in self._before:
            _exchange(setting, before)


class StepSettingsKept(SettingsKept):
    """``SettingsKept`` for a step: compares fewer settings while no environment has set any."""

    _steps = 0

    def __enter__(self) -> None:
        self._full = bool(_of_environments)
        if self._full:
            super().__enter__()
        else:
            self._now = _quick()

    def __exit__(self, *error: object) -> None:
        if self._full:
            super().__exit__(*error)
            return
        if changed := _quick() != self._now:
            for setting, before in zip(_QUICK, self._now, strict=True):
                _exchange(setting, before)
        if changed or not self._steps & _REST:
            for setting in _SLOW:
                if setting in _of_run:
                    _exchange(setting, _of_run[setting])
        self._steps += 1


def changes_nothing(env: Any) -> bool:
    """Return whether all layers of an environment are Gymnasium's or rlrun's own."""
    if not type(env).__module__.startswith(("gymnasium.", "rlrun.")):
        return False
    inner = [getattr(env, name, None) for name in ("env", "joint", "parallel_env")]
    return all(changes_nothing(x) for x in (*inner, *getattr(env, "envs", ())) if x is not None)
