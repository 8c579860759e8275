"""minGRU: the scan is its step form, packed lengths, time scales, precision."""

import math

import pytest
import torch

from rlrun.nets.memory.mingru import MinGRU
from rlrun.schema import MinGRUConfig


def make(hidden=6, features=5, forget_bias=4.0, dtype=torch.float32):
    torch.manual_seed(0)
    return MinGRU(MinGRUConfig("mingru", hidden, forget_bias, readout=False), features).to(dtype)


def inputs(rows, batch=3, features=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(rows, batch, features, generator=g, dtype=dtype)
    return x, torch.randn(batch, 6, generator=g, dtype=dtype)


@pytest.mark.parametrize("rows", [1, 2, 20, 85])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_unroll_is_the_step_form_in_values_and_gradients(rows, dtype, near):
    memory = make(dtype=dtype)
    x, h = inputs(rows, dtype=dtype)
    x.requires_grad_()
    h.requires_grad_()
    whole, (last,) = memory.unroll(x, (h,))
    state, stepped = (h,), []
    for row in x:
        out, state = memory.step(row, state)
        stepped.append(out)
    want = torch.stack(stepped)
    torch.testing.assert_close(whole, want, rtol=near, atol=near)
    torch.testing.assert_close(last, state[0], rtol=near, atol=near)
    slope = torch.randn(want.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    of = [x, h, *memory.parameters()]
    for a, b in zip(*(torch.autograd.grad(o, of, slope) for o in (whole, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near * rows)


def test_step_is_the_formula():
    """z = sigmoid(gate), h = (1 - z) h + z c, with z = 1/2 and 1/4 by hand."""
    memory = make(hidden=2, features=1)
    with torch.no_grad():
        memory.core.weight.copy_(torch.tensor([[0.0], [0.0], [3.0], [-1.0]]))
        memory.core.bias.copy_(torch.tensor([0.0, math.log(3), 1.0, 0.0]))
    h, _ = memory.step(torch.tensor([[2.0]]), (torch.tensor([[5.0, 10.0]]),))
    # keep = 1/2: (5 + 7) / 2; keep = sigmoid(log 3) = 3/4: 7.5 - 2/4
    torch.testing.assert_close(h, torch.tensor([[6.0, 7.0]]))


def test_states_behind_packed_lengths():
    memory = make()
    x, h = inputs(7, batch=4)
    h = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([0, 3, 7, 1])
    (got,) = memory.state_after(x, lengths, (h,))
    for b, n in enumerate(lengths.tolist()):
        want = memory.unroll(x[:n, b : b + 1], (h[b : b + 1],))[1][0][0] if n else h[b]
        torch.testing.assert_close(got[b], want)
    assert memory.state_after(x[:0], lengths * 0, (h,))[0] is h


def test_keep_gates_start_spread_over_time_scales():
    keep = torch.sigmoid(make(hidden=5, forget_bias=4.0).core.bias[:5])
    torch.testing.assert_close(
        1 / (1 - keep), 1 + torch.tensor([0.0, 1, 2, 3, 4]).exp(), rtol=1e-5, atol=0
    )


def test_a_scan_adds_up_in_float32_under_bfloat16():
    memory = make()
    x, h = inputs(20)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = memory.unroll(x, (h,))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, memory.unroll(x, (h,))[0], rtol=0.05, atol=0.05)
