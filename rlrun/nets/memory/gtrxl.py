"""GTrXL: a gated transformer over a window of rows, whose state is that window."""

import torch
from torch import Tensor, nn

from rlrun.nets.memory.attention import GatedLayer
from rlrun.nets.memory.complex_cell import at_least_float32
from rlrun.nets.memory.custom import Cell
from rlrun.schema import GTrXLConfig, MemoryConfig
from rlrun.types import Tree


class GTrXL(Cell):
    """Gated Transformer-XL; a layer attends to the ``memory.window`` = W rows before its own.

    State: for each layer its inputs at the last W rows, [B, W D], oldest first, and the number
    [B, 1] of rows that were filled since the episode began. Zeros are the state of an empty window,
    so attention never reaches past a reset. The rows of an unroll are computed in one batch: cached
    and own rows are one sequence. The paper stops gradients at the cache. Here states from the
    replay or the burn-in have none, and rows of one unroll pass them on to each other as steps do.
    Source: Parisotto et al. 2020, "Stabilizing Transformers for Reinforcement Learning", section 3.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, GTrXLConfig)
        super().__init__(config, features)
        c, self.window = config, config.window
        self.embed = nn.Linear(features, c.hidden)
        layers = (
            GatedLayer(c.hidden, c.heads, c.mlp, c.window, c.gate_bias) for _ in range(c.layers)
        )
        self.layers = nn.ModuleList(layers)

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        widths = [self.window * self.size] * len(self.layers)
        return tuple(torch.zeros(batch, width, device=device) for width in (*widths, 1))

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        out, state = self.unroll(x.unsqueeze(0), state)
        return out[0], state

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return outputs [T, B, D] of ``x`` [T, B, F], and the state after row T-1."""
        out, rows = self._run(x, state, None)
        caches = (torch.cat(tuple(r[len(r) - self.window :]), -1) for r in rows)
        return out, (*caches, (state[-1] + len(x)).clamp(max=self.window))

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, D] of ``x`` [T, B, F]; the window is empty at ``first`` rows."""
        return self._run(x, state, first.to(x.device))[0]

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """Return the states after the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        if not len(x):
            return state
        _, rows = self._run(x, state, None)
        slot = torch.arange(self.window, device=x.device).unsqueeze(-1) + lengths
        column = torch.arange(len(lengths), device=x.device)
        caches = (torch.cat(tuple(r[slot, column]), -1) for r in rows)
        filled = (state[-1] + lengths.unsqueeze(-1)).clamp(max=self.window)
        return (*caches, filled)

    def _run(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return outputs [T, B, D] and the inputs [W + T, B, D] of every layer."""
        *caches, filled = state
        oldest = (self.window - filled.squeeze(-1)).long().expand(x.shape[:2])
        if first is not None:
            row = torch.arange(len(x), device=x.device).unsqueeze(-1) + self.window
            oldest = torch.where(first, row, oldest).cummax(0).values
        e, inputs = at_least_float32(self.embed(x)), []
        for layer, cache in zip(self.layers, caches, strict=True):
            rows = torch.cat((torch.stack(cache.chunk(self.window, -1)), e))
            inputs.append(rows)
            e = layer(rows, oldest)
        return e, inputs
