"""Errors that a user can cause, each with its exit code.

RlrunError (9: a bug in rlrun when nothing more precise is known)
├── ConfigError      2  bad config or usage, or a run directory that does not exist
├── EnvError         3  the environment, or a user's function, broke its contract
├── NumericError     4  NaN or infinity in loss, gradient or priority
├── CheckpointError  5  no usable checkpoint
├── StorageError     6  a directory or file cannot be written, or a dataset is damaged
│   └── CodecError   6  coded bytes are damaged, do not match the held data, or cannot be made
├── ResourceError    7  GPU, memory, an optional package, or another resource is missing
├── LockedError      8  the run directory is in use by another process
└── Interrupted    130  Ctrl-C: the run was saved and can be resumed

Text form: ``key.path = value: what is wrong; what is allowed; what to do``.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

NO_GUARD = 86  # exit code of a worker whose script has no main guard


def end_if_importing_main() -> None:
    """End a worker process that imports the main script, which would start a run of its own.

    A worker imports that script before it works, and without ``if __name__ == "__main__":`` all of
    it runs again. An exception would only be printed, once per worker.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes and getattr(processes.current_process(), "_inheriting", False):
        os._exit(NO_GUARD)


def require_working_directory() -> None:
    """Raise StorageError if the working directory was deleted: every relative path begins there."""
    try:
        os.getcwd()
    except OSError as e:
        raise StorageError(
            f"the working directory: is gone ({(e.strerror or str(e)).lower()}); one that exists "
            "is needed; change into another directory (cd)"
        ) from e


def require_new_file(
    flag: str, path: Path, suffixes: Sequence[str], *, overwrite: bool = False
) -> None:
    """Raise ConfigError unless ``path``, given by ``flag``, can become a file of a format."""
    if path.suffix.lower() not in suffixes:
        wrong = f"its name does not say the format; {' and '.join(suffixes)} are allowed; rename it"
    elif len(os.fsencode(path.name)) > 250:  # a temporary file's is longer by 5
        wrong = "its name is longer than 250 bytes; a shorter one is allowed; rename it"
    elif not os.path.isdir(path.absolute().parent):
        wrong = f"there is no directory {path.parent}; an existing one is allowed; make it"
    elif os.path.isdir(path) or (os.path.lexists(path) and not overwrite):
        wrong = "exists already; a new file is allowed; choose another, or add --overwrite"
    else:
        return
    raise ConfigError(f"{flag} = {path}: {wrong}")


def no_cluster(key: str, address: str, text: str) -> "ResourceError":
    """Return the error of a cluster that does not answer."""
    return ResourceError(
        f"{key} = {address}: no Ray cluster answers ({text}); host:port of a running head of the "
        "same Ray and Python version is allowed; start one with `ray start --head`, or leave it out"
    )


def unguarded(key: str, allowed: str) -> "ConfigError":
    """Return the error of workers that ended with ``NO_GUARD``.

    ``allowed``: the KEY=VALUE that uses no workers.
    """
    script = getattr(sys.modules["__main__"], "__file__", "the script")
    return ConfigError(
        f"{key}: every worker process imports {script} again, which would start the workers again; "
        'a script needs a guard; put its code under if __name__ == "__main__":, or set '
        f"{allowed}"
    )


class RlrunError(Exception):
    """An error shown to the user as one line."""

    exit_code = 9

    def with_code(self, code: int) -> Self:
        """Return this error, with another exit code."""
        self.exit_code = code
        return self


def known_error(error: RlrunError) -> str:
    """Return the name of the class of ``error`` in this module, for another process."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == __name__)


def error_named(name: str, text: str) -> RlrunError | None:
    """Return the error that ``known_error`` named in another process; None: a bug there."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, RlrunError):
        return kind(text)
    return None


class ConfigError(RlrunError):
    """Bad config or usage, raised before anything is written. ``key``: the config key at fault."""

    exit_code = 2

    def __init__(self, text: str, *, key: str | None = None) -> None:
        super().__init__(text)
        self.key = key


class EnvError(RlrunError):
    """The environment, or a user's function, broke its contract.

    Examples are NaN, a wrong shape or dtype, or an exception in ``step``.
    """

    exit_code = 3


class NumericError(RlrunError):
    """A loss, gradient or priority is NaN or infinite."""

    exit_code = 4


class CheckpointError(RlrunError):
    """No checkpoint in the run directory can be used."""

    exit_code = 5


class StorageError(RlrunError):
    """A file or directory cannot be written, or a dataset is damaged."""

    exit_code = 6


@contextmanager
def storage_errors(what: object, need: str, wrong: str = "cannot be written") -> Iterator[None]:
    """Raise StorageError ``WHAT WRONG (why); NEED`` for an OSError of the block."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{what} {wrong} ({e.strerror or e}); {need}") from e


class CodecError(StorageError):
    """Coded bytes are damaged or do not match the held data, or an array cannot be coded."""


class ResourceError(RlrunError):
    """A resource that the config requires is missing on this machine."""

    exit_code = 7


class LockedError(RlrunError):
    """The run directory is in use by another process."""

    exit_code = 8


class Interrupted(RlrunError):
    """Ctrl-C was pressed; the run was saved."""

    exit_code = 130


# Values of environment variables that a config read (``${oc.env:NAME}``), kept out of messages.
_secrets: dict[str, str] = {}  # value -> the interpolation that gave it
_SHORT_SECRET = 6  # characters of a value replaced only as a whole word


def remember(value: str, name: str) -> None:
    """Replace ``value`` of the environment variable ``name`` in all later messages."""
    for text in (value, " ".join(value.split())):
        if text:
            _secrets[text] = f"${{oc.env:{name}}}"


def redact(text: str) -> str:
    """Return the text with values of environment variables replaced by their names."""
    for value in sorted(_secrets, key=len, reverse=True):
        word = re.escape(value)
        if len(value) < _SHORT_SECRET:
            word = rf"(?<!\w){word}(?!\w)"
        text = re.sub(word, _secrets[value].replace("\\", r"\\"), text)
    return text


def printable(text: str) -> str:
    """Return ``text`` with control characters and invalid UTF-8 escaped.

    Names may contain both, and a terminal would obey control characters.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
