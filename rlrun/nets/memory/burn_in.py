"""Burn-in: the recurrent state after the rows before the learned ones."""

from typing import Protocol

import torch
from torch import Tensor

from rlrun.nets.memory import Memory
from rlrun.types import Tree, tree_map


class RecurrentNet(Protocol):
    """A network with a ``memory``."""

    @property
    def memory(self) -> Memory: ...


def burn_in(
    net: RecurrentNet,
    x: Tensor,
    state: Tree,
    valid: Tensor,
    partial: tuple[int, ...] = (),
    *,
    select_partial: bool | None = None,
) -> Tree:
    """Return the state [B, H] after the burn-in rows ``x`` [bs, B, F] of every window.

    The last ``valid[:, b].sum()`` rows of window b are its own; filler before them does not change
    the state. A window with no own rows keeps the stored state; windows with one of the
    ``partial`` numbers of rows (0 < rows < bs, possible where bs > L) are unrolled over those rows
    only. ``select_partial``: unroll only those windows (None: on the CPU), else unroll all windows
    and discard the results of the others, which avoids a synchronisation with a GPU.
    """
    _, warm = net.memory.unroll(x, state)
    none = ~valid[-1].unsqueeze(-1)  # own rows stand right before the learned ones
    warm = tree_map(lambda w, s: torch.where(none, s, w), warm, state)
    for count in partial:
        if not (x.device.type == "cpu" if select_partial is None else select_partial):
            _, part = net.memory.unroll(x[len(x) - count :], state)
            own = (valid.sum(0) == count).unsqueeze(-1)
            warm = tree_map(lambda w, p, own=own: torch.where(own, p, w), warm, part)
            continue
        which = (valid.sum(0) == count).nonzero().squeeze(-1)
        if len(which):
            part = tree_map(lambda s, which=which: s[which], state)
            _, part = net.memory.unroll(x[len(x) - count :, which], part)
            warm = tree_map(lambda w, p, which=which: w.index_copy(0, which, p), warm, part)
    return warm
