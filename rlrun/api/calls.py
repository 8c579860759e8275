"""Shared code of all calls from Python: errors of the command line, and an unchanged process."""

import inspect
import logging
import os
import shlex
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from rlrun.cli.commands import parser_of
from rlrun.cli.error_report import job_error, line_of
from rlrun.config.hydra_keys import hydra_restored
from rlrun.errors import ConfigError, end_if_importing_main, require_working_directory
from rlrun.schema.override import Override
from rlrun.trust import NotTrusted, trusting

DRIVER = "SDL_VIDEODRIVER"

StrPath = str | os.PathLike[str]
_P = ParamSpec("_P")
_T = TypeVar("_T")

_LISTS = "rlrun.sweep", "rlrun.search"  # they take a list of overrides
_running = threading.Lock()


def errors_of_cli(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Raise every error as RlrunError whose text is the line that the command line prints.

    Its traceback ends here, because the line says all that a user needs. A cause, such as an error
    of an environment or a bug, is kept, except for a ConfigError. RLRUN_DEBUG=1 keeps everything.
    Arguments that the function does not take raise TypeError.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            known = list(signature.parameters)
            unknown = [name for name in kwargs if name not in known]
            if close := [
                near for name in unknown for near in get_close_matches(name, known, 1, 0.75)
            ]:
                text = f"rlrun.{function.__name__}({unknown[0]}=...): is not an argument"
                allowed = f"{', '.join(known)} are allowed"
                raise TypeError(f"{text}; {allowed}; did you mean {close[0]}=...?") from None
            if not unknown or "overrides" not in known:
                raise
            raise ConfigError(_as_overrides(function.__name__, kwargs, unknown)) from None
        try:
            require_working_directory()
            return function(*args, **kwargs)
        except BrokenPipeError:
            raise
        except Exception as e:
            error = job_error(e, None)
            if isinstance(error, NotTrusted):
                names = ", ".join(f'"{name}"' for name in error.packages)
                error = error.typed(f"rlrun.{function.__name__}(..., trust=[{names}])")
            error.args = (line_of(error),)
            if os.environ.get("RLRUN_DEBUG") == "1":
                raise error from error.__cause__
            cause = None if isinstance(error, ConfigError) else error.__cause__
            raise error.with_traceback(None) from cause

    return wrapper


def _as_overrides(name: str, kwargs: dict[str, object], unknown: list[str]) -> str:
    """Return the line to type instead of ``train(policy="r2d2")``."""
    from rlrun.cli.help import Reference
    from rlrun.cli.key_table import Table

    reference = Reference(Table())
    full = {key: reference.meant(key) for key in unknown}
    full |= {"env": "env"} if isinstance(kwargs.get("env"), str) else {}
    full |= {"workers": "hydra.launcher.workers"} if name == "sweep" else {}
    words = ", ".join(f'"{full[key]}={kwargs[key]}"' for key in kwargs if key in full)
    keywords = ", ".join(f"{key}={kwargs[key]!r}" for key in unknown)
    listed = {"sweep": f"[{words}]", "evaluate": f"RUN_DIR, overrides=[{words}]"}
    form = listed.get(name, f"RUN_DIR, {words}" if name == "resume" else words)
    return (
        f"rlrun.{name}({keywords}): options are not keywords; each is a string KEY=VALUE; type "
        f"rlrun.{name}({form})"
    )


@contextmanager
def call(trust: str | Sequence[str] = ()) -> Iterator[None]:
    """Trust packages, whose code a config may name, and restore Hydra's global objects.

    An environment drawn without a screen sets a driver, with which a window would show nothing.
    """
    driver = os.environ.get(DRIVER)
    try:
        with trusting(_packages(trust)), hydra_restored():
            yield
    finally:
        os.environ.pop(DRIVER, None)
        os.environ.update({} if driver is None else {DRIVER: driver})


def _packages(trust: object) -> list[str]:
    """Return the names given as ``trust``. Raises: ConfigError."""
    if isinstance(trust, str):
        return [trust]
    if not isinstance(trust, Iterable) or not all(isinstance(name, str) for name in [*trust]):
        raise ConfigError(f'trust = {trust!r:.60}: is no list of packages; give trust=["mypkg"]')
    return [*trust]


@contextmanager
def running_call(
    argv: Sequence[str],
    trust: str | Sequence[str] = (),
    *,
    quiet: bool = False,
    config_dir: StrPath | None = None,
) -> Iterator[None]:
    """Apply ``call`` for training, one at a time, because generators and signals are process-wide.

    The words ``argv`` and the flags are those of the same command line, which the run's records
    name. Handlers of logging stay unchanged.
    """
    end_if_importing_main()
    flags = [] if config_dir is None else ["--config-dir", path_of(config_dir, "config_dir")]
    if not isinstance(quiet, bool):
        raise ConfigError(f"quiet = {quiet!r:.60}: is not True or False; give quiet=True")
    flags += [*["-q"] * quiet, *(word for name in _packages(trust) for word in ("--trust", name))]
    if not _running.acquire(blocking=False):
        raise ConfigError(
            "rlrun: another call trains in this process; one at a time is allowed; wait for it, or "
            "let rlrun.sweep run several"
        )
    root, own_argv = logging.getLogger(), sys.argv
    handlers, level = root.handlers[:], root.level
    sys.argv = ["rlrun", *argv, *flags]
    try:
        from rlrun.blas import one_thread_of_run

        with call(trust), one_thread_of_run():
            yield
    finally:
        sys.argv, root.handlers = own_argv, handlers
        root.setLevel(level)
        _running.release()


def check_words(overrides: object, name: str) -> list[Override]:
    """Return the overrides, each a string KEY=VALUE. Raises: ConfigError."""
    example = '"policy=dqn", "env=cartpole"'
    fix = f"e.g. {name}({f'[{example}]' if name in _LISTS else example})"
    words = []
    if isinstance(overrides, str) or not isinstance(overrides, Iterable):
        overrides = [overrides]
    for word in overrides:
        if not isinstance(word, str):
            shown = repr(word)[:60]
            raise ConfigError(f"{name}: {shown} is not a string; KEY=VALUE is allowed; {fix}")
        if word.startswith("-") or ("=" not in word.lstrip("~") and not word.startswith("~")):
            raise ConfigError(f"{name}: {word} is not an override; KEY=VALUE is allowed; {fix}")
        several = []
        with suppress(ValueError):  # an open quote
            several = shlex.split(word)
        if len(several) > 1 and all("=" in part for part in several):
            quoted = ", ".join(f'"{part}"' for part in several)
            form = f"[{quoted}]" if name in _LISTS else quoted
            raise ConfigError(
                f"{name}: {word!r} holds several overrides; one in each string is allowed; type "
                f"{name}({form})"
            )
        words.append(Override(word))
    return words


def path_of(path: object, name: str = "run_dir") -> str:
    """Return the path that the argument ``name`` is, a path or a ``Run``, with ~ expanded.

    Raises: ConfigError.
    """
    if not isinstance(path, str | os.PathLike):
        allowed = "a path and a Run are allowed" if name == "run_dir" else "a path is allowed"
        wrong = f"{name} = {path!s:.60}: is not a path"
        raise ConfigError(f"{wrong}; {allowed}; give a directory")
    return os.path.expanduser(path)


def directory_of(run_dir: object) -> Path:
    """Return the absolute path of a run directory. Raises: ConfigError."""
    return Path(path_of(run_dir)).absolute()


def arguments(command: str, *words: object, **options: object) -> Namespace:
    """Return the arguments of ``rlrun COMMAND``: words, and options by name; None: the default.

    Raises: ConfigError, as the command line.
    """
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return parser_of(command).parse_args([*flags, "--", *map(str, words)])
