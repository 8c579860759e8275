"""Recurrent cores with one set of parameters and two forms: unroll [T, B] and step [B]."""

from rlrun.nets.memory.mingru import MinGRU
from rlrun.nets.memory.recurrent import GRU, LSTM, NoMemory
from rlrun.schema import MemoryConfig

Memory = LSTM | GRU | MinGRU | NoMemory


def make_memory(config: MemoryConfig, features: int) -> Memory:
    """The configured memory over inputs of width ``features``; ``size`` is its output width."""
    table: dict[str, type[LSTM] | type[GRU] | type[MinGRU] | type[NoMemory]]
    table = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU, "none": NoMemory}
    return table[config.name](config, features)
