"""Engines whose state their own interface clones: the ALE's machine, MuJoCo's ``MjData``.

An engine is recognised by the module and name of its class, so that neither package is imported.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_ARENA = ("efc_", "iefc_", "efm_", "island_", "map_", "ifrc_", "iacc", "bvh_", "wrap_", "moment_")
"""MjData's arrays of varying length or of collision search, which every forward step rewrites."""


def module_of(kind: type) -> str:
    """Return the module of a class; some of extension modules have none."""
    return str(getattr(kind, "__module__", ""))


@dataclass(frozen=True, slots=True)
class Engine:
    """``capture`` returns a tree, ``restore`` writes it into another object of the same kind."""

    module: str
    name: str
    capture: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]

    def matches(self, x: object) -> bool:
        """Return whether ``x`` is this engine's object."""
        kind = type(x)
        return kind.__name__ == self.name and module_of(kind).split(".")[0] == self.module


def _ale_state(ale: Any) -> dict[str, Any]:
    """The machine with its random numbers (14 kB), and the action that a sticky frame repeats.

    ale-py's clone lacks that action, and nothing shows it. It is found by trial: which action,
    held before the cloned state, leads to the same machine. Afterwards ``ale`` is as before.

    Raises: ValueError: none does.
    """
    state = _ale_bytes(ale)
    frames = _sticky_frames(ale)
    if not frames:
        return {"machine": state, "held": None}
    expected = _ale_after(ale, frames)
    actions = [int(action.value) for action in ale.getLegalActionSet()]
    for held in actions:
        _set_ale_state(ale, {"machine": state, "held": held})
        if np.array_equal(_ale_after(ale, frames), expected):
            _set_ale_state(ale, {"machine": state, "held": held})
            return {"machine": state, "held": held}
    raise ValueError("no held action explains the next frames of the game")


def _ale_bytes(ale: Any) -> np.ndarray:
    return np.frombuffer(ale.cloneState(include_rng=True).serialize(), np.uint8).copy()


def _sticky_frames(ale: Any) -> int:
    """Frames after which an action was taken, but for one chance in 10^9; 0: at once."""
    probability = ale.getFloat("repeat_action_probability")
    if not 0 < probability < 1:
        return 0
    return max(1, math.ceil(math.log(1e-9) / math.log(probability)))


def _ale_after(ale: Any, frames: int) -> np.ndarray:
    """Return the machine's state after frames without action."""
    for _ in range(frames):
        ale.act(0)
    return _ale_bytes(ale)


def _set_ale_state(ale: Any, state: dict[str, Any]) -> None:
    from ale_py import ALEState

    if state["held"] is not None:
        for _ in range(_sticky_frames(ale)):
            ale.act(int(state["held"]))
            if ale.game_over():
                ale.reset_game()
    ale.restoreState(ALEState(state["machine"].tobytes()))


def _mujoco_state(data: Any) -> dict[str, Any]:
    """The integration state (time and warm start included) and what the last step computed.

    Environments read positions and forces that belong to the start of the last step (mj_step
    integrates after its forward pass); another forward pass would give those of its end.
    """
    import mujoco

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(data.model, spec), np.float64)
    mujoco.mj_getState(data.model, data, state, spec)
    return {"integration": state, "computed": {k: v.copy() for k, v in _computed(data).items()}}


def _set_mujoco_state(data: Any, state: dict[str, Any]) -> None:
    import mujoco

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    size = mujoco.mj_stateSize(data.model, spec)
    if state["integration"].shape != (size,):
        raise ValueError(f"MuJoCo's state has {size} numbers")
    mujoco.mj_resetData(data.model, data)
    mujoco.mj_setState(data.model, data, state["integration"], spec)
    mujoco.mj_forward(data.model, data)
    computed = _computed(data)
    for name, values in state["computed"].items():
        np.copyto(computed[name], values, casting="no")
    mujoco.mj_setState(data.model, data, state["integration"], spec)


def _computed(data: Any) -> dict[str, np.ndarray]:
    """MjData's arrays of fixed length, which share its memory."""
    names = (n for n in dir(data) if not n.startswith("_") and not n.startswith(_ARENA))
    found = {n: x for n in names if isinstance(x := getattr(data, n), np.ndarray) and x.size}
    return {n: x for n, x in found.items() if x.dtype == np.float64 and x.flags.writeable}


ENGINES: dict[str, Engine] = {
    "ale": Engine("ale_py", "ALEInterface", _ale_state, _set_ale_state),
    "mujoco": Engine("mujoco", "MjData", _mujoco_state, _set_mujoco_state),
}
