"""The table of a sweep: live in a terminal, lines as jobs end elsewhere. Torch-free."""

import json
import math
import os
import signal
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from rlrun.errors import RlrunError
from rlrun.log.progress import format_duration
from rlrun.run.files import MAX_LINE, no_follow, read_record
from rlrun.sweeps.record import JobRecord, differing

METRICS = "metrics.jsonl"
SCORE = "eval/return_mean"
SECONDS = 0.5  # between two frames
_MOST_STEPS = 2**63
_COLOURS = {"done": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


@dataclass
class JobProgress:
    """How far a run is, read from the new lines of its metrics.jsonl.

    The file may be a stranger's: what is no number of env steps or score is passed over.
    """

    run_dir: Path
    total_steps: int | None
    env_steps: int = 0
    score: float | None = None
    began: tuple[float, int] | None = None  # time and env steps when its process started
    _offset: int = field(default=0, repr=False)

    def start(self) -> None:
        """Note that a process of it starts."""
        self.read()
        self.began = (time.monotonic(), self.env_steps)

    def read(self) -> None:
        """Read all that was written since the last call."""
        with (
            suppress(OSError),  # no file yet, a link, a directory
            open(self.run_dir / METRICS, "rb", opener=_no_wait) as file,
        ):
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            if status.st_size < self._offset:  # cut by a resume
                self._offset = 0
            file.seek(self._offset)
            while line := file.readline(MAX_LINE):
                if not line.endswith(b"\n") and len(line) < MAX_LINE:  # is being written
                    break
                self._offset += len(line)
                with suppress(ValueError, RecursionError):
                    self._note(json.loads(line))
        if self.began is not None and self.env_steps < self.began[1]:  # a checkpoint was earlier
            self.began = (time.monotonic(), self.env_steps)

    def finish(self) -> None:
        """Take steps and score from run.json, which has those of the final weights."""
        self.read()
        with suppress(RlrunError):
            record = read_record(self.run_dir)
            evaluation = record.get("eval")
            score = evaluation.get("return_mean") if isinstance(evaluation, dict) else None
            self._note({"env_steps": record.get("env_steps"), SCORE: score})

    def _note(self, record: Any) -> None:
        if not isinstance(record, dict):
            return
        steps, score = record.get("env_steps"), record.get(SCORE)
        if type(steps) is int and 0 <= steps < _MOST_STEPS:
            self.env_steps = steps
        if type(score) is float or (type(score) is int and abs(score) < _MOST_STEPS):
            self.score = float(score)

    def eta(self) -> float | None:
        """Seconds to ``run.total_steps`` at the mean speed of this process; None: unknown."""
        if self.began is None or self.total_steps is None:
            return None
        then, steps = self.began
        speed = (self.env_steps - steps) / max(time.monotonic() - then, 1e-9)
        return (self.total_steps - self.env_steps) / speed if speed > 0 else None


def _no_wait(path: str, flags: int) -> int:
    """``opener`` of ``open`` that refuses a link and does not wait for the writer of a pipe."""
    return no_follow(path, flags | os.O_NONBLOCK)


def cells(job: JobRecord, text: str, progress: JobProgress | None) -> list[str]:
    """A row: number, overrides, status, steps, score, time left or taken."""
    steps = score = left = ""
    if progress is not None:
        total = "?" if progress.total_steps is None else str(progress.total_steps)
        steps = f"{progress.env_steps}/{total}"
        score = "" if progress.score is None else f"{progress.score:.4g}"
    if job.status == "running" and progress is not None:
        eta = progress.eta()
        left = "" if eta is None or not math.isfinite(eta) else f"eta {format_duration(eta)}"
    elif job.seconds is not None:
        left = format_duration(job.seconds)
    return [str(job.num), text, status_text(job), steps, score, left]


def status_text(job: JobRecord) -> str:
    """``failed (exit 4)``, ``failed (SIGKILL)``, or the status alone."""
    code = job.exit_code
    if job.status not in ("failed", "interrupted") or code is None:
        return job.status
    return f"{job.status} ({exit_text(code)})"


def exit_text(code: int) -> str:
    """``exit 4``, or the name of the signal that ended a process."""
    if code >= 0:
        return f"exit {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def format_table(jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress]) -> list[str]:
    """The table as lines of text."""
    texts = differing(jobs)
    rows = [["job", "overrides", "status", "steps", "score", "time"]]
    rows += [cells(j, t, progress.get(j.num)) for j, t in zip(jobs, texts, strict=True)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = (0, 3, 4, 5)
    return [
        "  ".join(c.rjust(w) if i in right else c.ljust(w)
                  for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip


class SweepDisplay(Protocol):
    """What a sweep shows while it runs."""

    def show(self) -> None:
        """Show the present state; called every ``SECONDS``."""

    def ended(self, job: JobRecord, text: str) -> None:
        """Report a job that has ended."""

    def close(self) -> None:
        """Show the last state; restore the terminal."""


def make_display(
    jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress], *, quiet: bool
) -> SweepDisplay:
    """A live table on a terminal, lines elsewhere; errors alone with ``quiet``."""
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    if terminal and not quiet:
        return LiveTable(jobs, progress, sys.stdout)
    return Lines(jobs, progress, quiet=quiet)


class Lines:
    """One line for every job that ends, the table at the end; for files and pipes."""

    def __init__(
        self, jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress], *, quiet: bool
    ) -> None:
        self._jobs, self._progress, self._quiet = jobs, progress, quiet

    def show(self) -> None:
        """Show nothing: only ends are lines."""

    def ended(self, job: JobRecord, text: str) -> None:
        failed = job.status == "failed"
        if failed or not self._quiet:
            _print(f"rlrun: {text}", sys.stderr if failed else sys.stdout)

    def close(self) -> None:
        if not self._quiet:
            for line in format_table(self._jobs, self._progress):
                _print(line, sys.stdout)


def _print(line: str, stream: TextIO) -> None:
    with suppress(OSError, ValueError):  # a reader that has left must not fail the sweep
        print(line, file=stream, flush=True)


class LiveTable:
    """The table, redrawn in place; lines of jobs that failed appear above it."""

    def __init__(
        self, jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress], stream: TextIO
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._jobs, self._progress = jobs, progress
        self._texts = differing(jobs)
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def show(self) -> None:
        rows = max(3, self._console.size.height - 4)
        with suppress(OSError, ValueError):
            self._live.update(self._render(self._chosen(rows)), refresh=True)

    def ended(self, job: JobRecord, text: str) -> None:
        if job.status == "failed":
            with suppress(OSError, ValueError):
                self._console.print(f"rlrun: {text}", markup=False, highlight=False, style="red")

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._live.update(self._render(list(self._jobs)), refresh=True)
        self._live.stop()

    def _chosen(self, rows: int) -> list[JobRecord]:
        """At most ``rows`` jobs: those that run, then the last that ended, then the next."""
        if len(self._jobs) <= rows:
            return list(self._jobs)
        order = {"running": 0, "failed": 1, "interrupted": 1, "done": 2, "waiting": 3}
        ranked = sorted(self._jobs, key=lambda j: (order[j.status], j.num))
        return sorted(ranked[:rows], key=lambda j: j.num)

    def _render(self, jobs: Sequence[JobRecord]) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, caption=self._caption(), caption_justify="left")
        for name in ("job", "overrides", "status", "steps", "score", "time"):
            justify: Any = "left" if name in ("overrides", "status") else "right"
            table.add_column(name, justify=justify, no_wrap=name != "overrides")
        for job in jobs:
            row = cells(job, self._texts[job.num], self._progress.get(job.num))
            colour = _COLOURS.get(job.status, "dim")
            table.add_row(*(Text(c, colour if i == 2 else "") for i, c in enumerate(row)))
        return table

    def _caption(self) -> str:
        counts = {s: sum(j.status == s for j in self._jobs) for s in (*_COLOURS, "waiting")}
        return ", ".join(f"{n} {status}" for status, n in counts.items() if n)
