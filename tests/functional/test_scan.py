"""The parallel scan is the loop: hand numbers, values, gradients, extremes."""

import pytest
import torch

from rlrun.functional import scan
from rlrun.functional.scan import linear_scan

LENGTHS = [1, 2, 3, 8, 33]


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


def test_by_hand():
    """h = 0.5 * 4 + 1 = 3, then 0.25 * 3 + 2 = 2.75, then 0 * 2.75 - 1 = -1."""
    decay = torch.tensor([0.5, 0.25, 0.0]).reshape(3, 1, 1)
    drive = torch.tensor([1.0, 2.0, -1.0]).reshape(3, 1, 1)
    h = linear_scan(decay, drive, torch.tensor([[4.0]]))
    assert h.flatten().tolist() == [3.0, 2.75, -1.0]


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_values_and_gradients_are_those_of_the_loop(rows, dtype, near):
    given = case(rows, dtype)
    grad = torch.randn(rows, 3, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    h, want = linear_scan(*given), loop(*given)
    torch.testing.assert_close(h, want, rtol=near, atol=near)
    found, expected = (torch.autograd.grad(x, given, grad) for x in (h, want))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=near, atol=near)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("form", ["in place", "pairs"])
def test_complex_and_constant_decays(rows, constant, form, monkeypatch):
    """Both forms: row by row as on the CPU, and in pairs as on other devices."""
    if form == "pairs":
        monkeypatch.setattr(scan, "_row_by_row", lambda x: False)
    given = case(rows, torch.complex128)
    if constant:
        given[0] = given[0].detach()[0, 0].requires_grad_()
    grad = torch.randn(rows, 3, 4, dtype=torch.complex128)
    h = linear_scan(*given)
    want = loop(given[0].expand(rows, 3, 4), *given[1:])
    torch.testing.assert_close(h, want)
    found, expected = (torch.autograd.grad(x, given, grad) for x in (h, want))
    torch.testing.assert_close(found, expected)
    assert rows > 8 or torch.autograd.gradcheck(linear_scan, given)


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
