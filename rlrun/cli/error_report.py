"""Error reports: one line on stderr and an exit code, never a traceback."""

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.errors import Interrupted, ResourceError, RlrunError, StorageError, printable, redact
from rlrun.trust import NotTrusted, fault_of_users

_LONGEST = 2000  # characters of a message
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # errors of any file
# Errors of the run's files.
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT, errno.ENOTDIR)


class SweepStopped(BaseException):
    """Ends a sweep with an exit code. A job that a signal stopped, or failed, has been reported."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def job_error(e: Exception, run_dir: Path | None) -> RlrunError:
    """Return the error of a run that ended in ``e``, its cause. ``run_dir`` None: no directory.

    Any other error than a user's is a bug, whose traceback is written into the run directory.
    """
    error = _typed_error(e, run_dir)
    if error is not e:
        error.__cause__ = e
    return error


def _typed_error(e: Exception, run_dir: Path | None) -> RlrunError:
    if isinstance(e, RlrunError):
        return e
    if isinstance(e, OSError) and (
        e.errno in _FULL_DISK or (e.errno in _NO_ACCESS and _inside(e.filename, run_dir))
    ):
        why = (e.strerror or str(e)).lower()
        where = f" ({e.filename})" if e.filename else ""  # unknown for a write
        what = "the output" if run_dir is None else f"run.dir = {run_dir}"
        fix = "free space or fix the permissions, then rlrun resume"
        return StorageError(f"{what}: {why}{where}; a writable directory is needed; {fix}")
    text = " ".join(str(e).split())
    if isinstance(e, OSError) and e.errno in (errno.EMFILE, errno.ENFILE):
        fix = "raise ulimit -n, or lower collector.num_envs and eval.num_envs"
        return ResourceError(f"files: {text}; what this process may open is allowed; {fix}")
    if isinstance(e, MemoryError) or "can't allocate memory" in text:
        fix = "lower buffer.capacity or the layer sizes"
        return ResourceError(f"memory: {text}; what this machine has is allowed; {fix}")
    fault = fault_of_users(e)
    if fault is None and isinstance(e, ImportError) and not (e.name or "").startswith("rlrun"):
        return ResourceError(
            f"packages: {text}; a package was removed or replaced (pip install) while rlrun used "
            "it; packages that stay as they are, are needed; run the command again, or rlrun resume"
        )
    return _bug(e, run_dir) if fault is None else fault


def exit_code(e: BaseException, words: Sequence[str] = ()) -> int:
    """Report the error that ended a run or a command, and return its exit code.

    ``words``: the command line, to which a missing --trust is added.
    """
    if isinstance(e, NotTrusted) and words:
        flags = (word for name in e.packages for word in ("--trust", name))
        return report(e.typed(shlex.join(["rlrun", *words, *flags])))
    if isinstance(e, BrokenPipeError):  # the reader of the output has closed it: rlrun list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(e, KeyboardInterrupt):
        _print("rlrun: interrupted\n")
        return Interrupted.exit_code
    if isinstance(e, SweepStopped):
        return e.code
    if isinstance(e, SystemExit) and not e.code:  # a parser has printed its help
        return 0
    if not isinstance(e, Exception):
        raise e
    return report(job_error(e, None))


def going_on(e: Interrupted, words: Sequence[str]) -> Interrupted:
    """Return the interruption with the command line ``words``, which continues the work."""
    text = f"{str(e).partition('; go on')[0]}; go on: rlrun {shlex.join(words)}"
    return Interrupted(text).with_code(e.exit_code)


def _inside(name: Any, run_dir: Path | None) -> bool:
    if run_dir is None or not isinstance(name, (str, Path)):
        return False
    return Path(name).absolute().is_relative_to(run_dir.absolute())


def line_of(e: RlrunError) -> str:
    """Return the text of an error on one line, without secrets and control characters."""
    line = redact(" ".join(str(e).split()))
    return printable(line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ...")


def report(e: RlrunError) -> int:
    """Print ``e`` and return its exit code."""
    text = line_of(e) if isinstance(e, Interrupted) else f"error: {line_of(e)}"
    _print(f"rlrun: {text}\n")
    if os.environ.get("RLRUN_DEBUG") == "1":
        _print(redact("".join(traceback.format_exception(e))))
    return e.exit_code


def _print(text: str) -> None:
    """Write to stderr, or nothing if it is full: the exit code stays that of the error."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _bug(e: Exception, run_dir: Path | None) -> RlrunError:
    """Return the error of a bug. Its traceback is written into a run directory."""
    hint = "set RLRUN_DEBUG=1 for the traceback"
    if run_dir is not None:
        with suppress(OSError):
            trace = "".join(traceback.format_exception(e))
            (run_dir / "crash.txt").write_text(redact(trace), encoding="utf-8")
            hint = f"the traceback is in {run_dir / 'crash.txt'}"
    text = " ".join(str(e).split())
    return RlrunError(f"internal error: {type(e).__name__}: {text}; this is a bug; {hint}")
