"""Recurrent memories with one set of parameters and two forms: unroll [T, B, F] and step [B, F]."""

import torch
from torch import Tensor

from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.recurrent import GRU, LSTM, NoMemory
from rlrun.schema import MemoryConfig
from rlrun.types import Tree, tree_map

Memory = LSTM | GRU | MinGRU | NoMemory


def make_memory(config: MemoryConfig, features: int) -> Memory:
    """Return the configured memory of inputs [*, features]; ``size`` is its output width."""
    table: dict[str, type[LSTM] | type[GRU] | type[MinGRU] | type[NoMemory]]
    table = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU, "none": NoMemory}
    return table[config.name](config, features)


def reset_state(first: Tensor, state: Tree) -> Tree:
    """Return ``state`` [B, ...] with zeros in the rows where ``first`` bool [B] is set."""

    def reset(s: Tensor) -> Tensor:
        mask = first.to(s.device).reshape(-1, *[1] * (s.ndim - 1))
        return torch.where(mask, torch.zeros_like(s), s)

    return tree_map(reset, state)
