"""Saving of a run: its checkpoints, the newest weights and past ones."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rlrun.errors import StorageError
from rlrun.log import Log
from rlrun.rundir import checkpoint, history
from rlrun.rundir.saver import Saver
from rlrun.rundir.statetree import copied
from rlrun.types import Counters

_logger = logging.getLogger(__name__)


class RunSaver:
    """Saves copies of the present state of a run; files are written while it goes on."""

    def __init__(self, directory: Path, log: Log, *, keep: int, versions: int) -> None:
        """``keep``: checkpoints (run.keep_checkpoints); ``versions``: past weights
        (checkpoint.history)."""
        self.directory, self.log, self.keep, self.versions = directory, log, keep, versions
        self.saver = Saver(directory)
        self.history_size: history.HistorySize | None = None  # of the past weights when last saved

    def save(
        self, state: Mapping[str, Any], weights: Mapping[str, Tensor], counters: Counters
    ) -> None:
        """Save a checkpoint. Raises: StorageError, of this save or the one before."""
        held = {name: copied(x) for name, x in weights.items()}
        meta = _meta(counters)

        def write_past() -> None:  # again by a run that resumes before this checkpoint
            self.log.sync()
            if self.versions:
                past = self.directory / history.DIRECTORY
                self.history_size = history.save(past, held, **meta, keep=self.versions)

        def write_newest() -> None:
            checkpoint.save_weights(self.directory / "last.safetensors", held, meta)

        self.saver.save(
            state, env_steps=counters.env_steps, keep=self.keep, committed=self.log.committed(),
            before=write_past, after=write_newest,
        )  # fmt: skip

    def save_weights(self, weights: Mapping[str, Tensor], counters: Counters) -> None:
        """Save the newest weights alone, those of a checkpoint that is there."""
        checkpoint.save_weights(self.directory / "last.safetensors", weights, _meta(counters))

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics of the past weights; empty while there are none."""
        past = self.history_size
        if past is None:
            return {}
        return {
            "codec/history_ratio": past.coded / past.raw,
            "codec/history_bytes": float(past.coded),
        }

    def wait(self) -> None:
        """Wait until the last checkpoint is durable. Raises: StorageError when it is not."""
        self.saver.wait()

    def close(self) -> None:
        """Wait; log an error, since one of the run comes first."""
        try:
            self.wait()
        except StorageError as e:
            _logger.warning("%s", e)


def _meta(counters: Counters) -> dict[str, int]:
    return {"env_steps": counters.env_steps, "updates": counters.updates}
