"""The record of a run (run.json)."""

import dataclasses
import datetime
import errno
import os
import platform
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from rlrun import __version__, blas, errors
from rlrun.log import Log
from rlrun.pipeline.parts import LoopProgress
from rlrun.pipeline.stop import StopRequest
from rlrun.run.files import RECORD, read_record, replace_file, require_in_place, seal
from rlrun.run.manifest import how_to_go_on
from rlrun.version import git_state, package_versions

BLOCK = 4096  # smallest allocation of a file system, in bytes


@dataclass(slots=True)
class RunRecord:
    """The contents of run.json, written when a run starts (status running) and when it ends."""

    seed: int
    device: str
    threads: int
    parameters: int
    backend: str | None = None  # of the updates: numpy or torch
    backend_reason: str | None = None
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    exit_code: int | None = None  # None: running, or killed
    env_steps: int = 0
    updates: int = 0
    rollbacks: int = 0  # after non-finite updates (run.on_nan=rollback)
    exact: bool = True  # a killed and resumed run equals an uninterrupted one
    exact_reason: str | None = None  # why not
    changed: list[str] = field(default_factory=list)  # keys of resumes that changed the numbers
    wall_seconds: float = 0.0
    ended_by: Literal["run.total_steps", "run.stop_return"] | None = None  # of a finished run
    eval: dict[str, float] | None = None  # of the final weights
    best_eval: dict[str, float] | None = None  # of the best weights
    digest: str | None = None
    command: list[str] = field(default_factory=lambda: list(sys.argv))
    files: dict[str, list[str]] = field(default_factory=dict)  # SHA-256 of config and overrides
    parent: dict[str, Any] | None = None  # of a fork: directory, env_steps, SHA-256 of the manifest
    resumes: list[list[str]] = field(default_factory=list)  # the command of every resume
    started: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    versions: dict[str, str | None] = field(default_factory=package_versions)
    git: dict[str, str | bool] | None = field(default_factory=git_state)
    host: dict[str, str | int | None] = field(default_factory=lambda: {
        "hostname": platform.node(), "platform": platform.platform(), "cpu_count": os.cpu_count(),
        "blas": blas.description(),
    })  # fmt: skip

    def write(self, run_dir: Path) -> None:
        """Replace run.json atomically. On a full disk overwrite it, which needs no space.

        Raises: StorageError.
        """
        path = run_dir / RECORD
        text = seal(dataclasses.asdict(self))
        fix = "free space, or choose another with run.dir=PATH"
        with errors.storage_errors(f"{path}:", f"the run directory must be writable; {fix}"):
            try:
                replace_file(path, text)
            except OSError as e:
                blocks = -(-path.stat().st_size // BLOCK)  # that the file has
                if e.errno != errno.ENOSPC or len(text) > blocks * BLOCK:
                    raise
                with path.open("r+b", buffering=0) as file:
                    file.write(text)
                    file.truncate()

    def close(self, run_dir: Path, status: Any, exit_code: int) -> None:
        """Write the last record of a process. Raises: StorageError."""
        self.status, self.exit_code = status, exit_code
        self.write(run_dir)

    @classmethod
    def read(cls, run_dir: Path) -> "RunRecord":
        """Return the record of a run directory.

        Raises: ConfigError if there is no run.json, CheckpointError if it is damaged.
        """
        try:
            record = cls(**read_record(run_dir))
            if not (isinstance(record.resumes, list) and isinstance(record.command, list)):
                raise TypeError("other types")
            return record
        except TypeError as e:
            raise errors.CheckpointError(
                f"{run_dir / RECORD}: has fields of another version of rlrun ({e}); one of rlrun "
                f"{__version__} is required; use the version that wrote it"
            ) from e


EVERY_SECONDS = 2.0  # between two writes


@dataclass(slots=True)
class RunningRecord:
    """Writes the record of an active run when its counters have changed, at most every 2 s.

    The watchdog's thread calls it, so training never waits for the file system, and the record of a
    killed run is at most that old. Failed writes are ignored; the loop's own writes raise.
    """

    record: RunRecord
    run_dir: Path
    progress: LoopProgress
    log: Log
    due: float = field(default_factory=lambda: time.monotonic() + EVERY_SECONDS)

    def update(self) -> bool:
        """Copy the counters into the record. Return whether they have changed."""
        before = self.record.env_steps, self.record.updates
        counters = self.progress.counters
        self.record.env_steps, self.record.updates = counters.env_steps, counters.updates
        self.record.wall_seconds = self.log.wall_seconds
        self.record.rollbacks = self.progress.rollbacks
        return before != (counters.env_steps, counters.updates)

    def __call__(self) -> None:
        """Write the record if it is due."""
        if time.monotonic() >= self.due and self.update():
            with suppress(errors.StorageError):
                self.record.write(self.run_dir)
            self.due = time.monotonic() + EVERY_SECONDS


def record_failure(record: RunRecord, run_dir: Path, exit_code: int) -> None:
    """Write the record of a failed run if the disk allows it. The error itself says more."""
    try:
        require_in_place(run_dir)
    except errors.StorageError:
        return
    for path in run_dir.rglob(".tmp_*"):  # left by failed writes; the record needs the space
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(errors.StorageError):
        record.close(run_dir, "failed", exit_code)


def end_at_once(running: RunningRecord, exit_code: int, text: str) -> NoReturn:
    """End the process from the watchdog's thread, because the main thread may never return."""
    record, run_dir = running.record, running.run_dir
    running.update()
    with suppress(Exception):
        record.close(run_dir, "interrupted" if exit_code == 143 else "failed", exit_code)
    with suppress(OSError, ValueError):
        text += how_to_go_on(run_dir)
        print(f"rlrun: error: {text}", file=sys.stderr, flush=True)
    os._exit(exit_code)


def raise_in_main_thread(stop: StopRequest, run_dir: Path, exit_code: int, text: str) -> None:
    """Raise the watchdog's error once in the main thread of a user's process."""
    if stop.error is not None:
        return
    kind = errors.EnvError if exit_code == errors.EnvError.exit_code else errors.Interrupted
    stop.interrupt(kind(f"{text}{how_to_go_on(run_dir)}").with_code(exit_code))
