"""minGRU: a recurrent memory linear in its state, which unrolls as a parallel scan."""

import torch
from torch import Tensor, nn

from rlrun.functional.scan import linear_scan
from rlrun.nets.memory.readout import Readout, make_readout
from rlrun.schema import MemoryConfig, MinGRUConfig
from rlrun.types import Tree


class MinGRU(nn.Module):
    """minGRU: h_t = (1 - z_t) h_{t-1} + z_t c_t with z_t = sigmoid(W_z x_t), c_t = W_c x_t.

    Gate and candidate read the input alone, never the state. The keep gates 1 - z start with
    biases spread evenly over [0, ``forget_bias``]: time scales of the units range from 2 to
    1 + e^forget_bias rows. State h [B, H]; outputs are its ``Readout`` (``memory.readout=false``:
    the state).
    Source: Feng et al. 2024, section 3.1; Tallec & Ollivier 2018 (the spread of time scales).
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        assert isinstance(config, MinGRUConfig)
        self.size = config.hidden
        self.core = nn.Linear(features, 2 * config.hidden)  # keep gate, candidate
        with torch.no_grad():
            bias = torch.linspace(0, config.forget_bias, config.hidden)
            self.core.bias[: config.hidden] = bias
        self.readout: Readout | None = make_readout(self.size) if config.readout else None

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return (torch.zeros(batch, self.size, device=device),)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return outputs [T, B, H] of ``x`` [T, B, F], and the state after row T-1."""
        h = linear_scan(*self._gates(x), state[0])
        return self._read(h), (h[-1],)

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, H]; the keep gates of ``first`` rows, bool [T, B], are 0."""
        keep, update = self._gates(x)
        keep = torch.where(first.to(x.device).unsqueeze(-1), 0, keep)
        return self._read(linear_scan(keep, update, state[0]))

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """Return the states [B, H] after the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        if not len(x):
            return state
        h = linear_scan(*self._gates(x), state[0])
        last = h[(lengths - 1).clamp(min=0), torch.arange(len(lengths), device=h.device)]
        return (torch.where((lengths > 0).unsqueeze(-1), last, state[0]),)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return output [B, H] and state of one row [B, F]: ``unroll`` with T = 1."""
        keep, update = self._gates(x)
        h = keep * state[0] + update
        return self._read(h), (h,)

    def _read(self, h: Tensor) -> Tensor:
        return h if self.readout is None else self.readout(h)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 - z, z c), at least float32: the scan sums over many rows."""
        out = self.core(x)
        dtype = torch.promote_types(out.dtype, torch.float32)
        gate, candidate = out.to(dtype).chunk(2, -1)
        return torch.sigmoid(gate), torch.sigmoid(-gate) * candidate
