"""Unrolling over episode ends is stepping row by row with a state that starts afresh."""

import pytest
import torch

from rlrun.nets.actor_critic import cut_pieces, unroll_episodes
from rlrun.nets.memory import make_memory
from rlrun.schema import MemoryConfig
from rlrun.types import tree_map


def stepped(memory, x, first, state):
    out = []
    for row, opens in zip(x, first, strict=True):
        state = tree_map(lambda s, o=opens: torch.where(o[:, None], torch.zeros_like(s), s), state)
        h, state = memory.step(row, state)
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_outputs_and_gradients_are_those_of_steps(name, share):
    torch.manual_seed(0)
    memory = make_memory(MemoryConfig(name, 5, 1.0), 3)
    first = torch.rand(9, 4) < share
    x = torch.randn(9, 4, 3, requires_grad=True)
    state = tree_map(lambda s: torch.randn_like(s), memory.initial_state(4, torch.device("cpu")))
    got, want = unroll_episodes(memory, x, first, state), stepped(memory, x, first, state)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(got)
    inputs = [x, *memory.parameters()]
    pairs = [torch.autograd.grad((out * weight).sum(), inputs) for out in (got, want)]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_pieces_by_hand():
    """Columns: rows 0-2 and 3 of the first; the second is one piece."""
    first = torch.tensor([[0, 1], [0, 0], [0, 0], [1, 0]], dtype=torch.bool)
    cut = cut_pieces(first)
    assert (cut.num_pieces, cut.steps) == (3, 4)
    assert cut.first_piece.tolist() == [0, 2]
    assert cut.row_index.reshape(4, 2).tolist() == [[0, 2], [3, 5], [6, 8], [1, 11]]


def test_a_state_never_crosses_an_episode():
    memory = make_memory(MemoryConfig("lstm", 5, 1.0), 3)
    first = torch.zeros(4, 1, dtype=torch.bool)
    first[2] = True
    x = torch.randn(4, 1, 3)
    zero = memory.initial_state(1, torch.device("cpu"))
    wild = tree_map(lambda s: torch.full_like(s, torch.nan), zero)
    out = unroll_episodes(memory, x, first, wild)
    assert out[:2].isnan().all()
    torch.testing.assert_close(out[2:], unroll_episodes(memory, x[2:], first[:2], zero))
