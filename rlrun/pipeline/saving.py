"""The state of a run, and its files: checkpoints, the newest weights and past ones."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rlrun.buffer.saved import MOST_ROWS, integer, require
from rlrun.errors import StorageError
from rlrun.log import Log
from rlrun.pipeline.backends import backends, restore_backends
from rlrun.pipeline.evaluate import loaded_counts
from rlrun.pipeline.evaluations import LoopEvaluations
from rlrun.pipeline.finite import first_non_finite, require_finite
from rlrun.pipeline.generators import generators_state, load_generators
from rlrun.pipeline.parts import Parts
from rlrun.rundir import checkpoint, history
from rlrun.rundir.lock import require_in_place
from rlrun.rundir.saver import Saver
from rlrun.rundir.statetree import copied, require_kind
from rlrun.types import Counters

_logger = logging.getLogger(__name__)


class RunFiles:
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


@dataclass(slots=True)
class Saving:
    """Saves and loads all that the later steps of a run depend on."""

    every: int  # env steps, run.checkpoint_every
    parts: Parts
    evaluations: LoopEvaluations
    files: RunFiles
    settings: dict[str, Any]  # of the plan, for resumed runs
    warned: bool = False  # of a run that cannot be resumed exactly; True: say nothing

    def after_chunk(self, before: int) -> None:
        """Save if it is due since env step ``before``."""
        if self.parts.progress.due(self.every, before):
            self.save()

    def save(self) -> None:
        """Save a checkpoint. Raises: NumericError, StorageError."""
        p, progress = self.parts, self.parts.progress
        progress.phase = "save"
        require_in_place(p.run_dir)
        with progress.part("checkpoint"):
            require_finite(p)
            self.files.save(self.state_dict(), p.policy.weights(), progress.counters)
            progress.unsaved = False

    def finish(self) -> None:
        """Save what is not saved yet; return once it is durable."""
        if self.parts.progress.unsaved:
            self.save()
        self.files.wait()

    @property
    def inexact(self) -> str | None:
        """Why the run is not, or cannot be resumed as, the one that nothing disturbed."""
        return self.parts.source.inexact or self.evaluations.inexact

    def state_dict(self) -> dict[str, Any]:
        """The state of every part. Reading it changes none of it."""
        p, counters = self.parts, self.parts.progress.counters
        source = p.source.state_dict()  # first: see ``Source``
        self._warn_inexact()
        state: dict[str, Any] = {
            "counters": {n: getattr(counters, n) for n in counters.__slots__},
            "policy": p.policy.state_dict(),
            "collector": source.pop("collector"),
            **self.evaluations.state_dict(),
            "settings": self.settings,
            "backends": backends(p.policy),
            "generators": generators_state(),
            "rollbacks": p.progress.rollbacks,
        }
        if p.buffer is not None and p.learner is not None:
            state |= {"buffer": p.buffer.state_dict(), "learner": p.learner.state_dict()}
        if p.bonus is not None:
            state["bonus"] = p.bonus.state_dict()
        return state | source

    def load_state_dict(self, state: dict[str, Any]) -> None:
        p, counters = self.parts, self.parts.progress.counters
        for name, value in loaded_counts(state["counters"], counters.__slots__).items():
            setattr(counters, name, value)
        with checkpoint.fitting_part(checkpoint.NETWORKS):
            require_kind("policy", state["policy"], p.policy.state_dict())
            found = first_non_finite({n: state[n] for n in ("policy", "bonus") if n in state})
            require(found is None, str(found), "is not finite")
            p.policy.load_state_dict(state["policy"])
            restore_backends(p.policy, state["backends"])
        with checkpoint.fitting_part(checkpoint.ENVIRONMENTS):
            p.source.load_state_dict(state)
        p.progress.rollbacks = integer("rollbacks", state["rollbacks"], 0, MOST_ROWS)
        p.progress.unsaved = False
        self.evaluations.load_state_dict(state)
        if p.buffer is not None and p.learner is not None:
            with checkpoint.fitting_part(checkpoint.REPLAY):
                p.buffer.load_state_dict(state["buffer"])
                p.learner.load_state_dict(state["learner"])
        if p.bonus is not None:
            p.bonus.load_state_dict(state["bonus"])
        load_generators(state["generators"])

    def _warn_inexact(self) -> None:
        """Warn once of a run that cannot be resumed exactly."""
        reason = self.parts.source.inexact
        if reason is not None and not self.warned:
            self.warned = True
            text = "resumed after a kill, this run will differ from an uninterrupted one: %s"
            _logger.warning(text, reason)
