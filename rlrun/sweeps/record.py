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
from rlrun.run.files import LOCK, TEXTS, member, read_file, read_record, replace_file, seal, unseal
from rlrun.schema.studies import MOST_WORKERS, RayLauncherConfig

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
    threads: int | None = None  # cores that it counts as its own; None: another launcher runs it
    pending: list[str] = field(default_factory=list)  # overrides of a resume, until it ends well

    def end(self, code: int, seconds: float | None = None) -> None:
        """Note how its process ended."""
        stopped = code in INTERRUPTED or code in (-2, -15)
        self.status = "done" if code == 0 else "interrupted" if stopped else "failed"
        self.exit_code, self.seconds = code, seconds
        if code == 0:
            self.pending = []


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
    workers: int | None = None  # jobs at a time; None: a cluster or another launcher decides
    ray: RayLauncherConfig | None = None  # where the jobs run on Ray

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
            ray = _read_ray(fields.pop("ray", None))
            record = cls(jobs, **fields, ray=ray)
            if not _is_count(record.workers):
                raise ValueError("its workers are no number")
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


def _read_ray(fields: Any) -> RayLauncherConfig | None:
    """Raises: ValueError, TypeError for what no sweep writes."""
    if fields is None:
        return None
    if not isinstance(fields["resources"], dict):
        raise ValueError("its launcher has other fields")
    ray = RayLauncherConfig(**fields)
    numbers = (ray.num_cpus, ray.num_gpus)
    if not (
        isinstance(ray.address, str | None)
        and all(type(x) in (int, float) for x in numbers)
        and type(ray.retries) is int
        and all(isinstance(name, str) for name in ray.resources)
    ):
        raise ValueError("its launcher has other fields")
    return ray


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 1 <= value <= MOST_WORKERS)


def update(job: JobRecord, sweep_dir: Path) -> None:
    """Correct the status by run.json: the sweep may have been killed, or its run resumed alone.

    A job that was done and has no usable run.json has failed. One with pending overrides is not
    done, whatever its run was before them.
    """
    try:
        run = read_record(sweep_dir / job.name)
    except RlrunError:  # it has not begun, or its own resume will say what is wrong
        if job.status == "done":
            job.status, job.exit_code = "failed", None
        job.status = "interrupted" if job.status == "running" else job.status
        return
    if run.get("status") == "done" and not job.pending:
        job.status, job.exit_code = "done", 0
    elif job.status in ("waiting", "running", "done"):
        job.status = "interrupted"


def has_lost_record(run_dir: Path) -> bool:
    """True for a run that has begun and whose run.json is missing or damaged."""
    try:
        read_record(run_dir)
    except CheckpointError:
        return True
    except RlrunError:
        return (run_dir / "checkpoints").is_dir()
    return False


def set_aside(run_dir: Path) -> Path:
    """Move what a run left into a directory in it, so that it can begin anew; return that."""
    kept = {*TEXTS, LOCK, *(entry.name for entry in run_dir.glob("lost*"))}
    lost = run_dir / f"lost_{sum(name.startswith('lost_') for name in kept)}"
    try:
        lost.mkdir()
        for entry in [*run_dir.iterdir()]:
            if entry != lost and entry.name not in kept:
                entry.rename(lost / entry.name)
    except OSError as e:
        raise StorageError(
            f"{lost}: cannot be made ({e.strerror or e}); what a run without run.json left is "
            "moved into it; make room or rights, or restore run.json from a copy"
        ) from e
    return lost


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


def resume_line(sweep_dir: Path, ray: RayLauncherConfig | None = None) -> str:
    """The command that goes on with a sweep; the address of a cluster is to be typed again."""
    line = f"rlrun resume {shlex.quote(str(sweep_dir))}"
    if ray is None or ray.address is None:
        return line
    return f"{line} {shlex.quote(f'hydra.launcher.address={ray.address}')}"
