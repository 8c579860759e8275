"""The module that is exported acts as the actor does, for every family and kind of space."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.acting.greedy import make_greedy_step
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.run.onnx_check import Deviation, compare_random
from tests.compose import config
from tests.export.factory import eager, untrained

OFFLINE = ("pipeline=serial", "learner=transitions")
SMALL = ("torso.hidden=[8]", "policy.head_hidden=[8]")
FAMILIES = [
    *[("policy=r2d2", "env=cartpole", f"memory={m}") for m in ("lstm", "gru", "mingru")],
    ("policy=r2d2", "env=cartpole", "policy.reward_scale=0.1", "policy.reward_clip=0.05"),
    *[(f"policy={p}", "env=cartpole") for p in ("r2d2_c51", "r2d2_qr", "dqn")],
    ("policy=rainbow", "env=cartpole", "env.frame_stack=3"),
    ("policy=iqn", "env=cartpole", "policy.noisy=0.5"),
    ("policy=ppo", "env=pendulum", "policy.normalize_obs=true", "env.frame_stack=4"),
    ("policy=impala", "env=cartpole", "memory=lstm", "policy.prev_inputs=true"),
    ("policy=pqn", "env=cartpole", "memory=gru", "policy.prev_inputs=true"),
    *[(f"policy={p}", "env=pendulum") for p in ("sac", "ddpg", "rtd3")],
    *[(f"policy={p}", "env=cartpole", *OFFLINE) for p in ("bc_recurrent", "cql")],
    ("policy=cql_sac", "env=pendulum", *OFFLINE),
]
BOX = gym.spaces.Box(-5, 5, (3,), np.float32)
FOUR = gym.spaces.Discrete(4, start=3)
ACTIONS = gym.spaces.Box(np.array([[-2.0, -1, 0]]), np.array([[2.0, 3, 0.5]]), dtype=np.float64)
OBSERVATIONS = {
    "double": gym.spaces.Box(-5, 5, (2, 2), np.float64),
    "bytes": gym.spaces.Box(0, 255, (4,), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=2),
    "several": gym.spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "binary": gym.spaces.MultiBinary(5),
    "image": gym.spaces.Dict({"a": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), "b": BOX}),
    "dict": gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple([gym.spaces.Discrete(3), BOX])}),
    "mask": gym.spaces.Dict({"a": BOX, "action_mask": gym.spaces.Box(0, 1, (4,), np.int8)}),
}
BOTH = "torso=image_and_vector"
DISCRETE = ("policy=r2d2", "env=cartpole", "policy.prev_inputs=true", *SMALL)
PPO = ("policy=ppo", "memory=lstm", "policy.prev_inputs=true", "policy.separate_value=true", *SMALL)
SPACES = [
    *[(DISCRETE, obs, FOUR) for name, obs in OBSERVATIONS.items() if name != "image"],
    *[
        (words, OBSERVATIONS["image"], ACTIONS if "pendulum" in words[1] else FOUR)
        for words in (
            (*DISCRETE, BOTH),
            ("policy=sac", "env=pendulum", "policy.head_hidden=[8]", BOTH),
        )
    ],
    *[((*PPO, "env=cartpole"), BOX, gym.spaces.MultiDiscrete([2, 3], start=[1, 0]))],
    ((*PPO, "env=cartpole"), OBSERVATIONS["mask"], FOUR),
    ((*PPO, "env=pendulum"), BOX, ACTIONS),
    (("policy=rsac", "env=pendulum", *SMALL), BOX, ACTIONS),
    (("policy=iql", "env=pendulum", *OFFLINE), BOX, ACTIONS),
    (("policy=bc", "env=cartpole", *OFFLINE), OBSERVATIONS["mask"], FOUR),
    (
        ("policy=dqn", "env=cartpole", "env.frame_stack=4", "torso=nature_cnn"),
        gym.spaces.Box(0, 255, (36, 36), np.uint8),
        FOUR,
    ),
]


def difference(words, spaces=None) -> Deviation:
    trained = untrained(*words, spaces=spaces)
    plan = trained.plan
    step = make_greedy_step(trained.policy.actor(1), plan.row_spec, plan.config.env.frame_stack)
    return compare_random(eager(step), trained.policy, step)


@pytest.mark.parametrize("words", FAMILIES, ids=" ".join)
def test_families(words):
    found = difference(words)
    assert found.within(1e-5), found
    assert found.rows == 64


@pytest.mark.parametrize(("words", "obs", "action"), SPACES, ids=str)
def test_spaces(words, obs, action):
    found = difference(words, (obs, action, 1))
    assert found.within(1e-5), found


def test_a_difference_is_found():
    """The comparison can fail: by a weight, a state that is not reset, a shifted action."""
    trained = untrained(*DISCRETE, spaces=(BOX, FOUR, 1))
    step = make_greedy_step(trained.policy.actor(1), trained.plan.row_spec, 1)
    run = eager(step)
    assert compare_random(run, trained.policy, step).within(1e-5)

    def never_first(inputs):
        return run({**inputs, "first": np.zeros_like(inputs["first"])})

    found = compare_random(never_first, trained.policy, step)
    assert found.outputs > 1e-3
    assert not found.within(1e-3)

    def shifted(inputs):
        out = run(inputs)
        return {**out, "action": 3 + (out["action"] - 2) % 4}

    found = compare_random(shifted, trained.policy, step)
    assert (found.unlike, found.outputs < 1e-5) == (64, True)

    def broken(inputs):
        out = run(inputs)
        return {**out, "q_values": out["q_values"] * np.float32(np.nan)}

    assert not compare_random(broken, trained.policy, step).within(1)


def test_a_tie_is_no_difference():
    trained = untrained(*DISCRETE, spaces=(BOX, FOUR, 1))
    trained.policy.load({k: torch.zeros_like(x) for k, x in trained.policy.weights().items()})
    step = make_greedy_step(trained.policy.actor(1), trained.plan.row_spec, 1)
    run = eager(step)
    other = compare_random(
        lambda x: run(x) | {"action": run(x)["action"] + 1}, trained.policy, step
    )
    assert (other.ties, other.unlike, other.within(1e-5)) == (64, 0, True)


def test_only_what_is_read_is_an_input():
    def inputs(*words):
        plan = make_plan(config(*words))
        actor = make_policy(plan).actor(1)
        return [*make_greedy_step(actor, plan.row_spec, plan.config.env.frame_stack).inputs(1)]

    assert inputs("policy=dqn", "env=cartpole") == ["obs"]
    assert inputs("policy=dqn", "env=cartpole", "env.frame_stack=2") == ["obs", "first", "state.0"]
    past = ["obs", "first", "prev_action", "prev_reward"]
    assert inputs("policy=r2d2", "env=cartpole") == [*past, "state.0", "state.1"]
    assert inputs("policy=dqn", "env=cartpole", "policy.prev_inputs=true") == past
    one = ["policy.prev_inputs=false", "policy.separate_value=true"]  # not the value's state
    assert inputs("policy=ppo", "env=cartpole", "memory=gru", *one) == ["obs", "first", "state.0"]


def test_other_actors_have_none():
    plan = make_plan(config("policy=qmix", "env=twostep"))
    assert make_greedy_step(make_policy(plan).actor(1), plan.row_spec, 1) is None
    plan = make_plan(config("policy=random", "env=cartpole"))
    assert make_greedy_step(make_policy(plan).actor(1), plan.row_spec, 1) is None
