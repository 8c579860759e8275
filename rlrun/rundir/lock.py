"""Lock of a run directory: one process at a time."""

import fcntl
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlrun.errors import LockedError, StorageError

_logger = logging.getLogger(__name__)

LOCK = ".lock"

_held: dict[Path, tuple[int, int]] = {}  # run directory -> handles of its lock and of itself


def _close_in_child() -> None:
    """Close a forked worker's copies, so that the lock ends with the process that acquired it."""
    for handles in _held.values():
        for handle in handles:
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Lock the run directory for this process within the block.

    The operating system releases the lock when the process ends.

    Raises: LockedError when another process holds the lock, StorageError when the lock file cannot
    be made.
    """
    path = run_dir / LOCK
    try:
        directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError:
            os.close(directory)
            raise
    except OSError as e:
        raise StorageError(
            f"{path}: cannot be made ({e.strerror or e}); the run directory must be writable; fix "
            "its permissions, or choose another with run.dir=PATH"
        ) from e
    earlier, _held[run_dir] = _held.get(run_dir), (handle, directory)
    try:
        _acquire(handle, path)
        yield
    finally:
        if _held.get(run_dir) == (handle, directory):  # a forked child has closed its copies
            _held.pop(run_dir)
            os.close(handle)  # releases the lock
            os.close(directory)
            if earlier is not None:  # another block of this process, which holds it
                _held[run_dir] = earlier


def require_in_place(run_dir: Path) -> None:
    """Raise StorageError when a directory that this process locked was renamed or removed.

    Writing to its path would make another directory, or change another run.
    """
    if run_dir not in _held:
        return
    own = os.fstat(_held[run_dir][1])
    try:
        there = os.stat(run_dir)
        moved = (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino)
    except OSError:
        moved = True
    if moved:
        raise StorageError(
            f"{run_dir}: the run directory was renamed or removed while the run was writing it; it "
            "must stay in place; move it back, then rlrun resume it"
        )


def _acquire(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        raise LockedError(
            f"{path.parent}: in use by {holder}; one process at a time may use a run directory; "
            "wait for it to end, or stop it"
        ) from None
    except OSError as e:  # some network file systems have no locks
        text = "%s: cannot be locked (%s); continuing without a lock"
        _logger.warning(text, path.parent, e.strerror)
        return
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
