"""PPO, A2C, IMPALA, PQN: updates by loops over rows, acting is learning's policy, statistics."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.schema import MEMORY_CONFIGS
from rlrun.types import Spec
from tests.policy import make
from tests.policy.make import BOX, DISCRETE, MASKED, OBS, build, rollout
from tests.reference.traces import gae_rows, lambda_rows, ppo_row, vtrace_rows

NAMES = ["ppo", "a2c", "impala"]
BY_NAME = pytest.mark.parametrize("name", NAMES)
MULTI = Spec(OBS, gym.spaces.MultiDiscrete([2, 3]))
SHAPES = {
    "discrete": {},
    "masked": {"spec": MASKED, "separate_value": False},
    "several": {"spec": MULTI, "prev_inputs": True, "head_hidden": ()},
    "real": {"spec": BOX, "prev_inputs": True, "entropy_coef": 0.1},
    "gru": {"memory": "gru", "prev_inputs": True, "separate_value": False},
    "lstm": {"memory": "lstm", "spec": BOX},
}


MEMORIES = sorted({*MEMORY_CONFIGS} - {"none", "lstm", "gru"})  # SHAPES have those


def spec_of(given):
    return given.get("spec", DISCRETE)


def shifted(sample, seed=0):
    """The sample as rows of another policy: probabilities of its actions are others."""
    log_prob = sample.segment.extras["log_prob"]
    noise = torch.randn(log_prob.shape, generator=torch.Generator().manual_seed(seed))
    extras = sample.segment.extras | {"log_prob": log_prob + 0.4 * noise}
    return replace(sample, segment=replace(sample.segment, extras=extras))


# -- the loop --------------------------------------------------------------------------------------


def log_prob_and_entropy(net, params, action, space):
    """Of every row, each component of the action by itself."""
    if isinstance(space, gym.spaces.Box):
        normal = torch.distributions.Normal(params, net.log_std.exp())
        return normal.log_prob(action).sum(-1), normal.entropy().sum(-1)
    sizes = [int(n) for n in getattr(space, "nvec", [getattr(space, "n", 0)])]
    action = action.reshape(*params.shape[:-1], -1)
    parts = [part.log_softmax(-1) for part in params.split(sizes, -1)]
    chosen = [p.gather(-1, action[..., i : i + 1])[..., 0] for i, p in enumerate(parts)]
    return sum(chosen), sum(-(p.exp() * p).sum(-1) for p in parts)


def columns(function, rows, *given):
    """Results of ``function`` of lists, column by column, as tensors [T, B]."""
    ends = (rows.terminated, rows.truncated, rows.valid)
    lists = [[x[:, b].tolist() for x in (*rows_of(rows, given), *ends)]
             for b in range(rows.valid.shape[1])]  # fmt: skip
    return [function(*x) for x in lists]


def rows_of(rows, given):
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in given]


def naive(policy, sample, old=None):
    """(loss, value) of a whole rollout; ``old``: values and advantages before a first step."""
    own, s = make.nets(policy), sample.segment
    c, valid, count = own.config, s.valid, s.valid.sum()
    obs, previous = own.net.window_inputs(s, own.config)
    params, value = own.net(obs, previous, s.first, s.state)
    action = s.extras.get("raw_action", s.action)
    log_prob, entropy = log_prob_and_entropy(own.net, params[:-1], action, own.net.space)
    behaviour, reward = s.extras["log_prob"], s.reward * c.reward_scale
    ratio = (log_prob - behaviour).exp()
    if c.name == "impala":
        found = columns(lambda *x: vtrace_rows(*x, c.gamma, c.vtrace_lambda, c.rho_clip, c.c_clip),
                        s, ratio, reward, value)  # fmt: skip
        target, advantage = (torch.tensor([f[i] for f in found]).T for i in (0, 1))
    else:
        found = columns(lambda *x: gae_rows(*x, c.gamma, c.gae_lambda), s, reward, value)
        advantage = torch.tensor(found).T
        target = advantage + value[:-1].detach()
        if c.normalize_advantage:
            seen = advantage[valid]
            advantage = (advantage - seen.mean()) / seen.std()
    if c.name == "ppo":
        advantage, target, before = old or (advantage, target, value[:-1].detach())
        old = advantage, target, before
        terms = [ppo_row(*(x[at].item() for x in (log_prob, behaviour, advantage)), 0.2)
                 for at in zip(*valid.nonzero(as_tuple=True), strict=True)]  # fmt: skip
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        assert gain[valid].sum().item() == pytest.approx(sum(terms), rel=1e-4, abs=1e-4)
        error = (value[:-1] - target).square()
        if c.value_clip is not None:
            near = before + (value[:-1] - before).clamp(-c.value_clip, c.value_clip)
            error = torch.maximum(error, (near - target).square())
    else:
        gain, error = advantage * log_prob, (value[:-1] - target).square()
    row = -gain + c.value_coef * 0.5 * error - c.entropy_coef * entropy
    return row[valid].sum() / count, old


def check(name, sample_of=shifted, **given):
    policy = build(name, **given)
    sample = sample_of(rollout(policy, spec_of(given)))
    loss, _ = naive(policy, sample)
    want = make.named_gradients(loss, "", make.nets(policy).net)
    update, grads = make.gradients(policy, sample)
    assert update.priority is None
    assert update.metrics["train/loss"].item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    make.assert_gradients(grads, want)
    return update, sample


@pytest.mark.parametrize("shape", SHAPES)
@BY_NAME
def test_an_update_is_the_loop_over_rows(name, shape):
    """Loss and gradients of one step on rollouts with all three flags, of another policy."""
    update, sample = check(name, **SHAPES[shape])
    assert not sample.segment.valid.all()
    assert not sample.segment.first[0].all()
    assert all(torch.isfinite(x) for x in update.metrics.values())


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_advantages_are_standardised(name):
    check(name, normalize_advantage=True, gae_lambda=0.7, value_coef=0.25)


def test_both_clips_of_vtrace():
    check("impala", rho_clip=1.1, c_clip=0.9, vtrace_lambda=0.8)


def test_the_second_step_on_a_rollout_clips_values_around_those_before_the_first():
    """Adam's second step by hand, on gradients of the two losses."""
    given = {"value_clip": 0.05, "reward_scale": 5.0, "value_coef": 2.0}
    one, both = build("ppo", **given), build("ppo", epochs=2, **given)
    sample = shifted(rollout(one))
    start, (_, old) = make.weights(one), naive(one, sample)
    _, first = make.gradients(one, sample)
    free, _ = naive(build("ppo", **given | {"value_clip": None}), sample, old)
    loss, _ = naive(one, sample, old)
    assert loss != free
    second = make.named_gradients(loss, "", make.nets(one).net)
    update = both.update(sample)
    assert (update.steps, one.update(sample).steps) == (2, 1)
    assert update.metrics["train/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    now, after_one = make.weights(both), {k: start[k] - g / (g.abs() + 1) for k, g in first.items()}
    for k, g in first.items():
        mean = (0.09 * g + 0.1 * second[k]) / (1 - 0.9**2)
        square = (0.999e-3 * g**2 + 1e-3 * second[k] ** 2) / (1 - 0.999**2)
        want = after_one[k] - mean / (square.sqrt() + 1)
        torch.testing.assert_close(now[k], want, rtol=1e-3, atol=2e-5)


def test_metrics_of_ppo_by_hand():
    """Of the rows' ratios to the acting policy."""
    policy = build("ppo")
    own = rollout(policy)
    sample = shifted(own)
    ratio = (own.segment.extras["log_prob"] - sample.segment.extras["log_prob"]).exp()
    valid = sample.segment.valid
    ratio = ratio[valid]
    metrics = policy.update(sample).metrics
    outside = (ratio < 0.8) | (ratio > 1.2)
    assert metrics["train/clip_fraction"].item() == pytest.approx(outside.float().mean().item())
    kl = (ratio - 1 - ratio.log()).mean().item()
    assert metrics["train/approx_kl"].item() == pytest.approx(kl, rel=1e-3)
    clipped = build("impala", rho_clip=1.1).update(sample).metrics["train/rho_clipped"]
    assert clipped.item() == pytest.approx((ratio > 1.1).float().mean().item())
    acting = build("impala")
    assert acting.update(rollout(acting)).metrics["train/rho_clipped"] == 0, "but for rounding"


# -- acting is learning ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [*SHAPES.values(), *({"memory": m, "prev_inputs": True, "hidden": 8} for m in MEMORIES),
     {"torso": (8, 5), "activation": "elu", "reward_clip": 0.5, "memory": "lstm",
      "prev_inputs": True, "separate_value": True, "head_hidden": (5, 4)}],
    ids=lambda given: "-".join(map(str, given.values()))[:30],
)  # fmt: skip
def test_learning_has_the_probabilities_and_states_of_acting(given):
    """approx_kl is 0; cut into segments with their stored states the loss is the whole one's."""
    policy = build("ppo", **given)
    sample = rollout(policy, spec_of(given))
    cut = build("ppo", **given | {"segment_len": 5})
    metrics = policy.update(sample).metrics
    assert abs(metrics["train/approx_kl"].item()) < 1e-8
    assert metrics["train/clip_fraction"] == 0
    loss = cut.update(sample).metrics["train/loss"].item()
    assert loss == pytest.approx(metrics["train/loss"].item(), rel=1e-4)


@pytest.mark.parametrize("memory", ["none", "ffm"])
def test_observations_are_standardised_by_earlier_rollouts_before_float32_rounds_them(memory):
    """A clock of seconds since 1970 counts in steps of 128 in float32."""
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (3,), np.float64), DISCRETE.action)
    policy = build("ppo", spec=spec, memory=memory, normalize_obs=True, lr=make.constant(0.0))
    plain = build("ppo", memory=memory)
    plain.load({k: w for k, w in policy.weights().items() if not k.startswith("moments")})
    sample = rollout(policy, spec)
    base = replace(sample, segment=replace(sample.segment, obs=sample.segment.obs + 1.7e9))
    policy.update(base)
    seen = base.segment.obs[:-1][base.segment.valid]
    torch.testing.assert_close(policy.weights()["moments.mean"], seen.mean(0))
    actor, other = policy.actor(4), plain.actor(4)
    obs = base.segment.obs[0]
    standard = ((obs - seen.mean(0)) / seen.std(0, correction=0)).float().numpy()
    rest = (np.ones(4, bool), np.zeros(4, int), np.zeros(4, np.float32), actor.initial_state())
    acts = [a.act(x, *rest, explore=None) for a, x in ((actor, obs.numpy()), (other, standard))]
    np.testing.assert_allclose(*(a.extras["log_prob"] for a in acts), rtol=1e-3, atol=1e-5)
    again = rollout(policy, spec, seed=1)
    assert abs(policy.update(again).metrics["train/approx_kl"].item()) < 1e-8


def test_the_first_rollout_is_standardised_by_itself_and_a_constant_stays():
    """By default, of vectors of real numbers."""
    frozen = {"lr": make.constant(0.0)}
    policy, plain = build("a2c", normalize_obs=None, **frozen), build("a2c", **frozen)
    plain.load({k: w for k, w in policy.weights().items() if not k.startswith("moments")})
    sample = rollout(policy, DISCRETE)
    obs = 5 * sample.segment.obs - 2
    obs[..., 0] = 0.1
    seen = obs[:-1][sample.segment.valid]
    standard = (obs - seen.mean(0)) / seen.std(0, correction=0)
    standard[..., 0] = 0.1
    samples = [replace(sample, segment=replace(sample.segment, obs=x)) for x in (obs, standard)]
    losses = [
        p.update(x).metrics["train/loss"] for p, x in zip((policy, plain), samples, strict=True)
    ]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(policy.weights()["moments.count"].item(), float(len(seen)))
    acting = []
    for p, x in zip((policy, plain), samples, strict=True):
        actor = p.actor(4)
        rest = (np.ones(4, bool), np.zeros(4, int), np.zeros(4, np.float32), actor.initial_state())
        acting.append(actor.act(x.segment.obs[0].numpy(), *rest, explore=None).extras["log_prob"])
    np.testing.assert_allclose(*acting, rtol=1e-4, atol=1e-5)
    for space in (gym.spaces.Discrete(3), gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)):
        other = build("a2c", normalize_obs=None, spec=Spec(space, DISCRETE.action))
        assert "moments.mean" not in other.weights()


def test_real_actions_are_clipped_for_the_environment_only():
    policy = build("ppo", spec=BOX, log_std_init=0.7)
    act = make.act_once(policy, BOX, envs=500, explore=0.0)
    raw, mode = act.extras["raw_action"], make.act_once(policy, BOX, envs=500)
    assert (np.abs(raw) > 1).mean() > 0.3
    space = BOX.action
    own = (space.low + space.high) / 2 + raw * (space.high - space.low) / 2
    np.testing.assert_allclose(act.action, own.clip(space.low, space.high), rtol=1e-6, atol=1e-6)
    z = (raw - mode.extras["raw_action"]) / math.exp(0.7)
    want = -(z**2 / 2).sum(-1) - 2 * 0.7 - math.log(2 * math.pi)
    np.testing.assert_allclose(act.extras["log_prob"], want, rtol=1e-4, atol=1e-4)
    assert z.std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_policy_acts_in_the_unit_of_its_box(memory):
    """Networks act alike in every bounded box; (2, inf) and (-inf, inf) keep their unit."""
    low = np.array([-1, 10, -0.001, 2, -np.inf], np.float32)
    high = np.array([1, 20, 0.001, np.inf, np.inf], np.float32)
    boxed, raw = (Spec(OBS, gym.spaces.Box(a, b, (5,), np.float32))
                  for a, b in ((low, high), (-np.inf, np.inf)))  # fmt: skip
    middle, half = np.array([0, 15, 0, 2, 0]), np.array([1, 5, 0.001, 1, 1])
    given, acts = {"memory": memory, "prev_inputs": memory != "none"}, []
    for spec, shift, scale in ((boxed, middle, half), (raw, 0 * middle, 1)):
        actor = build("ppo", spec=spec, **given).actor(50)
        previous = np.float32(shift + scale * np.full((50, 5), 0.25))
        row = np.ones((50, 3), np.float32), np.zeros(50, bool), previous, np.ones(50, np.float32)
        acts.append(actor.act(*row, actor.initial_state(), explore=np.zeros(50)))
    one, two = (a.extras["raw_action"] for a in acts)
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(acts[0].action, (middle + half * one).clip(low, high), rtol=1e-5)
    off = make.act_once(build("ppo", spec=boxed, rescale_actions=False), boxed, explore=0.0)
    np.testing.assert_array_equal(off.action, off.extras["raw_action"].clip(low, high))


# -- passes over a rollout -------------------------------------------------------------------------


def test_every_row_is_in_one_minibatch_of_a_pass():
    """Each row has a weight of its own (one-hot observations): Adam's mean tells its minibatch."""
    steps, envs, parts = 24, 2, 4
    count = (steps + 1) * envs
    spec = Spec(gym.spaces.Discrete(count), gym.spaces.Discrete(2))
    given = {"spec": spec, "torso": (), "head_hidden": (), "lr": make.constant(1e-9)}
    policy = build("ppo", **given, batch_size=13, separate_value=False)  # 3.7 are 4
    sample = rollout(policy, spec, steps=steps, envs=envs)
    s = sample.segment
    ends, number = torch.zeros_like(s.valid), torch.arange(count).reshape(steps + 1, envs)
    plain = replace(s, obs=number, valid=~ends, terminated=~ends, truncated=ends)
    value = make.weights(policy)[".value.0.weight"][0]
    bias = make.weights(policy)[".value.0.bias"]
    assert policy.update(replace(sample, segment=plain)).steps == parts
    names = [k for k, _ in make.nets(policy).net.named_parameters()]
    mean = policy.state_dict()["net"]["adam"]["mean"][names.index("value.0.weight")][0]
    c = make.nets(policy).config
    error = value + bias - torch.cat([c.reward_scale * s.reward.flatten(), torch.zeros(envs)])
    factor = mean / (0.1 * c.value_coef * error / 12)
    rounds = (factor[: steps * envs].log() / math.log(0.9)).round().int()
    assert torch.bincount(rounds, minlength=parts).tolist() == [12] * parts
    assert (mean[steps * envs :] == 0).all()
    assert rounds.tolist() != sorted(rounds.tolist()), "shuffled"


def test_kl_stops_the_passes():
    given = {"lr": make.constant(0.05), "adam_eps": 1e-5, "epochs": 10, "batch_size": 20}
    whole = build("ppo", **given)
    sample = rollout(whole)
    per_pass = round(sample.segment.valid.sum().item() / 20)
    assert whole.update(sample).steps == 10 * per_pass
    update = build("ppo", **given, target_kl=0.01).update(sample)
    assert update.steps < 10 * per_pass
    assert update.steps % per_pass == 0
    assert update.metrics["train/approx_kl"] > 0.01


def test_clip_and_step_size_follow_the_clock():
    """Half way of 0.4 -> 0 is 0.2."""
    one, other = (
        build("ppo", clip_range=make.linear(0.4, 0.0)),
        build("ppo", clip_range=make.constant(0.2)),
    )
    sample = replace(shifted(rollout(build("ppo"))), env_steps=500)
    make.assert_same_update(one, other, sample, sample)
    update = build("ppo", lr=make.linear(1e-3, 0.0)).update(sample)
    assert update.metrics["train/lr"].item() == pytest.approx(5e-4)


@pytest.mark.parametrize("name", ["ppo", "pqn"])
def test_rewards_are_divided_by_the_deviation_of_running_returns(name):
    """One number at a time, over two rollouts and the ends of episodes."""
    one, other = build(name, normalize_reward=True), build(name)
    running, returns = np.zeros(4), []
    for i in range(2):
        sample = rollout(one, before=5 * i, seed=i)
        s = sample.segment
        for t, b in np.ndindex(*s.reward.shape):
            if s.first[t, b] or (i and not t and not s.valid[t, b]):
                running[b] = 0
            if not s.valid[t, b]:
                continue
            running[b] = 0.9 * running[b] + 2.0 * s.reward[t, b].item()
            returns.append(running[b])
            if s.terminated[t, b] or s.truncated[t, b]:
                running[b] = 0
        shaped = (2.0 * s.reward / (np.var(returns) + 1e-8) ** 0.5).clamp(-10, 10) / 2.0
        shaped = replace(sample, segment=replace(s, reward=shaped))
        a, b = one.update(sample), other.update(shaped)
        torch.testing.assert_close(a.metrics["train/loss"], b.metrics["train/loss"])
    both = make.weights(one), make.weights(other)
    for k, w in both[1].items():
        torch.testing.assert_close(both[0][k], w, rtol=1e-4, atol=1e-5)


# -- PQN -------------------------------------------------------------------------------------------

PQN = [
    {},
    {"prev_inputs": True, "dueling": True, "reward_clip": 0.7},
    {"memory": "gru", "prev_inputs": True},
    {"memory": "mingru"},
    {"spec": MASKED},
]


@pytest.mark.parametrize("given", PQN, ids=str)
def test_an_update_of_pqn_is_the_loop_over_rows(given):
    """Targets of allowed actions alone; the first step of RAdam is lr times the gradient."""
    policy = build("pqn", q_lambda=0.6, **given)
    sample = rollout(policy, spec_of(given), explore=0.5)
    s, own = sample.segment, make.nets(policy)
    c, q = own.config, make.stepped_q(own, s)
    best = q.detach()
    if isinstance(s.obs, dict):
        mask = s.obs["action_mask"] > 0
        best = torch.where(mask | ~mask.any(-1, keepdim=True), best, -torch.inf)
    reward = s.reward * c.reward_scale
    reward = reward if c.reward_clip is None else reward.clamp(-c.reward_clip, c.reward_clip)
    target = torch.tensor(
        columns(lambda *x: lambda_rows(*x, c.gamma, c.q_lambda), s, reward, best.amax(-1))
    ).T
    taken = q[:-1].gather(-1, s.action[..., None])[..., 0]
    loss = 0.5 * (target - taken)[s.valid].square().mean()
    want = make.named_gradients(loss, "", own.net)
    update, grads = make.gradients(policy, sample, optimiser="radam")
    assert update.metrics["train/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert update.metrics["train/q_taken"].item() == pytest.approx(
        taken[s.valid].mean().item(), rel=1e-3, abs=1e-5
    )
    make.assert_gradients(grads, want)


def test_pqn_cut_into_segments_starts_from_their_stored_states():
    whole, cut = build("pqn", memory="lstm"), build("pqn", memory="lstm", segment_len=5)
    sample = rollout(whole, explore=0.5)
    a, b = (p.update(sample).metrics["train/loss"].item() for p in (whole, cut))
    assert a == pytest.approx(b, rel=1e-4)
    steps = build("pqn", epochs=3, batch_size=20).update(sample).steps
    assert steps == 3 * round(sample.segment.valid.sum().item() / 20)
