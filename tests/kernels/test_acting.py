"""Compiled actions in environments without a compiled step are the actor's."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from rlrun.jit import COMPILED
from rlrun.kernels.acting import CompiledActor
from rlrun.policy.actor_critic import OnPolicyActor
from rlrun.policy.dqn import ValueActor
from tests.kernels.make import perturb
from tests.kernels.test_rollouts import same_rows, same_states

pytestmark = pytest.mark.skipif(not COMPILED, reason="actions are compiled by numba")
CASES = {
    "ppo": ("policy=ppo", "env=tmaze"),
    "one environment": ("policy=a2c", "collector.num_envs=1", "env.backend=sync"),
    "stacked frames": ("policy=ppo", "env.frame_stack=2"),
    "impala": ("policy=impala", "env=tmaze"),
    "pqn": ("policy=pqn", "env=tmaze", "policy.dueling=true", "policy.head_hidden=[5]"),
    "pqn, one": ("policy=pqn", "collector.num_envs=1", "learner.batch_size=50", "env.backend=sync"),
    "dqn": ("policy=dqn", "env.backend=sync"),
    "dqn, several": ("policy=dqn", "collector.num_envs=3", "policy.dueling=true", "env=tmaze"),
    "box": ("policy=ppo", "env=tracking"),
    "normalised": ("policy=a2c", "env=tracking", "policy.normalize_obs=true"),
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_rows_are_the_actors(words, collector_of):
    ours, text = collector_of(*words), collector_of(*words)
    assert isinstance(ours.actor, CompiledActor)
    text.actor = text.actor.actor
    for _ in range(3):
        same_rows(ours.collect(), text.collect(), near=1e-5)
        same_states(ours.light_state_dict(), text.light_state_dict(), near=1e-5)
        same_states(*(x.policy.generator.bit_generator.state for x in (ours, text)))
        for collector in (ours, text):  # the next rows have other weights
            perturb(collector.policy)
    assert ours.actor.agrees
    assert ours.counters.episodes > 5


def test_actions_do_not_change_before_the_next_refresh(collector_of):
    collector = collector_of("policy=ppo", "env=tmaze")
    actor = collector.actor
    actor.refresh()
    row = collector.obs, collector.first, collector.prev_action, collector.prev_reward, ()
    explore, generator = collector.explore(0), collector.policy.generator
    state = generator.bit_generator.state

    def log_prob():
        generator.bit_generator.state = state
        return actor.act(*row, explore=explore).extras["log_prob"]

    before = log_prob()
    perturb(collector.policy)
    np.testing.assert_array_equal(log_prob(), before)
    actor.refresh()
    assert not np.array_equal(log_prob(), before)


def negated(self, outputs, obs, explore, choose):
    return choose(self, -outputs, obs, explore)


def drawing_more(self, outputs, obs, explore, choose):
    chosen = choose(self, outputs, obs, explore)
    self.generator.random()
    return chosen


@pytest.mark.parametrize("edit", [negated, drawing_more])
@pytest.mark.parametrize("actor", [OnPolicyActor, ValueActor])
@pytest.mark.parametrize("columns", [1, 5])
def test_an_edited_actor_acts(edit, actor, columns, collector_of, monkeypatch, caplog):
    """Also with a first observation of zeros, no biases, and while all actions are random."""
    choose = actor.choose
    monkeypatch.setattr(actor, "choose", lambda self, *row: edit(self, *row, choose))
    policy = "ppo" if actor is OnPolicyActor else "dqn"
    words = f"policy={policy}", "env=tmaze", f"collector.num_envs={columns}", "explore=none"
    ours, text = (collector_of(*words[: 3 + (policy == "dqn")]) for _ in range(2))
    text.actor = text.actor.actor
    for collector in (ours, text):
        weights = collector.policy.weights()
        collector.policy.load({n: 0 * x if "bias" in n else x for n, x in weights.items()})
        collector.obs = np.zeros_like(collector.obs)
        collector.explore = lambda env_steps: np.ones(columns)
        collector.collect()
        collector.explore = lambda env_steps: np.zeros(columns)
    assert not ours.actor.agrees
    same_rows(ours.collect(), text.collect(), near=0)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("high", [1.0, 1e4, np.inf])
def test_bounds_of_any_size(high, collector_of):
    """The actions of a wide box differ by the rounding of numbers near 1, times its width."""
    collector = collector_of("policy=ppo", "env=tracking")
    bounds = collector.policy.net.bounds
    bounds.space = Box(-high, high, bounds.space.shape, np.float32)
    bounds.half_width[:] = high if np.isfinite(high) else 1
    actor, explore = collector.actor, collector.explore(0)
    actor.refresh()
    row = collector.obs, collector.first, collector.prev_action, collector.prev_reward, ()
    for _ in range(20):
        perturb(collector.policy, scale=1.1)
        actor.compared = False
        actor.refresh()
        actor.act(*row, explore=explore)
        assert actor.agrees


class Constant(gym.Env):
    """Shows the same numbers in every row."""

    def __init__(self, shape, high, choices):
        self.observation_space = Box(0, high, shape, np.float32)
        self.action_space = MultiDiscrete(choices) if len(choices) > 1 else Discrete(choices[0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.ones(self.observation_space.shape, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    "words",
    [("policy=ppo", "env=tmaze", x) for x in ("learner.backend=torch", "memory=lstm")]
    + [("policy=pqn", "env=tmaze", "explore=boltzmann"), ("policy=ppo",)],
    ids=str,
)  # fmt: skip
def test_other_settings_have_their_actor(words, collector_of):
    assert not isinstance(collector_of(*words).actor, CompiledActor)


@pytest.mark.parametrize(
    ("policy", "kwargs"),
    [("dqn", {"shape": (40, 40), "high": 255, "choices": [3]}),
     ("ppo", {"shape": (4,), "high": 1, "choices": [2, 3]})],
    ids=["image", "two choices"],
)  # fmt: skip
def test_spaces_that_need_the_actor(policy, kwargs, collector_of):
    env_id = f"Constant-{policy}-v0"
    gym.register(env_id, Constant, max_episode_steps=20, kwargs=kwargs)
    collector = collector_of(f"policy={policy}", "env=gym", f"env.id={env_id}", "torso=mlp")
    assert collector.policy.kernel is not None
    assert not isinstance(collector.actor, CompiledActor)
