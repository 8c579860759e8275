"""Dead units and the distance to the target network, of networks made sick by hand."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlrun.nets.torso import NatureCNN, mlp
from rlrun.policy.base.network_health import UnitActivity, relative_distance
from rlrun.schema import TorsoConfig
from tests.policy.factory import RECURRENT, batch_of, box_batch, control, dqn, r2d2


def dead(net, *inputs):
    with UnitActivity(net) as units:
        net(*inputs)
    return units.dead().item()


def test_a_relu_that_never_fires_is_dead_and_so_is_one_far_below_its_layer():
    net = mlp([3, 8, 4, 1], "relu", last=False)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight.normal_(generator=torch.Generator().manual_seed(1))
            layer.bias.fill_(0.5)
        net[2].weight.abs_()  # of activities >= 0
    assert dead(net, x) == 0
    with torch.no_grad():
        net[0].bias[:2] = -1e3
    assert dead(net, x) == pytest.approx(2 / 12)
    with torch.no_grad():
        net[2].weight[0] *= 1e-3  # alive, but of no weight: dormant
        net[2].bias[0] *= 1e-3
    assert dead(net, x) == pytest.approx(3 / 12)


@pytest.mark.parametrize("activation", ["tanh", "elu"])
def test_a_saturated_unit_is_dead_though_it_is_not_zero(activation):
    net = mlp([3, 8, 1], activation, last=False)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    assert dead(net, x) == 0
    with torch.no_grad():
        net[0].bias[:4] = -1e3
    assert dead(net, x) == 0.5


def test_units_of_a_memory():
    policy = r2d2()
    windows = batch_of(policy).segment
    clean = policy.network_health(windows)["train/dead_units"].item()
    with torch.no_grad():
        policy.net.memory.core.bias_hh_l0[24:] = -1e3  # output gates shut: h = 0 always
    shut = policy.network_health(windows)["train/dead_units"].item()
    assert shut - clean == pytest.approx(8 / 16), "8 of the torso and 8 of the memory"


def test_a_channel_is_one_unit():
    space = gym.spaces.Box(0, 255, (1, 84, 84), np.uint8)
    torso = NatureCNN(TorsoConfig("nature_cnn", (16,), "relu"), space)
    x = torch.randint(0, 255, (4, 1, 84, 84), generator=torch.Generator().manual_seed(0))
    x = x.to(torch.uint8)
    with torch.no_grad():
        for layer in torso.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.mul_(0.1)
                layer.bias.fill_(1.0)
    assert dead(torso, x) == 0
    with torch.no_grad():
        torso.convolutions[0].weight[:16] = 0
        torso.convolutions[0].bias[:16] = -1
    units = 32 + 64 + 64 + 16
    assert dead(torso, x) == pytest.approx(16 / units)


@pytest.mark.parametrize(
    "policy",
    [dqn(), dqn(noisy=0.5), dqn(distribution="implicit"), r2d2(), control("sac"),
     control("td3", actor_every=2), control("ddpg", **RECURRENT)],
    ids=["dqn", "noisy", "implicit", "r2d2", "sac", "td3", "recurrent"],
)  # fmt: skip
def test_measuring_changes_nothing_and_every_policy_has_the_metrics(policy):
    nets = [policy.pi, policy.q] if hasattr(policy, "pi") else [policy.net]
    sample = (box_batch if hasattr(policy, "pi") else batch_of)(policy)
    before = str(policy.state_dict())
    found = policy.network_health(sample.segment)
    assert str(policy.state_dict()) == before
    assert set(found) == {"train/dead_units", "train/target_lag"}
    assert 0 <= found["train/dead_units"].item() <= 1
    assert found["train/target_lag"].item() == 0, "the target begins as a copy"
    assert not any(module._forward_hooks for net in nets for module in net.modules())
    policy.update(sample)
    assert policy.network_health(sample.segment)["train/target_lag"].item() > 0


def test_every_critic_has_units_of_its_own():
    """Units of two critics at one place are two units."""
    policy = control("sac", torso=(8,), head_hidden=(), activation="relu")
    windows = box_batch(policy).segment
    with torch.no_grad():
        for bias in (policy.q.biases[0], policy.pi.head[0].bias):
            bias.fill_(9.0)
    assert policy.network_health(windows)["train/dead_units"].item() == 0
    with torch.no_grad():
        policy.q.biases[0][1] = -99.0
    assert policy.network_health(windows)["train/dead_units"].item() == pytest.approx(8 / 24)


def test_the_distance_to_the_target_is_relative():
    online, target = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])], None
    target = [torch.tensor([3.0, 0.3]), torch.tensor([4.4])]
    assert relative_distance(target, online).item() == pytest.approx(0.5 / 5)


def test_where_the_target_is_copied_the_distance_is_that_before_the_last_copy():
    """At the copy itself it would be 0."""
    policy = dqn(target_update_every=2)
    sample = batch_of(policy)
    policy.update(sample)
    lag = policy.network_health(sample.segment)["train/target_lag"].item()
    policy.update(sample)
    assert all(torch.equal(a, b) for a, b in zip(policy.params, policy.target_params, strict=True))
    copied = policy.network_health(sample.segment)["train/target_lag"].item()
    assert copied > lag > 0
    twin = dqn(target_update_every=2, seed=1)
    twin.load_state_dict(policy.state_dict())
    assert twin.network_health(sample.segment)["train/target_lag"].item() == copied
    old = {name: x for name, x in policy.state_dict().items() if name != "target_lag"}
    twin.load_state_dict(old)
    assert twin.network_health(sample.segment)["train/target_lag"].item() == 0
