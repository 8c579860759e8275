"""Recurrent cores with one set of parameters and two forms: unroll [T, B] and step [B]."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from rlrun.errors import ConfigError
from rlrun.nets.mingru import MinGRU
from rlrun.schema import MemoryConfig
from rlrun.trust import trusted_class
from rlrun.types import Tree, tree_map


class LSTM(nn.Module):
    """nn.LSTM; state (h, c), each [B, H]. The forget gate's bias starts at ``forget_bias``."""

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = config.hidden
        self.core = nn.LSTM(features, config.hidden)
        with torch.no_grad():
            gate = slice(config.hidden, 2 * config.hidden)  # torch's gate order: i, f, g, o
            self.core.get_parameter("bias_ih_l0")[gate] = config.forget_bias
            self.core.get_parameter("bias_hh_l0")[gate] = 0.0

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        zero = torch.zeros(batch, self.size, device=device)
        return (zero, zero.clone())

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """[T, B, F] from the state before row 0 -> outputs [T, B, H], the state after row T-1."""
        h, c = state
        out, (h, c) = self.core(x, (h.unsqueeze(0), c.unsqueeze(0)))
        return out, (h.squeeze(0), c.squeeze(0))

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """The states [B, H] behind the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        return _state_after(self, x, lengths, state)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """One row [B, F]: ``unroll`` with T = 1, at a fraction of its overhead."""
        h, c = torch.lstm_cell(x, state, *self.core.all_weights[0])
        return h, (h, c)


class GRU(nn.Module):
    """nn.GRU; state h [B, H]."""

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = config.hidden
        self.core = nn.GRU(features, config.hidden)

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return (torch.zeros(batch, self.size, device=device),)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        out, h = self.core(x, state[0].unsqueeze(0))
        return out, (h.squeeze(0),)

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        return _state_after(self, x, lengths, state)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        h = torch.gru_cell(x, state[0], *self.core.all_weights[0])
        return h, (h,)


class NoMemory(nn.Module):
    """The feed-forward control: outputs are inputs, the state is empty."""

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = features

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return ()

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return x, state

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        return state

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return x, state


def _state_after(memory: LSTM | GRU, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
    """The states [B, H] behind the first ``lengths[b]`` rows of ``x`` [T, B, F]; one sync."""
    some = (lengths > 0).nonzero().squeeze(-1)
    if not len(some):
        return state
    packed = pack_padded_sequence(x[:, some], lengths[some].cpu(), enforce_sorted=False)
    first = tree_map(lambda s: s[some].unsqueeze(0), state)
    _, last = memory.core(packed, first if isinstance(memory, LSTM) else first[0])
    last = last if isinstance(memory, LSTM) else (last,)
    return tree_map(lambda s, new: s.index_copy(0, some, new.squeeze(0)), state, last)


class Cell(nn.Module):
    """A memory of your own: define ``__init__``, ``initial_state`` and ``step`` as ``GRU`` does.

    ``unroll`` and ``state_after`` step row by row; override them where it can be done at once.
    States start at zero, and their shapes do not depend on the number of features.
    """

    size: int  # width of the outputs

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = config.hidden

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        """A tuple of zeros [B, S], of any widths S."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """One row [B, F] and the state before it -> output [B, size], the state behind it."""
        raise NotImplementedError

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """As ``LSTM.unroll``."""
        out = []
        for row in x:
            y, state = self.step(row, state)
            out.append(y)
        return torch.stack(out), state

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """As ``LSTM.state_after``."""
        for t, row in enumerate(x):
            on = (t < lengths).unsqueeze(-1)
            after = self.step(row, state)[1]
            state = tuple(torch.where(on, new, old) for new, old in zip(after, state, strict=True))
        return state


Memory = LSTM | GRU | MinGRU | NoMemory | Cell


_MEMORIES: dict[str, type[Memory]] = {
    "lstm": LSTM,
    "gru": GRU,
    "mingru": MinGRU,
    "none": NoMemory,
}


def make_memory(config: MemoryConfig, features: int) -> Memory:
    """The configured memory over inputs of width ``features``; ``size`` is its output width.

    ``config.name`` may be ``mypkg.mod:Cell``, a ``Cell`` of a trusted package.
    """
    cls = _MEMORIES.get(config.name) or trusted_class("memory.name", config.name)
    if not issubclass(cls, Memory):
        wrong = "the class is no Cell"
        allowed = "a class derived from rlrun.nets.memory.Cell is allowed"
        raise ConfigError(f"memory.name = {config.name}: {wrong}; {allowed}; derive it")
    memory: Memory = cls(config, features)
    return memory
