"""Faults of a run: the state before one is saved, or an earlier state is gone back to."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import CheckpointError, EnvError, NumericError, ResourceError, RlrunError
from rlrun.pipeline.parts import Parts
from rlrun.pipeline.saving import Saving
from rlrun.rundir import checkpoint
from rlrun.schema import RunConfig
from rlrun.trust import fault_of_users

_logger = logging.getLogger(__name__)

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
