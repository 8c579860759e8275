"""BC, CQL and IQL: updates by loops over rows, padding, targets, checkpoints, acting."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.types import Spec, tree_map
from tests.policy import make
from tests.policy.make import BOX, DISCRETE, MASKED, OBS, build, to_unit, windows
from tests.reference.traces import nstep_rows

NUMBER = Spec(OBS, gym.spaces.Box(10, 20, (), np.float32))  # an action without a dimension
SEQUENCE = {"memory": "lstm", "learn_unroll_len": 5, "burnin_step": 3}
CASES = {
    "bc": {}, "bc box": {"spec": BOX}, "bc masked": {"spec": MASKED},
    "bc lstm": SEQUENCE, "bc lstm box": SEQUENCE | {"spec": BOX, "burnin_step": 6},
    "bc number": {"spec": NUMBER},
    "cql": {"value_rescale_eps": None}, "cql rescaled": {"prev_inputs": True, "double": False},
    "cql masked": {"spec": MASKED, "nstep": 1, "value_rescale_eps": None},
    "iql": {}, "iql box": {"spec": BOX, "nstep": 1, "expectile": 0.9},
    "iql masked": {"spec": MASKED},
    "iql number": {"spec": NUMBER},
}  # fmt: skip


def spec_of(case):
    return CASES[case].get("spec", DISCRETE)


def of(case, **more):
    return build(case.split()[0], **CASES[case] | more)


def nstep_of(own, segment, b, rewards):
    """(return, discount, k) of row 0 of window b."""
    columns = (getattr(segment, n)[:, b].tolist() for n in ("terminated", "truncated", "valid"))
    total, k, discount = nstep_rows(rewards, *columns, own.config.nstep, own.config.gamma)[0]
    return total, discount, k


def log_prob(net, outputs, obs, action, space):
    """log pi(action) of outputs before tanh."""
    if isinstance(space, gym.spaces.Box):
        spread = torch.distributions.Normal(outputs.tanh(), net.log_std.exp())
        return spread.log_prob(to_unit(space, action)).sum()
    if isinstance(obs, dict):
        outputs = torch.where(obs["action_mask"] > 0, outputs, -torch.inf)
    return outputs.log_softmax(-1)[action]


def at(tree, *index):
    return tree_map(lambda x: x[index], tree)


def bc_loss(own, segment, b, space):
    """The memory starts from zero at the window's own first row; error: 1 - pi, or distances."""
    w, net, total, errors = own.window, own.net, torch.zeros(()), []
    state = net.memory.initial_state(1, torch.device("cpu"))
    for p in (p for p in range(w.burnin + w.learned) if segment.valid[p, b]):
        obs = at(segment.obs, p, b)
        with torch.set_grad_enabled(p >= w.burnin):
            h, state = net.memory.step(net.inputs(tree_map(lambda x: x[None], obs)), state)
        if p >= w.burnin:
            outputs, action = net.head(h)[0], segment.action[p, b]
            gain = log_prob(net, outputs, obs, action, space)
            total = total - gain
            real = isinstance(space, gym.spaces.Box)
            off = (outputs.tanh() - to_unit(space, action)).abs().mean() if real else 1 - gain.exp()
            errors.append(off.item())
    return total / w.learned, np.mean(errors) if errors else 0.0


def iql_loss(own, segment, b, space):
    c, nets, real = own.config, own.nets, isinstance(space, gym.spaces.Box)
    obs, action = tree_map(lambda x: x[None], at(segment.obs, 0, b)), segment.action[0, b]
    given = to_unit(space, action)[None] if real else action[None]
    rewards = (segment.reward[:, b] * c.reward_scale).tolist()
    total, discount, k = nstep_of(own, segment, b, rewards)
    if discount:
        later = tree_map(lambda x: x[None], at(segment.obs, k, b))
        total += discount * nets.value(later).item()
    u = min(critic(obs, given).item() for critic in own.target) - nets.value(obs)[0]
    fit = (c.expectile if u > 0 else 1 - c.expectile) * u**2
    q = [critic(obs, given)[0] for critic in nets.critics]
    outputs = nets.policy.head(nets.policy.torso(obs))[0]
    worth = min(np.exp(c.inverse_temperature * u.item()), c.weight_clip)
    imitate = -worth * log_prob(nets.policy, outputs, at(segment.obs, 0, b), action, space)
    error = max(abs(total - x.item()) for x in q)
    return fit + sum((total - x) ** 2 for x in q) + imitate, error


LOSSES = {"bc": bc_loss, "iql": iql_loss}


@pytest.mark.parametrize("case", [case for case in CASES if case.split()[0] in LOSSES])
def test_an_update_is_the_loop_over_rows(case):
    policy, name = make.spread(of(case)), case.split()[0]
    sample, own = windows(policy, spec_of(case)), make.nets(policy)
    count, space = len(sample.weight), spec_of(case).action
    naive = [LOSSES[name](own, sample.segment, b, space) for b in range(count)]
    loss = sum(w * x for w, (x, _) in zip(sample.weight, naive, strict=True)) / count
    net = own.net if name != "iql" else own.nets
    want = make.named_gradients(loss, "", net)
    update, grads = make.gradients(policy, sample)
    assert update.metrics["train/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    make.assert_gradients(grads, want)
    np.testing.assert_allclose(update.priority, [x[1] for x in naive], rtol=1e-3, atol=1e-5)
    assert (update.priority >= 0).all()


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("cql")])
def test_cql_is_dqn_with_the_gap(case):
    """log sum_a exp Q(s, a) - Q(s, action) of row 0, over allowed actions."""
    policy, dqn = (make.spread(build(name, **given)) for name, given in (
        ("cql", CASES[case]), ("dqn", {"value_rescale_eps": 1e-3} | CASES[case])))  # fmt: skip
    sample, own = windows(policy, spec_of(case)), make.nets(policy)
    q, obs = make.stepped_q(own, sample.segment)[0], sample.segment.obs
    mask = obs["action_mask"][0] > 0 if isinstance(obs, dict) else torch.ones_like(q) > 0
    action = sample.segment.action[0][:, None]
    gap = torch.where(mask, q, -torch.inf).logsumexp(-1) - q.gather(-1, action)[:, 0]
    more = 0.7 * (sample.weight * gap).mean()
    want = make.named_gradients(more, "", own.net)
    (ours, got), (theirs, plain) = (make.gradients(p, sample) for p in (policy, dqn))
    loss = theirs.metrics["train/loss"].item() + more.item()
    assert ours.metrics["train/loss"].item() == pytest.approx(loss, rel=1e-5)
    assert ours.metrics["train/conservative_gap"].item() == pytest.approx(gap.mean().item())
    make.assert_gradients(got, {k: g + plain[k] for k, g in want.items()})
    torch.testing.assert_close(ours.priority, theirs.priority)


def test_critics_of_iql_have_targets_that_follow_softly():
    policy = build("iql", target_tau=0.25)
    before = make.targets(policy)
    policy.update(windows(policy))
    online = make.weights(policy)
    for k, x in make.targets(policy).items():
        torch.testing.assert_close(x, before[k] + 0.25 * (online[f".critics{k}"] - before[k]))


# -- acting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["bc box", "iql box", "bc masked", "iql"])
def test_exploring_samples_the_policy(case):
    policy, spec = of(case), spec_of(case)
    actor, count = policy.actor(4000), 4000
    obs = make.random_tree(spec.obs, (1,), np.random.default_rng(0))
    obs = tree_map(lambda x: np.repeat(x, count, 0), obs)
    if isinstance(obs, dict):
        obs["action_mask"][:] = [1, 0, 1, 1, 0]
    none = np.zeros(count, np.float32)
    rest = (np.ones(count, bool), none, none, actor.initial_state())
    drawn = actor.act(obs, *rest, explore=none).action
    net, seen = make.nets(policy).net, tree_map(lambda x: torch.from_numpy(x[:1]), obs)
    outputs = net.head(net.torso(seen)).detach()[0]
    if spec is BOX:
        unit = torch.stack([to_unit(BOX.action, torch.from_numpy(a)) for a in drawn])
        z = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
        want = (outputs.tanh() + z).clamp(-1, 1)  # log std 0
        torch.testing.assert_close(unit.mean(0), want.mean(0), atol=0.05, rtol=0)
        torch.testing.assert_close(unit.std(0), want.std(0), atol=0.05, rtol=0)
        return
    if isinstance(obs, dict):
        outputs = torch.where(torch.tensor([1, 0, 1, 1, 0]) > 0, outputs, -torch.inf)
    share = np.bincount(drawn, minlength=5) / count
    np.testing.assert_allclose(share, outputs.softmax(-1), atol=0.03)


@pytest.mark.parametrize(("log_std", "bound"), [(9.0, 2.0), (-9.0, -5.0)])
def test_the_deviation_of_real_actions_is_bounded_in_learning_and_acting(log_std, bound):
    found = []
    for value in (log_std, bound):
        policy = build("bc", spec=BOX, lr=make.constant(0.0))
        policy.load(policy.weights() | {"log_std": torch.full((2,), value)})
        loss = policy.update(windows(policy, BOX)).metrics["train/loss"]
        found.append([loss.item(), *make.act_once(policy, BOX, explore=0.0).action.ravel()])
    assert found[0] == pytest.approx(found[1])
