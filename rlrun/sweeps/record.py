"""sweep.json: the jobs of a sweep and how each ended, and the table made from it. Torch-free.

The directory may be untrusted, so names of jobs are checked before anything is read or written. The
table is live in a terminal; elsewhere a line is printed when a job ends.
"""

import datetime
import json
import math
import os
import signal
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args

from rlrun import trust
from rlrun.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    RlrunError,
    printable,
    storage_errors,
)
from rlrun.log.progress import format_duration
from rlrun.run.files import (
    LOCK,
    MAX_LINE,
    TEXTS,
    member,
    no_follow,
    read_file,
    read_record,
    replace_file,
    seal,
    unseal,
)
from rlrun.run.manifest import METRICS
from rlrun.schema.studies import MOST_WORKERS, RayLauncherConfig
from rlrun.terminal import table_lines
from rlrun.version import package_versions

if TYPE_CHECKING:
    from rich.text import Text

FILE = "sweep.json"
INTERRUPTED = (75, Interrupted.exit_code, 143)  # exit codes of a run that a signal stopped

Status = Literal["waiting", "running", "done", "failed", "interrupted"]


@dataclass
class JobRecord:
    """A job of a sweep. ``exit_code``: None until it ends; a signal's is negative (-9: SIGKILL)."""

    num: int
    name: str  # its directory, below that of the sweep
    overrides: list[str]  # of the command line
    status: Status = "waiting"
    exit_code: int | None = None
    seconds: float | None = None  # of its last process
    total_steps: int | None = None  # env steps of its run
    threads: int | None = None  # cores that it may use; None: another launcher runs it
    pending: list[str] = field(default_factory=list)  # overrides of a resume, until it ends well

    def end(self, code: int, seconds: float | None = None) -> None:
        """Record how the job's process ended."""
        stopped = code in INTERRUPTED or code in (-2, -15)
        self.status = "done" if code == 0 else "interrupted" if stopped else "failed"
        self.exit_code, self.seconds = code, seconds
        if code == 0:
            self.pending = []


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass
class SweepRecord:
    """The contents of sweep.json, which is replaced whenever a job starts or ends."""

    jobs: list[JobRecord]
    commands: list[list[str]] = field(default_factory=list)  # those that began it or added jobs
    started: str = field(default_factory=_now)  # UTC
    versions: dict[str, str | None] = field(default_factory=package_versions)
    workers: int | None = None  # jobs at a time; None: a cluster or another launcher decides
    ray: RayLauncherConfig | None = None  # where the jobs run on Ray

    def write(self, sweep_dir: Path) -> None:
        """Replace sweep.json. Raises: StorageError."""
        ray = None if self.ray is None else asdict(self.ray)
        fields = {**vars(self), "jobs": [vars(job) for job in self.jobs], "ray": ray}
        need = "the directory of a sweep must be writable; free space or fix the permissions"
        with storage_errors(f"{sweep_dir / FILE}:", f"{need}, then rlrun resume it"):
            replace_file(sweep_dir / FILE, seal(fields))

    @classmethod
    def read(cls, sweep_dir: Path) -> "SweepRecord":
        """Return the record of a sweep, with the states of its runs from their run.json.

        Raises: ConfigError if there is no sweep.json, CheckpointError if it is damaged.
        """
        from rlrun.config.reader import read_dataclass  # imports Hydra

        path = sweep_dir / FILE
        try:
            fields = unseal(read_file(path))
            jobs = [_read_job(sweep_dir, job) for job in fields.pop("jobs")]
            ray = fields.pop("ray", None)
            ray = ray and read_dataclass(RayLauncherConfig, ray, "ray")
            record = cls(jobs, **fields, ray=ray)
            if not _is_count(record.workers):
                raise ValueError("its workers are not a number")
            if [job.num for job in jobs] != list(range(len(jobs))):
                raise ValueError("its jobs are not numbered from 0")
            return record
        except OSError as e:
            raise ConfigError(
                f"{path}: cannot be read ({e.strerror}); the directory of a sweep is required; "
                "give the one that holds sweep.json"
            ) from e
        except (ValueError, TypeError, KeyError, ConfigError) as e:
            raise CheckpointError(
                f"{path}: is damaged ({e}); it must be as rlrun wrote it; restore it from a copy"
            ) from e


def _read_job(sweep_dir: Path, fields: Any) -> JobRecord:
    """Return a job. Raises: ValueError, TypeError for fields that no sweep writes."""
    job = JobRecord(**fields)
    lists = (job.overrides, job.pending)
    texts = all(isinstance(x, list) and all(isinstance(y, str) for y in x) for x in lists)
    whole = all(x is None or type(x) is int for x in (job.exit_code, job.total_steps))
    seconds = job.seconds is None or type(job.seconds) in (int, float)
    if not (
        texts
        and whole
        and seconds
        and _is_count(job.threads)
        and type(job.num) is int
        and job.status in get_args(Status)
    ):
        raise ValueError("a job has other fields")
    member(sweep_dir, job.name)
    update(job, sweep_dir)
    return job


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 1 <= value <= MOST_WORKERS)


def update(job: JobRecord, sweep_dir: Path) -> None:
    """Correct the status by run.json: the sweep may have been killed, or the run resumed alone.

    A finished job without a usable run.json has failed. A job with pending overrides is not
    finished, whatever its run was before them.
    """
    try:
        run = read_record(sweep_dir / job.name)
    except RlrunError:  # it has not begun, or its resume will report the error
        if job.status == "done":
            job.status, job.exit_code = "failed", None
        job.status = "interrupted" if job.status == "running" else job.status
        return
    if run.get("status") == "done" and not job.pending:
        job.status, job.exit_code = "done", 0
    elif job.status in ("waiting", "running", "done"):
        job.status = "interrupted"


def has_lost_record(run_dir: Path) -> bool:
    """Return whether a run has begun but its run.json is missing or damaged."""
    try:
        read_record(run_dir)
    except CheckpointError:
        return True
    except RlrunError:
        return (run_dir / "checkpoints").is_dir()
    return False


def set_aside(run_dir: Path) -> Path:
    """Move the remains of a run into a directory inside it, so that it can restart. Return that."""
    kept = {*TEXTS, LOCK, *(entry.name for entry in run_dir.glob("lost*"))}
    lost = run_dir / f"lost_{sum(name.startswith('lost_') for name in kept)}"
    need = "what a run without run.json left is moved into it; free space or fix the permissions"
    with storage_errors(f"{lost}:", f"{need}, or restore run.json from a copy", "cannot be made"):
        lost.mkdir()
        for entry in [*run_dir.iterdir()]:
            if entry != lost and entry.name not in kept:
                entry.rename(lost / entry.name)
    return lost


def is_sweep(path: Path) -> bool:
    """Return whether ``path`` is the directory of a sweep."""
    return os.path.isfile(path / FILE)  # also False for an invalid name


def common_overrides(jobs: Sequence[Sequence[str]]) -> set[str]:
    """Return the overrides that all jobs have; none for a single job."""
    return set.intersection(*map(set, jobs)) if len(jobs) > 1 else set()


def differing(jobs: Sequence[JobRecord]) -> list[str]:
    """Return the overrides in which jobs differ, as one string per job."""
    common = common_overrides([job.overrides for job in jobs])
    return [printable(" ".join(o for o in job.overrides if o not in common)) for job in jobs]


def resume_line(sweep_dir: Path, ray: RayLauncherConfig | None = None) -> str:
    """Return the command that continues a sweep. The address of a cluster must be typed again."""
    address = None if ray is None else ray.address
    again = [] if address is None else [f"hydra.launcher.address={address}"]
    return trust.resume_line(sweep_dir, *again)


SCORE = "eval/return_mean"
SECONDS = 0.5  # between two frames
_MOST_STEPS = 2**63
_COLUMNS, _LEFT = ("job", "overrides", "status", "steps", "score", "time"), ("overrides", "status")
_COLOURS = {
    "done": "green", "failed": "red", "interrupted": "yellow", "running": "cyan", "waiting": "dim",
}  # fmt: skip


_STILL = 5.0  # seconds without a new env step in which no time left is shown


@dataclass
class JobProgress:
    """The progress of a run, read from the new lines of its metrics.jsonl.

    The file may be untrusted: values that are not numbers of env steps or scores are ignored.
    """

    run_dir: Path
    total_steps: int | None
    env_steps: int = 0
    score: float | None = None
    began: tuple[float, int] | None = None  # time and env steps when its process started
    moved: float = 0.0  # time of the last new env step
    _offset: int = field(default=0, repr=False)

    def start(self) -> None:
        """Note that a process of the run starts."""
        self.read()
        self.began = (time.monotonic(), self.env_steps)

    def read(self) -> None:
        """Read everything written since the last call."""
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
                if not line.endswith(b"\n") and len(line) < MAX_LINE:  # still being written
                    break
                self._offset += len(line)
                with suppress(ValueError, RecursionError):
                    self._note(json.loads(line))
        # True after a resume from an earlier checkpoint.
        if self.began is not None and self.env_steps < self.began[1]:
            self.began = (time.monotonic(), self.env_steps)

    def finish(self) -> None:
        """Read steps and score of the final weights from run.json."""
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
            if steps != self.env_steps:
                self.moved = time.monotonic()
            self.env_steps = steps
        if type(score) is float or (type(score) is int and abs(score) < _MOST_STEPS):
            self.score = float(score)

    def eta(self) -> float | None:
        """Return the seconds to ``run.total_steps`` at the mean speed of this process; None:
        unknown, also while it makes no steps (it compiles, or evaluates).
        """
        if self.began is None or self.total_steps is None:
            return None
        if time.monotonic() - self.moved > _STILL:
            return None
        then, steps = self.began
        speed = (self.env_steps - steps) / max(time.monotonic() - then, 1e-9)
        left = max(self.total_steps - self.env_steps, 0)  # a chunk may go beyond the last step
        return left / speed if speed > 0 else None


def _no_wait(path: str, flags: int) -> int:
    """Open a file without following a link or waiting for a pipe's writer: an ``opener`` for
    ``open``.
    """
    return no_follow(path, flags | os.O_NONBLOCK)


def cells(job: JobRecord, text: str, progress: JobProgress | None) -> list[str]:
    """Return a row: number, overrides, status, steps, score, time left or taken."""
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
    """Return ``failed (exit 4)``, ``failed (SIGKILL)``, or the status alone."""
    code = job.exit_code
    if job.status not in ("failed", "interrupted") or code is None:
        return job.status
    return f"{job.status} ({exit_text(code)})"


def exit_text(code: int) -> str:
    """Return ``exit 4``, or the name of the signal that ended a process."""
    if code >= 0:
        return f"exit {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def format_table(
    jobs: Sequence[JobRecord], texts: Sequence[str], progress: Mapping[int, JobProgress]
) -> list[str]:
    """Return the table of ``jobs`` as lines. ``texts``: `differing` of all jobs of the sweep."""
    rows = [cells(job, texts[job.num], progress.get(job.num)) for job in jobs]
    return table_lines([_COLUMNS, *rows], [name not in _LEFT for name in _COLUMNS])


def make_display(
    jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress], *, quiet: bool
) -> "Lines":
    """Return a live table on a terminal, lines elsewhere, or only errors with ``quiet``."""
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    if terminal and not quiet:
        return LiveTable(jobs, progress, sys.stdout)
    return Lines(jobs, progress, quiet=quiet)


class Lines:
    """The output of a running sweep: a line for every job that ends, and the table at the end."""

    def __init__(
        self, jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress], *, quiet: bool
    ) -> None:
        self._jobs, self._progress, self._quiet = jobs, progress, quiet
        self._texts = differing(jobs)

    def show(self) -> None:
        """Show the present state. Called every ``SECONDS``."""

    def ended(self, job: JobRecord, text: str) -> None:
        """Report a job that has ended."""
        failed = job.status == "failed"
        if failed or not self._quiet:
            _print(f"rlrun: {text}", sys.stderr if failed else sys.stdout)

    def close(self) -> None:
        """Show the last state and restore the terminal."""
        if not self._quiet:
            for line in format_table(self._jobs, self._texts, self._progress):
                _print(line, sys.stdout)


def _print(line: str, stream: TextIO) -> None:
    with suppress(OSError, ValueError):  # a closed reader must not fail the sweep
        print(line, file=stream, flush=True)


class LiveTable(Lines):
    """The table, redrawn in place. Lines of failed jobs appear above it."""

    def __init__(
        self, jobs: Sequence[JobRecord], progress: Mapping[int, JobProgress], stream: TextIO
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(jobs, progress, quiet=False)
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
            self._live.update(self._render(self._jobs), refresh=True)
        self._live.stop()

    def _chosen(self, rows: int) -> Sequence[JobRecord]:
        """Return at most ``rows`` jobs: running ones, then the last that ended, then the next."""
        if len(self._jobs) <= rows:
            return self._jobs
        order = {"running": 0, "failed": 1, "interrupted": 1, "done": 2, "waiting": 3}
        ranked = sorted(self._jobs, key=lambda j: (order[j.status], j.num))
        return sorted(ranked[:rows], key=lambda j: j.num)

    def _render(self, jobs: Sequence[JobRecord]) -> "Text":
        """Return the table with coloured states, and below it how many jobs have each."""
        from rich.text import Text

        counts = {status: sum(j.status == status for j in self._jobs) for status in _COLOURS}
        total = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        text = Text("\n".join([*format_table(jobs, self._texts, self._progress), total]))
        for status, colour in _COLOURS.items():
            text.highlight_words([status], colour)
        return text
