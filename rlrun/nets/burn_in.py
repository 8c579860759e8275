"""Warming a recurrent state up over the rows before the learned ones."""

from typing import Protocol

import torch
from torch import Tensor

from rlrun.nets.memory import Memory
from rlrun.types import Tree, tree_map


class RecurrentNet(Protocol):
    """What has a memory."""

    @property
    def memory(self) -> Memory: ...


def burn_in(
    net: RecurrentNet,
    x: Tensor,
    state: Tree,
    valid: Tensor,
    partial: tuple[int, ...] = (),
    *,
    alone: bool | None = None,
) -> Tree:
    """The state [B, H] behind the burn-in rows ``x`` [bs, B, F], warmed up by ``net`` itself.

    Window b brings its last ``valid[:, b].sum()`` rows. The filler before them never touches a
    state: with none of its own the stored state is returned as it is; windows with one of the
    ``partial`` numbers of rows (0 < rows < bs, possible where bs > L) run over those rows alone.
    ``alone``: such windows run by themselves, None: on the CPU; else all run and the results of
    others are dropped, so that a GPU has not to be asked which they are.
    """
    _, warm = net.memory.unroll(x, state)
    none = ~valid[-1].unsqueeze(-1)  # own rows stand right before the learned ones
    warm = tree_map(lambda w, s: torch.where(none, s, w), warm, state)
    for count in partial:
        if not (x.device.type == "cpu" if alone is None else alone):
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
