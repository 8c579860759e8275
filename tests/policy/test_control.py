"""DDPG, TD3, SAC, CQL on SAC: updates by a loop over rows, what must not matter, acting."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rlrun.types import Segment, tree_map
from tests.policy import make
from tests.policy.make import BOX, RECURRENT, build, to_unit, windows
from tests.reference.distributional import quantile_loss
from tests.reference.traces import nstep_rows

NAMES = ["sac", "td3", "ddpg", "cql_sac", "tqc", "crossq"]
SHAPES = {
    "single": {},
    "one step": {"nstep": 1},
    "inputs": {"prev_inputs": True, "nstep": 1, "activation": "relu", "td_clip": 0.4},
    "sequence": {"learn_unroll_len": 7, "burnin_step": 2, "priority_eta": 0.3},
    "lstm": RECURRENT,
    "partial": RECURRENT
    | {"learn_unroll_len": 5, "burnin_step": 7, "nstep": 2, "memory": "gru", "gamma": 1.0},
}


def shape_of(name, shape):
    """The slope of quantiles' losses is bounded by kappa."""
    return SHAPES[shape] | ({"td_clip": None} if name == "tqc" else {})


BY_NAME = pytest.mark.parametrize("name", NAMES)


def of(name, **given):
    return build(name, spec=BOX, **given)


def box_windows(policy, **given):
    return windows(policy, BOX, **given)


# -- the loop --------------------------------------------------------------------------------------


def heads_one_by_one(critics, h, action):
    """[C] values of one row, or [C, N] quantiles, layer by layer."""
    out = []
    for c in range(critics.count):
        x = torch.cat([h, action])
        for i, (w, b) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            x = F.linear(x, w[c].T, b[c, 0])
            if i < len(critics.weights) - 1:
                x = critics.activations[i](x)
        out.append(x if len(x) > 1 else x[0])
    return torch.stack(out)


def features_one_by_one(own, encoder, segment, b, state):
    """{position: features} of window b, one position after the other."""
    c, valid = own.config, [bool(v) for v in segment.valid[:, b]] + [False]
    action, reward = segment.extras["prev_action"][b], segment.extras["prev_reward"][b]
    began, out = False, {}
    for p in range(own.window.rows):
        if not (valid[p] or (p > 0 and valid[p - 1] and not segment.terminated[p - 1, b])):
            continue
        if began:
            action, reward = segment.action[p - 1, b], segment.reward[p - 1, b]
        began = True
        unit, paid = to_unit(BOX.action, action), reward * c.reward_scale
        if segment.first[p, b]:
            unit, paid = torch.zeros(2), torch.tensor(0.0)
        x = encoder.torso(segment.obs[p, b][None])
        if c.prev_inputs:
            x = torch.cat([x, unit[None], paid[None, None]], -1)
        with torch.set_grad_enabled(p >= own.window.burnin):
            h, state = encoder.memory.unroll(x[None], state)
        out[p] = h[0, 0]
    return out


def one_by_one(own, segment: Segment, b: int, noise):
    """(critic loss, actor loss, -log probs, |td|s, gaps) of window b; ``noise``: of its draws."""
    c, w, name = own.config, own.window, own.config.name
    soft = name in ("sac", "cql_sac", "tqc")
    state = tree_map(lambda x: x[b : b + 1], segment.state)
    zero = own.q.encoder.memory.initial_state(1, torch.device("cpu"))
    seen = {n: features_one_by_one(own, getattr(own, n).encoder, segment, b,
                                   state if n.startswith("pi") else zero)
            for n in ("pi", "q", "pi_target", "q_target")}  # fmt: skip

    def sample(h, z):
        mean, log_std = own.pi(h).chunk(2, -1)
        u = mean + log_std.exp() * z
        density = torch.distributions.Normal(mean, log_std.exp())
        return u.tanh(), (density.log_prob(u) - torch.log1p(-u.tanh().square())).sum()

    def gap_of(p, t, h, unit):
        """Conservative gap at position p: log mean exp(Q(a_i)) / p(a_i) - Q(taken)."""
        even, at_row, at_bootstrap = (noise[i][:, t, b] for i in (4, 2, 3))
        drawn = [(a, torch.tensor(0.25).log()) for a in even]  # two dimensions of width 2
        drawn += [sample(seen["pi"][p], z) for z in at_row] + [sample(h, z) for z in at_bootstrap]
        each = [heads_one_by_one(own.q, seen["q"][p], a.detach()) for a, _ in drawn]
        total = sum(q.exp() / d.detach().exp() for q, (_, d) in zip(each, drawn, strict=True))
        return (total / len(drawn)).log() - heads_one_by_one(own.q, seen["q"][p], unit)

    reward = (segment.reward[w.burnin :, b] * c.reward_scale).tolist()
    ends = [getattr(segment, n)[w.burnin :, b].tolist() for n in
            ("terminated", "truncated", "valid")]  # fmt: skip
    rows = nstep_rows(reward, *ends, c.nstep, c.gamma)
    loss, cost, entropies, errors, gaps = torch.zeros(()), torch.zeros(()), [], [], []
    for p in range(w.burnin, w.burnin + w.learned):
        if not segment.valid[p, b]:
            continue
        t = p - w.burnin
        target, k, discount = rows[t]
        target, dead = torch.tensor(target), discount == 0
        if not dead:
            if soft:
                action, log_prob = sample(seen["pi"][p + k], noise[1][t, b])
            else:
                action = own.pi_target(seen["pi_target"][p + k]).tanh()
                if name == "td3":
                    blur = (c.smoothing * noise[0][t, b]).clamp(-c.smoothing_clip, c.smoothing_clip)
                    action = (action + blur).clamp(-1, 1)
            value = heads_one_by_one(own.q_target, seen["q_target"][p + k], action)
            kept = c.num_critics * (c.num_quantiles - 1) if name == "tqc" else 1
            value = value.flatten().sort().values[:kept].squeeze()
            if name in ("sac", "tqc") or getattr(c, "entropy_in_target", False):
                value = value - c.temperature * log_prob
            target = (target + discount * value).detach()
        unit = to_unit(BOX.action, segment.action[p, b])
        q = heads_one_by_one(own.q, seen["q"][p], unit)
        if name == "tqc":
            levels = [(i + 0.5) / c.num_quantiles for i in range(c.num_quantiles)]
            losses = [quantile_loss(x, target.reshape(-1), levels, c.kappa) for x in q]
            error = torch.stack(losses) / c.num_quantiles
            size = (target.mean() - q.mean(-1)).abs()
        else:
            error, size = 0.5 * (target - q) ** 2, (target - q).abs()
        if c.td_clip is not None:
            error = torch.where(size > c.td_clip, c.td_clip * (size - 0.5 * c.td_clip), error)
        loss = loss + error.sum() / w.learned
        errors.append(size.mean().item())
        if name == "cql_sac":
            gap = gap_of(p, t, seen["pi"][p if dead else p + k], unit)
            loss = loss + c.conservatism * gap.sum() / w.learned
            gaps.append(gap.mean().item())
        fixed = seen["q"][p].detach()
        if soft:
            action, log_prob = sample(seen["pi"][p], noise[0][t, b])
            gain = heads_one_by_one(own.q, fixed, action)
            gain = (gain.mean() if name == "tqc" else gain.min()) - c.temperature * log_prob
            entropies.append(-log_prob.item())
        else:
            gain = heads_one_by_one(own.q, fixed, own.pi(seen["pi"][p]).tanh())[0]
        cost = cost - gain / w.learned
    return loss, cost, entropies, errors, gaps


def check_against_naive(name, **given):
    policy = make.spread(of(name, **given))
    sample, own = box_windows(policy), make.nets(policy)
    count, c = len(sample.weight), own.config
    shape = (own.window.learned, count, 2)
    noise = [make.normal(0, i, *shape) for i in (0, 1)]
    if name == "cql_sac":
        noise += [make.normal(0, i, c.samples, *shape) for i in (2, 3)]
        noise += [2 * make.normal(0, 4, c.samples, *shape, uniform=True) - 1]
    naive = [one_by_one(own, sample.segment, b, noise) for b in range(count)]
    loss, cost = (
        sum(w * x[i] for w, x in zip(sample.weight, naive, strict=True)) / count for i in (0, 1)
    )
    want = make.named_gradients(loss, "critics", own.q)
    want |= make.named_gradients(cost, "actor", own.pi)
    rows = own.window.learned * count

    def of_multiplier(start, surplus):
        total = (w * sum(x) for w, x in zip(sample.weight, surplus, strict=True))
        return (sum(total) / rows * start).reshape(())

    if name == "cql_sac":
        room = [[c.gap_threshold - g for g in x[4]] for x in naive]
        want["conservatism.log"] = of_multiplier(c.conservatism, room)
    if name in ("sac", "cql_sac", "tqc"):
        surplus = [[e + 2 for e in x[2]] for x in naive]  # target entropy: -2, the dimensions
        want["temperature.log"] = of_multiplier(c.temperature, surplus)
    update, grads = make.gradients(policy, sample)
    near = {"rtol": 1e-4, "atol": 2e-6}
    torch.testing.assert_close(update.metrics["train/loss"], loss.detach(), **near)
    torch.testing.assert_close(update.metrics["train/actor_loss"], cost.detach(), **near)
    priority = [
        c.priority_eta * max(e) + (1 - c.priority_eta) * np.mean(e) if e else 0.0
        for *_, e, _ in naive
    ]
    torch.testing.assert_close(update.priority, torch.tensor(priority).float(), **near)
    make.assert_gradients(grads, want)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "crossq"])  # reads batches
def test_an_update_is_the_loop_over_rows(name, shape):
    """Losses, gradients (of each network by its own loss alone), priorities, multipliers."""
    check_against_naive(name, **shape_of(name, shape))


def test_cql_with_entropy_in_its_targets_is_the_loop():
    check_against_naive("cql_sac", entropy_in_target=True, samples=1)


def test_cql_without_conservatism_is_sac():
    sample = box_windows(of("sac"))
    mild = of("cql_sac", conservatism=0.0, gap_threshold=None, entropy_in_target=True)
    (a, ours), (b, theirs) = (make.gradients(p, sample) for p in (mild, of("sac")))
    torch.testing.assert_close(a.metrics["train/loss"], b.metrics["train/loss"])
    make.assert_gradients({k: ours[k] for k in theirs}, theirs)
    assert make.weights(mild)["conservatism.log"] == -math.inf


# -- over several updates --------------------------------------------------------------------------

QUIET = {"lr": make.constant(1e-2), "actor_lr": make.linear(1e-2, 0.0), "adam_eps": 1e-8}


@BY_NAME
def test_the_actor_moves_every_so_often_and_targets_follow(name):
    policy, moved = of(name, actor_every=3), []
    sample = box_windows(policy)
    for _ in range(6):
        before, lag = make.weights(policy), make.targets(policy)
        policy.update(sample)
        now, after = make.weights(policy), make.targets(policy)
        moved.append(any(not torch.equal(x, now[k]) for k, x in before.items() if "actor" in k))
        assert any(not torch.equal(x, now[k]) for k, x in before.items() if "critics" in k)
        for k in (k for k in lag if k in now and k.startswith("critics")):
            follows = "sac" in name or name == "tqc" or moved[-1]
            want = lag[k] + 0.1 * (now[k] - lag[k]) if follows else lag[k]
            torch.testing.assert_close(after[k], want)
    assert moved == [False, False, True] * 2


@pytest.mark.parametrize(("name", "copies"), [("sac", [3, 6]), ("td3", [4, 6])])
def test_hard_copies_count_updates_of_the_critics(name, copies):
    """Every 3 updates; where targets move with the actor, at its next step (every 2)."""
    policy, found = of(name, target_update_every=3, target_tau=None, actor_every=2), []
    sample = box_windows(policy)
    parts = ("critics",) if name == "sac" else ("critics", "actor")
    for i in range(1, 8):
        policy.update(sample)
        lag = make.targets(policy)
        now = {k: x for k, x in make.weights(policy).items() if k.startswith(parts) and k in lag}
        found += [i] * all(torch.equal(x, lag[k]) for k, x in now.items())
    assert found == copies


def test_learning_rates_of_critics_and_actor_follow_their_schedules():
    given = {"lr": make.linear(1.0, 0.0), "actor_lr": make.constant(0.0)}
    policy = of("td3", **given)
    before = make.weights(policy)
    update = policy.update(box_windows(policy, env_steps=250))
    assert update.metrics["train/lr"] == 0.75
    now = make.weights(policy)
    assert all(torch.equal(x, now[k]) for k, x in before.items() if k.startswith("actor"))


def test_the_temperature_stays_where_it_is_fixed():
    fixed = of("sac", temperature_auto=False, temperature=0.0)
    for _ in range(2):
        out = fixed.update(box_windows(fixed))
    assert out.metrics["train/temperature"].item() == 0
    assert all(torch.isfinite(v) for v in out.metrics.values())
    wanted = of("sac", target_entropy=50.0)
    before = make.weights(wanted)["temperature.log"]
    wanted.update(box_windows(wanted))
    assert make.weights(wanted)["temperature.log"] > before, "more entropy is wanted"


@pytest.mark.parametrize(("threshold", "rises"), [(-50.0, True), (50.0, False), (None, None)])
def test_the_weight_of_cql_moves_until_the_gap_is_the_threshold(threshold, rises):
    policy = of("cql_sac", gap_threshold=threshold, **QUIET)
    sample = box_windows(policy)
    seen = [policy.update(sample).metrics["train/conservatism"].item() for _ in range(4)]
    assert seen[0] == pytest.approx(0.7)
    if rises is None:
        assert seen == pytest.approx([0.7] * 4)
    else:
        assert all((b > a) == rises for a, b in pairwise(seen))


def test_the_weight_of_cql_is_bounded():
    policy = of("cql_sac", conservatism=1e9, gap_threshold=None)
    assert policy.update(box_windows(policy)).metrics["train/conservatism"].item() == 1e6


# -- acting ----------------------------------------------------------------------------------------


@BY_NAME
def test_uniform_before_the_first_update_then_the_policy(name):
    policy, envs = of(name, **QUIET), 512
    actor = policy.actor(envs)
    span = BOX.action.high - BOX.action.low

    def play(explore):
        return make.act_once(policy, BOX, envs=envs, explore=explore, actor=actor).action

    greedy = play(None)
    np.testing.assert_allclose(play(0.0).std(0), span / math.sqrt(12), rtol=0.1)
    policy.update(box_windows(policy))
    np.testing.assert_array_equal(play(None), greedy)  # weights of its own
    actor.refresh()
    assert not np.array_equal(play(None), greedy)
    acted = play(0.0)
    apart = ((acted - play(None)) / span * 2).std(0)
    if name in ("td3", "ddpg"):
        np.testing.assert_allclose(apart, 0.1, rtol=0.15)
    assert (apart > 0.05).all()
    assert (play(0.0) != acted).any()
    np.testing.assert_allclose(play(1.0).std(0), span / math.sqrt(12), rtol=0.1)
    share = np.mean(play(np.r_[np.zeros(256), np.ones(256)]) == acted)
    assert share < 0.1
    assert all(BOX.action.contains(a) for a in (*acted, *greedy, *play(1.0)))


def test_sampled_actions_have_the_density_that_learning_assumes():
    """SAC's deviation: atanh of the unit action, less the greedy one, is N(0, std) of the net."""
    policy = of("sac", lr=make.constant(0.0), actor_lr=make.constant(0.0))
    policy.update(box_windows(policy))
    count = 50_000
    actor, none = policy.actor(count), np.zeros((count, 2), np.float32)
    obs = np.tile(np.float32([0.3, -0.2, 0.5]), (count, 1))
    rest = (np.ones(count, bool), none, none[:, 0], actor.initial_state())
    acted = actor.act(obs, *rest, explore=none[:, 0]).action
    unit = to_unit(BOX.action, torch.from_numpy(acted)).double().clamp(-1 + 1e-7, 1 - 1e-7)
    own = make.nets(policy)
    mean, log_std = own.pi(torch.from_numpy(obs[0])).detach().double().chunk(2, -1)
    z = (unit.atanh() - mean) / log_std.exp()
    torch.testing.assert_close(z.mean(0), torch.zeros(2).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(z.std(0), torch.ones(2).double(), atol=0.02, rtol=0)


def test_the_noise_follows_its_schedule_and_travels_with_the_weights():
    policy = of("td3", noise=make.linear(0.5, 0.1))
    assert float(policy.weights()["noise"]) == 0.5
    update = policy.update(box_windows(policy, env_steps=500))  # of 1000
    assert update.metrics["train/noise"].item() == pytest.approx(0.3)
    other = of("td3", seed=1)
    other.load(policy.weights())
    mode, acted = (make.act_once(other, BOX, envs=400, explore=e).action for e in (None, 0.0))
    inside = to_unit(BOX.action, torch.from_numpy(mode)).abs().amax(-1) < 0.2
    noise = (
        to_unit(BOX.action, torch.from_numpy(acted)) - to_unit(BOX.action, torch.from_numpy(mode))
    )[inside]
    assert len(noise) > 20
    assert noise.std().item() == pytest.approx(0.3, rel=0.3)
