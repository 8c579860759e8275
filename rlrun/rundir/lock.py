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

_lock_handles: set[int] = set()


def _close_in_child() -> None:
    """Close a forked worker's copies, so that the lock ends with the process that acquired it."""
    for handle in _lock_handles:
        os.close(handle)
    _lock_handles.clear()


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
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as e:
        raise StorageError(
            f"{path}: cannot be made ({e.strerror or e}); the run directory must be writable; fix "
            "its permissions, or choose another with run.dir=PATH"
        ) from e
    _lock_handles.add(handle)
    try:
        _acquire(handle, path)
        yield
    finally:
        if handle in _lock_handles:  # a forked child has closed its copy
            _lock_handles.discard(handle)
            os.close(handle)  # releases the lock


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
