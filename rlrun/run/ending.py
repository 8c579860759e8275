"""How a run ends: its record, and the errors of signals and of the watchdog."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rlrun.errors import EnvError, Interrupted, RlrunError, StorageError
from rlrun.pipeline.loop import Pipeline
from rlrun.pipeline.stop import StopRequest
from rlrun.rundir import checkpoint
from rlrun.rundir.lock import require_in_place
from rlrun.rundir.manifest import CHECKPOINTS
from rlrun.rundir.record import RunRecord


def close_record(record: RunRecord, run_dir: Path, status: Any, exit_code: int) -> None:
    """Write the last record of a process. Raises: StorageError."""
    record.status, record.exit_code = status, exit_code
    record.write(run_dir)


def record_failure(record: RunRecord, run_dir: Path, exit_code: int) -> None:
    """Write the record of a failed run, where the disk allows it; the error says more."""
    try:
        require_in_place(run_dir)
    except StorageError:
        return
    for path in run_dir.rglob(".tmp_*"):  # of writes that failed: the record needs the space
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(StorageError):
        close_record(record, run_dir, "failed", exit_code)


def end_at_once(
    record: RunRecord, run_dir: Path, pipeline: Pipeline, exit_code: int, text: str
) -> NoReturn:
    """End the process from the watchdog's thread: the main one may never return."""
    counters = pipeline.parts.progress.counters
    record.env_steps, record.updates = counters.env_steps, counters.updates
    record.status = "interrupted" if exit_code == 143 else "failed"
    record.exit_code = exit_code
    with suppress(Exception):
        record.write(run_dir)
    with suppress(OSError, ValueError):
        print(f"rlrun: error: {text}{_go_on(run_dir)}", file=sys.stderr, flush=True)
    os._exit(exit_code)


def _go_on(run_dir: Path) -> str:
    earlier = checkpoint.list_checkpoints(run_dir / CHECKPOINTS)
    newest = f"; the newest checkpoint is {earlier[-1].name}" if earlier else ""
    return f"{newest}; go on: rlrun resume {run_dir}" if newest else ""


def raise_in_main_thread(stop: StopRequest, run_dir: Path, exit_code: int, text: str) -> None:
    """Raise the error of the watchdog in the main thread of a user's process, once."""
    if stop.error is not None:
        return
    kind = EnvError if exit_code == EnvError.exit_code else Interrupted
    error = kind(f"{text}{_go_on(run_dir)}")
    error.exit_code = exit_code
    stop.interrupt(error)


def interrupted_error(code: int, env_steps: int, run_dir: Path) -> RlrunError:
    """The error of a run that was saved after a signal."""
    error = Interrupted(
        f"interrupted at env step {env_steps}; saved; go on: rlrun resume {run_dir}"
    )
    error.exit_code = code
    return error
