"""Layer normalisation in numpy: outputs and gradients are torch's."""

import numpy as np
import pytest
import torch

from rlrun.acting.mlp import ForwardMLP
from rlrun.kernels.mlp import DifferentiableMLP
from rlrun.nets.torso import mlp


def layers(activation="relu", sizes=(5, 8, 7)):
    """Normalised layers whose parameters are nowhere 0 or 1."""
    torch.manual_seed(1)
    net = mlp(list(sizes), activation, last=True, layer_norm=True)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.3 * torch.randn_like(p)
    return net


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_outputs_and_gradients_match_autograd(activation):
    """Of inputs far from 0, whose mean a sloppy variance would drown in; the last rows unread."""
    net, x = layers(activation), 30 + torch.randn(9, 5)
    x.requires_grad_()
    grads = {p.data_ptr(): np.full(p.shape, np.nan, np.float32) for p in net.parameters()}
    kernel = DifferentiableMLP(net, grads)
    out, weight = net(x), torch.randn(6, 7)
    wanted = torch.autograd.grad((out[:6] * weight).sum(), [x, *net.parameters()])
    got = kernel(x.detach().numpy())
    torch.testing.assert_close(torch.from_numpy(got), out.detach(), rtol=1e-5, atol=1e-5)
    found = [kernel.backward(weight.numpy(), inputs=True), *grads.values()]
    torch.testing.assert_close(torch.from_numpy(found[0]), wanted[0][:6], rtol=1e-4, atol=1e-5)
    for mine, want in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), want, rtol=1e-4, atol=1e-4)


def test_acting_is_torch_and_follows_a_refresh():
    net, x = layers(), torch.randn(4, 5)
    acting = ForwardMLP(net)
    before = net(x).detach()
    torch.testing.assert_close(torch.from_numpy(acting(x.numpy())), before, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        for p in net.parameters():
            p *= 1.5
    np.testing.assert_allclose(acting(x.numpy()), before, rtol=1e-5, atol=1e-6)
    acting.refresh()
    np.testing.assert_allclose(acting(x.numpy()), net(x).detach(), rtol=1e-5, atol=1e-6)
