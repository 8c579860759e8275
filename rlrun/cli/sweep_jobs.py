"""The jobs of a sweep: composed once, validated, given directories."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli.launchers import check_devices, check_workers
from rlrun.cli.run import write_texts
from rlrun.errors import ConfigError, RlrunError
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.launcher import Task, default_workers, divide_cores, workers_on_ray
from rlrun.sweeps.record import JobRecord, SweepRecord, resume_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.config import Composer
    from rlrun.schema import Config

LONGEST_NAME = 255  # bytes in one part of a path
_PACKED = "rlrun.cli.sweep:run_packed_job"


@dataclass(frozen=True)
class ValidJob:
    """A job that was composed and found valid."""

    overrides: list[str]
    name: str  # of its directory
    config: "Config"
    packed: dict[str, Any]  # see rlrun.config.compose


@dataclass
class Sweep:
    """A sweep that is about to start: its directory and the jobs that it runs."""

    path: Path
    record: SweepRecord
    jobs: list[ValidJob]
    short_names: bool  # the names of overrides are too long for a directory
    threads: int | None = None  # of each job
    ray: RayLauncherConfig | None = None  # where the jobs run on Ray

    def divide_cores(self, cfg: "DictConfig", count: int, *, same_threads: bool) -> None:
        """Set jobs at a time and the threads of each, for a command of ``count`` jobs.

        ``same_threads``: those of the jobs that the sweep has, which the new ones are compared
        with. Raises: ConfigError.
        """
        typed = check_workers(cfg.hydra.launcher.get("workers"))
        self.record.ray = self.ray
        if self.ray is not None:
            check_devices(self.ray, [job.config for job in self.jobs])
            self.record.workers = workers_on_ray(self.ray, typed, count)
            self.threads = self.ray.threads
            return
        earlier = self.record.jobs[0].threads if self.record.jobs else None
        if same_threads and earlier is not None:
            self.record.workers, self.threads = typed or self.record.workers, earlier
            return
        workers = typed or default_workers([job.config for job in self.jobs])
        self.record.workers, self.threads = divide_cores(workers, count)

    def add(self) -> list[Task]:
        """Write the directories of the jobs and their record; return what to run."""
        from rlrun.config.compose import place

        tasks = []
        for job in self.jobs:
            num = len(self.record.jobs)
            name = str(num) if self.short_names else job.name
            total = job.config.run.total_steps
            record = JobRecord(num, name, job.overrides, total_steps=total, threads=self.threads)
            self.record.jobs.append(record)
            (self.path / name).mkdir(parents=True, exist_ok=True)
            write_texts(self.path / name, job.packed["config"], job.overrides)
            text = place(job.packed, self.path, "${hydra.job.num}" if self.short_names else None)
            tasks.append(Task(record, _PACKED, [text]))
        self.record.write(self.path)
        return tasks


def validate_jobs(
    composer: "Composer",
    cfg: "DictConfig",
    jobs: Sequence[Sequence[str]],
    record: SweepRecord,
    path: Path,
) -> list[ValidJob]:
    """The jobs that the sweep does not have yet, each once, numbered after those it has.

    Equal jobs differ at most in where they run and how they are recorded.
    """
    from rlrun.reports.groups import identity
    from rlrun.reports.runs import parse_config

    typed = {frozenset(job.overrides) for job in record.jobs}
    known = {own for job in record.jobs if (own := _stored_identity(path / job.name))}
    valid: list[ValidJob] = []
    for job in jobs:
        if frozenset(job) in typed:
            continue
        found = validate_job(composer, cfg, job, len(record.jobs) + len(valid))
        own = identity(parse_config(found.packed["config"].encode()))
        if own not in known:
            valid.append(found)
            known.add(own)
    return valid


def _stored_identity(run_dir: Path) -> str | None:
    from rlrun.reports.groups import identity
    from rlrun.reports.runs import read_config
    from rlrun.run.files import CONFIG

    try:
        return identity(read_config(run_dir / CONFIG))
    except (OSError, ValueError):
        return None


def print_resume_line(path: Path, ray: RayLauncherConfig | None = None) -> None:
    """Say how an interrupted sweep goes on whose runs have reported the signal."""
    print(f"rlrun: the sweep goes on with: {resume_line(path, ray)}", file=sys.stderr)


def require_different(names: Sequence[str]) -> None:
    """Raise ConfigError when two jobs of a sweep would share a directory."""
    seen: set[str] = set()
    twice = next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
    if twice is not None:
        wrong = "is the directory of more than one job; a name of its own for each is allowed"
        fix = "put ${hydra.job.num} into it"
        raise ConfigError(f"hydra.sweep.subdir = {twice}: {wrong}; {fix}")


def validate_job(composer: "Composer", cfg: "DictConfig", job: Sequence[str], num: int) -> ValidJob:
    """The job, composed. Raises: ConfigError for one that is not valid."""
    from rlrun.config import check, check_precision
    from rlrun.config.compose import name_by_preset, pack, read_presets
    from rlrun.config.directories import check_inside
    from rlrun.config.hydra_keys import (
        check_addresses,
        check_logging,
        check_values,
        typed_overrides,
    )

    try:
        composed = composer.compose_job(cfg, job, num)
        config = read_presets(composer, composed, job)
        if config.run.dir is not None:
            wrong = "names the directory of a single run; null is allowed in a sweep"
            raise ConfigError(f"run.dir = {config.run.dir}: {wrong}; use sweep.dir=PATH")
        check_addresses(config, typed_overrides(cfg))
        if composer.foreign:
            check_values(config, [*typed_overrides(cfg), *job])
        check(name_by_preset(config, composed))
        check_precision(config)
        name = str(composer.directory(composed, "hydra.sweep.subdir"))
        check_inside("hydra.sweep.subdir", name)
        check_logging(composed, Path(name), [*typed_overrides(cfg, "hydra"), *job])
    except RlrunError as e:
        e.args = (f"{e} (sweep job {num}: {' '.join(job)}; no job was started)",)
        raise
    return ValidJob(list(job), name, config, pack(composed))
