"""DDPG, TD3, SAC, CQL on SAC: naive twins row by row, padding without effect, critics, acting."""

import copy
import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rlrun.acting.step import NumpyStep, TorchStep, make_step
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.actor_and_critics import Critics
from rlrun.types import Segment, Spec, tree_leaves, tree_map
from tests.policy.factory import BOX, RECURRENT, box_batch, control

NAMES = ["sac", "td3", "ddpg", "cql_sac"]
SHAPES = {
    "single": {},
    "one step": {"nstep": 1},
    "inputs": {"prev_inputs": True},
    "sequence": {"learn_unroll_len": 7, "burnin_step": 2},
    "lstm": RECURRENT,
    "gru": RECURRENT | {"memory": "gru", "learn_unroll_len": 4, "burnin_step": 0},
    "mingru": RECURRENT | {"memory": "mingru"},
    "partial": RECURRENT | {"learn_unroll_len": 5, "burnin_step": 7, "nstep": 2},  # bs > L
    "zero": RECURRENT | {"state_init": "zero"},
}
OPTIONS = [
    {"reward_scale": 0.05, "reward_clip": 0.4},
    {"td_clip": 0.05},
    {"eta": 0.3},
    {"gamma": 1.0},
    {"activation": "relu"},
]


def stirred(policy):
    """Targets apart from what they follow, so that mixing the two up shows."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in (*policy.pi_target_params, *policy.q_target_params):
            p += 0.1 * torch.randn(p.shape, generator=g)
    return policy


# -- the naive twin --------------------------------------------------------------------------------


def heads_one_by_one(critics: Critics, h, action):
    """[C] values of one row, layer by layer."""
    out = []
    for c in range(critics.count):
        x = torch.cat([h, action])
        for i, (w, b) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            x = F.linear(x, w[c].T, b[c, 0])
            if i < len(critics.weights) - 1:
                x = critics.activations[i](x)
        out.append(x[0])
    return torch.stack(out)


def features_one_by_one(policy, encoder, segment, b, state):
    """{position: features} of window b, one position after the other."""
    c, bs = policy.config, policy.window.burnin
    low, high = (torch.from_numpy(getattr(policy.bounds.space, k)) for k in ("low", "high"))
    valid = [bool(v) for v in segment.valid[:, b]] + [False]
    action, reward = segment.extras["prev_action"][b], segment.extras["prev_reward"][b]
    began, out = False, {}
    for p in range(policy.window.rows):
        if not (valid[p] or (p > 0 and valid[p - 1] and not segment.terminated[p - 1, b])):
            continue
        if began:
            action, reward = segment.action[p - 1, b], segment.reward[p - 1, b]
        began = True
        unit, paid = 2 * (action - low) / (high - low) - 1, reward * c.reward_scale
        if c.reward_clip is not None:
            paid = paid.clamp(-c.reward_clip, c.reward_clip)
        if segment.first[p, b]:
            unit, paid = torch.zeros(2), torch.tensor(0.0)
        x = encoder.torso(segment.obs[p, b][None])
        if c.prev_inputs:
            x = torch.cat([x, unit[None], paid[None, None]], -1)
        with torch.set_grad_enabled(p >= bs):
            h, state = encoder.memory.unroll(x[None], state)
        out[p] = h[0, 0]
    return out


def one_by_one(policy, segment: Segment, b: int, noise):
    """(critic loss, actor loss, -log probs, |td|s, gaps) of window b; ``noise``: of its draws."""
    c, w, name = policy.config, policy.window, policy.config.name
    soft = name in ("sac", "cql_sac")
    stored = tree_map(lambda x: x[b : b + 1], segment.state)
    actor, critics = policy.pi, policy.q
    zero = [n.encoder.memory.initial_state(1, torch.device("cpu")) for n in (actor, critics)]
    state = stored if c.state_init == "stored" else zero[0]
    see = lambda net, s: features_one_by_one(policy, net.encoder, segment, b, s)  # noqa: E731
    here, valued = see(actor, state), see(critics, zero[1])
    behind = see(policy.pi_target, state)
    next_features_target = see(policy.q_target, zero[1])
    low, high = (torch.from_numpy(getattr(policy.bounds.space, k)) for k in ("low", "high"))

    def sample(h, z):
        mean, log_std = actor(h).chunk(2, -1)
        u = mean + log_std.exp() * z
        normal = torch.distributions.Normal(mean, log_std.exp())
        return u.tanh(), (normal.log_prob(u) - torch.log1p(-u.tanh().square())).sum()

    def gap_of(p, t, h, unit):
        """Conservative gap at position p: log mean exp(Q(a_i)) / p(a_i) - Q(taken)."""
        even, noise_at_row, noise_at_bootstrap = (noise[i][:, t, b] for i in (4, 2, 3))
        quarter = torch.tensor(0.25).log()
        drawn = [(a, quarter) for a in even]  # two dimensions of width 2
        drawn += [sample(here[p], z) for z in noise_at_row]
        drawn += [sample(h, z) for z in noise_at_bootstrap]
        each = [heads_one_by_one(critics, valued[p], a.detach()) for a, _ in drawn]
        total = sum(q.exp() / d.detach().exp() for q, (_, d) in zip(each, drawn, strict=True))
        return (total / len(drawn)).log() - heads_one_by_one(critics, valued[p], unit)

    loss, cost, entropies, errors, gaps = torch.zeros(()), torch.zeros(()), [], [], []
    for p in range(w.burnin, w.burnin + w.learned):
        if not segment.valid[p, b]:
            continue
        t, total, k, dead = p - w.burnin, 0.0, 0, False
        while k < w.nstep and segment.valid[p + k, b]:
            reward = segment.reward[p + k, b] * c.reward_scale
            if c.reward_clip is not None:
                reward = reward.clamp(-c.reward_clip, c.reward_clip)
            total, k = total + c.gamma**k * reward, k + 1
            dead = bool(segment.terminated[p + k - 1, b])
            if dead or segment.truncated[p + k - 1, b]:
                break
        target = torch.as_tensor(total)
        if not dead:
            if soft:
                action, log_prob = sample(here[p + k], noise[1][t, b])
                value = heads_one_by_one(policy.q_target, next_features_target[p + k], action).min()
                if name == "sac" or c.entropy_in_target:
                    value = value - c.temperature * log_prob
            else:
                action = policy.pi_target(behind[p + k]).tanh()
                if name == "td3":
                    blur = (c.smoothing * noise[0][t, b]).clamp(-c.smoothing_clip, c.smoothing_clip)
                    action = (action + blur).clamp(-1, 1)
                value = heads_one_by_one(policy.q_target, next_features_target[p + k], action).min()
            target = (target + c.gamma**k * value).detach()
        unit = 2 * (segment.action[p, b] - low) / (high - low) - 1
        q = heads_one_by_one(critics, valued[p], unit)
        error = 0.5 * (target - q) ** 2
        if c.td_clip is not None:
            size = (target - q).abs()
            error = torch.where(size > c.td_clip, c.td_clip * (size - 0.5 * c.td_clip), error)
        loss = loss + error.sum() / w.learned
        errors.append((target - q).abs().mean().item())
        if name == "cql_sac":
            gap = gap_of(p, t, here[p] if dead else here[p + k], unit)
            loss = loss + c.conservatism * gap.sum() / w.learned
            gaps.append(gap.mean().item())
        if soft:
            action, log_prob = sample(here[p], noise[0][t, b])
            gain = heads_one_by_one(critics, valued[p].detach(), action).min()
            gain = gain - c.temperature * log_prob
            entropies.append(-log_prob.item())
        else:
            action = actor(here[p]).tanh()
            gain = heads_one_by_one(critics, valued[p].detach(), action)[0]
        cost = cost - gain / w.learned
    return loss, cost, entropies, errors, gaps


def grads(loss, params):
    return torch.autograd.grad(loss, params, retain_graph=True)


def gradients(policy, out):
    """Gradients of the critics' and the actor's loss."""
    return [*grads(out.critic, policy.q_params), *grads(out.actor, policy.pi_params)]


def check_against_naive(policy, **changes):
    segment = box_batch(stirred(policy), **changes).segment
    count, c = segment.reward.shape[1], policy.config
    weight = torch.linspace(0.2, 1, count)
    out = policy.losses(segment, weight)
    shape = (policy.window.learned, count, 2)
    noise = [policy.noise(i, *shape) for i in (0, 1)] if c.name != "ddpg" else []
    if c.name == "cql_sac":
        noise += [policy.noise(i, c.samples, *shape) for i in (2, 3)]
        noise += [2 * policy.noise(4, c.samples, *shape, uniform=True) - 1]
    naive = [one_by_one(policy, segment, b, noise) for b in range(count)]
    loss, cost = (sum(w * x[i] for w, x in zip(weight, naive, strict=True)) / count for i in (0, 1))
    near = {"rtol": 1e-4, "atol": 2e-6}
    torch.testing.assert_close(out.critic, loss, **near)
    torch.testing.assert_close(out.actor, cost, **near)
    priority = [c.eta * max(e) + (1 - c.eta) * np.mean(e) if e else 0.0 for *_, e, _ in naive]
    torch.testing.assert_close(out.priority, torch.tensor(priority, dtype=torch.float32), **near)
    want = [*grads(loss, policy.q_params), *grads(cost, policy.pi_params)]
    for g, w in zip(gradients(policy, out), want, strict=True):
        torch.testing.assert_close(g, w, **near)
    rows = policy.window.learned * count
    if c.name == "cql_sac":
        room = [sum(c.gap_threshold - g for g in x[4]) for x in naive]
        want = sum(w * r for w, r in zip(weight, room, strict=True)) / rows * c.conservatism
        torch.testing.assert_close(out.multipliers["conservatism"], want, **near)
    if c.name in ("sac", "cql_sac"):
        surplus = [sum(e - policy.target_entropy for e in x[2]) for x in naive]
        want = sum(w * s for w, s in zip(weight, surplus, strict=True)) / rows * c.temperature
        torch.testing.assert_close(out.multipliers["temperature"], want, **near)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_the_naive_loop(name, shape):
    """Losses, gradients and priorities with mixed burn-ins, ends and paddings."""
    check_against_naive(control(name, **SHAPES[shape]))


def test_learned_overlap_leaves_partial_burn_ins():
    shape = RECURRENT | {"burnin_step": 4, "learn_unroll_len": 7}
    policy = control("sac", **shape)
    assert box_batch(policy, overlap=2).segment.partial
    check_against_naive(policy, overlap=2)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_options_are_those_of_the_naive_loop(option):
    changed, plain = (check_against_naive(control("td3", **RECURRENT, **o)) for o in (option, {}))
    results = [torch.cat([out.critic[None], out.priority]) for out in (changed, plain)]
    assert not torch.equal(*results), "the setting has no effect"


# -- what must not matter --------------------------------------------------------------------------


def poisoned(segment: Segment, value: float) -> Segment:
    """``value`` (and wrong flags) wherever the loss must not look."""
    valid, none = segment.valid, torch.zeros_like(segment.valid[:1])
    read = torch.cat([valid, none]) | torch.cat([none, valid & ~segment.terminated])
    return replace(
        segment,
        obs=torch.where(read[..., None], segment.obs, value),
        reward=torch.where(valid, segment.reward, value),
        action=torch.where(valid[..., None], segment.action, value),
        terminated=torch.where(valid, segment.terminated, True),
        first=torch.where(read, segment.first, True),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", [1e9, math.nan])
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_bit(name, shape, value):
    policy = control(name, **SHAPES[shape])
    segment = box_batch(policy).segment
    weight = torch.ones(segment.reward.shape[1])
    found = []
    for s in (segment, poisoned(segment, value)):
        out = policy.losses(s, weight)
        losses = out.critic, out.actor, *out.multipliers.values()
        found.append((*losses, *gradients(policy, out), out.priority, *out.metrics.values()))
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_only_what_they_should(name):
    """The actor's loss moves no critic; the critics' no actor and no target."""
    policy = control(name, **RECURRENT)
    out = policy.losses(*segment_and_ones(policy))
    frozen = torch.autograd.grad(out.actor, policy.q_params, allow_unused=True, retain_graph=True)
    assert all(g is None for g in frozen)
    other = torch.autograd.grad(out.critic, policy.pi_params, allow_unused=True)
    assert all(g is None for g in other)
    targets = *policy.pi_target_params, *policy.q_target_params
    assert not any(p.requires_grad for p in targets)


def segment_and_ones(policy):
    segment = box_batch(policy).segment
    return segment, torch.ones(segment.reward.shape[1])


# -- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["single", "lstm"])
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])  # CQL does not learn rewards by heart
def test_overfits_one_sample(name, shape):
    """With gamma 0 targets are rewards: the critics learn them by heart."""
    policy = control(name, **(SHAPES[shape] | {"gamma": 0.0, "nstep": 1}), torso=(32,))
    sample = box_batch(policy)
    losses = [policy.update(sample).metrics["train/loss"].item() for _ in range(140)]
    assert losses[-1] < 0.01 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits_and_a_twin_goes_on(name):
    """Updates are a function of seed and batch; a state loaded in the middle goes on with them."""
    one, two, late = (control(name, actor_every=2, **RECURRENT) for _ in range(3))
    sample = box_batch(one)
    for i in range(6):
        if i == 3:
            late.load_state_dict(copy.deepcopy(one.state_dict()))
        results = [p.update(sample) for p in (one, two, *([late] if i >= 3 else []))]
        for other in results[1:]:
            assert torch.equal(results[0].priority, other.priority)
            for key, value in results[0].metrics.items():
                assert torch.equal(value, other.metrics[key]), key
    for p in (two, late):
        for x, y in zip(tree_leaves(one.state_dict()), tree_leaves(p.state_dict()), strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    other = control(name, seed=1, **RECURRENT)
    assert not torch.equal(other.update(sample).priority, results[0].priority)


@pytest.mark.parametrize("name", NAMES)
def test_the_actor_moves_every_so_often_and_targets_follow(name):
    policy = control(name, actor_every=3)
    sample, moved = box_batch(policy), []
    for _ in range(6):
        before = [p.clone() for p in policy.pi_params]
        before_q = [p.clone() for p in policy.q_params]
        before_target = [p.clone() for p in policy.q_target_params]
        policy.update(sample)
        moved.append(
            any(not torch.equal(a, b) for a, b in zip(before, policy.pi_params, strict=True))
        )
        follows = "sac" in name or moved[-1]
        targets = zip(before_target, policy.q_target_params, policy.q_params, strict=True)
        for was, now, new in targets:
            torch.testing.assert_close(now, was + 0.1 * (new - was) if follows else was)
        assert not torch.equal(before_q[0], policy.q_params[0])
    assert moved == [False, False, True] * 2


@pytest.mark.parametrize(
    ("name", "copies"), [("sac", [3, 6]), ("cql_sac", [3, 6]), ("td3", [4, 6]), ("ddpg", [4, 6])]
)
def test_hard_copies_count_updates_of_the_critics(name, copies):
    """Every 3 updates; where targets move with the actor, at its next step (every 2)."""
    policy = control(name, target_update_every=3, target_tau=None, actor_every=2)
    sample, found = box_batch(policy), []
    sides = [(policy.q_target_params, policy.q_params)]
    if "sac" not in name:
        sides += [(policy.pi_target_params, policy.pi_params)]
    for i in range(1, 8):
        policy.update(sample)
        pairs = [pair for side in sides for pair in zip(*side, strict=True)]
        if all(torch.equal(a, b) for a, b in pairs):
            found.append(i)
    assert found == copies


def test_priorities_are_those_of_the_update():
    for name in NAMES:
        policy = control(name, **RECURRENT)
        sample = box_batch(policy)
        # to rounding: an LSTM has other kernels where nothing is to be differentiated
        torch.testing.assert_close(
            policy.priority(sample), policy.update(sample).priority, rtol=1e-5, atol=1e-6
        )


def test_weights_scale_the_gradient():
    """Importance weights of 1/2 halve every gradient, the temperature's included."""
    policy = control("sac")
    segment, ones = segment_and_ones(policy)
    full, half = policy.losses(segment, ones), policy.losses(segment, ones / 2)
    for a, b in (
        (full.critic, half.critic),
        (full.actor, half.actor),
        (full.multipliers["temperature"], half.multipliers["temperature"]),
    ):
        torch.testing.assert_close(a / 2, b)


def test_temperature_moves_towards_the_target_entropy():
    for wanted, rises in ((50.0, True), (-50.0, False)):
        policy = control("sac", target_entropy=wanted)
        sample = box_batch(policy)
        for _ in range(5):
            policy.update(sample)
        assert (policy.log_alpha.exp().item() > 0.3) == rises
    fixed = control("sac", temperature_auto=False, temperature=0.0)
    out = fixed.update(box_batch(fixed))
    assert out.metrics["train/temperature"].item() == 0
    assert all(torch.isfinite(v) for v in out.metrics.values())


def test_the_noise_follows_its_schedule_and_travels_with_the_weights():
    from tests.buffer.factory import linear

    policy = control("td3", noise=linear(0.5, 0.1))
    assert float(policy.weights()["noise"]) == 0.5
    sample = replace(box_batch(policy), env_steps=500)  # of 1000
    assert policy.update(sample).metrics["train/noise"].item() == pytest.approx(0.3)
    other = control("td3", seed=1)
    other.load(policy.weights())
    actor = other.actor(2)
    assert (actor.sigma, actor.learned) == (pytest.approx(0.3), True)


# -- critics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("count", [1, 2])
def test_critics_are_networks_of_their_own(activation, count):
    """Values and gradients of each critic layer by layer; frozen ones pass gradients on."""
    policy = control("ddpg" if count == 1 else "td3", torso=(7, 5), activation=activation)
    critics, g = policy.q, torch.Generator().manual_seed(0)
    x, a = (torch.randn(1, 6, n, generator=g).requires_grad_() for n in (3, 2))
    grad = torch.randn(count, 1, 6, generator=g)
    naive = torch.stack([heads_one_by_one(critics, *row) for row in zip(x[0], a[0], strict=True)])
    q = critics(x, a)
    torch.testing.assert_close(q, naive.T.unsqueeze(1))
    inputs = [x, a, *policy.q_params]
    want = torch.autograd.grad(naive, inputs, grad[:, 0].T)
    for one, two in zip(torch.autograd.grad(q, inputs, grad), want, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    frozen = critics(x.detach(), a, frozen=True)
    torch.testing.assert_close(torch.autograd.grad(frozen, a, grad)[0], want[1])
    frozen = critics(x, a, frozen=True)
    assert all(p is None for p in torch.autograd.grad(frozen, inputs, grad, allow_unused=True)[2:])
    torch.testing.assert_close(critics(x, a, 1), q[:1])


def test_critics_start_apart():
    critics = control("sac").q
    assert all(not torch.equal(w[0], w[1]) for w in critics.weights)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_close(name):
    from rlrun.optim.compute import Compute

    exact, rough = control(name), control(name)
    rough.compute = Compute("bf16")
    sample = box_batch(exact)
    a, b = (p.losses(sample.segment, sample.weight) for p in (exact, rough))
    assert a.critic.item() != b.critic.item(), "nothing was rounded"
    assert b.critic.item() == pytest.approx(a.critic.item(), rel=0.03)
    rough.update(sample)
    assert all(w.dtype == torch.float32 for w in rough.weights().values())


# -- acting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["single", "inputs", "lstm", "gru", "mingru"])
@pytest.mark.parametrize("name", NAMES)
def test_numpy_is_torch_and_acting_is_learning(name, shape):
    """The same outputs in numpy, in torch, and (states carried) in an unroll."""
    policy = control(name, **SHAPES[shape])
    steps = [kind(policy.pi, 4) for kind in (NumpyStep, TorchStep)]
    rng, states = np.random.default_rng(0), [s.initial_state() for s in steps]
    space = policy.bounds.space
    for t in range(6):
        first = rng.random(4) < 0.3 if t else np.ones(4, bool)
        obs, reward = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=4).astype("f4")
        action = rng.uniform(space.low, space.high, (4, 2)).astype("f4")
        found = []
        for i, step in enumerate(steps):
            out, states[i] = step(obs, first, action, reward, states[i])
            found.append([out, *tree_leaves(states[i])])
        for a, b in zip(*found, strict=True):
            assert a.dtype == b.dtype == np.float32
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
    assert isinstance(make_step(policy.pi, 4), NumpyStep)


def play(actor, explore, seed=0, count=512):
    rng = np.random.default_rng(seed)
    obs, first = rng.normal(size=(count, 3)).astype("f4"), np.ones(count, bool)
    nothing = np.zeros((count, 2), np.float32), np.zeros(count, np.float32)
    return actor.act(obs, first, *nothing, actor.initial_state(), explore=explore).action


@pytest.mark.parametrize("name", NAMES)
def test_uniform_before_the_first_update_then_the_policy(name):
    policy, zero = control(name), np.zeros(512, np.float32)
    space, actor = policy.bounds.space, policy.actor(512)
    greedy, warm = play(actor, None), play(actor, zero)
    spread = (space.high - space.low) / math.sqrt(12)
    np.testing.assert_allclose(warm.std(0), spread, rtol=0.1)
    np.testing.assert_array_equal(greedy, play(actor, None))
    policy.update(box_batch(policy))
    np.testing.assert_array_equal(play(actor, None), greedy)  # weights of its own
    actor.refresh()
    greedy, acted = play(actor, None), play(actor, zero)
    unit = policy.bounds.to_unit_array
    apart = (unit(acted) - unit(greedy)).std(0)
    if "sac" not in name:
        np.testing.assert_allclose(apart, 0.1, rtol=0.15)
    assert (apart > 0).all()
    assert all(space.contains(a) for a in (*warm, *acted, *greedy))
    assert not np.array_equal(play(actor, zero + 1), acted), "epsilon 1 is uniform"
    np.testing.assert_allclose(play(actor, zero + 1).std(0), spread, rtol=0.1)


def test_bounds_both_ways():
    """(-1, 0) is low, (3, 0.5) high, the middle 0; rounding never leaves the box."""
    bounds = ActionBounds(BOX.action)
    unit = np.array([[-1, -1], [0, 0], [1, 1], [0.5, -0.5]], np.float32)
    own = np.array([[-1, 0], [1, 0.25], [3, 0.5], [2, 0.125]], np.float32)
    np.testing.assert_array_equal(bounds.from_unit(unit), own)
    np.testing.assert_array_equal(bounds.to_unit(torch.from_numpy(own)), unit)
    np.testing.assert_array_equal(bounds.to_unit_array(own), unit)
    g = np.random.default_rng(0)
    low = g.normal(size=(3, 2)).astype("f4")
    for dtype in (np.float32, np.float64):
        space = gym.spaces.Box(low.astype(dtype), (low + 1e-3).astype(dtype), dtype=dtype)
        odd = ActionBounds(space)
        drawn = odd.from_unit(g.uniform(-1, 1, (1000, 6)).astype("f4"))
        edges = odd.from_unit(np.array([[1.0] * 6, [-1.0] * 6], np.float32))
        assert all(space.contains(a) for a in (*drawn, *edges))
        back = odd.to_unit(torch.from_numpy(edges))
        torch.testing.assert_close(
            back, torch.tensor([[1.0] * 6, [-1.0] * 6]), rtol=1e-3, atol=1e-3
        )
    flat = gym.spaces.Box(np.array([1.0, 0.0], "f4"), np.array([1.0, 2.0], "f4"))
    still = ActionBounds(flat)
    assert still.from_unit(np.array([[0.7, 0.0]], "f4")).tolist() == [[1.0, 1.0]]
    assert still.to_unit(torch.tensor([[1.0, 2.0]])).tolist() == [[0.0, 1.0]]


def test_images_are_encoded_once_for_both_critics():
    from rlrun.policy.sac import SAC
    from rlrun.schema import MemoryConfig, TorsoConfig

    base = control("sac")
    image = Spec(gym.spaces.Box(0, 255, (1, 40, 40), np.uint8), BOX.action)
    policy = SAC(
        base.config, TorsoConfig("nature_cnn", (16,), "relu", False), MemoryConfig("none", 0, 0.0),
        spec=image, seed=0, total_steps=10, device=torch.device("cpu"),
    )  # fmt: skip
    assert isinstance(policy.actor(2).net_step, TorchStep)
    sample = box_batch(base)
    pictures = torch.randint(0, 255, (*sample.segment.first.shape, 1, 40, 40), dtype=torch.uint8)
    out = policy.update(replace(sample, segment=replace(sample.segment, obs=pictures)))
    assert torch.isfinite(out.metrics["train/loss"])
    moved = policy.q_adam.mean[: len(list(policy.q.encoder.parameters()))]
    assert all(m.abs().sum() > 0 for m in moved), "the critics' encoder learns"
    obs, first = np.zeros((2, 1, 40, 40), np.uint8), np.ones(2, bool)
    got = policy.actor(2).act(
        obs, first, np.zeros((2, 2), "f4"), np.zeros(2, "f4"), (), explore=None
    )
    assert got.action.shape == (2, 2)
