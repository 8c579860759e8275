"""sweep.json: the jobs of a sweep and how each ended. Torch-free.

The directory may be a stranger's: names of jobs are checked before anything is read or written.
"""

import datetime
import os
import platform
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from rlrun import __version__
from rlrun.errors import CheckpointError, ConfigError, Interrupted, RlrunError, StorageError
from rlrun.rundir.durable import replace_file, seal, unseal
from rlrun.rundir.inert import member, read_file
from rlrun.rundir.texts import read_record

FILE = "sweep.json"
INTERRUPTED = (75, Interrupted.exit_code, 143)  # exit codes of a run that a signal stopped
_PACKAGES = {"torch": "torch", "numpy": "numpy", "gymnasium": "gymnasium", "hydra": "hydra-core"}

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

    def end(self, code: int, seconds: float | None = None) -> None:
        """Note how its process ended."""
        stopped = code in INTERRUPTED or code in (-2, -15)
        self.status = "done" if code == 0 else "interrupted" if stopped else "failed"
        self.exit_code, self.seconds = code, seconds


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "rlrun": __version__}
    for name, package in _PACKAGES.items():
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass
class SweepRecord:
    """Contents of sweep.json; replaced whenever a job starts or ends."""

    jobs: list[JobRecord]
    commands: list[list[str]] = field(default_factory=list)  # that began it or added jobs
    started: str = field(default_factory=_now)  # UTC
    versions: dict[str, str | None] = field(default_factory=_versions)

    def write(self, sweep_dir: Path) -> None:
        """Replace sweep.json. Raises: StorageError."""
        try:
            replace_file(sweep_dir / FILE, seal(asdict(self)))
        except OSError as e:
            raise StorageError(
                f"{sweep_dir / FILE}: cannot be written ({e.strerror or e}); the directory of a "
                "sweep must be writable; make room or rights, then rlrun resume it"
            ) from e

    @classmethod
    def read(cls, sweep_dir: Path) -> "SweepRecord":
        """Return the record of a sweep, with the state of its runs as their run.json has it.

        Raises: ConfigError when there is no sweep.json, CheckpointError when it is damaged.
        """
        path = sweep_dir / FILE
        try:
            fields = unseal(read_file(path))
            jobs = [_read_job(sweep_dir, job) for job in fields.pop("jobs")]
            record = cls(jobs, **fields)
            if [job.num for job in jobs] != list(range(len(jobs))):
                raise ValueError("its jobs are not numbered from 0")
            return record
        except OSError as e:
            raise ConfigError(
                f"{path}: cannot be read ({e.strerror}); the directory of a sweep is required; "
                "give the one that holds sweep.json"
            ) from e
        except (ValueError, TypeError, KeyError) as e:
            raise CheckpointError(
                f"{path}: is damaged ({e}); it must be as rlrun wrote it; restore it from a copy"
            ) from e


def _read_job(sweep_dir: Path, fields: Any) -> JobRecord:
    """Raises: ValueError, TypeError for what no sweep writes."""
    job = JobRecord(**fields)
    texts = isinstance(job.overrides, list) and all(isinstance(x, str) for x in job.overrides)
    whole = all(x is None or type(x) is int for x in (job.exit_code, job.total_steps))
    seconds = job.seconds is None or type(job.seconds) in (int, float)
    if not (
        texts and whole and seconds and type(job.num) is int and job.status in get_args(Status)
    ):
        raise ValueError("a job has other fields")
    member(sweep_dir, job.name)
    update(job, sweep_dir)
    return job


def update(job: JobRecord, sweep_dir: Path) -> None:
    """Correct the status by run.json: the sweep may have been killed, or its run resumed alone."""
    try:
        run = read_record(sweep_dir / job.name)
    except RlrunError:  # it has not begun, or its own resume will say what is wrong
        job.status = "interrupted" if job.status == "running" else job.status
        return
    if run.get("status") == "done":
        job.status, job.exit_code = "done", 0
    elif job.status in ("waiting", "running", "done"):
        job.status = "interrupted"


def is_sweep(path: Path) -> bool:
    """True for the directory of a sweep."""
    return os.path.isfile(path / FILE)  # False too for a name that no file can have


def differing(jobs: Sequence[JobRecord]) -> list[str]:
    """The overrides of each job that not all jobs have, as one string each."""
    common: set[str] = set()
    if len(jobs) > 1:
        common = set.intersection(*(set(job.overrides) for job in jobs))
    return [printable(" ".join(o for o in job.overrides if o not in common)) for job in jobs]


def printable(text: str) -> str:
    """The text on one line, without characters that move the cursor of a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def resume_line(sweep_dir: Path) -> str:
    """The command that goes on with a sweep."""
    return f"rlrun resume {shlex.quote(str(sweep_dir))}"
