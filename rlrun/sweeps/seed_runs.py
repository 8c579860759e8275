"""Runs of one seed each in a pool: started, gone on with, scored. Of ``search`` and ``seeds``."""

import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rlrun.errors import LockedError
from rlrun.reports.runs import RunData, read_run, score
from rlrun.run.files import RECORD
from rlrun.sweeps.pool import Job
from rlrun.sweeps.table import exit_text

POLL_SECONDS = 0.5  # between looks at the metrics of running jobs


class JobPool(Protocol):
    """What is used of ``rlrun.sweeps.pool.Pool``."""

    workers: int

    def submit(self, argv: list[str], cwd: Path, log: Path) -> Job: ...

    def wait_any(self, timeout: float | None = None) -> list[Job]: ...

    def stop(self, job: Job, number: int = ...) -> None: ...


@dataclass(eq=False)
class SeedRun:
    """A run of one seed. ``log``: the file of its terminal output, beside the run directory."""

    path: Path
    log: Path
    overrides: tuple[str, ...]
    state: Literal["waiting", "running", "done", "failed", "stopped"] = "waiting"
    score: float | None = None  # of a run that is done
    failure: str = ""  # how it ended where it failed

    @property
    def has_ended(self) -> bool:
        """True if nothing more is to come of it."""
        return self.state in ("done", "failed", "stopped")

    def read(self) -> RunData:
        """The run with the evaluations so far; cheaper than ``read_run``."""
        return RunData(self.path, self.path.name, self.state, {}, {})


class SeedRuns:
    """Starts runs in ``pool`` and scores those that end. ``flags``: words before the overrides."""

    def __init__(self, pool: JobPool, objective: str, flags: Sequence[str] = ()) -> None:
        self._pool, self._objective, self._flags = pool, objective, list(flags)
        self._running: dict[Job, SeedRun] = {}

    @property
    def free(self) -> int:
        """Workers without a job."""
        return self._pool.workers - len(self._running)

    def start(self, run: SeedRun) -> None:
        """Start a run, or go on with one that was interrupted; one that is done is scored."""
        if read_run(run.path).status == "done":
            self._finish(run, 0)
            return
        run.log.parent.mkdir(exist_ok=True)
        quiet = "logger.progress=off"
        if (run.path / RECORD).is_file():
            argv = ["resume", str(run.path), quiet]
        else:
            shutil.rmtree(run.path, ignore_errors=True)  # killed before it had a record
            argv = [*self._flags, *run.overrides, f"run.dir={quote(run.path)}", quiet]
        run.state = "running"
        self._running[self._pool.submit(argv, Path.cwd(), run.log)] = run

    def wait(self) -> list[SeedRun]:
        """Return the runs that ended, waiting at most ``POLL_SECONDS``."""
        ended = []
        for job in self._pool.wait_any(POLL_SECONDS) if self._running else ():
            run = self._running.pop(job)
            if run.state == "running" and job.code == LockedError.exit_code:
                run.state = "waiting"  # a killed search's process of it still saves
                continue
            if run.state == "running":  # not stopped
                assert job.code is not None
                self._finish(run, job.code)
            ended.append(run)
        return ended

    def stop(self, run: SeedRun) -> None:
        """Ask a run to save and end; its worker is free once it has."""
        if run.has_ended:
            return
        run.state = "stopped"
        for job in [job for job, found in self._running.items() if found is run]:
            self._pool.stop(job, signal.SIGTERM)

    def _finish(self, run: SeedRun, code: int) -> None:
        run.score = score(read_run(run.path), self._objective) if code == 0 else None
        run.state = "done" if run.score is not None else "failed"
        if run.score is None:
            without = f"without a score {self._objective}: it has no evaluation"
            run.failure = f"ended with {exit_text(code)}" if code else f"ended {without}"


def quote(value: object) -> str:
    """The value as Hydra's quoted string, interpolations taken literally."""
    text = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
    return "'" + text.replace("${", "\\${") + "'"
