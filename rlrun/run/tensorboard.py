"""TensorBoard event files written anew from metrics.jsonl and timings.jsonl."""

import datetime
import heapq
import logging
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from rlrun.config import load
from rlrun.errors import CheckpointError, StorageError
from rlrun.log import METRICS, TIMINGS
from rlrun.log.jsonl import read_records
from rlrun.log.tensorboard import TensorBoardWriter
from rlrun.run.hparams import final_metrics, replay_page, trial_of
from rlrun.rundir.checkpoint import MISFITS
from rlrun.rundir.lock import lock_run_dir
from rlrun.rundir.record import RunRecord

_logger = logging.getLogger(__name__)


def rebuild(run_dir: Path) -> Path:
    """Replace the event files of ``run_dir`` by one with all records; return its path.

    Pictures, histograms and the table of a profile are in no record: those that the earlier files
    still have are copied.

    Raises: ConfigError when it is no run directory, CheckpointError when a record is damaged,
        StorageError when a file cannot be read or written, LockedError while the run goes on.
    """
    config, raw_yaml = load(run_dir, replay=False)
    record = RunRecord.read(run_dir)
    with lock_run_dir(run_dir):
        earlier = sorted(run_dir.glob("events.out.tfevents.*"))
        writer = TensorBoardWriter(run_dir, replay=replay_page(config))
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
    """Write all records of a run."""
    writer.now = now = began = datetime.datetime.fromisoformat(record.started).timestamp()
    writer.text("config", f"```yaml\n{raw_yaml}\n```")
    trial = trial_of(run_dir, raw_yaml, record.started)
    writer.hparams(0, trial, {})
    parts = [list(read_records(run_dir / name)) for name in (METRICS, TIMINGS)]
    for step, values in heapq.merge(*parts, key=_step):
        now = began + values.get("time/wall_seconds", now - began)
        writer.now = now
        writer.scalars(step, values)
    if record.status == "done":
        writer.hparams(record.env_steps, trial, final_metrics(record))
    writer.flush()


def _kept(paths: list[Path]) -> list[Event]:
    """The events of pictures, histograms and texts, as far as the files can be read.

    Those that a resume took back are left out.
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


def _step(record: tuple[int, dict[str, Any]]) -> int:
    return record[0]
