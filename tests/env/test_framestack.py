"""The policy's inputs are naive stacks of the environment's frames; rows stay single."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from gymnasium.wrappers import FrameStackObservation
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config import check
from rlrun.env import make_env
from rlrun.env.framestack import FrameStack, make_frame_stack, stack_space
from rlrun.errors import ConfigError
from rlrun.nets.torso import make_torso
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluator
from rlrun.policy.random import RandomActor
from rlrun.rundir.checkpoint import load_newest, save
from rlrun.schema import TorsoConfig
from rlrun.types import Act, Counters, Spec, tree_leaves, tree_map
from tests.compose import config
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.screen import FloatScreen
from tests.pipeline.test_collector import collecting, copied, counter, joined
from tests.policy.factory import r2d2, uniform
from tests.reference.stacks import stack_at

IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
LOW, HIGH = np.array([-2, -2], np.float32), np.array([0, 3], np.float32)
PAIR = spaces.Tuple((spaces.Box(-1, 1, (), np.float64), spaces.Box(LOW, HIGH)))
NESTED = spaces.Dict({"image": IMAGE, "pair": PAIR})


# -- spaces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1"])
def test_a_stacked_box_is_gymnasiums(env_id):
    env = FrameStackObservation(gym.make(env_id), 3)
    assert stack_space(gym.make(env_id).observation_space, 3) == env.observation_space


def test_trees_of_boxes_are_stacked_leaf_by_leaf():
    space = stack_space(NESTED, 4)
    assert list(space.spaces) == list(NESTED.spaces)
    assert space["image"] == spaces.Box(0, 255, (4, 2, 3), np.uint8)
    assert space["pair"][0] == spaces.Box(-1, 1, (4,), np.float64)
    assert space["pair"][1] == spaces.Box(np.stack([LOW] * 4), np.stack([HIGH] * 4))
    assert stack_space(NESTED, 1) is NESTED


@pytest.mark.parametrize(
    "leaf", [spaces.Discrete(3), spaces.MultiBinary(4), spaces.MultiDiscrete([2])]
)
def test_what_has_no_frames_is_refused(leaf):
    text = f"env.frame_stack = 2: observation space is {leaf}; allowed is 1, or an observation "
    with pytest.raises(ConfigError) as caught:
        stack_space(leaf, 2)
    assert str(caught.value) == f"{text}of Box spaces only; set env.frame_stack=1"
    with pytest.raises(ConfigError, match=r"observation\['a'\]\[1\] space is "):
        stack_space(spaces.Dict({"a": spaces.Tuple([IMAGE, leaf]), "b": IMAGE}), 2)
    assert stack_space(leaf, 1) is leaf


# -- the stack -------------------------------------------------------------------------------------


def columns_of(space, num_envs, rows):
    """Random observations [E, *O] of ``rows`` rows."""
    space.seed(rows)
    for _ in range(rows):
        samples = [space.sample() for _ in range(num_envs)]
        yield tree_map(lambda *x: np.stack(x), *samples)


def poison(stack):
    for buffer in tree_leaves(stack._buffer):
        buffer[:] = np.nan if buffer.dtype.kind == "f" else 0xAB


@settings(max_examples=60, deadline=None)
@given(data=st.data(), k=st.integers(2, 6), num_envs=st.integers(1, 3), rows=st.integers(1, 30))
def test_every_stack_is_the_naive_one(data, k, num_envs, rows):
    """Episodes may begin anywhere, also twice running; a stack restored at any row goes on."""
    flags = st.lists(st.booleans(), min_size=num_envs, max_size=num_envs)
    first = np.array([[True] * num_envs] + [data.draw(flags) for _ in range(rows - 1)])
    cut = data.draw(st.integers(0, rows - 1))
    stack, other = (FrameStack(k, create_empty_array(NESTED, num_envs)) for _ in range(2))
    frames, seen = list(columns_of(NESTED, num_envs, rows)), stack_space(NESTED, k)
    for each in (stack, other):
        poison(each)
    for row, obs in enumerate(frames):
        given_obs = tree_map(np.copy, obs)
        got = stack.push(given_obs, first[row])
        tree_map(lambda x: x.fill(0), given_obs)  # an environment may reuse its arrays
        if row > cut:
            tree_map(np.testing.assert_array_equal, got, other.push(obs, first[row]))
        for i in range(num_envs):
            own = tree_map(lambda x, i=i: x[i], got)
            assert seen.contains(own)
            history = [tree_leaves(f) for f in frames]
            for leaf, x in enumerate(tree_leaves(own)):
                column = [h[leaf][i] for h in history]
                np.testing.assert_array_equal(x, stack_at(column, first[:, i].tolist(), row, k))
        if row == cut:
            other.load_state_dict(stack.state_dict())


@pytest.mark.parametrize("k", [2, 4])
def test_stacks_are_those_of_gymnasiums_wrapper(k):
    wrapped = FrameStackObservation(gym.make("CartPole-v1"), k, padding_type="reset")
    stack = make_frame_stack(k, gym.make("CartPole-v1").observation_space, 1)
    rng, opens = np.random.default_rng(0), True
    for row in range(200):
        if opens:
            want, _ = wrapped.reset(seed=row)
        else:
            want, _, terminated, truncated, _ = wrapped.step(int(rng.integers(2)))
        np.testing.assert_array_equal(stack.push(want[None, -1], np.array([opens]))[0], want)
        opens = not opens and (terminated or truncated)


def test_nothing_is_made_where_nothing_is_stacked():
    assert make_frame_stack(1, IMAGE, 3) is None


def test_a_saved_stack_is_a_copy():
    stack = make_frame_stack(3, IMAGE, 1)
    one, two = list(columns_of(IMAGE, 1, 2))
    stack.push(one, np.array([True]))
    saved = stack.state_dict()["frames"]
    before = saved.copy()
    for _ in range(9):
        stack.push(two, np.array([True]))
    np.testing.assert_array_equal(saved, before)


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
        self.obs.append(obs.copy())
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


def test_a_collector_without_stack_has_no_stack_state():
    collector = make(Recorder(), 1)
    assert collector.state_dict()["stack"] is None
    collector.load_state_dict(collector.state_dict())


def test_nested_observations_reach_the_policy_as_stacked_trees():
    class Look(RandomActor):
        def act(self, obs, *rest, **named):
            shapes.append([(tuple(x.shape), x.dtype) for x in tree_leaves(obs)])
            return super().act(obs, *rest, **named)

    shapes = []
    env = make_env(replace(counter(), id="test/Boxes-v0", kwargs={}), num_envs=2)
    spec = Spec(stack_space(env.obs_space, 3), env.action_space)
    policy = uniform(spec=spec)
    policy.actor = lambda num_envs: Look(policy.space, policy.generator, 0, masked=False)
    chunk = Collector(
        collecting(num_envs=2), env=env, policy=policy, explore=lambda _: np.ones(2),
        counters=Counters(), seed=0, cutter=None,
        stack=make_frame_stack(3, env.obs_space, 2),
    ).collect()  # fmt: skip
    assert set(map(tuple, shapes)) == {
        (((2, 3, 4, 4), np.dtype(np.uint8)), ((2, 3, 2), np.dtype(np.float32)))
    }
    assert [x.shape[1:] for x in tree_leaves(chunk.obs)] == [(2, 4, 4), (2, 2)]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("episodes", [1, 7, 60])
def test_the_evaluator_shows_stacks(k, episodes):
    env = replace(counter((5, 1, 9, 3)), frame_stack=k)
    evaluator = Evaluator(env, episodes=episodes, seed=0, max_steps=10**5)
    for _ in range(2):  # the second run knows nothing of the first
        policy = Recorder()
        evaluator.run(policy, env_steps=0)
        assert policy.obs[0].shape == (min(episodes, 50), k, 3)
        assert_stacked(policy.obs, [x[:, -1] for x in policy.obs], policy.first, k)
        assert policy.first[0].all()


def test_stacking_changes_what_a_policy_does_and_nothing_else_of_an_evaluation():
    """A recurrent policy made for stacks runs; lengths and returns are the environment's."""
    env = replace(counter((4,)), frame_stack=3)
    evaluator = Evaluator(env, episodes=6, seed=0, max_steps=10**5)
    space = stack_space(evaluator.env.obs_space, env.frame_stack)
    result = evaluator.run(r2d2(spec=Spec(space, evaluator.env.action_space)), env_steps=0)
    assert result.lengths.tolist() == [4] * 6
    plain = Evaluator(replace(env, frame_stack=1), episodes=6, seed=0, max_steps=10**5)
    want = plain.run(r2d2(spec=Spec(plain.env.obs_space, plain.env.action_space)), env_steps=0)
    np.testing.assert_array_equal(result.returns, want.returns)


# -- what is checked before a run ------------------------------------------------------------------

CNN = ("env=gym", "torso=nature_cnn", "torso.hidden=[16]")


def test_float_images_are_images():
    """As uint8 ones: for convolutions, which see them as they are; a vector only if flattened."""
    env = ["env.id=tests.env.screen:test/FloatScreen-v0", "env.backend=sync"]
    c = config(*CNN, *env)
    check(c)
    torso = make_torso(c.torso, FloatScreen.observation_space)
    image = torch.rand(2, 36, 36, 3)
    assert torch.equal(torso.inputs(image), image)
    with pytest.raises(ConfigError, match=r"torso = mlp: .* Box float32 \[36, 36, 3\]"):
        check(config(*CNN, *env, "torso=mlp"))
    check(config(*CNN, *env, "torso=mlp", "env.wrappers=[flatten_obs]"))


@pytest.mark.parametrize(
    ("env_id", "k", "fits"),
    [
        ("test/Grey-v0", 4, True),  # [84, 84] -> [4, 84, 84]
        ("test/Grey-v0", 1, False),  # two dimensions
        ("test/Colour-v0", 1, True),
        ("test/Colour-v0", 4, False),  # [4, 84, 84, 3]
    ],
)
def test_convolutions_need_images_of_what_the_policy_sees(env_id, k, fits):
    c = config(*CNN, f"env.id={env_id}", f"env.frame_stack={k}")
    if not fits:
        with pytest.raises(ConfigError, match=r"torso = nature_cnn: it needs images") as caught:
            check(c)
        assert (
            "with env.frame_stack = 4 it sees Box uint8 [4, 84, 84, 3]" in str(caught.value)
        ) == (k == 4)
        return
    check(c)
    env = make_env(c.env, num_envs=2)
    space = stack_space(env.obs_space, k)
    torso = make_torso(TorsoConfig("nature_cnn", (16,), "relu", False), space)
    assert torso.channels_last == (k == 1)
    assert torso.convolutions[0].in_channels == (3 if k == 1 else 4)
    obs = torch.as_tensor(np.stack([[space.sample()] * 3] * 2))
    assert torso(obs).shape == (2, 3, 16)
    env.close()


@pytest.mark.parametrize("env", ["identity", "repeat_previous", "bitflip"])
def test_environments_without_frames_are_refused_before_a_run(env):
    check(config(f"env={env}"))
    with pytest.raises(ConfigError, match=r"env\.frame_stack = 2: observation.* space is "):
        check(config(f"env={env}", "env.frame_stack=2"))


@pytest.mark.parametrize("env", ["cartpole", "tmaze"])
def test_vectors_may_be_stacked(env):
    check(config(f"env={env}", "env.frame_stack=4"))
