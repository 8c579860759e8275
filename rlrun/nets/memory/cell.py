"""``Cell``, the base of users' memories, and the two ways to unroll one: by rows, as a scan."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from rlrun.functional.scan import linear_scan
from rlrun.schema import MemoryConfig
from rlrun.types import Tree


class Cell(nn.Module):
    """A user-defined memory: define ``__init__``, ``initial_state`` and ``step`` as ``GRU`` does.

    ``unroll`` and ``state_after`` call ``step`` row by row. Override them if all rows can be
    computed at once. States start at zero, and their shapes do not depend on the number of
    features.
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


class RowCell(Cell):
    """A memory whose rows depend on each other, except for products with x."""

    @abstractmethod
    def inputs(self, x: Tensor) -> Tensor:
        """Return what rows read of inputs [*, F]."""

    @abstractmethod
    def row(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """Return output [B, size] and state of one row of ``inputs``."""

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return self.row(self.inputs(x), state)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        out = []
        for row in self.inputs(x):
            y, state = self.row(row, state)
            out.append(y)
        return torch.stack(out), state


class ScanCell(Cell):
    """A memory that is linear in its state: s_t = decay_t s_{t-1} + drive_t, for every number.

    ``shape``: that of s in one column. It is stored flat, as the first array of the state. A cell
    whose gates depend on other arrays of the state overrides ``rows`` and ``initial_state``.
    """

    shape: tuple[int, ...]

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return decay and drive [*, *shape] of inputs [*, F], at least float32.

        Decays may have sides of 1 instead.
        """
        raise NotImplementedError

    def rows(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, Tensor, Tree]:
        """Return ``gates`` [T, B, ...], and the other arrays [T, B, S] of the state after rows."""
        return (*self.gates(x), ())

    @abstractmethod
    def read(self, s: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        """Return outputs [*, size] of states [*, *shape], inputs [*, F] and ``others``."""

    def carried(self, s: Tensor) -> Tree:
        """Return the arrays of a state that hold s [*, *shape]."""
        return (s.flatten(-len(self.shape)),)

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return (torch.zeros(batch, math.prod(self.shape), device=device),)

    def step(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        decay, drive, others = self.rows(x.unsqueeze(0), state, None)
        s = decay[0] * state[0].reshape(-1, *self.shape) + drive[0]
        others = tuple(o[0] for o in others)
        return self.read(s, x, *others), (*self.carried(s), *others)

    def unroll(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        s, others = self._scan(x, state, None)
        return self.read(s, x, *others), (*self.carried(s[-1]), *(o[-1] for o in others))

    def unroll_episodes(self, x: Tensor, first: Tensor, state: Tree) -> Tensor:
        """Return outputs [T, B, size]; the decays of ``first`` rows, bool [T, B], are 0."""
        s, others = self._scan(x, state, first.to(x.device))
        return self.read(s, x, *others)

    def state_after(self, x: Tensor, lengths: Tensor, state: Tree) -> Tree:
        if not len(x):
            return state
        s, others = self._scan(x, state, None)
        row, column = (lengths - 1).clamp(min=0), torch.arange(len(lengths), device=s.device)
        has_rows = (lengths > 0).unsqueeze(-1)
        after = zip((*self.carried(s), *others), state, strict=True)
        return tuple(torch.where(has_rows, new[row, column], old) for new, old in after)

    def _scan(self, x: Tensor, state: Tree, first: Tensor | None) -> tuple[Tensor, Tree]:
        """Return s [T, B, *shape] after all rows, and the other arrays of the state."""
        decay, drive, others = self.rows(x, state, first)
        if first is not None:
            fresh = first.reshape(*first.shape, *[1] * len(self.shape))
            decay = torch.where(fresh, 0, decay)
        return linear_scan(decay, drive, state[0].reshape(-1, *self.shape)), others


class Readout(nn.Sequential):
    """relu(LayerNorm(W y + b)): outputs [*, H] of the same width.

    The gates and decays of a linear memory do not depend on its state, so a linear head without
    this layer would read sums of inputs. Source: the blocks of Orvieto et al. 2023, figure 1, and
    of Feng et al. 2024, section 4, which use a gated linear unit or an MLP.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def make_readout(size: int, inputs: int | None = None) -> Readout:
    """Return a readout of width ``size`` for ``inputs`` (None: ``size``) numbers."""
    linear = nn.Linear(size if inputs is None else inputs, size)
    return Readout(linear, nn.LayerNorm(size), nn.ReLU())


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or in float64 if it is that. Sums over many rows need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
