"""Layers as one node: the numbers and gradients of the layers."""

import pytest
import torch
from torch import nn

from rlrun.nets.dense import dense, is_dense
from rlrun.nets.torso import mlp


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("sizes", [[3, 1], [3, 8, 2], [3, 8, 5, 2]])
@pytest.mark.parametrize("needed", [False, True])
def test_numbers_and_gradients_are_those_of_the_layers(activation, sizes, needed):
    torch.manual_seed(0)
    torso, head = mlp(sizes, activation, last=True), mlp([sizes[-1], 4, 2], activation, last=False)
    x = torch.randn(5, 7, 3, requires_grad=needed)
    weight = torch.randn(5, 7, 2)
    inputs = [*torso.parameters(), *head.parameters(), *([x] if needed else [])]
    got, want = dense([torso, head], x), head(torso(x))
    torch.testing.assert_close(got, want)
    pairs = [torch.autograd.grad(out, inputs, weight) for out in (got, want)]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradient_check():
    torch.manual_seed(0)
    net = mlp([3, 4, 2], "tanh", last=False).double()
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dense([net], x), x)


def test_the_rule():
    net, x = mlp([3, 2], "relu", last=True), torch.zeros(4, 3)
    assert is_dense([net], x)
    assert not is_dense([net], x.double())
    assert not is_dense([net], x.to("meta"))
    assert not is_dense([net, nn.Sequential(nn.Sigmoid())], x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_dense([net], x)
