"""Unrolling a memory over rows in which episodes begin and end."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.nets.memory import Memory
from rlrun.nets.memory.recurrent import NoMemory
from rlrun.types import Tree, tree_map


class EpisodePieces(NamedTuple):
    """Where every row goes when columns are cut wherever an episode opens, pieces side by side."""

    place: Tensor  # int64 [T * M]: row (t, m) -> t' * count + piece
    opening: Tensor  # int64 [M]: the piece each column begins with
    steps: int  # rows of the longest piece
    pieces: int


def cut_pieces(first: Tensor) -> EpisodePieces:
    """Pieces of columns that are cut where ``first``, bool [T, M], on the host."""
    starts = first.clone()
    starts[0] = True
    number = starts.cumsum(0)
    opening = number[-1].cumsum(0) - number[-1]
    rows = torch.arange(len(first)).unsqueeze(-1)
    since = rows - torch.where(starts, rows, 0).cummax(0).values
    count = int(number[-1].sum())
    place = since * count + (number - 1 + opening)
    return EpisodePieces(place.reshape(-1), opening, int(since.max()) + 1, count)


def unroll_episodes(memory: Memory, x: Tensor, first: Tensor, state: Tree) -> Tensor:
    """Outputs [T, M, H] of ``memory`` over ``x`` [T, M, F]; the state starts afresh at ``first``.

    ``state`` [M, ...] stands before row 0; ``first`` bool [T, M] lies on the host, so that no
    device is waited for. Columns are cut where episodes open, and all pieces unroll side by side:
    any memory that unrolls [T, B, F] will do, and none sees a state of another episode.
    """
    if isinstance(memory, NoMemory):
        return x
    state = _fresh_where(first[0], state)
    if not first[1:].any():
        return memory.unroll(x, state)[0]
    cut = cut_pieces(first)
    place, opening = cut.place.to(x.device), cut.opening.to(x.device)
    flat = x.new_zeros(cut.steps * cut.pieces, x.shape[-1]).index_copy(0, place, x.flatten(0, 1))
    begin = memory.initial_state(cut.pieces, x.device)
    begin = tree_map(lambda zero, s: zero.index_copy(0, opening, s.to(zero.dtype)), begin, state)
    out, _ = memory.unroll(flat.reshape(cut.steps, cut.pieces, -1), begin)
    return out.flatten(0, 1)[place].reshape(*first.shape, -1)


def _fresh_where(opens: Tensor, state: Tree) -> Tree:
    def fresh(s: Tensor) -> Tensor:
        mask = opens.to(s.device).reshape(-1, *[1] * (s.ndim - 1))
        return torch.where(mask, torch.zeros_like(s), s)

    return tree_map(fresh, state)
