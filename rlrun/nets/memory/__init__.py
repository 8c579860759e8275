"""Recurrent memories with one set of parameters and two forms: unroll [T, B, F] and step [B, F]."""

import math

import torch
from torch import Tensor, nn

from rlrun.errors import ConfigError, EnvError
from rlrun.nets.memory.bmru import BMRU
from rlrun.nets.memory.cell import Cell as Cell
from rlrun.nets.memory.gated import GRU, LMU, LSTM, MinGRU, NoMemory
from rlrun.nets.memory.gated_deltanet import GatedDeltaNet
from rlrun.nets.memory.gtrxl import GTrXL
from rlrun.nets.memory.indrnn import IndRNN
from rlrun.nets.memory.linear import FFM, LRU, RTU
from rlrun.nets.memory.mamba2 import Mamba2
from rlrun.nets.memory.xlstm import MLSTM, SLSTM
from rlrun.schema import MemoryConfig
from rlrun.trust import trusted_class, users_class
from rlrun.types import Tree, tree_map

Memory = LSTM | GRU | NoMemory | Cell


_MEMORIES: dict[str, type[Memory]] = {
    "lstm": LSTM,
    "gru": GRU,
    "mingru": MinGRU,
    "lru": LRU,
    "ffm": FFM,
    "rtu": RTU,
    "lmu": LMU,
    "gtrxl": GTrXL,
    "indrnn": IndRNN,
    "bmru": BMRU,
    "mlstm": MLSTM,
    "slstm": SLSTM,
    "gated_deltanet": GatedDeltaNet,
    "mamba2": Mamba2,
    "none": NoMemory,
}


def make_memory(config: MemoryConfig, features: int) -> Memory:
    """Return the configured memory of inputs [*, features]; ``size`` is its output width.

    ``config.name`` may be ``mypkg.mod:Cell``, a ``Cell`` of a trusted package.
    """
    cls = _MEMORIES.get(config.name) or trusted_class("memory.name", config.name)
    if not issubclass(cls, Memory):
        wrong = "the class is not a Cell"
        allowed = "a class derived from rlrun.nets.memory.Cell is allowed"
        raise ConfigError(f"memory.name = {config.name}: {wrong}; {allowed}; derive it")
    with users_class("memory.name", config.name):
        memory: Memory = cls(config, features)
        if config.name not in _MEMORIES:
            _check_cell(config.name, memory, features)
    return memory


@torch.no_grad()
def _check_cell(name: str, memory: Memory, features: int) -> None:
    """Raise EnvError if a user's cell returns other arrays than the cell declares."""
    state = memory.initial_state(2, torch.device("cpu"))
    _check_arrays(name, "initial_state(2) returns a state", state)
    with torch.random.fork_rng(devices=[]):  # a step may use random numbers
        out, after = memory.step(torch.zeros(2, features), state)
    _check_arrays(name, "step() returns a state", after)
    _check_arrays(name, "step() returns an output", (out,))
    cases = [("step() returns an output", out, (2, memory.size))]
    flat = ((s, (2, math.prod(s.shape[1:]))) for s in state)
    cases += [("initial_state(2) returns a state", s, shape) for s, shape in flat]
    pairs = zip(after, state, strict=False)
    cases += [("step() returns a state", new, tuple(old.shape)) for new, old in pairs]
    for what, x, shape in cases:
        if tuple(x.shape) != shape:
            raise EnvError(
                f"memory.name = {name}: {what} of shape {[*x.shape]}; {[*shape]} is allowed, by "
                "its size and initial_state; correct the cell"
            )
    if len(after) != len(state):
        raise EnvError(
            f"memory.name = {name}: step() returns {len(after)} arrays of state; "
            f"{len(state)} are allowed, as of initial_state; correct the cell"
        )
    if any(s.any() for s in state):
        raise EnvError(
            f"memory.name = {name}: the state of initial_state() is not zero after a step; states "
            "start at zero, and step() returns new arrays; correct the cell"
        )


def _check_arrays(name: str, what: str, arrays: Tree) -> None:
    """Raise EnvError unless ``arrays`` are a tuple of float32 tensors."""
    parts = arrays if isinstance(arrays, tuple) else (arrays,)
    kinds = [str(x.dtype) if isinstance(x, Tensor) else type(x).__name__ for x in parts]
    if parts is not arrays or any(kind != "torch.float32" for kind in kinds):
        actual = ", ".join(kinds) if parts is arrays else type(arrays).__name__
        allowed = "float32 tensors are allowed, those of a state in a tuple"
        raise EnvError(f"memory.name = {name}: {what} of {actual}; {allowed}; correct the cell")


def memory_parameters(net: nn.Module) -> list[Tensor]:
    """Return the parameters of all memories in ``net``, in its order."""
    memories = [part for part in net.modules() if isinstance(part, Memory)]
    return [p for memory in memories for p in memory.parameters()]


def reset_state(first: Tensor, state: Tree) -> Tree:
    """Return ``state`` [B, ...] with zeros in the rows where ``first`` bool [B] is True."""

    def reset(s: Tensor) -> Tensor:
        mask = first.to(s.device).reshape(-1, *[1] * (s.ndim - 1))
        return torch.where(mask, torch.zeros_like(s), s)

    return tree_map(reset, state)
