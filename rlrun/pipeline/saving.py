"""The state of a run and its files; after a fault, the state before it or an earlier one."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer.saved import MOST_ROWS, check_counts, integer, require
from rlrun.errors import (
    CheckpointError,
    EnvError,
    NumericError,
    ResourceError,
    RlrunError,
    StorageError,
)
from rlrun.log import Log
from rlrun.pipeline.evaluations import LoopEvaluations
from rlrun.pipeline.parts import Parts, first_non_finite, require_finite
from rlrun.pipeline.state import backends, generators_state, load_generators, restore_backends
from rlrun.run import checkpoint, history
from rlrun.run.checkpoint import Saver
from rlrun.run.files import require_in_place
from rlrun.run.tensors import copied, require_kind
from rlrun.schema import RunConfig
from rlrun.trust import fault_of_users
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
            state = self.state_dict()
            require_finite(p)  # what is saved is finite
            self.files.save(state, p.policy.weights(), progress.counters)
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
        for name, value in check_counts(state["counters"], counters.__slots__).items():
            setattr(counters, name, value)
        with checkpoint.fitting("checkpoints", checkpoint.NETWORKS):
            require_kind("policy", state["policy"], p.policy.state_dict())
            found = first_non_finite({n: state[n] for n in ("policy", "bonus") if n in state})
            require(found is None, str(found), "is not finite")
            p.policy.load_state_dict(state["policy"])
            restore_backends(p.policy, state["backends"])
        with checkpoint.fitting("checkpoints", checkpoint.ENVIRONMENTS):
            p.source.load_state_dict(state)
        p.progress.rollbacks = integer("rollbacks", state["rollbacks"], 0, MOST_ROWS)
        p.progress.unsaved = False
        self.evaluations.load_state_dict(state)
        if p.buffer is not None and p.learner is not None:
            with checkpoint.fitting("checkpoints", checkpoint.REPLAY):
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


MAX_ROLLBACKS = 3  # of a run
# Parts of a state whose generators decide what is learned. Environments, and what users draw from
# the process's global generators, go on as they would have.
_STREAMS = ("policy", "buffer", "predictor")


@dataclass(frozen=True, slots=True)
class Faults:
    """Decides whether a run goes on after an error."""

    config: RunConfig
    parts: Parts
    saving: Saving

    def handle(self, error: Exception) -> None:
        """Load an earlier state after a non-finite update, where that is allowed.

        Raises: ``error`` otherwise; of environments, users' code and the loss with a text that says
        what was saved.
        """
        if isinstance(error, NumericError) and self._roll_back(error):
            return
        if isinstance(error, ResourceError):  # the cluster is lost, and nothing can be saved
            self._say(error, self._newest())
            raise error
        fault = error if isinstance(error, NumericError | EnvError) else fault_of_users(error)
        if fault is None:
            raise error
        self._say(fault, "saved" if self._save() else self._newest())
        if fault is error:
            raise error
        raise fault from error

    def _save(self) -> bool:
        """Save the state before the fault; False: it is not finite, or cannot be written."""
        try:
            self.saving.files.wait()
            self.saving.save()
            self.saving.files.wait()
        except RlrunError:
            return False
        return True

    def _newest(self) -> str:
        saved = checkpoint.list_checkpoints(self.saving.files.directory)
        return f"the newest checkpoint is {saved[-1].name}" if saved else ""

    def _say(self, error: RlrunError, end: str) -> None:
        if end:
            error.args = (f"{error}; {end}; go on: rlrun resume {self.parts.run_dir}",)

    def _roll_back(self, error: NumericError) -> bool:
        """Go back to the newest checkpoint with other random numbers; False: not allowed."""
        progress = self.parts.progress
        if self.config.on_nan != "rollback" or progress.rollbacks >= MAX_ROLLBACKS:
            return False
        self.saving.files.wait()
        try:
            state, path = checkpoint.load_newest(self.saving.files.directory)
        except CheckpointError:  # none was saved yet
            return False
        done = progress.rollbacks + 1
        self.saving.load_state_dict(other_streams(state, done))
        progress.rollbacks = done
        self.parts.log.rewind(progress.counters.env_steps, checkpoint.committed(path))
        _logger.warning("%s; back to %s (%d of %d)", error, path.name, done, MAX_ROLLBACKS)
        return True


def other_streams(state: dict[str, Any], number: int) -> dict[str, Any]:
    """``state`` with every random generator of policies and buffer moved to another stream.

    The next actions and samples then differ from those that led to a non-finite update, and
    between successive rollbacks. ``number``: 1, 2, ... counts them.
    """
    moved = {name: _moved(x, number) if name in _STREAMS else x for name, x in state.items()}
    if "collectors" in state:  # pipeline=ray: policies of the learner and of every collector
        role, collectors = state["learner"]["role"], state["collectors"]
        role = role | {"policy": _moved(role["policy"], number)}
        moved["learner"] = state["learner"] | {"role": role}
        moved["collectors"] = [x | {"state": _acts_anew(x["state"], number)} for x in collectors]
    elif "collector" in state:  # of pipeline=overlapped has a policy of its own
        moved["collector"] = _acts_anew(state["collector"], number)
    return moved


def _acts_anew(state: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
    """The state of a collector with its policy's generator moved, where it has one."""
    if state is None or "generator" not in state:
        return state
    return state | {"generator": _moved(state["generator"], number)}


def _moved(node: Any, number: int, key: str = "") -> Any:
    if isinstance(node, dict):
        if isinstance(node.get("bit_generator"), str):
            return _jumped(node, number)
        return {key: _moved(x, number, key) for key, x in node.items()}
    if isinstance(node, Tensor) and key == "rng":
        return _reseeded(node, number)
    if isinstance(node, list | tuple):
        return type(node)(_moved(x, number) for x in node)
    return node


def _jumped(state: dict[str, Any], number: int) -> dict[str, Any]:
    """The state of a numpy bit generator ``number`` jumps ahead."""
    generator = getattr(np.random, state["bit_generator"])()
    generator.state = state
    moved: dict[str, Any] = generator.jumped(number).state
    return state | moved


def _reseeded(state: Tensor, number: int) -> Tensor:
    """The state of a torch generator (of a CPU: 5056 bytes; of CUDA: seed and offset) reseeded."""
    if state.numel() == 16:
        moved = state.clone()
        moved.view(torch.int64)[0] += number
        return moved
    own = torch.Generator()
    own.set_state(state)
    own.manual_seed(int(torch.randint(2**62, (), generator=own)) + number)
    return own.get_state()
