"""Process-wide settings that an environment may change, kept separate from those of the run.

An environment may compute in float64 (``torch.set_default_dtype``), without gradients, on one
thread, or in another directory. The run must not, and the environment must find its settings again
in its next call, so the settings are exchanged around every call, which takes some 10 us.
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
_SETTINGS = _ERRORS, _TORCH, _DIRECTORY, _BLAS
_of_environments: dict[Setting, Any] = {}  # what environments of this process have set last


class SettingsKept:
    """A block of environment code with its own settings, after which the run's return."""

    def __enter__(self) -> None:
        self._before = [(setting, setting.read()) for setting in _SETTINGS]
        for setting, value in _of_environments.items():
            setting.write(value)

    def __exit__(self, *error: object) -> None:
        for setting, before in self._before:
            after = setting.read()
            if after == before:
                _of_environments.pop(setting, None)
            else:
                _of_environments[setting] = after
                setting.write(before)


def changes_nothing(env: Any) -> bool:
    """Return whether all layers of an environment are Gymnasium's or rlrun's own."""
    if not type(env).__module__.startswith(("gymnasium.", "rlrun.")):
        return False
    inner = [getattr(env, name, None) for name in ("env", "joint", "parallel_env")]
    return all(changes_nothing(x) for x in (*inner, *getattr(env, "envs", ())) if x is not None)
