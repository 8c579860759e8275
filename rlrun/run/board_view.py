"""Runs as TensorBoard should show them: under short names, with the columns in which they differ.

TensorBoard names a run by its directory, and the only one that it is given ".". So it is given a
directory of links: one directory for each run, with links to the run's event files, and before them
a file that declares the run's row of the HPARAMS tab. Torch-free.
"""

from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from rlrun.errors import ConfigError
from rlrun.log.hparams import declare
from rlrun.log.trial import TrialRow, Value, trial_name
from rlrun.reports.inputs import find_jobs
from rlrun.reports.runs import RunData, read_runs
from rlrun.run.hparams import differing_keys, settings_of, typed_settings, worth_naming

EVENTS = "events.out.tfevents.*"
_FIRST = "events.out.tfevents.0000000000.view"  # files are read in the order of their names


class BoardView:
    """A directory of links to the event files of runs; ``refresh`` adds those that are new.

    Raises: ConfigError when no run below ``directories`` has an event file.
    """

    def __init__(self, directories: Sequence[str], view: Path) -> None:
        self.directories, self.view = directories, view
        self.names: dict[Path, str] = {}  # run directory -> its name in the view
        runs = [run for run in read_runs(directories) if _has_events(run.path)]
        if not runs:
            shown = " ".join(directories)
            raise ConfigError(
                f"DIR = {shown}: no run there has event files; logger.tensorboard=true writes "
                "them; rlrun tensorboard-rebuild RUN_DIR makes them from its records",
                key="DIR",
            )
        self.typed: dict[str, str] = {}  # every key that was typed for some run
        for run in runs:
            self.typed |= typed_settings(run.overrides)
        self.differing = differing_keys([self._settings(run) for run in runs])
        names = [trial_name(_own(run), worth_naming(self.differing)) for run in runs]
        self.named = self.differing
        if len({*names}) == len(runs):
            self.named = worth_naming(self.differing)
        for run in runs:
            self._add(run)
        self._link()

    def refresh(self) -> None:
        """Add runs and event files that are new; names that were given stay."""
        paths = [job.path for job in find_jobs(self.directories)]
        new = [path for path in paths if path not in self.names and _has_events(path)]
        for path in new:
            self._add(*read_runs([str(path)]))
        self._link()

    def _settings(self, run: RunData) -> dict[str, Value]:
        """The settings of a run, also those that were only typed for another one."""
        own = _own(run)
        others = {key: text for key, text in self.typed.items() if key in run.keys}
        return settings_of(run.config, others) | own

    def _add(self, run: RunData) -> None:
        """Make the directory of a run, with the row of the HPARAMS tab."""
        name = unique = trial_name(_own(run), self.named)
        number, taken = 1, {*self.names.values()}
        while unique in taken:
            number += 1
            unique = f"{name}-{number}"
        self.names[run.path] = unique
        directory = self.view / unique
        directory.mkdir()
        with (directory / _FIRST).open("xb") as file:
            records = RecordWriter(file)
            records.write(Event(file_version="brain.Event:2").SerializeToString())
            for value in declare(TrialRow(unique, self._settings(run), self.differing)):
                records.write(Event(summary=Summary(value=[value])).SerializeToString())

    def _link(self) -> None:
        for path, name in self.names.items():
            for source in path.glob(EVENTS):
                link = self.view / name / source.name
                if not link.is_symlink():
                    link.symlink_to(source.absolute())


def _has_events(run_dir: Path) -> bool:
    return next(run_dir.glob(EVENTS), None) is not None


def _own(run: RunData) -> dict[str, Value]:
    return settings_of(run.config, typed_settings(run.overrides))
