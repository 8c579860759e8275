"""The policy's inputs are naive stacks of the environment's frames; rows stay single."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config import check
from rlrun.env import make_env, probe
from rlrun.env.framestack import make_frame_stack, stack_space
from rlrun.errors import ConfigError
from rlrun.nets.torso import make_torso
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluator
from rlrun.run.checkpoint import load_newest, save
from rlrun.schema import TorsoConfig
from rlrun.types import Act, Counters, tree_leaves, tree_map
from tests.compose import config
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.pipeline.make import collecting, copied, counter, joined
from tests.reference.stacks import stack_at

IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
LOW, HIGH = np.array([-2, -2], np.float32), np.array([0, 3], np.float32)
PAIR = spaces.Tuple((spaces.Box(-1, 1, (), np.float64), spaces.Box(LOW, HIGH)))
NESTED = spaces.Dict({"image": IMAGE, "pair": PAIR})


# -- spaces ----------------------------------------------------------------------------------------


def test_trees_of_boxes_are_stacked_leaf_by_leaf():
    space = stack_space(NESTED, 4)
    assert list(space.spaces) == list(NESTED.spaces)
    assert space["image"] == spaces.Box(0, 255, (4, 2, 3), np.uint8)
    assert space["pair"][0] == spaces.Box(-1, 1, (4,), np.float64)
    assert space["pair"][1] == spaces.Box(np.stack([LOW] * 4), np.stack([HIGH] * 4))
    assert stack_space(NESTED, 1) is NESTED
    for leaf in (spaces.Discrete(3), spaces.MultiBinary(4), spaces.MultiDiscrete([2])):
        parts = spaces.Dict({"a": spaces.Tuple([IMAGE, leaf]), "b": IMAGE})
        with pytest.raises(ConfigError, match=r"env\.frame_stack = 2: observation\['a'\]\[1\] sp"):
            stack_space(parts, 2)
        assert stack_space(parts, 1) is parts


# -- acting ----------------------------------------------------------------------------------------


class Recorder:
    """Acts 0 and writes down what it was shown."""

    window, extras = None, {}

    def __init__(self):
        self.obs, self.first = [], []

    def actor(self, num_envs):
        return self

    def refresh(self):
        pass

    def initial_state(self):
        return ()

    def act(self, obs, first, prev_action, prev_reward, state, *, explore):
        self.obs.append(tree_map(np.copy, obs))
        self.first.append(first.copy())
        return Act(np.zeros(len(first), np.int64), {}, ())


def make(policy, k, env_config=None, **changes):
    c = collecting(**changes)
    env = make_env(env_config or counter(), num_envs=c.num_envs)
    return Collector(
        c, env=env, policy=policy, explore=lambda _: np.zeros(c.num_envs), counters=Counters(),
        seed=0, cutter=None, stack=make_frame_stack(k, env.obs_space, c.num_envs),
    )  # fmt: skip


def assert_stacked(seen, frames, first, k):
    """``seen`` rows of [E, k, *O] are the stacks of ``frames`` rows of [E, *O]."""
    for row, stacks in enumerate(seen):
        for i, got in enumerate(stacks):
            column = [f[i] for f in frames]
            opens = [bool(f[i]) for f in first]
            np.testing.assert_array_equal(got, stack_at(column, opens, row, k))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.sampled_from(["terminated", "truncated", "alternate"]),
    st.integers(1, 25),
    st.integers(1, 4),
    st.integers(2, 5),
)
def test_the_collector_shows_stacks_and_stores_frames(lengths, end, n_sample, num_envs, k):
    """Over episode starts, end rows and chunk boundaries; the rows are those without stacking."""
    policy, changes = Recorder(), {"n_sample": n_sample, "num_envs": num_envs}
    env_config = counter(lengths, end)
    stacked, plain = (
        make(policy, k, env_config, **changes),
        make(Recorder(), 1, env_config, **changes),
    )
    chunks, others = ([copied(c.collect()) for _ in range(4)] for c in (stacked, plain))
    rows = joined(chunks)
    for got, want in zip(tree_leaves_of(rows), tree_leaves_of(joined(others)), strict=True):
        assert torch.equal(got, want)
    assert rows.obs.shape[1:] == (num_envs, 3)
    assert_stacked(policy.obs, rows.obs.numpy(), rows.first.numpy(), k)
    assert len(policy.obs) == len(rows.reward)


def tree_leaves_of(segment):
    return [leaf for n in segment.__slots__ for leaf in tree_leaves(getattr(segment, n))
            if isinstance(leaf, torch.Tensor)]  # fmt: skip


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_a_restored_collector_shows_the_end_of_what_was_cut(tmp_path, before):
    """The end row is seen with the frames before it; the episode that follows starts afresh."""
    k, policies = 4, [Recorder(), Recorder()]
    changes = {"n_sample": 7, "env_config": counter([6])}
    one, two = (make(policy, k, **changes) for policy in policies)
    chunks = [copied(one.collect()) for _ in range(before)]
    save(tmp_path, {"collector": one.light_state_dict()}, env_steps=before, keep=1)
    two.load_state_dict(load_newest(tmp_path)[0]["collector"])
    rows = joined([*chunks, copied(two.collect()), copied(two.collect())])
    seen = policies[0].obs + policies[1].obs
    assert_stacked(seen, rows.obs.numpy(), rows.first.numpy(), k)
    end = sum(len(c.reward) for c in chunks)
    assert not rows.valid[end].any()
    np.testing.assert_array_equal(seen[end][:, -1], chunks[-1].obs[-1])
    np.testing.assert_array_equal(
        seen[end + 1], np.repeat(rows.obs[end + 1].numpy()[:, None], k, 1)
    )


def test_nested_observations_are_stacked_leaf_by_leaf():
    policy = Recorder()
    collector = make(policy, 3, replace(counter(), id="test/Boxes-v0", kwargs={}), num_envs=2)
    rows = joined([copied(collector.collect()) for _ in range(2)])
    assert set(policy.obs[0]) == {"image", "speed"}
    for i, frames in enumerate(tree_leaves(rows.obs)):
        seen = [tree_leaves(obs)[i] for obs in policy.obs]
        assert seen[0].dtype == frames.numpy().dtype
        assert_stacked(seen, frames.numpy(), rows.first.numpy(), 3)


@pytest.mark.parametrize(("episodes", "k"), [(1, 2), (7, 3), (60, 2)])
def test_the_evaluator_shows_stacks(k, episodes):
    env = replace(counter((5, 1, 9, 3)), frame_stack=k)
    evaluator = Evaluator(env, episodes=episodes, seed=0, max_steps=10**5)
    for _ in range(2):  # the second run knows nothing of the first
        policy = Recorder()
        evaluator.run(policy, env_steps=0)
        assert policy.obs[0].shape == (min(episodes, 50), k, 3)
        assert_stacked(policy.obs, [x[:, -1] for x in policy.obs], policy.first, k)
        assert policy.first[0].all()


# -- what is checked before a run ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "k", "channels"),  # None: refused
    [
        ("test/Grey-v0", 4, 4),  # [84, 84] -> [4, 84, 84]
        ("test/Grey-v0", 1, None),  # two dimensions
        ("test/Colour-v0", 1, 3),
        ("test/Colour-v0", 4, None),  # [4, 84, 84, 3]
        ("tests.env.screen:test/FloatScreen-v0", 1, 3),  # as uint8 ones
    ],
)
def test_convolutions_need_images_of_what_the_policy_sees(env_id, k, channels):
    words = "env=gym", "torso=nature_cnn", "torso.hidden=[16]", "env.backend=sync"
    c = config(*words, f"env.id={env_id}", f"env.frame_stack={k}")
    if channels is None:
        with pytest.raises(ConfigError, match=r"torso = nature_cnn: it needs images") as caught:
            check(c)
        stacked = "with env.frame_stack = 4 it sees Box uint8 [4, 84, 84, 3]" in str(caught.value)
        assert stacked == (k == 4)
        return
    check(c)
    space = stack_space(probe(c.env)[0], k)
    torso = make_torso(TorsoConfig("nature_cnn", (16,), "relu", False), space)
    assert torso.channels_last == (k == 1)
    assert torso.convolutions[0].in_channels == channels
    obs = torch.as_tensor(np.stack([[space.sample()] * 3] * 2))
    assert torso(obs).shape == (2, 3, 16)
    if space.dtype == np.float32:
        assert torch.equal(torso.inputs(obs), obs)
