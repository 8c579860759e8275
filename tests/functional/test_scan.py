"""The parallel scan is the loop: values, gradients, extremes."""

import pytest
import torch

from rlrun.functional import scan
from rlrun.functional.scan import linear_scan


def loop(decay, drive, start):
    """The sentence ``h_t = decay_t h_{t-1} + drive_t``, row by row."""
    h, out = start, []
    for a, b in zip(decay, drive, strict=True):
        h = a * h + b
        out.append(h)
    return torch.stack(out)


def case(rows, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    decay = torch.rand(rows, 3, 4, generator=g, dtype=dtype)
    drive = torch.randn(rows, 3, 4, generator=g, dtype=dtype)
    start = torch.randn(3, 4, generator=g, dtype=dtype)
    return [x.requires_grad_() for x in (decay, drive, start)]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33])
@pytest.mark.parametrize("form", ["in place", "pairs"])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.complex128, 1e-12)])
def test_values_and_gradients_are_those_of_the_loop(rows, constant, form, dtype, near, monkeypatch):
    """Private: both forms, row by row as on the CPU, and in pairs as on other devices."""
    if form == "pairs":
        monkeypatch.setattr(scan, "_row_by_row", lambda x: False)
    given = case(rows, dtype)
    if constant:
        given[0] = given[0].detach()[0, 0].requires_grad_()
    grad = torch.randn(rows, 3, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    h = linear_scan(*given)
    want = loop(given[0].expand(rows, 3, 4), *given[1:])
    torch.testing.assert_close(h, want, rtol=near, atol=near)
    found, expected = (torch.autograd.grad(x, given, grad) for x in (h, want))
    torch.testing.assert_close(found, expected, rtol=near, atol=near)
    assert rows > 8 or dtype is torch.float32 or torch.autograd.gradcheck(linear_scan, given)


@pytest.mark.parametrize("decay", [0.0, 1e-30, 1.0])
def test_extreme_decays_over_many_rows(decay):
    """Where quotients or logarithms of decay products would be infinite: sums stay exact."""
    rows = 1000
    a = torch.full((rows, 1, 2), decay, requires_grad=True)
    b = torch.ones(rows, 1, 2, requires_grad=True)
    h = linear_scan(a, b, torch.zeros(1, 2))
    want = torch.arange(1.0, rows + 1) if decay == 1 else torch.ones(rows)
    assert torch.equal(h[:, 0, 0], want)
    for grad in torch.autograd.grad(h.sum(), (a, b)):
        assert torch.isfinite(grad).all()
