"""TensorBoard event files rebuilt from metrics.jsonl and timings.jsonl."""

import datetime
import heapq
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, count
from operator import itemgetter
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from rlrun.config import load
from rlrun.errors import CheckpointError, ConfigError, StorageError
from rlrun.log import METRICS, TIMINGS, event_records
from rlrun.log.jsonl import read_records
from rlrun.log.tensorboard import TensorBoardWriter, declare
from rlrun.log.trial import NAMED, TrialRow, Value, column_kinds, file_name, trial_name
from rlrun.reports.runs import RunData, find_jobs, read_runs
from rlrun.run import hparams
from rlrun.run.checkpoint import MISFITS
from rlrun.run.files import lock_run_dir, require_regular_files
from rlrun.run.record import RunRecord

_logger = logging.getLogger(__name__)

EVENTS = "events.out.tfevents.*"
_FIRST = "events.out.tfevents.0000000000.view"  # files are read in the order of their names


class BoardView:
    """A directory of links to the event files of runs. ``refresh`` adds new ones.

    Raises: ConfigError if no run below ``directories`` has an event file, or one holds a link, a
    pipe or a device.
    """

    def __init__(self, directories: Sequence[str], view: Path) -> None:
        self.directories, self.directory = directories, view
        self.names: dict[Path, str] = {}  # run directory -> its name in the view
        self._runs: list[RunData] = []
        self._differing: frozenset[str] = frozenset()
        self._kinds: dict[str, type] = {}
        for job in find_jobs(directories):
            require_regular_files(job.path)
        runs = [run for run in read_runs(directories) if _has_events(run.path)]
        if not runs:
            shown = " ".join(directories)
            raise ConfigError(
                f"DIR = {shown}: no run there has event files; logger.tensorboard=true writes "
                "them; rlrun tensorboard-rebuild RUN_DIR makes them from its records",
                key="DIR",
            )
        self._add(runs)
        self._link()

    def refresh(self) -> bool:
        """Add new runs and event files. Names stay once given.

        Returns True if the columns of all runs were rewritten, which TensorBoard reads only when it
        starts.
        """
        paths = [job.path for job in find_jobs(self.directories)]
        new = [path for path in paths if path not in self.names and _has_events(path)]
        for path in new:
            require_regular_files(path)
        changed = bool(new) and self._add([run for path in new for run in read_runs([str(path)])])
        self._link()
        return changed

    def _add(self, new: list[RunData]) -> bool:
        """Name runs and write their rows. If columns change, write all rows and return True."""
        self._runs += new
        arguments = [(run.config, hparams.typed_settings(run.overrides)) for run in self._runs]
        own_settings = [hparams.settings_of(*each) for each in arguments]
        typed = {key for settings in own_settings for key in settings}
        trials = [hparams.settings_of(*each, typed) for each in arguments]
        before = self._differing, self._kinds
        self._differing, kinds = hparams.differing_keys(trials), column_kinds(trials)
        self._kinds = {key: kinds[key] for key in (*NAMED, *self._differing)}
        settings_names = _names(own_settings, trials, self._differing)
        directories = _directory_names(self._runs)
        for run, made in zip(self._runs, settings_names, strict=True):
            name = directories.get(run.path) or made
            if run.path not in self.names:
                names = chain([name], (f"{name}-{number}" for number in count(2)))
                taken = {*self.names.values()}
                self.names[run.path] = next(name for name in names if name not in taken)
                (self.directory / self.names[run.path]).mkdir()
        changed = before != (self._differing, self._kinds)
        for run, settings in zip(self._runs, trials, strict=True):
            if changed or run in new:
                self._declare(self.names[run.path], settings)
        return changed

    def _declare(self, name: str, settings: dict[str, Value]) -> None:
        """Write the row of the HPARAMS tab, with the columns of all runs."""
        trial = TrialRow(name, settings, self._differing, self._kinds)
        with (self.directory / name / _FIRST).open("wb") as file:
            version = Event(file_version="brain.Event:2")
            rows = (Event(summary=Summary(value=[value])) for value in declare(trial))
            for event in (version, *rows):
                file.write(event_records.encode(event.SerializeToString()))

    def _link(self) -> None:
        for path, name in self.names.items():
            for source in _event_files(path):
                link = self.directory / name / source.name
                if not link.is_symlink():
                    link.symlink_to(source.absolute())


def _directory_names(runs: Sequence[RunData]) -> dict[Path, str]:
    """Return the typed names of run directories (``run.dir=outputs/first``: ``first``).

    Directories of the same name are distinguished by their parents.
    """
    typed = [run.path for run in runs if any(o.startswith("run.dir=") for o in run.overrides)]
    often = Counter(path.name for path in typed)
    parts = {path: path.absolute().parts[-1 if often[path.name] == 1 else -2 :] for path in typed}
    return {path: file_name("-".join(names)) for path, names in parts.items()}


def _names(
    own_settings: list[dict[str, Value]], trials: list[dict[str, Value]], differing: frozenset[str]
) -> list[str]:
    """Return the names of runs: the typed settings that differ between them.

    Policy, environment and seed are left out if all runs share them. Settings of a run's length
    appear only if nothing else distinguishes runs.
    """
    begin = [key for key in NAMED if key in differing] if len(own_settings) > 1 else NAMED
    shown = hparams.worth_naming(differing)
    names = [trial_name(settings, shown, begin) for settings in own_settings]
    without_seed = [{k: v for k, v in settings.items() if k != "seed"} for settings in own_settings]
    longer: list[tuple[dict[str, Value], frozenset[str]]] = []  # typed settings -> shown
    for name in dict.fromkeys(names):
        alike = [i for i, other in enumerate(names) if other == name]
        if len(alike) > 1:
            shown_keys = shown | hparams.differing_keys([trials[i] for i in alike])
            longer += [(without_seed[i], shown_keys) for i in alike]
    for i, settings in enumerate(own_settings):  # other seeds of a setting have the same name
        shown_keys = next((keys for typed, keys in longer if typed == without_seed[i]), shown)
        names[i] = trial_name(settings, shown_keys, begin)
    return names


def _has_events(run_dir: Path) -> bool:
    return next(_event_files(run_dir), None) is not None


def _event_files(run_dir: Path) -> Iterator[Path]:
    """Yield the event files that are regular files, because a server would wait for a pipe."""
    return (p for p in run_dir.glob(EVENTS) if p.is_file() and not p.is_symlink())


def rebuild(run_dir: Path) -> Path:
    """Replace the event files of ``run_dir`` by one with all records. Return its path.

    Pictures, histograms and the table of a profile are not in the records; they are copied from the
    earlier files.

    Raises: ConfigError if it is not a run directory, CheckpointError if a record is damaged,
    StorageError if a file cannot be read or written, LockedError while the run is active.
    """
    _, raw_yaml = load(run_dir, replay=False)
    record = RunRecord.read(run_dir)
    with lock_run_dir(run_dir):
        earlier = sorted(run_dir.glob("events.out.tfevents.*"))
        writer = TensorBoardWriter(run_dir)
        try:
            _write(writer, run_dir, record, raw_yaml)
            for event in _kept(earlier):
                writer.copy(event)
        except BaseException as e:
            writer.close()
            writer.path.unlink(missing_ok=True)
            if not isinstance(e, MISFITS):
                raise
            raise CheckpointError(
                f"{run_dir}: its records cannot be shown ({' '.join(str(e).split())[:300]}); they "
                "must be as rlrun wrote them; rlrun verify names damaged files"
            ) from e
        if not writer.is_open:
            writer.path.unlink(missing_ok=True)
            raise StorageError(
                f"{run_dir}: the event file cannot be written; the earlier ones are unchanged; "
                "free space and try again"
            )
        writer.close()
        for path in earlier:
            path.unlink()
    return writer.path


def _write(writer: TensorBoardWriter, run_dir: Path, record: RunRecord, raw_yaml: str) -> None:
    writer.now = now = began = datetime.datetime.fromisoformat(record.started).timestamp()
    writer.text("config", f"```yaml\n{raw_yaml}\n```")
    trial = hparams.trial_of(run_dir, raw_yaml, record.started)
    writer.hparams(0, trial, {})
    parts = [list(read_records(run_dir / name)) for name in (METRICS, TIMINGS)]
    for step, values in heapq.merge(*parts, key=itemgetter(0)):
        now = began + values.get("time/wall_seconds", now - began)
        writer.now = now
        writer.scalars(step, values)
    if record.status == "done":
        writer.hparams(record.env_steps, trial, hparams.final_metrics(record))
    writer.flush()


def _kept(paths: list[Path]) -> list[Event]:
    """Return the readable events of pictures, histograms and texts.

    Events that a resume discarded are left out.
    """
    kept: list[Event] = []
    for path in paths:
        try:
            for event in LegacyEventFileLoader(str(path)).Load():
                if event.HasField("session_log"):
                    kept = [e for e in kept if e.step < event.step]
                if any(_is_kept(value) for value in event.summary.value):
                    kept.append(event)
        except Exception as e:  # TensorBoard's reader has no errors of its own
            _logger.warning("%s: cannot be read: %s", path.name, e)
    return kept


def _is_kept(value: Summary.Value) -> bool:
    text: bool = value.metadata.plugin_data.plugin_name == "text" and value.tag != "config"
    return text or bool(value.HasField("image") or value.HasField("histo"))
