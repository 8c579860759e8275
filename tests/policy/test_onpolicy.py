"""PPO, A2C, IMPALA: acting is learning's policy, states are exact, statistics, resume, overfit."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.acting.step import NumpyStep, TorchStep, make_step
from rlrun.buffer.rollout import Rollout
from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.nets.running_moments import RunningMoments
from rlrun.policy.base.rollout import segment_index
from rlrun.types import Chunk, Counters, no_actions, tree_leaves, tree_map
from tests.compose import config
from tests.env import boxes  # noqa: F401  (registers test/Unit-v0)

SMALL = (
    "collector.num_envs=4",
    "collector.n_sample=96",
    "torso.hidden=[8]",
    "policy.head_hidden=[]",
)
MULTI = gym.spaces.MultiDiscrete([2, 3])
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
SPACES = {"one": gym.spaces.Discrete(3), "several": MULTI, "real": BOX}
SHAPES = [
    ("memory=none",),
    ("memory=none", "policy.prev_inputs=true", "policy.separate_value=false"),
    ("memory=lstm", "policy.prev_inputs=true"),
    ("memory=gru", "policy.separate_value=false", "policy.head_hidden=[5]"),
    ("memory=gru", "policy.normalize_obs=true"),
    ("memory=mingru", "policy.prev_inputs=true"),
]


def collector_of(*overrides, policy="ppo", env="cartpole"):
    c = config(f"policy={policy}", f"env={env}", *SMALL, *overrides)
    return build.make_collector(make_plan(c), Counters())


def copied(chunk):
    fields = {n: tree_map(np.array, getattr(chunk, n)) for n in Chunk.__slots__}
    return Chunk(**fields)


def rollout_of(collector, chunks=1, stack=1):
    """The last of some rollouts, with what stands before it."""
    store = Rollout(collector.example(), rows=400, stack=stack)
    for _ in range(chunks):
        store.add(collector.collect())
        sample = store.take(collector.counters.env_steps)
    return sample


def learned_log_prob(policy, segment):
    rows = policy.prepare(segment)
    head, value = policy.net(rows.obs, rows.previous, rows.first, rows.state)
    return policy.net.evaluate_actions(head[:-1], rows.action).log_prob, value, rows


# -- acting ----------------------------------------------------------------------------------------


def spec_policy(space, *overrides, seed=0):
    c = config("policy=ppo", "env=cartpole", "torso.hidden=[8,6]", f"seed={seed}", *overrides)
    return make_policy(make_plan(c, (gym.spaces.Box(-5, 5, (3,), np.float32), space, 1)))


def play(step, space, rows=6, envs=4):
    rng, state, out = np.random.default_rng(0), step.initial_state(), []
    space.seed(0)
    for t in range(rows):
        first = rng.random(envs) < 0.3 if t else np.ones(envs, bool)
        action = np.stack([space.sample() for _ in range(envs)])
        obs, reward = (rng.normal(size=s).astype(np.float32) for s in ((envs, 3), envs))
        head, state = step(obs, first, action, reward, state)
        out += [head, *tree_leaves(state)]
    return out


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_is_torch(shape, space):
    net = spec_policy(SPACES[space], *shape, "policy.orthogonal_init=false").net
    if net.moments is not None:
        net.moments.add(torch.randn(50, 3) * 3 + 1)
    assert isinstance(make_step(net, 4), NumpyStep)
    pair = (
        play(NumpyStep(net, 4), SPACES[space]),
        play(TorchStep(net, 4), SPACES[space]),
    )
    for got, want in zip(*pair, strict=True):
        assert got.dtype == want.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [NumpyStep, TorchStep])
def test_a_step_keeps_its_weights_until_it_is_refreshed(kind, shape):
    one, two = (spec_policy(MULTI, *shape, seed=s).net for s in (0, 1))
    step, before = kind(one, 4), play(kind(one, 4), MULTI)
    if two.moments is not None:
        two.moments.add(torch.randn(9, 3) + 1)
    one.load_state_dict(two.state_dict())
    for got, want in zip(play(step, MULTI), before, strict=True):
        np.testing.assert_array_equal(got, want)
    step.refresh()
    for got, want in zip(play(step, MULTI), play(kind(two, 4), MULTI), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [NumpyStep, TorchStep])
def test_observations_are_standardised_before_float32_rounds_them(kind, dtype):
    """A clock of seconds since 1970 counts in steps of 128 in float32; images are not scaled."""
    space = gym.spaces.Box(0, 255, (40, 40), dtype) if dtype == np.float32 else None
    space = space or gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    c = config("policy=ppo", "env=cartpole", "torso.hidden=[]", "policy.normalize_obs=true")
    policy = make_policy(make_plan(c, (space, MULTI, 1)))
    base = np.float64(1.7e9) if dtype == np.float64 else 100.0
    obs = (base + np.random.default_rng(0).normal(size=(50, *space.shape))).astype(dtype)
    policy.net.moments.add(torch.from_numpy(obs))
    standard = ((obs - obs.mean(0, np.float64)) / obs.std(0, dtype=np.float64)).astype("f4")
    want = policy.net.policy(torch.from_numpy(standard.reshape(50, -1))).detach()
    step = kind(policy.net, 50)
    step.refresh()
    none = np.zeros(50, np.float32)
    out, _ = step(obs, np.ones(50, bool), none, none, ())
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-5)


def test_real_actions_are_clipped_for_the_environment_only():
    policy = spec_policy(BOX, "policy.log_std_init=1.0")
    actor = policy.actor(500)
    obs, first = np.zeros((500, 3), np.float32), np.ones(500, bool)
    given = (obs, first, no_actions(BOX, 500), np.zeros(500, np.float32), ())
    out = actor.act(*given, explore=np.zeros(500, np.float32))
    raw = out.extras["raw_action"]
    assert (np.abs(raw) > 1).mean() > 0.5
    np.testing.assert_array_equal(out.action, raw.clip(-1, 1))
    head = torch.from_numpy(actor.step(*given)[0])
    want = policy.net.evaluate_actions(head[None], torch.from_numpy(raw)[None]).log_prob[0]
    np.testing.assert_allclose(out.extras["log_prob"], want.detach(), rtol=1e-4, atol=1e-5)
    mode = actor.act(*given, explore=None)
    np.testing.assert_array_equal(mode.extras["raw_action"], head)


@pytest.mark.parametrize("memory", [(), ("memory=gru", "policy.prev_inputs=true")], ids=str)
def test_a_policy_acts_in_the_unit_of_its_box(memory):
    """Networks act alike in every bounded box; (2, inf) and (-inf, inf) keep their unit."""
    low = np.array([-1, 10, -0.001, 2, -np.inf, 3], np.float32)
    high = np.array([1, 20, 0.001, np.inf, np.inf, 3], np.float32)
    space, raw_space = gym.spaces.Box(low, high), gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    policies = [spec_policy(x, "policy.log_std_init=-0.5", *memory) for x in (space, raw_space)]
    middle, half = np.array([0, 15, 0, 2, 0, 3]), np.array([1, 5, 0.001, 1, 1, 0])
    actors, acts = [policy.actor(50) for policy in policies], []
    obs, reward = np.ones((50, 3), np.float32), np.ones(50, np.float32)
    for actor, scale in zip(actors, (half, 1), strict=True):
        previous = np.float32((scale is half) * middle + scale * np.full((50, 6), 0.25))
        state = actor.initial_state()
        given = (obs, np.zeros(50, bool), previous, reward, state)
        acts.append(actor.act(*given, explore=np.zeros(50)))
    boxed, raw = acts
    sample = raw.extras["raw_action"].copy()
    if memory:
        sample[...] = boxed.extras["raw_action"]  # low = high has no unit: its input is 0
    np.testing.assert_array_equal(boxed.extras["raw_action"], sample)
    np.testing.assert_allclose(boxed.action, (middle + half * sample).clip(low, high), rtol=1e-6)
    assert boxed.action.dtype == np.float32
    off = spec_policy(space, "policy.rescale_actions=false").actor(50)
    unscaled = off.act(*given, explore=np.zeros(50))
    want = unscaled.extras["raw_action"].clip(low, high)
    np.testing.assert_array_equal(unscaled.action, want)


@pytest.mark.parametrize("more", [(), ("memory=gru", "policy.prev_inputs=true")], ids=str)
@pytest.mark.parametrize("box", [(10, 20), (-0.001, 0.001)], ids=str)
@pytest.mark.parametrize("policy", ["ppo", "a2c", "impala"])
def test_the_unit_of_a_box_changes_no_update(policy, box, more):
    """Rollouts of boxes that differ in their unit alone, by kernels and by autograd; shape ()."""
    weights = []
    for low, high in ((-1, 1), box):
        env = "env.id=test/Unit-v0", f"env.kwargs={{low: {low}, high: {high}}}"
        learner = collector_of(*env, *more, policy=policy, env="gym")
        learner.policy.update(rollout_of(learner, chunks=2))
        weights.append(torch.cat([w.flatten() for w in learner.policy.weights().values()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_acting_and_learning_agree(shape, env):
    """Behaviour log-probabilities are the learner's, and so is the stored state of every row."""
    policy = (collector := collector_of(*shape, env=env)).policy
    if policy.net.moments is not None:
        policy.net.moments.add(torch.from_numpy(collector.obs).repeat(8, 1) * 2)
    segment = rollout_of(collector, chunks=3).segment
    log_prob, _, rows = learned_log_prob(policy, segment)
    valid = rows.valid
    torch.testing.assert_close(
        log_prob[valid], rows.behaviour_log_prob[valid], rtol=1e-4, atol=1e-5
    )
    if policy.net.recurrent:
        cut = policy.with_advantages(rows, policy.outputs(rows)[1].detach())
        torch.testing.assert_close(
            policy.net(cut.obs, cut.previous, cut.first, cut.state)[1][cut.valid],
            cut.value[cut.valid],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
        assert int(cut.valid.sum()) == int(valid.sum())
        assert not segment.first[0].all(), "a rollout that begins within episodes"


def test_stacked_frames_are_what_acting_saw():
    collector = collector_of("env.frame_stack=3")
    segment = rollout_of(collector, chunks=3, stack=3).segment
    assert segment.obs.shape[2:] == (3, 4)
    log_prob, _, rows = learned_log_prob(collector.policy, segment)
    torch.testing.assert_close(log_prob[rows.valid], rows.behaviour_log_prob[rows.valid])


# -- learning --------------------------------------------------------------------------------------


def test_segments_by_hand():
    place, real = segment_index(5, 2, 3)
    assert place.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 8, 9]]
    assert real.tolist() == [[True] * 4, [True] * 4, [True, True, False, False]]


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_minibatches_hold_every_row_once(memory):
    collector = collector_of(f"memory={memory}", "policy.segment_len=7")
    policy = collector.policy
    rows = policy.prepare(rollout_of(collector, chunks=2).segment)
    whole = policy.with_advantages(rows, policy.outputs(rows)[1].detach())
    whole = replace(whole, target=torch.arange(whole.target.numel()).reshape(whole.target.shape))
    parts = policy.shuffle(whole, 4)
    assert len(parts) == 4
    seen = torch.cat([p.target[p.valid] for p in parts])
    assert sorted(seen.tolist()) == whole.target[whole.valid].sort().values.tolist()
    sizes = [p.valid.shape[1] for p in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert (part.advantage[~part.valid] == 0).all()
        kept = part.advantage[part.valid]
        assert abs(kept.mean()) < 1e-5
        assert kept.std() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("policy", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_overfits_one_rollout(policy, memory):
    """The value explains its targets and good actions become likely."""
    more = ("policy.epochs=1", "policy.value_clip=null") if policy == "ppo" else ()
    collector = collector_of(
        f"memory={memory}", "policy.lr=3e-3", "policy.entropy_coef=0", "policy.gamma=0.9", *more,
        "policy.grad_clip=10", policy=policy,
    )  # fmt: skip
    sample = rollout_of(collector)
    count = 300 if memory == "none" else 150
    updates = [collector.policy.update(sample) for _ in range(count)]
    first, last = updates[0].metrics, updates[-1].metrics
    assert last["train/value_loss"] < 0.3 * first["train/value_loss"]
    assert last["train/entropy"] < first["train/entropy"]
    assert all(torch.isfinite(x) for u in updates for x in u.metrics.values())


NORMAL = ("policy.normalize_obs=true", "policy.normalize_reward=true")


@pytest.mark.parametrize("policy", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize("shape", [("memory=none",), ("memory=lstm", *NORMAL)], ids=str)
def test_resumed_is_uninterrupted(policy, shape):
    """Bit for bit, on the same rows; the dealing of minibatches and statistics included."""
    batch = ("learner.batch_size=32",)
    collector = collector_of(*shape, *batch, policy=policy, env="pendulum")
    chunks = [copied(collector.collect()) for _ in range(6)]
    whole, begun, resumed = (
        collector_of(*shape, *batch, f"seed={s}", policy=policy, env="pendulum") for s in (0, 0, 5)
    )

    def learn(who, store, pieces):
        for chunk in pieces:
            store.add(chunk)
            update = who.policy.update(store.take(0))
        return update

    def store():
        return Rollout(collector.example(), rows=400)

    last = learn(whole, store(), chunks)
    half = store()
    learn(begun, half, chunks[:3])
    rest = store()
    rest.load_state_dict(half.state_dict())
    resumed.policy.load_state_dict(begun.policy.state_dict())
    again = learn(resumed, rest, chunks[3:])
    for name, value in last.metrics.items():
        assert torch.equal(value, again.metrics[name]), name
    pairs = tree_leaves(whole.policy.state_dict()), tree_leaves(resumed.policy.state_dict())
    for a, b in zip(*pairs, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_kl_stops_the_passes():
    collector = collector_of("policy.lr=0.05", "policy.epochs=10", "learner.batch_size=24")
    sample = rollout_of(collector)
    state = tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, collector.policy.state_dict()
    )
    assert collector.policy.update(sample).steps == 40
    collector.policy.load_state_dict(state)
    collector.policy.config = replace(collector.policy.config, target_kl=0.01)
    update = collector.policy.update(sample)
    assert update.steps < 40
    assert update.steps % 4 == 0
    assert update.metrics["train/approx_kl"] > 0.01


def test_clip_and_step_size_follow_the_clock():
    line = ("policy.clip={kind: linear, start: 0.4, end: 0}", "run.total_steps=1000")
    collector = collector_of(*line)
    assert collector.policy.clip_at(250) == pytest.approx(0.3)
    sample = replace(rollout_of(collector), env_steps=500)
    assert collector.policy.update(sample).metrics["train/lr"].item() == pytest.approx(5e-4)


# -- statistics ------------------------------------------------------------------------------------


def test_moments_are_those_of_everything_added():
    x = torch.randn(100, 3, dtype=torch.float64) * 5 + 2
    moments = RunningMoments((3,))
    torch.testing.assert_close(moments(x[:2]), x[:2].float().clamp(-10, 10))
    for piece in x.split([1, 60, 39]):
        moments.add(piece)
    torch.testing.assert_close(moments.mean, x.mean(0))
    torch.testing.assert_close(moments.scale(), (x.var(0, correction=0) + 1e-8).rsqrt().float())


def test_observations_are_seen_with_the_statistics_of_earlier_rollouts():
    """Valid rows alone count; a rollout is learned from with the statistics it was acted with."""
    collector = collector_of("policy.normalize_obs=true")
    sample, moments = rollout_of(collector), collector.policy.net.moments
    assert moments.count == 0
    collector.policy.update(sample)
    seen = sample.segment.obs[:-1][sample.segment.valid].double()
    torch.testing.assert_close(moments.mean, seen.mean(0))
    assert moments.count == len(seen)
    assert "moments.mean" in collector.policy.weights(), "an evaluation needs them"


def test_rewards_are_divided_by_the_deviation_of_running_returns():
    """One number at a time, over two rollouts and the ends of episodes."""
    collector = collector_of("policy.normalize_reward=true", "policy.gamma=0.9")
    running, returns = np.zeros(4), []
    store = Rollout(collector.example(), rows=400)
    for _ in range(2):
        store.add(collector.collect())
        segment = store.take(0).segment
        rows = collector.policy.prepare(segment)
        for t in range(len(segment.reward)):
            for b in range(4):
                if not segment.valid[t, b]:
                    continue
                running[b] = 0.9 * running[b] + segment.reward[t, b].item()
                returns.append(running[b])
                if segment.terminated[t, b] or segment.truncated[t, b]:
                    running[b] = 0
        want = segment.reward[segment.valid] / (np.var(returns) + 1e-8) ** 0.5
        torch.testing.assert_close(rows.reward[segment.valid], want.clamp(-10, 10).float())
    assert len(returns) == collector.policy.returns.count
