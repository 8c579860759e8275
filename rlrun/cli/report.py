"""How an error reaches the user: one line on stderr and its exit code, never a traceback."""

import errno
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from rlrun.errors import Interrupted, ResourceError, RlrunError, StorageError

_BUG = 9
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class Stopped(BaseException):
    """A job was stopped by a signal; the rest of the sweep is not started."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def report_job_error(e: Exception, run_dir: Path | None) -> int:
    """The exit code of a run that ended in ``e``, which is reported; None: it has no directory."""
    if isinstance(e, OSError) and e.errno in _FULL_DISK and _inside(e.filename, run_dir):
        why = (e.strerror or str(e)).lower()
        fix = "make room or rights, then rlrun resume"
        line = f"run.dir = {run_dir}: {why} ({e.filename}); a writable directory is needed; {fix}"
        return report(StorageError(line))
    if isinstance(e, BrokenPipeError):  # the reader of our output has left: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(e, MemoryError) or "can't allocate memory" in str(e):
        text = " ".join(str(e).split())
        fix = "lower buffer.capacity or the layer sizes"
        return report(ResourceError(f"memory: {text}; what this machine has is allowed; {fix}"))
    return report(e) if isinstance(e, RlrunError) else report_bug(e, run_dir)


def _inside(name: Any, run_dir: Path | None) -> bool:
    if run_dir is None or not isinstance(name, (str, Path)):
        return False
    return Path(name).absolute().is_relative_to(run_dir.absolute())


def report(e: RlrunError) -> int:
    """The exit code of ``e``, which is printed."""
    line = " ".join(str(e).split())
    logging.getLogger("rlrun").info("exit %d: %s", e.exit_code, line)
    said = line if isinstance(e, Interrupted) else f"error: {line}"
    print(f"rlrun: {said}", file=sys.stderr)
    _debug()
    return e.exit_code


def report_bug(e: Exception, run_dir: Path | None) -> int:
    """9; the traceback goes to the run directory, where there is one."""
    where = "set RLRUN_DEBUG=1 for the traceback"
    if run_dir is not None:
        try:
            (run_dir / "crash.txt").write_text(traceback.format_exc(), encoding="utf-8")
            where = f"the traceback is in {run_dir / 'crash.txt'}"
        except OSError:
            pass
    text = " ".join(str(e).split())
    print(
        f"rlrun: error: internal error: {type(e).__name__}: {text}; this is a bug; {where}",
        file=sys.stderr,
    )
    _debug()
    return _BUG


def _debug() -> None:
    if os.environ.get("RLRUN_DEBUG") == "1":
        traceback.print_exc()
