"""Independent learners with parameters of their own are the policies one by one."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.env.framestack import stack_space
from rlrun.joint import AgentSpace
from rlrun.log import Log
from rlrun.policy.separate import Separate, agents_of, windows
from rlrun.types import Segment, Spec, tree_leaves, tree_map
from tests.compose import config
from tests.policy.factory import dqn, r2d2

TINY = ("debug=smoke", "logger.progress=off", "logger.tensorboard=false",
        "learner.learning_starts=0", "env=relay", "agents=separate")  # fmt: skip


@pytest.fixture(params=["dqn", "r2d2"])
def pipeline(request, tmp_path):
    c = config(f"policy={request.param}", "buffer=prioritized", *TINY)
    with Log(c.logger, tmp_path, total_steps=400, title="") as log:
        made = build.make_pipeline(make_plan(c), tmp_path, log)
        yield made
    made.source.collector.env.close()
    made.evaluator.close()


ROLLOUTS = {
    "ppo": ("memory=gru", "policy.normalize_reward=true", "learner.batch_size=8"),
    "a2c": (),
    "impala": ("memory=lstm",),
    "pqn": ("memory=gru", "learner.batch_size=8"),
}
LEAVING = ("env=pettingzoo", "env.id=pettingzoo:tests.env.zoo_example",
           "env.kwargs={lives: [1, 3, 2]}", "run.eval_episodes=1")  # fmt: skip


@pytest.fixture(params=ROLLOUTS)
def on_policy(request, tmp_path):
    c = config(f"policy={request.param}", *ROLLOUTS[request.param], *TINY, *LEAVING)
    with Log(c.logger, tmp_path, total_steps=400, title="") as log:
        made = build.make_pipeline(make_plan(c), tmp_path, log)
        made.buffer.add(made.source.collector.collect())
        yield c, made.policy, made.buffer.take(made.counters.env_steps)
    made.source.collector.env.close()
    made.evaluator.close()


def test_a_rollout_is_dealt_out_by_column(on_policy):
    c, policy, sample = on_policy
    segment = sample.segment
    assert segment.valid.any(0).all()
    assert not segment.valid.all(), "agents left"
    whose = segment.obs["agent"].argmax(-1)[:-1]
    assert (whose == torch.arange(whose.shape[1]) % 3)[segment.valid].all()
    spec = Spec(AgentSpace(gym.spaces.Box(-1, 1e6, (3,), np.float32), 3), gym.spaces.Discrete(3))
    twin = build.make_policy(make_plan(c, (spec.obs, spec.action, 1)))
    twin.load_state_dict(policy.state_dict())
    steps = []
    for i, own in enumerate(twin.policies):
        column = tree_map(lambda x, i=i: x[:, i::3], segment.obs["observation"])
        timed = ("first", "action", "reward", "terminated", "truncated", "valid", "states")
        part = {n: tree_map(lambda x, i=i: x[:, i::3], getattr(segment, n)) for n in timed}
        late = {k: x[:, i::3] for k, x in segment.extras.items() if not k.startswith("prev")}
        early = {k: x[i::3] for k, x in segment.extras.items() if k.startswith("prev")}
        state = tree_map(lambda x, i=i: x[i::3], segment.state)
        alone = replace(segment, obs=column, extras=late | early, state=state, **part)
        steps.append(own.update(replace(sample, segment=alone)).steps)
    update = policy.update(sample)
    assert update.priority is None
    assert update.steps == max(steps) > 0
    assert all(torch.isfinite(x) for x in update.metrics.values())
    ours, theirs = policy.weights(), twin.weights()
    assert all(torch.equal(w, theirs[k]) for k, w in ours.items())


def test_an_agent_that_was_away_learns_nothing(on_policy):
    _, policy, sample = on_policy
    valid = sample.segment.valid.clone()
    valid[:, 1::3] = False
    before = {k: w.clone() for k, w in policy.weights().items()}
    update = policy.update(replace(sample, segment=replace(sample.segment, valid=valid)))
    assert all(torch.isfinite(x) for x in update.metrics.values())
    moved = {k[0] for k, w in policy.weights().items() if not torch.equal(w, before[k])}
    assert moved == {"0", "2"}


def filled(pipeline, chunks=12):
    for _ in range(chunks):
        pipeline.buffer.add(pipeline.source.collector.collect())
    return pipeline.buffer.sample(32, 0)


def alone(policy, sample, i):
    """Outputs of the policy of agent i on its own windows of the sample."""
    which = (agents_of(sample.segment) == i).nonzero().squeeze(-1)
    part = replace(sample, segment=windows(sample.segment, which), weight=sample.weight[which])
    return which, policy.policies[i].loss(part.segment, part.weight)


def test_windows_belong_to_the_columns_of_their_agent(pipeline):
    sample = filled(pipeline)
    table = pipeline.buffer.windows
    keys = table.keys(table.all())
    segment = pipeline.buffer.get(keys, 0).segment
    slots, _ = table.find(keys)
    column = np.asarray(table.spans(slots).column)
    np.testing.assert_array_equal(agents_of(segment).numpy(), column % 2)
    assert {0, 1} == set(agents_of(sample.segment).tolist())


def test_an_update_is_the_updates_of_all(pipeline):
    policy, sample = pipeline.policy, filled(pipeline)
    expected = torch.zeros(len(sample.weight))
    for i in range(2):
        which, out = alone(policy, sample, i)
        expected[which] = out.priority
    assert torch.equal(policy.priority(sample), expected)
    before = {k: w.clone() for k, w in policy.weights().items()}
    update = policy.update(sample)
    torch.testing.assert_close(update.priority, expected)  # a plain network's are numpy's
    moved = {
        k.partition(".")[0] for k, w in policy.weights().items() if not torch.equal(w, before[k])
    }
    assert moved == {"0", "1"}
    # a sample without windows of the second agent leaves it as it is
    which, _ = alone(policy, sample, 0)
    first = replace(
        sample,
        segment=replace(
            windows(sample.segment, which),
            obs=tree_map(lambda x: x[:, which], sample.segment.obs),
        ),
        weight=sample.weight[which],
    )
    before = {k: w.clone() for k, w in policy.weights().items()}
    assert policy.update(first).priority.shape == (len(which),)
    moved = {
        k.partition(".")[0] for k, w in policy.weights().items() if not torch.equal(w, before[k])
    }
    assert moved == {"0"}


def test_agents_start_apart_and_act_by_themselves(pipeline):
    policy = pipeline.policy
    names = [k[2:] for k in policy.weights() if k.startswith("0.")]
    weights = policy.weights()
    assert any(not torch.equal(weights[f"0.{n}"], weights[f"1.{n}"]) for n in names)
    env, g = pipeline.source.collector.env, np.random.default_rng(0)
    assert isinstance(env.obs_space, AgentSpace)
    actor, ones = policy.actor(6), [p.actor(3) for p in policy.policies]
    obs = {
        "agent": np.tile(np.eye(2, dtype=np.float32), (3, 1)),
        "observation": g.integers(4, size=6),
    }
    given = (np.zeros(6, bool), g.integers(2, size=6), g.normal(size=6).astype(np.float32))
    state = tree_map(lambda x: g.normal(size=x.shape).astype(x.dtype), actor.initial_state())
    out = actor.act(obs, *given, state, explore=None)
    for i, own in enumerate(ones):
        part = tree_map(lambda x, i=i: x[i::2], (*given, state))
        act = own.act(obs["observation"][i::2], *part, explore=None)
        np.testing.assert_array_equal(out.action[i::2], act.action)
        for x, y in zip(tree_leaves(out.state), tree_leaves(act.state), strict=True):
            np.testing.assert_array_equal(x[i::2], y)


def test_state_round_trip(pipeline):
    policy, sample = pipeline.policy, filled(pipeline)
    policy.update(sample)
    name = "dqn" if pipeline.policy.window.learned == 1 else "r2d2"
    env = pipeline.source.collector.env
    spaces = (env.obs_space, env.action_space, 1)
    twin = build.make_policy(make_plan(config(f"policy={name}", "seed=5", *TINY), spaces))
    twin.load_state_dict(policy.state_dict())
    assert torch.equal(policy.update(sample).priority, twin.update(sample).priority)
    again = build.make_policy(make_plan(config(f"policy={name}", "seed=6", *TINY), spaces))
    again.load(policy.weights())
    assert all(torch.equal(w, again.weights()[k]) for k, w in policy.weights().items())
    assert policy.generator is policy.policies[1].generator, "one stream for all"


@pytest.mark.parametrize("make", [dqn, r2d2])
def test_stacked_frames_keep_the_agent_number(make):
    space = AgentSpace(gym.spaces.Box(-1, 1, (2,), np.float32), 3)
    spec = Spec(stack_space(space, 4), gym.spaces.Discrete(2))
    policy = Separate(lambda spec, seed: make(spec=spec, seed=seed), spec=spec, seed=0)
    assert policy.size == 3
    number = torch.eye(3).repeat(7, 2, 1).unsqueeze(2).expand(-1, -1, 4, -1)  # [7, 6, 4, 3]
    valid = torch.ones(6, 6, dtype=torch.bool)
    valid[:3] = False
    blank = torch.zeros(6, 6)
    obs = {"agent": torch.cat([torch.full_like(number[:3], torch.nan), number[3:]])}
    segment = Segment(obs, valid, blank, blank, valid, valid, valid)
    assert agents_of(segment).tolist() == [0, 1, 2, 0, 1, 2]
