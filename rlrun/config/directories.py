"""Run and sweep directories, each of one run. A path is checked before anything is written."""

import os
from pathlib import Path

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError, StorageError


def storage_error(path: Path, why: str) -> StorageError:
    """The error for an output directory that cannot be made."""
    fix = "choose another with run.dir=PATH (a sweep: hydra.sweep.dir=PATH)"
    return StorageError(f"run.dir = {path}: {why}; a writable directory is needed; {fix}")


def require_writable(path: Path) -> None:
    """Raise StorageError unless ``path`` could be made; makes nothing."""
    for parent in (path, *path.absolute().parents):
        if not parent.exists():
            continue
        if not parent.is_dir():
            raise storage_error(path, f"{parent} is not a directory")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise storage_error(path, f"{parent} is not writable")
        return


def require_new(path: Path, key: str = "run.dir") -> None:
    """Raise ConfigError unless ``path``, given as ``key``, is new or empty; makes nothing."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if not os.path.lexists(path):
        return
    resumable = key == "run.dir" and (path / "config.yaml").exists()
    fix = f"rlrun resume {path}" if resumable else "choose another path"
    what = "the directory is not empty" if path.is_dir() else "this is not a directory"
    raise config_error(key, path, what, "a new or empty directory is allowed", fix)


def claim(path: Path, *, exact: bool) -> Path:
    """The directory that was made for this run alone.

    ``exact``: ``path`` itself, which may exist empty. Otherwise ``path`` or, when another run has
    it (started in the same second), ``path_2``, ``path_3``, …: mkdir is atomic.

    Raises: ConfigError (exact and in use), StorageError (cannot be made).
    """
    require_writable(path)
    if exact:
        require_new(path)
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
        raise storage_error(path, (e.strerror or str(e)).lower()) from e
    raise ConfigError(f"run.dir = {path}: 9999 runs have this name; another name; set run.dir=PATH")
