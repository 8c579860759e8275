"""``LinearQ``'s chain rule gives autograd's numbers, for every network of linear layers."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.nets.qnet import QNet
from rlrun.optim.autograd import AutogradQ, LinearQ, is_linear_qnet, make_q_function
from rlrun.optim.target import ScheduledOnlineTarget
from rlrun.schema import MemoryConfig, TorsoConfig
from rlrun.types import Spec
from tests.policy.factory import dqn, r2d2

OBS = {
    "box": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "bytes": gym.spaces.Box(0, 255, (2, 2), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=1),
}


def network(obs, activation, torso, *, dueling, head, prev_inputs) -> QNet:
    spec = Spec(OBS[obs], gym.spaces.Discrete(5))
    config = dqn(dueling=dueling, head_hidden=head, prev_inputs=prev_inputs).config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = QNet(config, TorsoConfig("mlp", torso, activation), MemoryConfig("none", 0, 0), spec)
    return net


def batch(obs, net):
    rng = np.random.default_rng(1)
    space = OBS[obs]
    space.seed(0)
    seen = torch.from_numpy(np.stack([np.asarray(space.sample()) for _ in range(7)]))
    previous = net.encode_previous(torch.from_numpy(rng.integers(-1, 5, 7)), torch.randn(7))
    return seen, previous, torch.randn(7, 5)


SHAPES = list(itertools.product(
    OBS, ("relu", "tanh", "elu"), ((), (8,), (8, 6)), (False, True), ((), (4,)), (False, True),
))  # fmt: skip


@pytest.mark.parametrize(("obs", "activation", "torso", "dueling", "head", "prev_inputs"), SHAPES)
def test_values_and_gradients_are_those_of_autograd(
    obs, activation, torso, dueling, head, prev_inputs
):
    net = network(obs, activation, torso, dueling=dueling, head=head, prev_inputs=prev_inputs)
    assert is_linear_qnet(net)
    linear, by_autograd = LinearQ(net), AutogradQ(net)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        seen, previous, q_grad = batch(obs, net)
    a, b = linear.q(seen, previous), by_autograd.q(seen, previous)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(linear.values(seen.flip(0), previous.flip(0)), b.flip(0))
    (flat,), expected = linear.grads(a, q_grad), by_autograd.grads(b, q_grad)
    assert flat.numel() == sum(p.numel() for p in net.parameters())
    for x, y in zip(linear.flat.grad_views, expected, strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_nothing_is_by_autograd():
    net = network("box", "relu", (8,), dueling=True, head=(), prev_inputs=False)
    seen, previous, _ = batch("box", net)
    assert not LinearQ(net).q(seen, previous).requires_grad


def test_which_networks_are_linear():
    assert isinstance(dqn().q_function, LinearQ)
    assert isinstance(make_q_function(dqn().net, float32=False), AutogradQ), (
        "autocast needs autograd"
    )
    assert not is_linear_qnet(r2d2().net)


def test_updates_are_the_same_either_way():
    from tests.policy.factory import batch_of

    a, b = dqn(double=True), dqn(double=True)
    b.online_target = b.step.online_target = ScheduledOnlineTarget(
        b.net, b.config, lambda env_steps: 1e-2
    )
    b.q_function, b.target_q_function = AutogradQ(b.net), AutogradQ(b.online_target.target)
    sample = batch_of(a)
    for _ in range(5):
        one, two = a.update(sample), b.update(sample)
        torch.testing.assert_close(one.priority, two.priority, rtol=1e-5, atol=1e-6)
    for x, y in zip(a.net.parameters(), b.net.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
