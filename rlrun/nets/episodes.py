"""Unrolling a memory over rows in which episodes begin and end."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.nets.memory import Memory, reset_state
from rlrun.nets.memory.lstm_gru import NoMemory
from rlrun.types import Tree, tree_map


class EpisodePieces(NamedTuple):
    """Columns [T, M] cut where episodes begin, as columns of a new array [steps, count]."""

    row_index: Tensor  # int64 [T * M]: flat position of row (t, m) in [steps, count]
    first_piece: Tensor  # int64 [M]: the first piece of every column
    steps: int  # rows of the longest piece
    num_pieces: int


def cut_pieces(first: Tensor) -> EpisodePieces:
    """Cut columns where ``first``, bool [T, M] on the host."""
    starts = first.clone()
    starts[0] = True
    number = starts.cumsum(0)
    first_piece = number[-1].cumsum(0) - number[-1]
    rows = torch.arange(len(first)).unsqueeze(-1)
    steps_since = rows - torch.where(starts, rows, 0).cummax(0).values
    count = int(number[-1].sum())
    index = steps_since * count + (number - 1 + first_piece)
    return EpisodePieces(index.reshape(-1), first_piece, int(steps_since.max()) + 1, count)


def unroll_episodes(memory: Memory, x: Tensor, first: Tensor, state: Tree) -> Tensor:
    """Return outputs [T, M, H] of ``x`` [T, M, F]; the state is zero before every ``first`` row.

    ``state`` [M, ...]: before row 0. ``first`` bool [T, M]: on the host, which avoids a
    synchronisation with the device. Columns are cut where episodes begin and all pieces unroll
    in one batch, so any memory that unrolls [T, B, F] works.
    """
    if isinstance(memory, NoMemory):
        return x
    state = reset_state(first[0], state)
    if not first[1:].any():
        return memory.unroll(x, state)[0]
    pieces = cut_pieces(first)
    index, first_piece = pieces.row_index.to(x.device), pieces.first_piece.to(x.device)
    flat = x.new_zeros(pieces.steps * pieces.num_pieces, x.shape[-1])
    flat = flat.index_copy(0, index, x.flatten(0, 1))
    begin = memory.initial_state(pieces.num_pieces, x.device)
    begin = tree_map(
        lambda zero, s: zero.index_copy(0, first_piece, s.to(zero.dtype)), begin, state
    )
    out, _ = memory.unroll(flat.reshape(pieces.steps, pieces.num_pieces, -1), begin)
    return out.flatten(0, 1)[index].reshape(*first.shape, -1)
