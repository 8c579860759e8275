"""After a non-finite update: back to the newest checkpoint, with other random numbers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_ROLLBACKS = 3  # of a run
# Parts of a state whose generators decide what is learned. Environments, and what users draw from
# the process's global generators, go on as they would have.
_STREAMS = ("policy", "buffer", "predictor")


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
