"""LSTM, GRU and the feed-forward control, with the interface of all memories."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from rlrun.schema import MemoryConfig
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
        """Return outputs [T, B, H] of ``x`` [T, B, F], and the state after row T-1."""
        h, c = state
        out, (h, c) = self.core(x, (h.unsqueeze(0), c.unsqueeze(0)))
        return out, (h.squeeze(0), c.squeeze(0))

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """Return the states [B, H] after the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        return _state_after(self, x, lengths, state)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return output [B, H] and state of one row [B, F], faster than ``unroll`` with T = 1."""
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
    """No memory: outputs are inputs, the state is empty."""

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
    """Return the states after ``lengths[b]`` rows; synchronises with the device once."""
    nonempty = (lengths > 0).nonzero().squeeze(-1)
    if not len(nonempty):
        return state
    packed = pack_padded_sequence(x[:, nonempty], lengths[nonempty].cpu(), enforce_sorted=False)
    initial = tree_map(lambda s: s[nonempty].unsqueeze(0), state)
    _, last = memory.core(packed, initial if isinstance(memory, LSTM) else initial[0])
    last = last if isinstance(memory, LSTM) else (last,)
    return tree_map(lambda s, new: s.index_copy(0, nonempty, new.squeeze(0)), state, last)
