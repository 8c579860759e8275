"""The base class of a user's own memory."""

import torch
from torch import Tensor, nn

from rlrun.schema import MemoryConfig
from rlrun.types import Tree


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
