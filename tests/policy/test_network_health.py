"""Dead units and the distance to the target network, of networks made sick by hand."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.types import Spec
from tests.policy import make
from tests.policy.make import BOX, DISCRETE, RECURRENT, build, windows
from tests.policy.test_qmix import TEAM

RELU = {"activation": "relu", "dueling": False, "head_hidden": (), "prev_inputs": False}
SAC = {"spec": BOX, "activation": "relu", "torso": (8,), "head_hidden": ()}


def dead(policy, sample, key="train/dead_units"):
    return policy.network_health(sample.segment)[key].item()


def layers(policy):
    return make.nets(policy).net.torso.layers


def test_a_relu_that_never_fires_is_dead_and_so_is_one_far_below_its_layer():
    policy = build("dqn", torso=(8, 4), **RELU)
    sample, (first, _, second, _) = windows(policy), layers(policy)
    with torch.no_grad():
        for layer in (first, second):
            layer.bias.fill_(9.0)
        second.weight.abs_()
    assert dead(policy, sample) == 0
    with torch.no_grad():
        first.bias[:2] = -1e3
    assert dead(policy, sample) == pytest.approx(2 / 12)
    with torch.no_grad():
        second.weight[0] *= 1e-3  # alive, but of no weight: dormant
        second.bias[0] *= 1e-3
    assert dead(policy, sample) == pytest.approx(3 / 12)


def test_a_channel_is_one_unit():
    spec = Spec(gym.spaces.Box(0, 255, (1, 40, 40), np.uint8), DISCRETE.action)
    policy = build("dqn", spec=spec, words=("torso=nature_cnn",), **RELU | {"torso": (16,)})
    sample, convolutions = windows(policy, spec), make.nets(policy).net.torso.convolutions
    with torch.no_grad():
        for p in make.nets(policy).net.torso.parameters():
            p.fill_(1.0) if p.ndim == 1 else p.mul_(0.1)
        before = dead(policy, sample)
        convolutions[0].weight[:16] = 0
        convolutions[0].bias[:16] = -1
    assert dead(policy, sample) - before == pytest.approx(16 / (32 + 64 + 64 + 16))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dqn", {"noisy": 0.5}), ("dqn", {"distribution": "implicit"}), ("r2d2", {}), ("cql", {}),
        ("sac", {"spec": BOX}), ("td3", {"spec": BOX, "actor_every": 2}),
        ("ddpg", {"spec": BOX, **RECURRENT}), ("qmix", {"spec": TEAM}),
    ],
)  # fmt: skip
def test_measuring_changes_nothing_and_every_policy_has_the_metrics(name, given):
    policy = build(name, **given)
    sample = windows(policy, given.get("spec", DISCRETE))
    before = str(policy.state_dict())
    health = policy.network_health(sample.segment)
    assert str(policy.state_dict()) == before
    assert set(health) == {"train/dead_units", "train/target_lag"}
    assert 0 <= health["train/dead_units"].item() <= 1
    assert health["train/target_lag"].item() == 0, "the target begins as a copy"
    nets = (x for x in vars(make.nets(policy)).values() if isinstance(x, torch.nn.Module))
    assert not any(module._forward_hooks for net in nets for module in net.modules())
    policy.update(sample)
    assert dead(policy, sample, "train/target_lag") > 0


def test_every_critic_has_units_of_its_own_compared_with_its_own_layer():
    policy = build("sac", **SAC)
    sample, own = windows(policy, BOX), make.nets(policy)
    with torch.no_grad():
        hidden = [p for p in (*own.q.parameters(), *own.pi.parameters()) if p.ndim > 1]
        for w in hidden:
            w.mul_(0.01)
        for b in (own.q.biases[0], own.pi.head[0].bias):
            b.fill_(9.0)
        own.q.biases[0][0] = 0.05  # small activities beside those of the other critic
        own.q.weights[0][0].zero_()
    assert dead(policy, sample) == 0
    with torch.no_grad():
        own.q.biases[0][1, :, :3] = -99.0
    assert dead(policy, sample) == pytest.approx(3 / 24)


def test_the_distance_to_the_target_is_relative():
    policy = build("dqn")
    sample, target = windows(policy), make.nets(policy).target
    size = torch.cat([p.flatten() for p in target.parameters()]).norm().item()
    with torch.no_grad():
        next(target.parameters())[0, 0] += 0.3
        next(target.parameters())[0, 1] -= 0.4
    assert dead(policy, sample, "train/target_lag") == pytest.approx(0.5 / size, rel=1e-4)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_where_the_target_is_copied_the_distance_is_that_before_the_last_copy(name):
    """At the copy itself it would be 0."""
    given = {"target_update_every": 2, "target_tau": None}
    given |= {"spec": BOX} if name == "sac" else {}
    policy, twin = build(name, **given), build(name, **given, seed=1)
    sample, lag = windows(policy, given.get("spec", DISCRETE)), "train/target_lag"
    policy.update(sample)
    before = dead(policy, sample, lag)
    policy.update(sample)
    copied = dead(policy, sample, lag)
    assert copied != before > 0
    assert copied > 0
    state = policy.state_dict()
    twin.load_state_dict(state)
    assert dead(twin, sample, lag) == copied


@pytest.mark.parametrize(
    ("name", "given", "units"),
    [
        ("dqn", {"head_hidden": ()}, 8), ("cql", {"head_hidden": ()}, 8),
        ("dqn", {"distribution": "implicit", "head_hidden": (), "prev_inputs": False}, 8 + 8),
        ("r2d2", {"head_hidden": ()}, 8 + 6),
        ("r2d2", {"head_hidden": (), "burnin_step": 7, "learn_unroll_len": 4}, 8 + 6),
        ("qmix", {"spec": TEAM, "agent_id": False, "mixer": "sum", "head_hidden": ()}, 8 + 6),
    ],
)  # fmt: skip
def test_a_unit_that_is_alive_in_padding_alone_is_dead(name, given, units):
    """Padding, filler, agents that have left: there networks read 0, elsewhere at least 1."""
    policy, spec = build(name, **given), given.get("spec", DISCRETE)
    sample = windows(policy, spec)
    obs, net = sample.segment.obs, make.nets(policy).net
    assert policy.window.nstep == 1 or not sample.segment.valid.all()
    if name == "qmix":
        obs["agents"].abs_().add_(1.0).mul_(obs["alive"][..., None])
        net = net.agents
    else:
        obs.abs_().add_(1.0)
    layer = net.torso.layers[0]
    with torch.no_grad():
        layer.weight.mul_(0.1)
        alive = dead(policy, sample)
        layer.weight[:4], layer.bias[:4] = 0.0, 1.0
        layer.weight[:4, 0] = -1e3  # saturated where the first number is not 0
    assert dead(policy, sample) - alive == pytest.approx(4 / units)


def test_where_no_row_is_read_nothing_is_measured():
    policy = build("dqn")
    sample = windows(policy)
    sample.segment.valid.zero_()
    assert set(policy.network_health(sample.segment)) == {"train/target_lag"}
