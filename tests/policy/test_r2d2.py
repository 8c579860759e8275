"""R2D2's loss: a naive twin, padding without effect, mixed burn-ins, gradients, targets."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.functional.value import rescale, unrescale
from rlrun.types import Segment, tree_leaves, tree_map
from tests.buffer.factory import make_replay
from tests.policy.factory import batch_of, dqn, gradient, r2d2, states_like
from tests.reference.streams import make_stream

CASES = [
    {"burnin_step": 3, "learn_unroll_len": 7, "nstep": 3},
    {"burnin_step": 0, "learn_unroll_len": 4, "nstep": 3},
    {"burnin_step": 7, "learn_unroll_len": 5, "nstep": 2},  # bs > L: partial burn-ins
    {"burnin_step": 2, "learn_unroll_len": 2, "nstep": 1},
]


def shaped(reward, c):
    scaled = reward * c.reward_scale
    if c.reward_clip is None:
        return scaled
    return torch.as_tensor(max(min(float(scaled), c.reward_clip), -c.reward_clip))


def one_by_one(policy, segment: Segment, b: int):
    """(loss, priority) of window b by the definition, row by row."""
    c, w, net, target = policy.config, policy.window, policy.net, policy.target
    state = tree_map(lambda x: x[b : b + 1], segment.state)
    if c.state_init == "zero":
        state = policy.initial_state(1)
    states = {"net": state, "target": state}
    valid = [bool(v) for v in segment.valid[:, b]] + [False]
    began = False
    q, q_target = {}, {}
    action, reward = segment.extras["prev_action"][b], segment.extras["prev_reward"][b]
    for p in range(w.rows):
        mine = valid[p] or (p > 0 and valid[p - 1] and not segment.terminated[p - 1, b])
        if not mine:
            continue
        if began:
            action, reward = segment.action[p - 1, b], segment.reward[p - 1, b]
        began = True
        if segment.first[p, b]:
            action, reward = torch.tensor(-1), torch.tensor(0.0)
        scaled = shaped(reward, c)
        x = (
            segment.obs[p, b][None, None],
            policy.net.encode_previous(action[None, None], scaled[None, None]),
        )
        for name, n, out in (("net", net, q), ("target", target, q_target)):
            if p < w.burnin:
                with torch.no_grad():
                    value, states[name] = n.unroll(n.inputs(*x), states[name])
            else:
                value, states[name] = n.unroll(n.inputs(*x), states[name])
            out[p] = value[0, 0]
    total, errors = torch.zeros(()), []
    for p in range(w.burnin, w.burnin + w.learned):
        if not valid[p]:
            continue
        ret, k, dead = 0.0, 0, False
        while k < w.nstep and valid[p + k]:
            ret = ret + c.gamma**k * shaped(segment.reward[p + k, b], c)
            k += 1
            dead = bool(segment.terminated[p + k - 1, b])
            if dead or segment.truncated[p + k - 1, b]:
                break
        boot = 0.0
        if not dead:
            best = (q if c.double else q_target)[p + k].argmax()
            boot = c.gamma**k * unrescale(q_target[p + k][best], c.value_rescale_eps)
        y = rescale(torch.as_tensor(ret + boot).float(), c.value_rescale_eps).detach()
        delta = y - q[p][segment.action[p, b]]
        error = 0.5 * delta**2
        if c.td_clip is not None and delta.abs() > c.td_clip:
            error = c.td_clip * (delta.abs() - 0.5 * c.td_clip)
        total = total + error / w.learned
        errors.append(delta.abs().item())
    priority = c.eta * max(errors) + (1 - c.eta) * np.mean(errors) if errors else 0.0
    return total, priority


@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru"])
@pytest.mark.parametrize("state_init", ["stored", "zero"])
def test_loss_is_the_naive_loop(shape, memory, state_init):
    """Loss, gradient and priorities of a batch with mixed burn-ins, ends and paddings."""
    check_against_naive(r2d2(memory=memory, state_init=state_init, **shape))


@pytest.mark.parametrize(
    "option",
    [
        {"double": False},
        {"dueling": False, "head_hidden": (6,)},
        {"prev_inputs": False},
        {"reward_scale": 0.05, "reward_clip": 0.4},
        {"td_clip": 0.05},
        {"eta": 0.3},
        {"gamma": 1.0},
    ],
    ids=str,
)
def test_options_are_those_of_the_naive_loop(option):
    changed, plain = r2d2(**option), r2d2()
    check_against_naive(changed)
    segment = batch_of(plain).segment
    ones = torch.ones(segment.reward.shape[1])
    one, two = changed.loss(segment, ones), plain.loss(segment, ones)
    results = [torch.cat([out.loss[None], out.priority]) for out in (one, two)]
    assert not torch.equal(*results), "the setting has no effect"


def check_against_naive(policy):
    with torch.no_grad():
        for p in policy.target.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    segment = batch_of(policy).segment
    count = segment.reward.shape[1]
    weight = torch.linspace(0.2, 1, count)
    out = policy.loss(segment, weight)
    grads = gradient(policy, out)
    naive = [one_by_one(policy, segment, b) for b in range(count)]
    loss = sum(w * x for w, (x, _) in zip(weight, naive, strict=True)) / count
    expected = torch.autograd.grad(loss, list(policy.net.parameters()))
    torch.testing.assert_close(out.loss, loss, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(
        out.priority, torch.tensor([float(x) for _, x in naive]), rtol=1e-4, atol=1e-6
    )
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def poisoned(segment: Segment, value: float) -> Segment:
    """``value`` (and wrong flags) wherever the loss must not look."""
    valid = segment.valid
    none = torch.zeros_like(valid[:1])
    boot = torch.cat([none, valid & ~segment.terminated])
    read = torch.cat([valid, none]) | boot
    obs = torch.where(read[..., None], segment.obs, torch.full_like(segment.obs, value))
    return replace(
        segment,
        obs=obs,
        reward=torch.where(valid, segment.reward, value),
        action=torch.where(valid, segment.action, 4),
        terminated=torch.where(valid, segment.terminated, True),
        first=torch.where(read, segment.first, True),
    )


@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize("value", [1e9, float("nan")])
@pytest.mark.parametrize("make", [r2d2, dqn])
def test_padding_changes_no_bit(shape, value, make):
    """Invariant 3: 1e9 or NaN in padding changes no bit of loss, gradient, priority."""
    policy = make(**shape) if make is r2d2 else make(nstep=shape["nstep"])
    segment = batch_of(policy).segment
    weight = torch.ones(segment.reward.shape[1])
    results = []
    for s in (segment, poisoned(segment, value)):
        out = policy.loss(s, weight)
        loss, priority = out.loss, out.priority
        grads = gradient(policy, out)
        results.append((loss, priority, *grads))
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)
    one_step = make is dqn and shape["nstep"] == 1
    assert one_step or not segment.valid.all(), "the case has no padding"


@pytest.mark.parametrize("shape", CASES)
def test_a_batch_is_its_windows(shape):
    """Invariant 7: mixed burn-ins in one batch = the windows one by one."""
    policy = r2d2(**shape)
    segment = batch_of(policy).segment
    count = segment.reward.shape[1]
    assert (
        len({int(x) for x in segment.valid[: policy.window.burnin].sum(0)}) > 1
        or not shape["burnin_step"]
    )
    whole = policy.loss(segment, torch.ones(count))
    grads = gradient(policy, whole)
    total = [torch.zeros_like(g) for g in grads]
    for b in range(count):
        alone = policy.loss(window(segment, b), torch.ones(1))
        torch.testing.assert_close(alone.priority[0], whole.priority[b], rtol=1e-5, atol=1e-6)
        parts = gradient(policy, alone)
        total = [t + p / count for t, p in zip(total, parts, strict=True)]
    for t, g in zip(total, grads, strict=True):
        torch.testing.assert_close(t, g, rtol=1e-4, atol=1e-6)


def window(segment: Segment, b: int) -> Segment:
    """Column b as a batch of one."""
    names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
    return replace(
        segment,
        **{n: getattr(segment, n)[:, b : b + 1] for n in names},
        extras={n: x[b : b + 1] for n, x in segment.extras.items()},
        state=tree_map(lambda x: x[b : b + 1], segment.state),
    )


def test_gradients_reach_neither_target_nor_burn_in_nor_state():
    policy = r2d2()
    segment = batch_of(policy).segment
    obs = segment.obs.clone().requires_grad_()
    state = tuple(s.clone().requires_grad_() for s in segment.state)
    whole = replace(segment, obs=obs, state=state)
    out = policy.loss(whole, torch.ones(segment.reward.shape[1]))
    out.loss.backward()
    assert not obs.grad[: policy.window.burnin].any()
    assert not obs.grad[policy.window.burnin + policy.window.learned :].any()
    assert obs.grad[policy.window.burnin : policy.window.burnin + policy.window.learned].any()
    assert all(p.grad is None for p in policy.target.parameters())


@pytest.mark.parametrize("make", [r2d2, dqn])
def test_overfits_one_sample(make):
    policy = make(target_update_every=10**9)
    sample = batch_of(policy)
    losses = [policy.update(sample).metrics["train/loss"].item() for _ in range(500)]
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("make", [r2d2, dqn])
def test_target_update_hard_and_soft(make):
    sample = batch_of(make())

    def gap(p):
        pairs = zip(p.net.parameters(), p.target.parameters(), strict=True)
        return sum((a - b).abs().sum().item() for a, b in pairs)

    hard = make(target_update_every=3)
    gaps = []
    for _ in range(6):
        hard.update(sample)
        gaps.append(gap(hard))
    assert gaps[2] == gaps[5] == 0
    assert min(gaps[0], gaps[1], gaps[3], gaps[4]) > 0
    soft = make(target_update_every=None, target_tau=0.25)
    before = copy.deepcopy(list(soft.target.parameters()))
    soft.update(sample)
    for old, new, online in zip(
        before, soft.target.parameters(), soft.net.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old + 0.25 * (online - old))


@pytest.mark.parametrize("make", [r2d2, dqn])
def test_resume_equals_uninterrupted(make):
    one, two = make(seed=1), make(seed=2)
    sample = batch_of(one)
    for _ in range(3):
        one.update(sample)
    two.load_state_dict(one.state_dict())
    for policy in (one, two):
        policy.update(sample)
        policy.out = act(policy, explore=np.full(6, 0.5))
    assert one.updates == two.updates == 4
    for a, b in zip(tree_leaves(one.state_dict()), tree_leaves(two.state_dict()), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert np.array_equal(one.out.action, two.out.action)


def act(policy, explore=None, count=6):
    g, actor = np.random.default_rng(0), policy.actor(count)
    return actor.act(
        g.standard_normal((count, 3), np.float32), np.zeros(count, bool), np.arange(count) % 5,
        np.ones(count, np.float32), actor.initial_state(), explore=explore,
    )  # fmt: skip


@pytest.mark.parametrize("make", [r2d2, dqn])
def test_exploration_flips_one_coin_per_environment(make):
    policy = make()
    greedy = act(policy).action
    draws = np.stack([act(policy, np.array([0, 0, 0, 1, 1, 1.0])).action for _ in range(300)])
    assert (draws[:, :3] == greedy[:3]).all()
    share = (draws[:, 3:, None] == np.arange(5)).mean((0, 1))
    assert np.abs(share - 0.2).max() < 0.06
    same = (draws[:, 3] == draws[:, 4]).mean()
    assert same < 0.5, "environments share a coin or a draw"


def test_same_seed_same_parameters():
    state = torch.random.get_rng_state()
    a, b, c = r2d2(seed=3), r2d2(seed=3), r2d2(seed=4)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was touched"
    pairs = zip(a.net.parameters(), b.net.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)
    assert not torch.equal(a.net.torso.layers[0].weight, c.net.torso.layers[0].weight)


@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru", "none"])
def test_step_is_unroll(memory):
    policy = r2d2(memory=memory)
    net = policy.net
    g = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, policy.net.torso.size + 6, generator=g)
    state = stepped = policy.initial_state(4)
    whole, last = net.memory.unroll(x, state)
    for t in range(9):
        h, stepped = net.memory.step(x[t], stepped)
        torch.testing.assert_close(h, whole[t], rtol=1e-5, atol=1e-6)
    for a, b in zip(tree_leaves(last), tree_leaves(stepped), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_forget_gate_bias_starts_at_one():
    core = r2d2(hidden=8).net.memory.core
    bias = (core.bias_ih_l0 + core.bias_hh_l0)[8:16]
    assert torch.equal(bias, torch.ones(8))


def test_delta_q_is_zero_for_the_true_state_and_not_for_a_zero_one():
    """Stored states of the present network are the true ones; the zero state is off."""
    import torch as _torch

    from rlrun.env import make_env
    from rlrun.types import Spec
    from tests.pipeline.test_collector import counter, make

    env = make_env(counter([30]), num_envs=3)
    for memory in ("lstm", "gru", "mingru"):
        policy = r2d2(spec=Spec(env.obs_space, env.action_space), memory=memory)
        collector = make(policy, env_config=counter([30]), n_sample=200)
        replay = make_replay(collector.example(), rows=200, window=policy.window)
        replay.add(collector.collect())
        windows, history = replay.histories(16, np.random.default_rng(0))
        assert windows.valid.shape[1] == 16
        with _torch.no_grad():
            found = {k: v.item() for k, v in policy.delta_q(windows, history).items()}
        assert found["train/delta_q_stored_first"] < 1e-4
        assert found["train/delta_q_stored_last"] < 1e-4
        assert found["train/delta_q_zero_first"] > 1e-3


def dqn_one_by_one(policy, segment, b):
    """|delta| of window b: row 0 against the n rows behind it."""
    c = policy.config

    def q(net, p):
        first = bool(segment.first[p, b])
        extras = segment.extras
        action, reward = extras["prev_action"][b], extras["prev_reward"][b]
        if p:
            action, reward = segment.action[p - 1, b], segment.reward[p - 1, b]
        if first:
            action, reward = torch.tensor(-1), torch.tensor(0.0)
        previous = net.encode_previous(action[None], torch.as_tensor(shaped(reward, c))[None])
        return net.unroll(net.inputs(segment.obs[p, b][None], previous), ())[0][0]

    ret, k, dead = 0.0, 0, False
    while k < c.nstep and segment.valid[k, b]:
        ret += c.gamma**k * float(shaped(segment.reward[k, b], c))
        k += 1
        dead = bool(segment.terminated[k - 1, b])
        if dead or segment.truncated[k - 1, b]:
            break
    y = torch.tensor(ret)
    if not dead:
        best = q(policy.net if c.double else policy.target, k).argmax()
        value = q(policy.target, k)[best]
        if c.value_rescale_eps is not None:
            value = unrescale(value, c.value_rescale_eps)
        y = y + c.gamma**k * value
    if c.value_rescale_eps is not None:
        y = rescale(y, c.value_rescale_eps)
    return (y.detach() - q(policy.net, 0)[segment.action[0, b]]).abs().item()


@pytest.mark.parametrize(
    "option",
    [{}, {"double": False}, {"value_rescale_eps": None}, {"nstep": 1}, {"reward_clip": 0.1}],
    ids=str,
)
def test_dqn_is_the_naive_loop(option):
    policy = dqn(**option)
    with torch.no_grad():
        for p in policy.target.parameters():
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    segment = batch_of(policy).segment
    count = segment.reward.shape[1]
    weight = torch.linspace(0.2, 1, count)
    loss, td, *_ = policy.loss(segment, weight)
    naive = torch.tensor([dqn_one_by_one(policy, segment, b) for b in range(count)])
    torch.testing.assert_close(td, naive, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, (0.5 * weight * naive**2).mean(), rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_by_their_whole_norm():
    """Adam's first step is lr g / (|g| + eps): a large eps makes the gradient's size visible."""
    sample = batch_of(r2d2())
    wide, tight = r2d2(grad_clip=None, adam_eps=10.0), r2d2(grad_clip=0.1, adam_eps=10.0)
    before = [p.clone() for p in wide.net.parameters()]
    norm = wide.update(sample).metrics["train/grad_norm"].item()
    assert tight.update(sample).metrics["train/grad_norm"].item() == pytest.approx(norm)
    assert norm > 0.2
    moves = [
        torch.cat([(p - b).flatten() for p, b in zip(x.net.parameters(), before, strict=True)])
        for x in (wide, tight)
    ]
    ratio = (moves[1].norm() / moves[0].norm()).item()
    assert ratio == pytest.approx(0.1 / norm, rel=0.1)


def test_images_are_scaled_and_discrete_observations_one_hot():
    import gymnasium as gym

    from rlrun.nets.torso import flat_size, flatten

    grid = gym.spaces.Box(0, 255, (2, 2), np.uint8)
    got = flatten(grid, torch.tensor([[[0, 255], [51, 102]]], dtype=torch.uint8))
    assert got.tolist() == [[0, 255, 51, 102]], "too small for a picture"
    pixels = torch.full((1, 36, 36), 51, dtype=torch.uint8)
    got = flatten(gym.spaces.Box(0, 255, (36, 36), np.uint8), pixels)
    torch.testing.assert_close(got, torch.full((1, 36 * 36), 0.2))
    space = gym.spaces.Dict(
        {
            "a": gym.spaces.Discrete(3, start=5),
            "b": gym.spaces.Tuple(
                (gym.spaces.MultiDiscrete([2, 2], start=[3, 0]), gym.spaces.Box(-1, 1, (1,)))
            ),
        }
    )
    obs = {"a": torch.tensor([6]), "b": (torch.tensor([[4, 0]]), torch.tensor([[0.5]]))}
    got = flatten(space, obs)
    assert got.tolist() == [[0, 1, 0, 0, 1, 1, 0, 0.5]]
    assert flat_size(space) == 8


def test_learned_overlap_leaves_partial_burn_ins():
    """Spans 2 apart with a burn-in of 4: some windows have 2 of their 4 rows."""
    policy = r2d2(burnin_step=4, learn_unroll_len=7, nstep=3)
    segment = states_like(policy, make_stream([[9, 13]], [[True, False]], 60))
    replay = make_replay(segment, rows=90, window=policy.window, overlap=2)
    got = replay.get(replay.add(segment), 0).segment
    count = got.reward.shape[1]
    assert got.partial == (2,)
    want = torch.tensor([float(one_by_one(policy, got, b)[1]) for b in range(count)])
    priority = policy.loss(got, torch.ones(count)).priority
    torch.testing.assert_close(priority, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.05, 0.5, 1e3])
def test_a_step_is_torchs_adam_behind_torchs_clipping(clip):
    """20 steps with a moving learning rate, against torch.optim.Adam and clip_grad_norm_."""
    from tests.buffer.factory import linear

    ours = r2d2(grad_clip=clip, lr=linear(1e-2, 1e-4))
    twin = copy.deepcopy(ours.net)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.0, eps=ours.config.adam_eps)
    g = torch.Generator().manual_seed(0)
    for i in range(20):
        x = torch.randn(5, 3, ours.net.torso.size + 6, generator=g)
        size = 10.0 ** (i % 3 - 1)  # below and above the clip
        for group in optimizer.param_groups:
            group["lr"] = ours.rates_at(50 * i)[0]
        losses = [size * n.unroll(x, ours.initial_state(3))[0].square().mean()
                  + sum(p.square().sum() for p in n.torso.parameters()) * 1e-3
                  for n in (ours.net, twin)]  # fmt: skip
        optimizer.zero_grad()
        losses[1].backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), clip or float("inf"))
        optimizer.step()
        ours.adam.step(torch.autograd.grad(losses[0], ours.params), ours.rates_at(50 * i)[0])
    for a, b in zip(ours.net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_rewards_are_clipped_after_scaling_on_both_sides():
    from rlrun.functional.rows import shape_reward

    got = shape_reward(torch.tensor([-9.0, -1.0, 0.0, 1.0, 9.0]), 0.1, 0.125)
    torch.testing.assert_close(got, torch.tensor([-0.125, -0.1, 0.0, 0.1, 0.125]))
