"""Dead units and the distance to the target network, of networks made sick by hand."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlrun.nets.noisy import NoisyMLP
from rlrun.nets.torso import NatureCNN, mlp
from rlrun.policy.base.network_health import UnitActivity, relative_distance
from rlrun.schema import TorsoConfig
from rlrun.types import tree_map
from tests.policy.factory import RECURRENT, batch_of, box_batch, control, dqn, r2d2
from tests.policy.test_offline import cql
from tests.policy.test_qmix import batch as team_batch
from tests.policy.test_qmix import qmix


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
    torso = NatureCNN(TorsoConfig("nature_cnn", (16,), "relu", False), space)
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


def test_a_unit_is_compared_with_the_layer_of_its_own_critic():
    """A critic with small activities is not dead beside one with large ones."""
    policy = control("sac", torso=(8,), head_hidden=(), activation="relu")
    windows = box_batch(policy).segment
    with torch.no_grad():
        policy.q.weights[0].zero_()
        policy.pi.head[0].weight.zero_()
        policy.pi.head[0].bias.fill_(9.0)
        policy.q.biases[0][0] = 9.0
        policy.q.biases[0][1] = 0.01
    assert policy.network_health(windows)["train/dead_units"].item() == 0


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


def dormant(layers):
    """Share of dead units; ``layers``: [rows, units] each, of tanh or of memories."""
    spread = [x.double().std(0, correction=0) for x in layers]
    return torch.cat([s <= 0.025 * s.mean() for s in spread]).double().mean().item()


def test_layers_of_equal_width_are_told_apart():
    """Units of one place in two layers of critics, or of noisy heads, are two units."""
    policy = control("sac", torso=(8,), head_hidden=(8,), activation="relu")
    windows = box_batch(policy).segment
    with torch.no_grad():
        for weight in (*policy.q.weights, policy.pi.head[0].weight, policy.pi.head[2].weight):
            weight.mul_(0.01)
        for bias in (*policy.q.biases[:2], policy.pi.head[0].bias, policy.pi.head[2].bias):
            bias.fill_(9.0)
        policy.q.biases[0][:, :, :6] = -99.0
        policy.q.biases[1][:, :, 4:] = -99.0
    dead_units = policy.network_health(windows)["train/dead_units"].item()
    assert dead_units == pytest.approx((12 + 8) / 48)
    net = NoisyMLP([3, 8, 8, 2], "relu", sigma=0.5)
    with torch.no_grad():
        for layer in net.layers:
            layer.bias.fill_(9.0)
        net.layers[0].bias[:6] = -99.0
        net.layers[1].bias[4:] = -99.0
    assert dead(net, torch.randn(64, 3), None) == pytest.approx(10 / 16)


def only_in_padding(layer, count, inputs):
    """Saturate the first ``count`` units wherever the first of the inputs, >= 1, is not 0."""
    with torch.no_grad():
        weight, bias = layer.weight, layer.bias
        weight[:count], bias[:count] = 0.0, 1.0
        weight[:count, inputs] = -1e3


@pytest.mark.parametrize(
    ("policy", "layer", "units", "place"),
    [(dqn(), "net.torso.layers", 8, 0),
     (dqn(distribution="implicit"), "net.torso.layers", 8 + 14, 0),
     (cql(), "net.torso.layers", 8, 0), (r2d2(), "net.torso.layers", 16, 0),
     (r2d2(burnin_step=7, learn_unroll_len=4), "net.torso.layers", 16, 0),
     (control("sac", **RECURRENT), "q.encoder.torso.layers", 8 + 6 + 8 + 8 + 6 + 2 * 8, 0),
     (qmix(), "net.agents.torso.layers", 8 + 6 + 6 + 6 + 8, 3)],
    ids=["dqn", "implicit", "cql", "r2d2", "long burn-in", "sac", "qmix"],
)  # fmt: skip
def test_a_unit_that_is_alive_in_padding_alone_is_dead(policy, layer, units, place):
    sample = team_batch if layer.startswith("net.agents") else batch_of
    windows = (box_batch if hasattr(policy, "pi") else sample)(policy)
    windows = getattr(windows, "segment", windows)
    seen = windows.obs["agents"] if isinstance(windows.obs, dict) else windows.obs
    assert not windows.valid.all()
    seen.abs_().add_(1.0)
    alive = policy.network_health(windows)["train/dead_units"].item()
    only_in_padding(part(policy, layer)[0], 4, place)
    found = policy.network_health(windows)["train/dead_units"].item()
    assert found - alive == pytest.approx(4 / units)


def part(policy, path):
    for name in path.split("."):
        policy = getattr(policy, name)
    return policy


@pytest.mark.parametrize("burnin", [0, 3, 7])
def test_the_units_of_a_recurrent_network_are_those_of_a_loop_over_read_rows(burnin):
    policy = r2d2(burnin_step=burnin, learn_unroll_len=5, head_hidden=(8,), nstep=2)
    windows, net = batch_of(policy).segment, policy.net
    windows.obs.mul_(0.02)
    with torch.no_grad():
        net.torso.layers[0].bias[0] = 99.0
        net.memory.core.bias_ih_l0[-2:] = -99.0  # output gates
        net.value[0].bias[3] = 99.0
    obs, previous = policy.inputs(windows)
    torso, memory, heads = [], [], []
    with torch.no_grad():
        for b in range(windows.valid.shape[1]):
            valid = [*windows.valid[:, b].tolist(), False]
            state = tree_map(lambda s, b=b: s[b : b + 1], windows.state)
            for p in range(policy.window.rows):
                bootstrap = p > 0 and valid[p - 1] and not windows.terminated[p - 1, b]
                if not (valid[p] or bootstrap):
                    continue
                features = net.torso(obs[p, b])
                x = torch.cat([features, previous[p, b]]).unsqueeze(0)
                h, state = net.memory.step(x, state)
                if p >= burnin:
                    torso.append(features)
                    memory.append(h[0])
                    heads.append(torch.cat([net.value[:2](h), net.advantage[:2](h)]))
    heads = torch.stack(heads)
    expected = [torch.stack(torso), torch.stack(memory), heads[:, 0], heads[:, 1]]
    found = policy.network_health(windows)["train/dead_units"].item()
    assert found == pytest.approx(dormant(expected))
    assert found >= 4 / 32


def test_agents_that_have_left_do_not_count():
    policy = qmix(agent_id=False)
    windows = team_batch(policy)
    found = policy.network_health(windows)["train/dead_units"].item()
    windows.obs["agents"][windows.obs["alive"] == 0] = 0.0
    only_in_padding(policy.net.agents.torso.layers[0], 4, 0)
    windows.obs["agents"][windows.obs["alive"] == 1] = 1.0
    assert policy.network_health(windows)["train/dead_units"].item() > found


def test_where_no_row_is_read_nothing_is_measured():
    net = mlp([3, 8, 1], "relu", last=False)
    with UnitActivity(net, positions=torch.zeros(5, 2, dtype=torch.bool)) as units:
        net(torch.ones(5, 2, 3))
    assert units.dead() is None
