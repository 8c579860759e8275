"""Jobs of a command of ours in a sweep directory: run those that are missing, read all of them."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli.sweep import resume_sweep, run_sweep
from rlrun.config.directories import absolute, claim, require_new, require_writable
from rlrun.errors import ConfigError, Interrupted
from rlrun.reports.runs import RunData, read_run
from rlrun.sweeps.record import SweepRecord, is_sweep

if TYPE_CHECKING:
    from rlrun.config import Composer


_OWNERS = ("bench", "probe", "search")  # commands that begin such directories


def directory_of(given: str | None, key: str) -> Path:
    """Return the directory of ``key`` (bench.dir, probe.dir), absolute.

    ``given``: new, empty or that of a sweep; None: a new one, which is made, below ``outputs``.
    Raises: ConfigError, also for the directory of another command.
    """
    if given is None:
        name = time.strftime(f"outputs/{key.partition('.')[0]}/%Y-%m-%d_%H-%M-%S")
        return claim(absolute(key, Path(name)), exact=False, key=key)
    path = absolute(key, Path(given))
    if not is_sweep(path):
        require_new(path, key)
        require_writable(path, key)
        return path
    begun = [command[1] for command in SweepRecord.read(path).commands[:1] if len(command) > 1]
    if begun and begun[0] in _OWNERS and begun[0] != key.partition(".")[0]:
        raise ConfigError(
            f"{key} = {given}: holds what rlrun {begun[0]} made; a new directory, or one of the "
            "same command, is allowed; choose another",
            key=key,
        )
    return path


def table_command(path: Path) -> str | None:
    """Return the command line that writes the table of a bench or probe in ``path``, if it is one.

    ``rlrun resume`` runs the jobs alone.
    """
    commands = SweepRecord.read(path).commands
    words = commands[0][1:] if commands else []
    if not words or words[0] not in ("bench", "probe"):
        return None
    key = f"{words[0]}.dir="
    given = [word for word in words if not word.startswith((key, "-q", "--quiet"))]
    return f"rlrun {shlex.join([*given, f'{key}{path.absolute()}'])}"


def run_jobs(
    composer: "Composer",
    common: Sequence[str],
    jobs: Sequence[Sequence[str]],
    path: Path,
    command: Sequence[str],
    *,
    quiet: bool,
) -> list[RunData]:
    """Run the jobs that the sweep in ``path`` lacks or has not ended; return the run of each.

    ``common``: overrides of all jobs. ``command``: words that go on after an interruption.

    Raises: ConfigError before any job runs; Interrupted, which names ``command``.
    """
    try:
        if is_sweep(path):
            resume_sweep(path, [], quiet=quiet)
        run_sweep(composer, common, str(path), quiet=quiet, jobs=jobs)
    except Interrupted as e:
        text = f"{str(e).partition('; go on')[0]}; go on: rlrun {shlex.join(command)}"
        error = Interrupted(text)
        error.exit_code = e.exit_code
        raise error from e
    names = {frozenset(job.overrides): job.name for job in SweepRecord.read(path).jobs}
    found = []
    for job in jobs:
        if (name := names.get(frozenset(job))) is None:
            wrong = f"has a run that equals {' '.join(job)} but was typed in other words"
            raise ConfigError(f"{path}: {wrong}; a new directory is allowed; choose one")
        found.append(read_run(path / name))
    return found
