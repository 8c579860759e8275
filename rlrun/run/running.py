"""run.json of a run that goes on: its counters, every few seconds."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.errors import StorageError
from rlrun.log import Log
from rlrun.pipeline.parts import LoopProgress
from rlrun.rundir.record import RunRecord

EVERY_SECONDS = 2.0  # between two writes


class RunningRecord:
    """Writes the record of a running job when its counters have changed, at most every 2 s.

    The watchdog's thread calls it, so that training never waits for the file system, and a job that
    was killed, by whatever, has true counters to within that time. A write that fails is left out:
    the loop's own writes raise what is wrong.
    """

    def __init__(
        self,
        record: RunRecord,
        run_dir: Path,
        progress: LoopProgress,
        log: Log,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record, self.run_dir, self.progress, self.log = record, run_dir, progress, log
        self.clock, self.due = clock, clock() + EVERY_SECONDS

    def update(self) -> bool:
        """Copy the counters into the record; return whether they have changed."""
        before = self.record.env_steps, self.record.updates
        counters = self.progress.counters
        self.record.env_steps, self.record.updates = counters.env_steps, counters.updates
        self.record.wall_seconds = self.log.wall_seconds
        self.record.rollbacks = self.progress.rollbacks
        return before != (counters.env_steps, counters.updates)

    def __call__(self) -> None:
        """Write the record if it is due."""
        if self.clock() >= self.due and self.update():
            with suppress(StorageError):
                self.record.write(self.run_dir)
            self.due = self.clock() + EVERY_SECONDS
