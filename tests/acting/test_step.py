"""Acting in numpy is acting in torch; an actor has weights of its own."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.acting.step import NumpyStep, TorchStep, make_step
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.nets.memory import _MEMORIES, Cell
from rlrun.nets.qnet import QNet
from rlrun.schema import TorsoConfig
from rlrun.types import Spec, tree_leaves
from tests.compose import changed, config
from tests.nets.cells import memory_config
from tests.policy.factory import dqn, r2d2

BOX = gym.spaces.Box(-5, 5, (3,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)
SPACES = {
    "box": BOX,
    "double": gym.spaces.Box(-5, 5, (2, 2), np.float64),
    "bytes": gym.spaces.Box(0, 3, (4,), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=2),
    "several": gym.spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "dict": gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple([gym.spaces.Discrete(3), BOX])}),
}
SHAPES = [
    {"memory": memory, "prev_inputs": side, "dueling": dueling, "head_hidden": head}
    for memory in ("lstm", "gru", "mingru", "none")
    for side in (False, True)
    for dueling, head in ((False, ()), (True, ()), (True, (5,)), (False, (4, 6)))
]


def make_net(space=BOX, activation="relu", torso=(8, 6), memory="lstm", seed=0, **changes) -> QNet:
    config = r2d2(**changes).config
    torch.manual_seed(seed)
    spec = Spec(space, gym.spaces.Discrete(5))
    return QNet(
        config, TorsoConfig("mlp", torso, activation, False), memory_config(memory, 7, 1.0), spec
    )


def play(step, space, rows=6, envs=4, seed=0):
    """Values and states of a few rows, episodes opening now and then."""
    rng, state, out = np.random.default_rng(seed), step.initial_state(), []
    space.seed(seed)
    batch = gym.vector.utils.batch_space(space, envs)
    batch.seed(seed)
    for t in range(rows):
        first = rng.random(envs) < 0.3 if t else np.ones(envs, bool)
        action, reward = rng.integers(5, size=envs), rng.normal(size=envs).astype(np.float32)
        q, state = step(batch.sample(), first, action, reward, state)
        out += [q, *tree_leaves(state)]
    return out


def assert_alike(net, space):
    numpy, torch_ = NumpyStep(net, 4), TorchStep(net, 4)
    for got, want in zip(play(numpy, space), play(torch_, space), strict=True):
        assert got.dtype == want.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_is_torch(shape):
    assert_alike(make_net(**shape), BOX)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_numpy_reads_every_observation(space, activation):
    assert_alike(make_net(SPACES[space], activation), SPACES[space])


@pytest.mark.parametrize("kind", [NumpyStep, TorchStep])
@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru", "none"])
def test_a_step_keeps_its_weights_until_it_is_refreshed(kind, memory):
    net, other = make_net(memory=memory), make_net(memory=memory, seed=1)
    step, before = kind(net, 4), play(kind(net, 4), BOX)
    with torch.no_grad():
        for own, new in zip(net.parameters(), other.parameters(), strict=True):
            own.copy_(new)
    for got, want in zip(play(step, BOX), before, strict=True):
        np.testing.assert_array_equal(got, want)
    step.refresh()
    for got, want in zip(play(step, BOX), play(kind(other, 4), BOX), strict=True):
        np.testing.assert_array_equal(got, want)


# -- which step a policy acts with -----------------------------------------------------------------

OFFLINE = "pipeline=serial learner=transitions"
DISCRETE = ("dqn", "r2d2", "rainbow", "ppo", "a2c", "impala", "pqn")
DISCRETE += tuple(f"{name} {OFFLINE}" for name in ("bc", "iql", "cql"))
BOXES = ("sac", "td3", "ddpg", f"cql_sac {OFFLINE}", "ppo", "a2c", "impala", f"bc {OFFLINE}")
MEMORIES = ("none", "lstm", "gru", "mingru")


def acting_step(policy, memory, space, torso="mlp", obs=BOX):
    words = f"policy={policy} torso={torso} torso.hidden=[8] policy.head_hidden=[8]"
    env = "cartpole" if isinstance(space, gym.spaces.Discrete) else "pendulum"
    c = changed(config(*words.split(), f"env={env}"), memory=config(f"memory={memory}").memory)
    return make_policy(make_plan(c, (obs, space, 1))).actor(2).net_step


@pytest.mark.parametrize("memory", MEMORIES)
def test_every_policy_acts_in_numpy_with_every_memory(memory):
    """MLP torsos on the CPU."""
    for space, policies in ((gym.spaces.Discrete(4), DISCRETE), (ACTIONS, BOXES)):
        for policy in policies:
            step = acting_step(policy, memory, space)
            assert type(step) is NumpyStep, (policy, memory)


class OwnGRU(Cell):
    """A user's memory: GRU by the interface of ``Cell``."""

    def __init__(self, config, features):
        super().__init__(config, features)
        self.core = torch.nn.GRU(features, config.hidden)

    def initial_state(self, batch, device):
        return (torch.zeros(batch, self.size, device=device),)

    def step(self, x, state):
        h = torch.gru_cell(x, state[0], *self.core.all_weights[0])
        return h, (h,)


def test_a_memory_of_ones_own_acts_in_torch(monkeypatch):
    gru = make_net(memory="gru", prev_inputs=True)
    monkeypatch.setitem(_MEMORIES, "gru", OwnGRU)
    own = make_net(memory="gru", prev_inputs=True)
    own.load_state_dict(gru.state_dict())
    for got, want in zip(play(make_step(own, 4), BOX), play(NumpyStep(gru, 4), BOX), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
    for policy in DISCRETE:
        assert type(acting_step(policy, "gru", gym.spaces.Discrete(4))) is TorchStep
    for policy in ("sac", "rtd3"):
        assert type(acting_step(policy, "gru", ACTIONS)) is TorchStep


def test_convolutions_and_other_devices_act_in_torch():
    image, obs = gym.spaces.Box(0, 255, (1, 40, 40), np.uint8), np.zeros((2, 1, 40, 40), np.uint8)
    for space, policies in ((gym.spaces.Discrete(4), DISCRETE), (ACTIONS, BOXES)):
        for policy in policies:
            step = acting_step(policy, "none", space, "nature_cnn", image)
            assert type(step) is TorchStep, policy
            action, reward = np.zeros((2, *space.shape), space.dtype), np.zeros(2, np.float32)
            outputs, _ = step(obs, np.ones(2, bool), action, reward, step.initial_state())
            assert (outputs.shape[0], outputs.dtype) == (2, np.float32)
    assert type(make_step(make_net().to("meta"), 4)) is TorchStep


@pytest.mark.parametrize("make", [r2d2, dqn])
def test_rewards_are_shaped_before_they_are_seen(make):
    """Acting and learning shape previous rewards alike (functional.rows.shape_reward)."""
    seen = []
    actor = make(reward_scale=2.0, reward_clip=3.0).actor(3)
    actor.step = lambda obs, first, action, reward, state: (
        seen.append(reward) or (np.zeros((3, 2), np.float32), state)
    )
    reward = np.array([-9, 1, 9], np.float32)
    actor.act(np.zeros((3, 3)), np.zeros(3, bool), np.zeros(3, int), reward, (), explore=None)
    np.testing.assert_array_equal(seen[0], [-3, 2, 3])
