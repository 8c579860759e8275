"""BC, CQL and IQL: naive twins row by row, padding, one sample, targets, resume."""

import copy
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.nets.memory.lstm_gru import NoMemory
from rlrun.policy.bc import BC
from rlrun.policy.cql import CQL
from rlrun.policy.iql import IQL
from rlrun.schema import BCConfig, CQLConfig, IQLConfig, TorsoConfig
from rlrun.types import Spec, tree_leaves
from tests.buffer.factory import constant, make_replay
from tests.nets.cells import memory_config
from tests.policy.factory import _VALUE, SPEC, states_like
from tests.reference.streams import make_stream

BOX = Spec(SPEC.obs, gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10])))
NUMBER = Spec(SPEC.obs, gym.spaces.Box(10, 20, (), np.float32))  # without a dimension
_OWN = {"lr": constant(1e-2), "adam_eps": 1e-8, "grad_clip": None, "head_hidden": (8,)}


def make(cls, config, spec, memory, seed):
    hidden = 0 if memory == "none" else 8
    return cls(
        config, TorsoConfig("mlp", (8,), "tanh", False), memory_config(memory, hidden, 1.0),
        spec=spec, seed=seed, total_steps=1000, device=torch.device("cpu"),
    )  # fmt: skip


def bc(*, spec=SPEC, memory="none", seed=0, **changes) -> BC:
    own = {"name": "bc", "learn_unroll_len": 2, "burnin_step": 0, "memory_lr": None}
    return make(BC, BCConfig(**(_OWN | own | changes)), spec, memory, seed)


def bc_lstm(*, spec=SPEC, seed=0, **changes) -> BC:
    own = {"memory": "lstm", "learn_unroll_len": 5, "burnin_step": 3}
    return bc(spec=spec, seed=seed, **(own | changes))


def cql(*, spec=SPEC, seed=0, **changes) -> CQL:
    own = {"name": "cql", "conservatism": 0.7}
    return make(CQL, CQLConfig(**(_VALUE | own | changes)), spec, "none", seed)


def iql(*, spec=SPEC, seed=0, **changes) -> IQL:
    own = {
        "name": "iql", "nstep": 2, "gamma": 0.9, "expectile": 0.7, "inverse_temperature": 2.0,
        "weight_clip": 3.0, "target_tau": 0.1, "reward_scale": 0.01, "reward_clip": None,
    }  # fmt: skip
    return make(IQL, IQLConfig(**(_OWN | own | changes)), spec, "none", seed)


CASES = {
    "bc": bc, "bc_box": lambda **k: bc(spec=BOX, **k), "bc_lstm": bc_lstm,
    "bc_lstm_box": lambda **k: bc_lstm(spec=BOX, **k), "cql": cql, "iql": iql,
    "iql_box": lambda **k: iql(spec=BOX, **k),
    "bc_number": lambda **k: bc(spec=NUMBER, **k), "iql_number": lambda **k: iql(spec=NUMBER, **k),
}  # fmt: skip


def windows(policy):
    """Every window of a short counter stream with episodes of 1 to 13 steps, as one sample."""
    stream = make_stream([[4, 9, 1], [6, 13]], [[True, False], [False, True]], 80)
    segment = states_like(policy, stream) if hasattr(policy, "initial_state") else stream.segment
    if getattr(policy, "net", None) is not None and policy_space(policy) == "Box":
        g = torch.Generator().manual_seed(0)
        low, high = (torch.tensor(x) for x in (policy.net.space.low, policy.net.space.high))
        unit = torch.rand(*segment.action.shape, *low.shape, generator=g)
        action = unit * (high - low) + low
        segment = replace(segment, action=action)
    replay = make_replay(segment, rows=120, window=policy.window)
    return replay.get(replay.add(segment), 0)


def policy_space(policy):
    return type(getattr(policy.net, "space", None)).__name__


@pytest.fixture(params=list(CASES))
def policy(request):
    return CASES[request.param]()


def poisoned(segment, value):
    """Filler, null rows and what only they touch hold ``value``; the observation behind a
    truncated row and the rows themselves stay."""
    valid, ends = segment.valid, segment.terminated
    none = torch.zeros_like(valid[:1])
    read = torch.cat([valid, none]) | torch.cat([none, valid & ~ends])
    wide = valid.reshape(*valid.shape, *[1] * (segment.action.ndim - 2))
    action = segment.action
    junk = value if action.is_floating_point() else 1
    return replace(
        segment,
        obs=torch.where(read[..., None], segment.obs, value),
        reward=torch.where(valid, segment.reward, value),
        action=torch.where(wide, action, torch.full_like(action, junk)),
    )


@pytest.mark.parametrize("value", [1e9, float("nan")])
def test_padding_changes_no_bit(policy, value):
    sample = windows(policy)
    wild = replace(sample, segment=poisoned(sample.segment, value))
    assert not torch.equal(wild.segment.obs, sample.segment.obs)
    twin = copy.deepcopy(policy)
    a, b = policy.update(sample), twin.update(wild)
    assert torch.equal(a.priority, b.priority)
    for name, x in a.metrics.items():
        assert torch.equal(x, b.metrics[name]), name
    for x, y in zip(policy.weights().values(), twin.weights().values(), strict=True):
        assert torch.equal(x, y)


def test_overfits_one_sample(policy):
    sample = windows(policy)
    losses = [policy.update(sample).metrics["train/loss"].item() for _ in range(300)]
    assert losses[-1] < 0.7 * losses[0] if losses[0] > 0 else losses[-1] < losses[0]
    if isinstance(policy, BC):
        assert policy.update(sample).metrics["train/imitation_error"] < 0.5


def test_resume_equals_uninterrupted(policy, request):
    sample = windows(policy)
    for _ in range(3):
        policy.update(sample)
    twin = CASES[request.node.callspec.params["policy"]](seed=5)
    twin.load_state_dict(policy.state_dict())
    for _ in range(3):
        a, b = policy.update(sample), twin.update(sample)
        assert torch.equal(a.metrics["train/loss"], b.metrics["train/loss"])
    for x, y in zip(tree_leaves(policy.state_dict()), tree_leaves(twin.state_dict()), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def test_priority_is_that_of_update(policy):
    sample = windows(policy)
    priority = policy.priority(sample)
    torch.testing.assert_close(priority, policy.update(sample).priority, rtol=1e-5, atol=1e-6)
    assert (priority >= 0).all()


# -- naive twins -----------------------------------------------------------------------------------


def rows_of(segment, b, bs, learned):
    """The own rows of window b up to the last learned one, oldest first: (position, learned)."""
    return [(p, p >= bs) for p in range(bs + learned) if bool(segment.valid[p, b])]


@pytest.mark.parametrize("name", ["bc", "bc_box", "bc_lstm", "bc_lstm_box"])
@pytest.mark.parametrize("burnin", [0, 2, 6])
def test_bc_is_the_naive_loop(name, burnin):
    """Log-likelihoods row by row, the memory stepped from zero over the window's own rows."""
    if "lstm" not in name and burnin:
        pytest.skip("single rows")
    policy = CASES[name](burnin_step=burnin)
    segment = windows(policy).segment
    weight = torch.linspace(0.2, 1, segment.reward.shape[1])
    out, net = policy.loss(segment, weight), policy.net
    bs, learned = policy.window.burnin, policy.window.learned
    total = torch.zeros(())
    for b in range(len(weight)):
        state, own = policy.net.memory.initial_state(1, policy.device), torch.zeros(())
        for p, counts in rows_of(segment, b, bs, learned):
            if counts:
                h, state = net.memory.step(net.inputs(segment.obs[p, b][None]), state)
                logits = net.outputs(h)
                action = segment.action[p, b]
                if policy_space(policy) == "Box":
                    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0])
                    unit = 2 * (action - low) / (high - low) - 1
                    spread = torch.distributions.Normal(logits[0], net.log_std.exp())
                    own = own + spread.log_prob(unit).sum()
                else:
                    own = own + logits[0].softmax(-1)[action].log()
            else:
                with torch.no_grad():
                    _, state = net.memory.step(net.inputs(segment.obs[p, b][None]), state)
        total = total - weight[b] * own / learned
    want = total / len(weight)
    torch.testing.assert_close(out.loss, want, rtol=1e-5, atol=1e-6)
    of = list(net.parameters())
    for x, y in zip(*(torch.autograd.grad(v, of) for v in (out.loss, want)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def nstep_of(segment, b, c):
    """(return, gamma^k, alive, position it bootstraps from) of row 0 of window b."""
    total, k = 0.0, 0
    while k < c.nstep and bool(segment.valid[k, b]):
        total += c.gamma**k * float(segment.reward[k, b]) * c.reward_scale
        k += 1
        if segment.terminated[k - 1, b]:
            return total, 0.0, False, k
        if segment.truncated[k - 1, b]:
            break
    return total, c.gamma**k, True, k


@pytest.mark.parametrize(
    "option", [{}, {"conservatism": 0.0}, {"double": False}, {"nstep": 1}], ids=str
)
def test_cql_is_the_naive_loop(option):
    policy = cql(value_rescale_eps=None, prev_inputs=False, **option)
    with torch.no_grad():
        for p in policy.target.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    segment = windows(policy).segment
    count, c = segment.reward.shape[1], policy.config
    weight = torch.linspace(0.2, 1, count)
    out = policy.loss(segment, weight)

    def q_of(net, obs):
        return net.q(net.torso(obs))

    total = torch.zeros(())
    for b in range(count):
        reward, discount, alive, k = nstep_of(segment, b, c)
        if alive:
            with torch.no_grad():
                later = q_of(policy.target, segment.obs[k, b])
                chosen = q_of(policy.net, segment.obs[k, b]) if c.double else later
                reward += discount * later[chosen.argmax()].item()
        q, a = q_of(policy.net, segment.obs[0, b]), segment.action[0, b]
        gap = q.exp().sum().log() - q[a]
        total = total + weight[b] * (0.5 * (reward - q[a]) ** 2 + c.conservatism * gap)
        assert out.priority[b].item() == pytest.approx(abs(reward - q[a].item()), abs=1e-5)
    want, of = total / count, list(policy.net.parameters())
    torch.testing.assert_close(out.loss, want.detach(), rtol=1e-5, atol=1e-6)
    found = torch.autograd.grad(out.loss, of)
    for x, y in zip(found, torch.autograd.grad(want, of), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["iql", "iql_box"])
@pytest.mark.parametrize("option", [{}, {"nstep": 1}, {"expectile": 0.9}], ids=str)
def test_iql_is_the_naive_loop(name, option):
    policy = CASES[name](**option)
    with torch.no_grad():
        for p in policy.target.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    segment, c, nets = windows(policy).segment, policy.config, policy.nets
    count = segment.reward.shape[1]
    weight = torch.linspace(0.2, 1, count)
    out, total = policy.loss(segment, weight), torch.zeros(())
    for b in range(count):
        reward, discount, alive, k = nstep_of(segment, b, c)
        obs, action = segment.obs[0, b][None], segment.action[0, b][None]
        if name == "iql_box":
            action = 2 * (action - torch.tensor([-2.0, 0.0])) / torch.tensor([4.0, 10.0]) - 1
        if alive:
            reward += discount * nets.value(segment.obs[k, b][None]).item()
        q_target = min(critic(obs, action).item() for critic in policy.target)
        u = q_target - nets.value(obs)[0]
        fit = (c.expectile if u > 0 else 1 - c.expectile) * u**2
        regress = sum((reward - critic(obs, action)[0]) ** 2 for critic in nets.critics)
        logits = nets.policy.head(nets.policy.torso(obs))[0]
        if name == "iql_box":
            spread = torch.distributions.Normal(logits.tanh(), nets.policy.log_std.exp())
            log_prob = spread.log_prob(action[0]).sum()
        else:
            log_prob = logits.log_softmax(-1)[action[0]]
        worth = min(np.exp(c.inverse_temperature * u.item()), c.weight_clip)
        total = total + weight[b] * (fit + regress - worth * log_prob)
    want, of = total / count, list(nets.parameters())
    torch.testing.assert_close(out.loss, want, rtol=1e-5, atol=1e-6)
    for x, y in zip(*(torch.autograd.grad(v, of) for v in (out.loss, want)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_iql_targets_follow_softly_and_losses_stay_apart():
    """The critics' target moves by theta; no loss reaches another's network."""
    policy = iql(target_tau=0.25)
    sample = windows(policy)
    before = [p.clone() for p in policy.target.parameters()]
    policy.update(sample)
    for old, new, online in zip(
        before, policy.target.parameters(), policy.nets.critics.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old + 0.25 * (online - old))
    assert isinstance(policy.net.memory, NoMemory)


@pytest.mark.parametrize("name", ["bc_box", "iql_box", "bc", "iql"])
def test_greedy_is_the_mode_and_exploring_samples(name):
    policy = CASES[name]()
    actor, rng = policy.actor(64), np.random.default_rng(0)
    obs = rng.normal(size=(64, 3)).astype(np.float32)
    first, zero = np.ones(64, bool), np.zeros(64, np.float32)
    given = (obs, first, zero, zero, actor.initial_state())
    out = policy.net.head(policy.net.torso(torch.from_numpy(obs))).detach()
    greedy = actor.act(*given, explore=None).action
    drawn = [actor.act(*given, explore=zero).action for _ in range(200)]
    if policy_space(policy) == "Box":
        want = out.tanh().numpy() * [2, 5] + [0, 5]
        np.testing.assert_allclose(greedy, want, rtol=1e-5, atol=1e-5)
        assert all(BOX.action.contains(a) for a in np.concatenate(drawn))
        assert np.std(drawn, 0).min() > 0.1
    else:
        assert np.array_equal(greedy, out.argmax(-1).numpy())
        share = (np.array(drawn) == greedy).mean()
        assert share == pytest.approx(out.softmax(-1).amax(-1).mean().item(), abs=0.02)


@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("spec", [SPEC, BOX], ids=["discrete", "box"])
def test_acting_in_numpy_is_acting_in_torch(memory, spec):
    from rlrun.acting.step import NumpyStep, TorchStep

    policy = bc(spec=spec, memory=memory)
    steps, rng = (
        (NumpyStep(policy.net, 5), TorchStep(policy.net, 5)),
        np.random.default_rng(0),
    )
    for step in steps:
        step.refresh()
    states, none = [s.initial_state() for s in steps], np.zeros(5, np.float32)
    for t in range(6):
        obs = rng.normal(size=(5, 3)).astype(np.float32)
        first = rng.random(5) < 0.3 if t else np.ones(5, bool)
        outs = [s(obs, first, none, none, h) for s, h in zip(steps, states, strict=True)]
        states = [h for _, h in outs]
        np.testing.assert_allclose(outs[0][0], outs[1][0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("log_std", "bound"), [(9.0, 2.0), (-9.0, -5.0)])
def test_the_deviation_of_real_actions_is_bounded_in_learning_and_acting(log_std, bound):
    policy, spread = bc(spec=BOX), []
    mean, action = torch.zeros(1, 2), torch.tensor([[1.0, 4.0]])
    for value in (log_std, bound):
        policy.net.log_std.data.fill_(value)
        actor = policy.actor(1)
        spread.append((policy.net.log_prob(mean, action).item(), *actor.std))
    assert spread[0] == pytest.approx(spread[1])
