"""Run and sweep directories, each used by one run. Paths are checked before anything is written."""

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError, StorageError
from rlrun.schema import Config
from rlrun.trust import resume_line

_LONGEST_NAME, _LONGEST_PATH = 255, 4096  # bytes of one part and of a whole path


def check_inside(key: str, path: str) -> None:
    """Raise ConfigError unless ``path`` is relative and stays in its directory."""
    parts = Path(path).parts
    if not parts or Path(path).is_absolute() or ".." in parts or parts[0].startswith("~"):
        wrong, allowed = "leads out of its directory", "a relative path without .. is allowed"
        raise config_error(key, path, wrong, allowed, f"choose another, or type {key}=PATH")


def check_below(key: str, path: str) -> None:
    """Raise ConfigError unless ``path`` is below the working directory after following links."""
    check_inside(key, path)
    here = os.path.realpath(".")
    if os.path.commonpath([here, os.path.realpath(path)]) != here:
        wrong, allowed = "a link in it leads out of this directory", "a path below it is allowed"
        raise config_error(key, path, wrong, allowed, f"type {key}=PATH, or choose another")


def check_written(config: Config, typed: Collection[str]) -> None:
    """Raise ConfigError if a file names a directory to write to outside the working directory.

    ``typed``: keys of the command line, which may name any.
    """
    if config.buffer.mmap is not None and "buffer.mmap" not in typed:
        check_below("buffer.mmap", config.buffer.mmap)


def absolute(key: str, path: Path) -> Path:
    """Return the absolute path of a new directory.

    Raises: ConfigError if no directory can have it.
    """
    try:
        full = path.expanduser().absolute()
    except RuntimeError as e:
        raise config_error(key, path, "there is no such user", "a path", "write it out") from e
    check_length(key, full)
    if "${" in str(full):
        wrong, allowed = "holds ${, which starts an interpolation", "other characters are allowed"
        raise config_error(key, full, wrong, allowed, "rename the directory or choose another")
    return full


def check_length(key: str, path: Path) -> None:
    """Raise ConfigError for a path that no file system can hold."""
    text = str(path)
    if "\0" in text:
        raise config_error(key, ascii(text), "contains NUL", "a path is allowed", "leave it out")
    try:
        content = text.encode()
    except UnicodeEncodeError:
        wrong, allowed = "is not UTF-8", "a name in UTF-8 is allowed"
        raise config_error(key, ascii(text), wrong, allowed, "rename it") from None
    longest = max(map(len, content.split(b"/")))
    if longest > _LONGEST_NAME or len(content) > _LONGEST_PATH:
        wrong = f"a name in it has {longest} bytes"
        allowed = f"names of {_LONGEST_NAME} bytes, {_LONGEST_PATH} in all, are allowed"
        raise config_error(key, text, wrong, allowed, "choose a shorter one")


def storage_error(path: Path, why: str, key: str = "run.dir") -> StorageError:
    """Return the error for a directory that cannot be made. ``key`` chooses the directory."""
    fix = f"choose another with {key}=PATH"
    return StorageError(f"{key} = {path}: {why}; a writable directory is needed; {fix}")


def require_writable(path: Path, key: str = "run.dir") -> None:
    """Raise StorageError unless ``path`` could be made. Makes nothing."""
    parents = (path, *path.absolute().parents)
    parent = next(filter(os.path.exists, parents))  # also False in an unreadable directory
    if not os.path.isdir(parent):
        raise storage_error(path, f"{parent} is not a directory", key)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise storage_error(path, f"{parent} is not writable", key)


def require_new(path: Path, key: str = "run.dir") -> None:
    """Raise ConfigError unless ``path``, given as ``key``, is new or empty. Makes nothing.

    Raises: also StorageError if it cannot be read.
    """
    if not os.path.lexists(path):
        return
    try:
        if os.path.isdir(path) and not os.listdir(path):
            return
    except OSError as e:
        raise storage_error(path, (e.strerror or str(e)).lower(), key) from e
    marker = {"run.dir": "config.yaml", "search.dir": "search.json"}.get(key)
    resumable = marker is not None and (path / marker).exists()
    fix = resume_line(path) if resumable else "choose another path"
    what = "the directory is not empty" if path.is_dir() else "this is not a directory"
    raise config_error(key, path, what, "a new or empty directory is allowed", fix)


def claim(path: Path, *, exact: bool, key: str = "run.dir") -> Path:
    """Make a directory for this run alone and return it.

    ``exact``: ``path`` itself, which may exist if empty. Otherwise ``path``, or ``path_2``,
    ``path_3``, … if another run has it (started in the same second): mkdir is atomic. ``key``
    chooses another directory.

    Raises: ConfigError (exact and in use), StorageError (cannot be made).
    """
    if exact:
        require_new(path, key)
    require_writable(path, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if exact:
            path.mkdir(exist_ok=True)
            return path
        for number in range(1, 10_000):
            target = path if number == 1 else path.with_name(f"{path.name}_{number}")
            try:
                target.mkdir()
            except FileExistsError:
                continue
            return target
    except OSError as e:
        raise storage_error(path, (e.strerror or str(e)).lower(), key) from e
    raise ConfigError(f"{key} = {path}: 9999 runs have this name; another name; set {key}=PATH")


def study_directory(key: str, typed: str | None, begun: Callable[[Path], bool]) -> Path:
    """Return the directory of a study (search.dir, bench.dir, probe.dir), absolute.

    ``typed``: new, empty, or one with which ``begun`` returns True; it is not made. None: a new one
    below ``outputs``.

    Raises: ConfigError, StorageError.
    """
    if typed is None:
        name = time.strftime(f"outputs/{key.partition('.')[0]}/%Y-%m-%d_%H-%M-%S")
        return claim(absolute(key, Path(name)), exact=False, key=key)
    path = absolute(key, Path(typed))
    if not begun(path):
        require_new(path, key)
        require_writable(path, key)
    return path


def undo_logging(run_dir: Path) -> None:
    """Close the log files, and remove the run directory if it holds nothing else."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    logging.shutdown()  # also handlers without a logger
    with suppress(OSError):
        for path in run_dir.iterdir():
            if path.stat().st_size == 0:
                path.unlink()
        run_dir.rmdir()
