"""Every policy preset keeps the protocol of ``types.Policy``; new yamls are found by glob."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from gymnasium.vector.utils import concatenate, create_empty_array

from rlrun.buffer.rollout import Rollout
from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.build.policy import policy_class
from rlrun.log import Log
from rlrun.run.hparams import policy_title
from rlrun.schema import POLICY_CONFIGS
from rlrun.types import no_actions, tree_leaves, tree_map
from tests.compose import config
from tests.env import boxes

assert boxes  # registers its environments
CONF = Path(__file__).parents[2] / "conf"
POLICIES = sorted(p.stem for p in CONF.glob("policy/*.yaml"))
LEVERS = "gym env.id=test/Levers-v0"  # three dimensions, bounds centred nowhere
ENVS = {  # by action space; those of several agents are joint rows where the policy wants them
    "Discrete": ["cartpole", "identity", "tmaze"],
    "Box": ["pendulum", LEVERS],
    "MultiDiscrete": ["twostep", "relay"],
}
TINY = (
    "debug=smoke",
    "logger.progress=off",
    "logger.tensorboard=false",
    "learner.learning_starts=0",
)


def name_of(policy):
    """The implementation of a preset, or of the preset it starts from."""
    keys = yaml.safe_load((CONF / f"policy/{policy}.yaml").read_text())
    return keys["name"] if "name" in keys else name_of(keys["defaults"][0])


def pairs():
    """(policy, env) of every policy and two environments of each kind it can act in, by turns."""
    for number, policy in enumerate(POLICIES):
        name = name_of(policy)
        for kind in POLICY_CONFIGS[name].actions:
            teams = kind == "MultiDiscrete" and "joint" not in POLICY_CONFIGS[name].agents
            first, *others = ENVS.get(kind, ["none"])
            fit = () if teams or not others else (first, others[number % len(others)])
            yield from ((policy, e) for e in fit if (policy, e) != ("scripted", LEVERS))  # its 0


def online(policy):
    """Overrides that make a preset for datasets collect its own rows."""
    offline = "pipeline: offline" in (CONF / f"policy/{policy}.yaml").read_text()
    return ("pipeline=serial",) if offline else ()


@pytest.fixture(params=list(pairs()), ids="-".join)
def pipeline(request, tmp_path):
    policy, env = request.param
    c = config(f"policy={policy}", *f"env={env}".split(), *online(policy), *TINY)
    with Log(c.logger, tmp_path, total_steps=400, title="") as log:
        made = build.make_pipeline(make_plan(c), tmp_path, log)
        yield made
    made.source.collector.env.close()
    made.evaluator.close()


def learns(pipeline):
    return pipeline.buffer is not None


def on_policy(pipeline):
    return isinstance(pipeline.buffer, Rollout)


def collect(pipeline, chunks=8):
    for _ in range(chunks):
        chunk = pipeline.source.collector.collect()
        if learns(pipeline):
            pipeline.buffer.add(chunk)


def several(space, count):
    """``count`` observations of a space, side by side."""
    return concatenate(
        space, [space.sample() for _ in range(count)], create_empty_array(space, count)
    )


def drawn(pipeline):
    """A sample for ``update``: four windows, or all rows."""
    return pipeline.buffer.take(0) if on_policy(pipeline) else pipeline.buffer.sample(4, 0)


def test_act_shapes_and_greediness(pipeline):
    policy, space = pipeline.policy, pipeline.source.collector.env.obs_space
    obs, actor = several(space, 5), policy.actor(5)
    actions = pipeline.source.collector.env.action_space
    first, action = np.array([True, False, True, False, False]), no_actions(actions, 5)
    state = actor.initial_state()
    given = (obs, first, action, np.ones(5, np.float32), state)
    for explore in (None, np.full(5, 0.5, np.float32)):
        out = actor.act(*given, explore=explore)
        assert (out.action.shape, out.action.dtype) == (action.shape, action.dtype)
        assert all(actions.contains(a) for a in out.action)
        assert {k: x.shape for k, x in out.extras.items()} == {
            k: x.shape for k, x in actor.extras.items()
        }
        shapes = [x.shape for x in tree_leaves(state)]
        assert [x.shape for x in tree_leaves(out.state)] == shapes
    if learns(pipeline):
        one, two = (actor.act(*given, explore=None).action for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_a_given_generator_is_drawn_from_and_saved(pipeline, request):
    """Policies of one run share a stream: agents apart, and the collector's with the learner's."""
    policy, space = pipeline.policy, pipeline.source.collector.env.obs_space
    policy.generator = np.random.default_rng(3)
    begin = policy.generator.bit_generator.state
    assert policy.state_dict()["generator"] == begin
    actor, action = policy.actor(5), no_actions(pipeline.source.collector.env.action_space, 5)
    first, none, chance = np.ones(5, bool), np.zeros(5, np.float32), np.full(5, 0.5, np.float32)
    given = (several(space, 5), first, action, none, actor.initial_state())
    once = actor.act(*given, explore=chance).action
    draws = request.node.callspec.params["pipeline"][0] != "scripted"
    assert (policy.state_dict()["generator"] != begin) == draws
    policy.load_state_dict({**policy.state_dict(), "generator": begin})
    np.testing.assert_array_equal(actor.act(*given, explore=chance).action, once)


def test_first_forgets_state_and_previous_inputs(pipeline):
    """Rows before the first of an episode have no effect."""
    policy, space = pipeline.policy, pipeline.source.collector.env.obs_space
    if not learns(pipeline):
        return
    obs, actor = tree_map(lambda x: x.repeat(2, 0), several(space, 1)), policy.actor(2)
    first, action = (
        np.array([True, True]),
        no_actions(pipeline.source.collector.env.action_space, 2),
    )
    action[1] += 1
    noise = np.random.default_rng(0)
    state = tree_map(lambda x: noise.normal(size=x.shape).astype(x.dtype), actor.initial_state())
    q, after = actor.step(obs, first, action, np.array([0.0, 9.0], np.float32), state)
    np.testing.assert_allclose(q[0], q[1], rtol=1e-5)  # lanes of one batch may round apart
    for x in tree_leaves(after):
        np.testing.assert_allclose(x[0], x[1], rtol=1e-5, atol=1e-6)


def test_weights_and_state_round_trip(pipeline, request):
    """A policy of another seed becomes this one; then both learn and act the same."""
    collect(pipeline)
    policy, buffer = pipeline.policy, pipeline.buffer
    preset, env = request.node.callspec.params["pipeline"]
    other = config(f"policy={preset}", *f"env={env}".split(), "seed=9", *online(preset), *TINY)
    env = pipeline.source.collector.env
    twin = build.make_policy(make_plan(other, (env.obs_space, env.action_space, 1)))
    if buffer is not None:
        sample = drawn(pipeline)
        policy.update(sample)
    twin.load(policy.weights())
    assert all(torch.equal(w, twin.weights()[n]) for n, w in policy.weights().items())
    twin.load_state_dict(policy.state_dict())
    if buffer is not None:
        a, b = policy.update(sample), twin.update(sample)
        assert a.metrics.keys() == b.metrics.keys()
        if on_policy(pipeline):
            assert a.priority is b.priority is None
        else:
            assert torch.equal(a.priority, b.priority)
            assert a.priority.shape == (4,)
        assert all(v.shape == () for v in a.metrics.values())
    for x, y in zip(tree_leaves(policy.state_dict()), tree_leaves(twin.state_dict()), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def over(mask, x):
    """``mask`` [T, B] for ``x`` [T, B, ...]."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - 2))


def test_padding_has_no_effect(pipeline):
    if not learns(pipeline):
        return
    collect(pipeline)
    if on_policy(pipeline):
        return rollout_padding_has_no_effect(pipeline)

    def over(mask, x):
        return mask.reshape(*mask.shape, *[1] * (x.ndim - 2))

    windows = pipeline.buffer.windows
    keys = windows.keys(windows.all())[:16]
    segment = pipeline.buffer.get(keys, 0).segment
    wild = replace(
        segment,
        reward=torch.where(segment.valid, segment.reward, torch.nan),
        action=torch.where(over(segment.valid, segment.action), segment.action, 0),
        terminated=segment.terminated | ~segment.valid,
    )
    policy = pipeline.policy
    loss = getattr(policy, "losses", policy.loss)  # ``loss`` of actors with critics takes a Batch
    weight = torch.ones(len(keys))
    assert torch.equal(loss(segment, weight)[0], loss(wild, weight)[0])


def rollout_padding_has_no_effect(pipeline):
    """Not a bit of the weights behind an update, whatever stands in end rows and what acting said.

    An end row's observation counts behind a truncation only.
    """
    while pipeline.buffer.store.valid[: len(pipeline.buffer)].all():
        collect(pipeline, 1)
    policy, sample = pipeline.policy, pipeline.buffer.take(0)
    segment = sample.segment
    before = tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, policy.state_dict()
    )
    valid = segment.valid
    read = torch.cat([valid, torch.zeros_like(valid[:1])])
    read[1:] |= valid & ~segment.terminated

    def wild(x, mask):
        mask = mask.reshape(*mask.shape, *[1] * (x.ndim - 2))
        return torch.where(mask, x, torch.nan if x.is_floating_point() else 0)

    extras = {
        k: wild(x, valid) if x.shape[:2] == valid.shape else x for k, x in segment.extras.items()
    }
    poisoned = replace(
        segment,
        obs=tree_map(lambda x: wild(x, read), segment.obs),
        reward=wild(segment.reward, valid),
        action=wild(segment.action, valid),
        extras=extras,
    )
    policy.update(sample)
    clean = {n: w.clone() for n, w in policy.weights().items()}
    policy.load_state_dict(before)
    policy.update(replace(sample, segment=poisoned))
    for name, w in policy.weights().items():
        assert torch.equal(w, clean[name]), name


def test_every_policy_names_its_keys():
    """A subclass inherits them."""
    for name, keys in POLICY_CONFIGS.items():
        assert policy_class(name).config_class is keys


@pytest.mark.parametrize(
    ("name", "typed", "title"),
    [
        ("dqn", ["policy=dqn"], "dqn"),
        ("mypkg.plain:Plain", ["policy=plain", "seed=1"], "plain"),
        ("mypkg.plain:Plain", ["policy=dqn", "policy.name=mypkg.plain:Plain"], "Plain"),
        ("mypkg.plain:Plain", [], "Plain"),
    ],
)
def test_a_run_is_titled_by_the_option_of_its_policy(tmp_path, name, typed, title):
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(typed))
    c = config("policy=dqn")
    assert policy_title(replace(c, policy=replace(c.policy, name=name)), tmp_path) == title
