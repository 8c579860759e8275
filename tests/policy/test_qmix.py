"""QMIX and VDN against loops over rows and agents; padding, memory, who has left, mixers."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.acting.step import NumpyStep
from rlrun.joint import JointSpace
from rlrun.policy.qmix import QMIX
from rlrun.schema import QMIXConfig, TorsoConfig
from rlrun.types import Segment, Spec, tree_map
from tests.nets.cells import memory_config
from tests.policy.factory import _VALUE
from tests.reference.nstep import nstep_rows

N, A, SEEN = 3, 4, 2  # agents, actions, numbers of an observation
SPEC = Spec(
    JointSpace(
        gym.spaces.Box(-9, 9, (SEEN,), np.float32), gym.spaces.Box(-9, 9, (5,), np.float32), N
    ),
    gym.spaces.MultiDiscrete([A, A, A - 1]),
)

MASKED = Spec(
    JointSpace(
        gym.spaces.Dict(
            {
                "action_mask": gym.spaces.MultiBinary(A),
                "observation": gym.spaces.Box(-9, 9, (SEEN,), np.float32),
            }
        ),
        gym.spaces.Box(-9, 9, (5,), np.float32),
        N,
    ),
    gym.spaces.MultiDiscrete([A, A, A - 1]),
)


def qmix(*, spec=SPEC, seed=0, memory="gru", **changes) -> QMIX:
    own = {
        "name": "qmix", "learn_unroll_len": 6, "burnin_step": 2, "eta": 0.9, "memory_lr": None,
        "nstep": 2,
        "state_init": "stored", "dueling": False, "value_rescale_eps": None, "reward_scale": 1.0,
        "mixer": "monotonic", "mixer_hidden": 8, "hyper_hidden": (6,), "agent_id": True,
    }  # fmt: skip
    config = QMIXConfig(**(_VALUE | own | changes))
    return QMIX(
        config, TorsoConfig("mlp", (8,), "tanh", False), memory_config(memory, 6, 1.0),
        spec=spec, seed=seed, total_steps=1000, device=torch.device("cpu"),
    )  # fmt: skip


def batch(policy, seed=0) -> Segment:
    """Seven windows that end in every way: nowhere, terminated, truncated, early or late."""
    g = np.random.default_rng(seed)
    steps, b = policy.window.rows - 1, 7
    bs = policy.window.burnin
    valid = np.ones((steps, b), bool)
    terminated, truncated = np.zeros((2, steps, b), bool)
    for column, (last, flag) in enumerate(
        [(steps, None), (steps - 1, terminated), (steps - 1, truncated), (bs, terminated),
         (bs, truncated), (bs + 2, terminated), (bs + 1, truncated)]
    ):  # fmt: skip
        if flag is not None:
            flag[last, column] = True
            valid[last + 1 :, column] = False
    valid[:bs, 3:5] = False  # windows that open an episode: their burn-in is filler
    valid[: min(bs, 1), 5] = False
    first = np.zeros((steps + 1, b), bool)
    first[bs, 3:5] = True
    alive = (g.random((steps + 1, b, N)) < 0.8).astype(np.int8)
    obs = {
        "agents": g.normal(size=(steps + 1, b, N, SEEN)).astype(np.float32),
        "alive": alive,
        "state": g.normal(size=(steps + 1, b, 5)).astype(np.float32),
    }
    action = g.integers(A - 1, size=(steps, b, N))
    extras = {
        "prev_action": g.integers(A - 1, size=(b, N)),
        "prev_reward": g.normal(size=b).astype(np.float32),
    }
    state = tree_map(
        lambda s: g.normal(size=(b, *s.shape[1:])).astype(np.float32),
        policy.actor(b).initial_state(),
    )
    fields = (obs, first, action, g.normal(size=(steps, b)).astype(np.float32), terminated,
              truncated, valid, extras, state)  # fmt: skip
    return Segment(*(tree_map(torch.from_numpy, x) for x in fields), partial=(1,))


@torch.no_grad()
def agents_q(policy, net, segment, b):
    """Q [S, N, A] of window b, one row and one agent after the other, from the stored state."""
    steps, bs = len(segment.reward), policy.window.burnin
    c = policy.config
    own = segment.valid[:, b].tolist()
    start = own.index(True)
    reads = [t for t in range(start, steps + 1) if (t < steps and own[t]) or own[t - 1]]
    out = torch.full((steps + 1, N, A), torch.nan)
    for i in range(N):
        state = tree_map(lambda s, i=i: s[b, i][None], segment.state)
        for t in reads:
            if t == start:
                action, reward = (
                    segment.extras["prev_action"][b, i],
                    segment.extras["prev_reward"][b],
                )
            else:
                action, reward = segment.action[t - 1, b, i], segment.reward[t - 1, b]
            if segment.first[t, b]:
                action, reward = torch.tensor(-1), torch.tensor(0.0)
            previous = net.agents.encode_previous(action[None], c.reward_scale * reward[None])
            seen = tree_map(lambda x, t=t, i=i: x[t, b, i][None], segment.obs["agents"])
            if c.agent_id:
                seen = {"agent": torch.eye(N)[i][None], "observation": seen}
            h, state = net.agents.memory.step(net.agents.inputs(seen, previous), state)
            out[t, i] = net.agents.q(h)[0]
    assert start <= bs
    return out


def allowed(segment, t, b, i, count):
    """The actions that an agent's mask allows, all ``count`` if it has none or allows none."""
    seen = segment.obs["agents"]
    mask = seen["action_mask"][t, b, i, :count] if isinstance(seen, dict) else torch.ones(count)
    return [a for a in range(count) if mask[a] or not mask.any()]


@torch.no_grad()
def by_hand(policy, segment):
    """(delta, Q_tot) {(t, b): ...} of every valid learned row, straight from the definition."""
    c, window = policy.config, policy.window
    counts = [A, A, A - 1]
    out = {}

    def total(net, values, t, b):
        lived = [v if segment.obs["alive"][t, b, i] else 0.0 for i, v in enumerate(values)]
        return net.mixer(torch.tensor(lived), segment.obs["state"][t, b]).item()

    for b in range(segment.reward.shape[1]):
        q, lag = (agents_q(policy, net, segment, b) for net in (policy.net, policy.target))
        flags = [getattr(segment, n)[window.burnin :, b].tolist() for n in
                 ("reward", "terminated", "truncated", "valid")]  # fmt: skip
        targets = nstep_rows(*flags, c.nstep, c.gamma)
        for p in range(window.learned):
            t = window.burnin + p
            if not segment.valid[t, b]:
                continue
            reward, k, discount = targets[p]
            taken = [q[t, i, segment.action[t, b, i]].item() for i in range(N)]
            value = total(policy.net, taken, t, b)
            target = reward
            if discount:
                select = q if c.double else lag
                best = [
                    max(allowed(segment, t + k, b, i, counts[i]), key=select[t + k, i].__getitem__)
                    for i in range(N)
                ]
                ahead = [lag[t + k, i, a].item() for i, a in enumerate(best)]
                target += discount * total(policy.target, ahead, t + k, b)
            out[t, b] = (target - value, value)
    return out


CASES = [
    {},
    {"mixer": "sum"},
    {"nstep": 1, "double": False},
    {"nstep": 3, "memory": "lstm", "agent_id": False, "prev_inputs": False, "dueling": True},
    {"memory": "none", "burnin_step": 0},
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c.values())) or "plain")
def test_loss_is_the_loop(case):
    policy = qmix(**case)
    with torch.no_grad():
        for p in policy.target.parameters():  # a target that differs
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    segment = batch(policy)
    compare(policy, segment)


@pytest.mark.parametrize("case", [{}, {"double": False, "agent_id": False}], ids=str)
def test_loss_with_masks_is_the_loop(case):
    """Targets choose among allowed actions; networks do not read the mask."""
    policy = qmix(spec=MASKED, **case)
    segment, g = batch(policy), torch.Generator().manual_seed(1)
    seen = segment.obs["agents"]
    mask = (torch.rand(*seen.shape[:-1], A, generator=g) < 0.4).to(torch.int8)
    agents = {"action_mask": mask, "observation": seen}
    masked = replace(segment, obs={**segment.obs, "agents": agents})
    loss = compare(policy, masked)
    free = {**agents, "action_mask": torch.ones_like(mask)}
    assert not torch.equal(
        policy.loss(replace(segment, obs={**segment.obs, "agents": free}), torch.ones(7)).loss, loss
    ), "no mask mattered"
    wide = SEEN + (N if policy.config.agent_id else 0)
    assert policy.net.agents.torso.layers[0].in_features == wide


def compare(policy, segment):
    """Compare the loss of a segment with the loop's; return it with equal weights."""
    b = segment.reward.shape[1]
    weight = torch.linspace(0.2, 1, b)
    out = policy.loss(segment, weight)
    expected = by_hand(policy, segment)
    learned = policy.window.learned
    loss = sum(weight[b].item() * 0.5 * d**2 for (_, b), (d, _) in expected.items())
    assert out.loss.item() == pytest.approx(loss / (learned * b), rel=1e-4)
    values = [value for _, value in expected.values()]
    taken = out.metrics["train/q_taken"].item()
    assert taken == pytest.approx(sum(values) / len(values), abs=1e-5)
    for col in range(b):
        sizes = [abs(d) for (_, c), (d, _) in expected.items() if c == col]
        priority = 0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes)
        assert out.priority[col].item() == pytest.approx(priority, rel=1e-4)
    return policy.loss(segment, torch.ones(b)).loss


@pytest.mark.parametrize("mixer", ["monotonic", "sum"])
@pytest.mark.parametrize("value", [1e9, float("nan")])
def test_padding_changes_no_bit(mixer, value):
    policy = qmix(mixer=mixer)
    segment = batch(policy)
    valid = segment.valid
    none = torch.zeros_like(valid[:1])
    read = torch.cat([valid, none]) | torch.cat([none, valid & ~segment.terminated])

    def spoil(x):
        if not x.is_floating_point():
            return x
        return torch.where(read.reshape(*read.shape, *[1] * (x.ndim - 2)), x, value)

    dirty = replace(
        segment,
        obs=tree_map(spoil, segment.obs),
        reward=torch.where(valid, segment.reward, value),
        action=torch.where(valid.unsqueeze(-1), segment.action, 0),
    )
    weight, results = torch.ones(segment.reward.shape[1]), []
    for s in (segment, dirty):
        out = policy.loss(s, weight)
        grads = torch.autograd.grad(out.loss, list(policy.net.parameters()))
        results.append((out.loss, out.priority, *grads))
    for clean, other in zip(*results, strict=True):
        assert torch.equal(clean, other)
        assert torch.isfinite(clean).all()


def test_the_gradient_is_that_of_the_prediction_alone():
    """sum -delta dQ_tot / L B, the targets constant: by differences along the gradient."""
    policy = qmix()
    segment = batch(policy)
    weight = torch.ones(segment.reward.shape[1])
    params = list(policy.net.parameters())
    grads = torch.autograd.grad(policy.loss(segment, weight).loss, params)
    norm = torch.cat([g.flatten() for g in grads]).norm()

    def loss_at(step):
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p += step * g / norm
            found = policy.loss(segment, weight).loss.item()
            for p, g in zip(params, grads, strict=True):
                p -= step * g / norm
        return found

    step = 3e-3
    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert slope == pytest.approx(norm.item(), rel=2e-2)


@pytest.mark.parametrize("seed", range(5))
def test_the_network_is_monotonic_and_every_part_of_it_learns(seed):
    policy = qmix(seed=seed)
    segment = batch(policy, seed)
    obs = tree_map(lambda x: x[0], segment.obs) | {"alive": torch.ones(7, N, dtype=torch.int8)}
    q = torch.randn(7, N, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    (grad,) = torch.autograd.grad(policy.net.q_total(q, obs).sum(), q)
    assert (grad >= 0).all()
    out = policy.loss(segment, torch.ones(7))
    grads = torch.autograd.grad(out.loss, list(policy.net.parameters()))
    names = [n for n, _ in policy.net.named_parameters()]
    assert all(g.abs().sum() > 0 for g in grads), dict(zip(names, grads, strict=True))


def test_agents_that_left_do_not_change_the_loss():
    policy = qmix()
    segment = batch(policy)
    gone = segment.obs["alive"].clone()
    gone[..., 1] = 0
    segment = replace(segment, obs=segment.obs | {"alive": gone})
    other = segment.obs["agents"].clone()
    other[:, :, 1] = 5.0
    action = segment.action.clone()
    action[..., 1] = 0
    changed = replace(segment, obs=segment.obs | {"agents": other}, action=action)
    extras = segment.extras
    results = [
        policy.loss(replace(s, extras=extras), torch.ones(7)).loss for s in (segment, changed)
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("mixer", ["monotonic", "sum"])
def test_overfits_one_sample(mixer):
    from rlrun.types import Sample

    policy = qmix(mixer=mixer, lr=policy_lr(3e-3), target_update_every=10_000)
    segment = batch(policy)
    sample = Sample(segment, torch.ones(7), np.arange(7), 0)
    losses = [policy.update(sample).metrics["train/loss"].item() for _ in range(280)]
    assert losses[-1] < 0.02 * losses[0]


def policy_lr(value):
    from tests.buffer.factory import constant

    return constant(value)


def test_acting_is_learning_row_by_row():
    """The actor's Q of every row is the learner's, previous action and reward included."""
    policy, num_envs, rows = qmix(burnin_step=0, learn_unroll_len=9), 4, 8
    actor, g = policy.actor(num_envs), np.random.default_rng(0)
    assert type(actor.net_step) is NumpyStep
    obs = {
        "agents": g.normal(size=(rows, num_envs, N, SEEN)).astype(np.float32),
        "alive": np.ones((rows, num_envs, N), np.int8),
        "state": np.zeros((rows, num_envs, 5), np.float32),
    }
    action = g.integers(A - 1, size=(rows, num_envs, N))
    reward = g.normal(size=(rows, num_envs)).astype(np.float32)
    first = np.zeros((rows, num_envs), bool)
    first[0] = True
    state, acted = actor.initial_state(), []
    for t in range(rows):
        before = (action[t - 1], reward[t - 1])
        q, state = actor.step(tree_map(lambda x, t=t: x[t], obs), first[t], *before, state)
        acted.append(q)
    flags = np.zeros((rows - 1, num_envs), bool)
    extras = {"prev_action": action[0], "prev_reward": reward[0]}
    fields = (obs, first, action[:-1], reward[:-1], flags, flags, ~flags, extras,
              actor.initial_state())  # fmt: skip
    segment = Segment(*(tree_map(torch.from_numpy, x) for x in fields))
    from rlrun.functional.rows import network_inputs

    inputs = policy.inputs(*network_inputs(segment, scale=1.0, clip=None))
    with torch.no_grad():
        learned = policy.unroll(policy.net, inputs, segment, segment.state)
    np.testing.assert_allclose(np.stack(acted), learned.numpy(), atol=1e-5)


def test_actions_an_agent_does_not_have_are_never_taken():
    policy = qmix()
    actor, g = policy.actor(200), np.random.default_rng(0)
    obs = {
        "agents": 5 * g.normal(size=(200, N, SEEN)).astype(np.float32),
        "alive": np.ones((200, N), np.int8),
        "state": np.zeros((200, 5), np.float32),
    }
    given = (obs, np.ones(200, bool), np.zeros((200, N), int), np.zeros(200, np.float32))
    for explore in (None, np.ones(200)):
        out = actor.act(*given, actor.initial_state(), explore=explore)
        assert out.action[:, 2].max() < A - 1
    assert out.action[:, 0].max() == A - 1


def test_masks_of_observations_are_kept():
    inner = gym.spaces.Dict(
        {"action_mask": gym.spaces.MultiBinary(A), "observation": gym.spaces.Box(-9, 9, (SEEN,))}
    )
    state = gym.spaces.Box(-9, 9, (5,), np.float32)
    spec = Spec(JointSpace(inner, state, N), gym.spaces.MultiDiscrete([A] * N))
    policy, g = qmix(spec=spec), np.random.default_rng(0)
    mask = (g.random((50, N, A)) < 0.5).astype(np.int8)
    mask[0, 0] = 0  # nothing is allowed: nothing is forbidden
    obs = {
        "agents": {"action_mask": mask, "observation": np.zeros((50, N, SEEN), np.float32)},
        "alive": np.ones((50, N), np.int8),
        "state": np.zeros((50, 5), np.float32),
    }
    actor = policy.actor(50)
    given = (obs, np.ones(50, bool), np.zeros((50, N), int), np.zeros(50, np.float32))
    for explore in (None, np.ones(50)):
        action = actor.act(*given, actor.initial_state(), explore=explore).action
        some = mask.any(-1)
        assert (np.take_along_axis(mask, action[..., None], -1)[..., 0] == 1)[some].all()
    allowed = policy.net.allowed_actions(tree_map(torch.from_numpy, obs)).numpy()
    np.testing.assert_array_equal(allowed, np.where(some[..., None], mask, 1).astype(bool))


def test_state_has_no_part_in_acting():
    """Execution is decentralised: the global state changes no action."""
    policy, g = qmix(), np.random.default_rng(0)
    actor = policy.actor(5)
    obs = {
        "agents": g.normal(size=(5, N, SEEN)).astype(np.float32),
        "alive": np.ones((5, N), np.int8),
    }
    rest = (np.ones(5, bool), np.zeros((5, N), int), np.zeros(5, np.float32), actor.initial_state())
    q = [actor.step(obs | {"state": np.full((5, 5), x, np.float32)}, *rest)[0] for x in (0, 9)]
    np.testing.assert_array_equal(*q)
