"""The base class of memories that are defined by their step, a user's own among them."""

import torch
from torch import Tensor, nn

from rlrun.schema import MemoryConfig
from rlrun.types import Tree


class Cell(nn.Module):
    """A memory: define ``__init__``, ``initial_state`` and ``step`` as ``GRU`` does.

    ``unroll`` and ``state_after`` call ``step`` row by row; override them where all rows can be
    computed at once.
    States start at zero, and their shapes do not depend on the number of features.
    """

    size: int  # width of the outputs

    def __init__(self, config: MemoryConfig, features: int) -> None:
        super().__init__()
        self.size = config.hidden

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        """Return a tuple of zeros [B, S], of any widths S."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return output [B, size] and state of one row [B, F]."""
        raise NotImplementedError

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return outputs [T, B, size] of ``x`` [T, B, F], and the state after row T-1."""
        out = []
        for row in x:
            y, state = self.step(row, state)
            out.append(y)
        return torch.stack(out), state

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        """Return the states after the first ``lengths[b]`` rows of ``x`` [T, B, F]."""
        for t, row in enumerate(x):
            within = (t < lengths).unsqueeze(-1)
            after = self.step(row, state)[1]
            state = tuple(
                torch.where(within, new, old) for new, old in zip(after, state, strict=True)
            )
        return state
