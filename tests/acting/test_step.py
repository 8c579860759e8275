"""Acting in numpy is acting in torch; an actor has weights of its own."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.acting.step import NumpyStep, TorchStep, make_step
from rlrun.nets.qnet import QNet
from rlrun.schema import MemoryConfig, TorsoConfig
from rlrun.types import Spec, tree_leaves
from tests.policy.factory import dqn, r2d2

BOX = gym.spaces.Box(-5, 5, (3,), np.float32)
SPACES = {
    "box": BOX,
    "double": gym.spaces.Box(-5, 5, (2, 2), np.float64),
    "bytes": gym.spaces.Box(0, 255, (4,), np.uint8),
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
    return QNet(config, TorsoConfig("mlp", torso, activation), MemoryConfig(memory, 7, 1.0), spec)


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


def test_the_rule():
    """numpy for MLP torsos on the CPU; convolutions and other devices stay in torch."""
    assert isinstance(make_step(make_net(), 4), NumpyStep)
    assert isinstance(make_step(make_net().to("meta"), 4), TorchStep)
    image = gym.spaces.Box(0, 255, (1, 84, 84), np.uint8)
    config = r2d2().config
    spec, memory = Spec(image, gym.spaces.Discrete(2)), MemoryConfig("lstm", 4, 1.0)
    net = QNet(config, TorsoConfig("nature_cnn", (16,), "relu"), memory, spec)
    step = make_step(net, 2)
    assert isinstance(step, TorchStep)
    obs, first = np.zeros((2, 1, 84, 84), np.uint8), np.ones(2, bool)
    q, _ = step(obs, first, np.zeros(2, np.int64), np.zeros(2, np.float32), step.initial_state())
    assert q.shape == (2, 2)


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
