"""Every policy preset keeps the protocol of ``types.Policy``; new yamls are found by glob."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from gymnasium.vector.utils import concatenate, create_empty_array

from rlrun.buffer.rollout import Rollout
from rlrun.run.build import make_pipeline, make_policy, policy_class
from rlrun.run.plan import make_plan
from rlrun.schema import POLICY_CONFIGS
from rlrun.types import no_actions, tree_leaves, tree_map
from tests.compose import config
from tests.env import boxes
from tests.installed import CONF
from tests.log.records import OpenedLog
from tests.policy.make import assert_equal_states

assert boxes  # registers its environments
ENVS = {  # by action space; Levers: three dimensions, bounds centred nowhere
    "Discrete": "env=cartpole",
    "Box": "env=gym env.id=test/Levers-v0",
    "MultiDiscrete": "env=twostep",
}
TINY = ("debug=smoke", "logger.progress=off", "logger.tensorboard=false",
        "learner.learning_starts=0", "torso.hidden=[8]")  # fmt: skip


def keys_of(preset):
    """The keys of the implementation of a preset, or of the preset it starts from."""
    keys = yaml.safe_load((CONF / f"policy/{preset}.yaml").read_text())
    return POLICY_CONFIGS[keys["name"]] if "name" in keys else keys_of(keys["defaults"][0])


def lines():
    """The words of every preset in one environment of each kind of action it can take."""
    for path in sorted(CONF.glob("policy/*.yaml")):
        offline = "pipeline: offline" in path.read_text()
        own = ["pipeline=serial"] if offline else []  # collect what it learns from
        keys = keys_of(path.stem)
        for kind in keys.actions:
            teams = kind == "MultiDiscrete" and "joint" not in keys.agents
            if kind in ENVS and not teams and (path.stem, kind) != ("scripted", "Box"):
                yield (f"policy={path.stem}", *ENVS[kind].split(), *own)


class Case:
    """A policy's words, spaces, and a sample that it learns from."""

    def __init__(self, words, directory):
        self.words = words
        self.plan = make_plan(config(*words, *TINY))
        with OpenedLog(self.plan.config.logger, directory, total_steps=400, title="") as log:
            pipeline = make_pipeline(self.plan, directory, log)
            collector, buffer = pipeline.parts.source.collector, pipeline.parts.buffer
            self.sample, self.on_policy = None, isinstance(buffer, Rollout)
            for _ in range(8):
                chunk = collector.collect()
                if buffer is None:
                    continue
                buffer.add(chunk)
                if self.on_policy and self.sample is None:
                    sample = buffer.take(0)
                    whole = sample.segment.valid.all()
                    self.sample = None if whole else replace(
                        sample, segment=sample.segment.map(torch.clone))  # fmt: skip
            if buffer is not None and not self.on_policy:
                self.sample = buffer.sample(16, 0)
            self.obs, self.action = collector.env.obs_space, collector.env.action_space
            pipeline.close()

    def policy(self, *words):
        return make_policy(make_plan(config(*self.words, *TINY, *words)) if words else self.plan)

    def inputs(self, actor, *, same=False):
        """Arguments of ``act`` for as many environments as the actor has."""
        n = len(next(iter(tree_leaves(actor.initial_state())), np.empty(4)))
        self.obs.seed(0)
        seen = [self.obs.sample() for _ in range(1 if same else n)] * (n if same else 1)
        obs = concatenate(self.obs, seen, create_empty_array(self.obs, n))
        first = np.arange(n) % 2 == 0
        return obs, first, no_actions(self.action, n), np.ones(n, np.float32), actor.initial_state()


@pytest.fixture(scope="module", params=list(lines()), ids=" ".join)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("run"))


def test_actions_are_of_the_space_and_greedy_ones_repeat(case):
    policy = case.policy()
    actor = policy.actor(4)
    given = case.inputs(actor)
    for explore in (None, np.full(4, 0.5, np.float32)):
        out = actor.act(*given, explore=explore)
        assert (out.action.shape, out.action.dtype) == (given[2].shape, given[2].dtype)
        assert all(case.action.contains(a) for a in out.action)
        assert {k: x.shape for k, x in out.extras.items()} == {
            k: x.shape for k, x in actor.extras.items()
        }
        shapes = [x.shape for x in tree_leaves(given[-1])]
        assert [x.shape for x in tree_leaves(out.state)] == shapes
    if case.sample is not None:
        one, two = (actor.act(*given, explore=None).action for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_a_given_generator_is_drawn_from_and_saved(case):
    """Policies of one run share a stream: agents apart, and the collector's with the learner's."""
    policy = case.policy()
    policy.generator = np.random.default_rng(3)
    begin = policy.generator.bit_generator.state
    assert policy.state_dict()["generator"] == begin
    actor, chance = policy.actor(4), np.full(4, 0.5, np.float32)
    given = case.inputs(actor)
    once = actor.act(*given, explore=chance).action
    drawn = policy.state_dict()["generator"] != begin
    assert drawn == (case.words[0] != "policy=scripted")
    policy.load_state_dict({**policy.state_dict(), "generator": begin})
    np.testing.assert_array_equal(actor.act(*given, explore=chance).action, once)


def test_first_forgets_state_and_previous_inputs(case):
    """Rows before the first of an episode have no effect."""
    if case.sample is None:
        return
    actor, rng = case.policy().actor(2), np.random.default_rng(0)
    obs, _, action, _, state = case.inputs(actor, same=True)
    obs = tree_map(lambda x: x[:2], obs)
    action = action[:2].copy()
    action[1] += 1
    state = tree_map(lambda x: rng.normal(size=x.shape).astype(x.dtype), state)
    q, after = actor.step(obs, np.ones(2, bool), action, np.array([0, 9], np.float32), state)
    np.testing.assert_allclose(q[0], q[1], rtol=1e-5)  # lanes of one batch may round apart
    for x in tree_leaves(after):
        np.testing.assert_allclose(x[0], x[1], rtol=1e-5, atol=1e-6)


def test_weights_and_state_round_trip(case):
    """A policy of another seed becomes this one; then both learn the same."""
    policy, twin = case.policy(), case.policy("seed=9")
    if case.sample is not None:
        policy.update(case.sample)
    twin.load(policy.weights())
    assert all(torch.equal(w, twin.weights()[n]) for n, w in policy.weights().items())
    twin.load_state_dict(policy.state_dict())
    if case.sample is not None:
        a, b = policy.update(case.sample), twin.update(case.sample)
        assert a.metrics.keys() == b.metrics.keys()
        assert all(np.shape(v) == () for v in a.metrics.values())
        assert (a.priority is None) == case.on_policy
        if a.priority is not None:
            assert torch.equal(a.priority, b.priority)
            assert a.priority.shape == (16,)
    assert_equal_states(policy, twin)


def test_every_policy_names_its_keys():
    """A subclass inherits them."""
    for name, keys in POLICY_CONFIGS.items():
        assert policy_class(name).config_class is keys
