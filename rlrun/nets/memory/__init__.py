"""Recurrent memories with one set of parameters and two forms: unroll [T, B, F] and step [B, F]."""

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
from rlrun.types import Tree, tree_leaves, tree_map

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
    """Raise EnvError if a step of a user's cell returns other shapes than the cell declares."""
    state = memory.initial_state(2, torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):  # a step may use random numbers
        out, after = memory.step(torch.zeros(2, features), state)
    cases = [("step() returns an output", out, (2, memory.size))]
    cases += [
        ("initial_state(2) returns a state", s, (2, *s.shape[1:])) for s in tree_leaves(state)
    ]
    pairs = zip(tree_leaves(after), tree_leaves(state), strict=False)
    cases += [("step() returns a state", new, tuple(old.shape)) for new, old in pairs]
    for what, x, shape in cases:
        if tuple(x.shape) != shape:
            raise EnvError(
                f"memory.name = {name}: {what} of shape {[*x.shape]}; {[*shape]} is allowed, by "
                "its size and initial_state; correct the cell"
            )
    if len(tree_leaves(after)) != len(tree_leaves(state)):
        raise EnvError(
            f"memory.name = {name}: step() returns {len(tree_leaves(after))} arrays of state; "
            f"{len(tree_leaves(state))} are allowed, as of initial_state; correct the cell"
        )


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
