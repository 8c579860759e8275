"""Recurrent memories with one set of parameters and two forms: unroll [T, B, F] and step [B, F]."""

import torch
from torch import Tensor, nn

from rlrun.errors import ConfigError
from rlrun.nets.memory.custom import Cell as Cell
from rlrun.nets.memory.ffm import FFM
from rlrun.nets.memory.gtrxl import GTrXL
from rlrun.nets.memory.lmu import LMU
from rlrun.nets.memory.lru import LRU
from rlrun.nets.memory.lstm_gru import GRU, LSTM, NoMemory
from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.rtu import RTU
from rlrun.schema import MemoryConfig
from rlrun.trust import trusted_class
from rlrun.types import Tree, tree_map

Memory = LSTM | GRU | MinGRU | NoMemory | Cell


_MEMORIES: dict[str, type[Memory]] = {
    "lstm": LSTM,
    "gru": GRU,
    "mingru": MinGRU,
    "lru": LRU,
    "ffm": FFM,
    "rtu": RTU,
    "lmu": LMU,
    "gtrxl": GTrXL,
    "none": NoMemory,
}


def make_memory(config: MemoryConfig, features: int) -> Memory:
    """Return the configured memory of inputs [*, features]; ``size`` is its output width.

    ``config.name`` may be ``mypkg.mod:Cell``, a ``Cell`` of a trusted package.
    """
    cls = _MEMORIES.get(config.name) or trusted_class("memory.name", config.name)
    if not issubclass(cls, Memory):
        wrong = "the class is no Cell"
        allowed = "a class derived from rlrun.nets.memory.Cell is allowed"
        raise ConfigError(f"memory.name = {config.name}: {wrong}; {allowed}; derive it")
    memory: Memory = cls(config, features)
    return memory


def memory_parameters(net: nn.Module) -> list[Tensor]:
    """Return the parameters of all memories in ``net``, in its order."""
    memories = [part for part in net.modules() if isinstance(part, Memory)]
    return [p for memory in memories for p in memory.parameters()]


def reset_state(first: Tensor, state: Tree) -> Tree:
    """Return ``state`` [B, ...] with zeros in the rows where ``first`` bool [B] is set."""

    def reset(s: Tensor) -> Tensor:
        mask = first.to(s.device).reshape(-1, *[1] * (s.ndim - 1))
        return torch.where(mask, torch.zeros_like(s), s)

    return tree_map(reset, state)
