"""CrossQ: batches that are normalised as one, running statistics, batch renormalisation."""

import copy

import numpy as np
import torch
import torch.nn.functional as F

from rlrun.nets.renorm import EPS, MAX_SHIFT, BatchRenorm, batch_statistics
from tests.policy import make
from tests.policy.make import BOX, build, windows


def of_batch(norm, x, critic=0):
    """Rows [N, F] by their own mean and variance."""
    weight, bias = (p.reshape(-1, x.shape[-1])[critic] for p in (norm.weight, norm.bias))
    return F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)


def actor_outputs(own, x, normal):
    for layer in own.pi.head:
        x = normal(layer, x) if isinstance(layer, BatchRenorm) else layer(x)
    return x


def critic_value(q, x, critic, normal):
    for i, (w, b) in enumerate(zip(q.weights, q.biases, strict=True)):
        x = F.linear(normal(q.norms[i], x, critic), w[critic].T, b[critic, 0])
        x = x if i == len(q.weights) - 1 else q.activations[i](x)
    return x[:, 0]


def by_running(norm, x, critic=0):
    mean, var, weight, bias = (
        p.reshape(-1, x.shape[-1])[critic] for p in (norm.mean, norm.var, norm.weight, norm.bias)
    )
    return (x - mean) / (var + EPS).sqrt() * weight + bias


def sampled(own, outputs, noise):
    mean, log_std = outputs.chunk(2, -1)
    u = mean + log_std.exp() * noise
    density = torch.distributions.Normal(mean, log_std.exp())
    return u.tanh(), (density.log_prob(u) - torch.log1p(-u.tanh().square())).sum(-1)


def test_an_update_is_that_of_the_paper():
    """On the valid rows alone: no row after a termination is in a batch."""
    policy = build("crossq", spec=BOX, nstep=1)
    sample, own = windows(policy, BOX), make.nets(policy)
    s, c = sample.segment, own.config
    for norm in (m for net in (own.pi, own.q) for m in net.modules() if hasattr(m, "var")):
        with torch.no_grad():
            norm.var += torch.rand(norm.var.shape)
            norm.weight += torch.rand(norm.weight.shape)
    kept = s.valid[0]
    goes_on = kept & ~s.terminated[0]
    obs, after = (own.pi.encoder.torso(s.obs[i : i + 1])[0] for i in (0, 1))
    unit = own.pi.bounds.to_unit(s.action[0])
    noise = [make.normal(0, i, 1, len(kept), 2)[0] for i in (0, 1)]

    next_action, next_log_pi = sampled(own, actor_outputs(own, after, by_running), noise[1])
    both = torch.cat([obs[kept], after[goes_on]]), torch.cat([unit[kept], next_action[goes_on]])
    q = [critic_value(own.q, torch.cat(both, -1), i, of_batch) for i in range(2)]
    next_q = torch.zeros(len(kept))
    next_q[goes_on] = torch.stack([x[kept.sum() :] for x in q]).amin(0)
    value = torch.where(goes_on, next_q - c.temperature * next_log_pi, 0.0)
    target = (c.reward_scale * s.reward[0] + c.gamma * value).detach()[kept]
    weight = sample.weight[kept]
    loss = sum(0.5 * (weight * (target - x[: kept.sum()]) ** 2).sum() for x in q) / len(kept)

    action, log_pi = sampled(own, actor_outputs(own, obs[kept], of_batch), noise[0][kept])
    fixed = copy.deepcopy(own.q).requires_grad_(False)
    row = torch.cat([obs[kept], action], -1)
    gain = torch.stack([critic_value(fixed, row, i, by_running) for i in range(2)]).amin(0)
    cost = (weight * (c.temperature * log_pi - gain)).sum() / len(kept)
    want = make.named_gradients(loss, "critics", own.q)
    want |= make.named_gradients(cost, "actor", own.pi)
    update, grads = make.gradients(policy, sample)
    near = {"rtol": 1e-4, "atol": 2e-6}
    torch.testing.assert_close(update.metrics["train/loss"], loss.detach(), **near)
    torch.testing.assert_close(update.metrics["train/actor_loss"], cost.detach(), **near)
    del grads["temperature.log"]
    make.assert_gradients(grads, want)


def test_statistics_follow_the_batches_of_updates_alone():
    policy = build("crossq", spec=BOX, actor_every=2)
    sample, own = windows(policy, BOX), make.nets(policy)
    first = own.q.norms[0]
    before = copy.deepcopy(policy.state_dict())
    policy.priority(sample)
    assert torch.equal(first.mean, before["critics"]["net"]["norms.0.mean"])
    policy.update(sample)
    assert first.count == 1
    assert own.pi.head[0].count == 0, "the actor did not step"
    moved = first.mean / 0.01  # from 0 with momentum 0.99
    batch = first.last[0]
    torch.testing.assert_close(moved, batch)
    policy.update(sample)
    assert own.pi.head[0].count == 1


def test_actors_use_the_running_statistics():
    """In numpy, where they are a part of the linear layers."""
    policy = build("crossq", spec=BOX)
    sample = windows(policy, BOX)
    actor = policy.actor(64)
    for _ in range(3):
        policy.update(sample)
    actor.refresh()
    own = make.nets(policy)
    obs = make.random_tree(BOX.obs, (64,), np.random.default_rng(0))
    outputs = actor_outputs(own, own.pi.encoder.torso(torch.from_numpy(obs)), by_running)
    unit = np.tanh(outputs.detach().numpy()[:, :2])
    got = make.act_once(policy, BOX, actor=actor).action
    np.testing.assert_allclose(got, own.pi.bounds.from_unit(unit), rtol=1e-4, atol=1e-5)


def test_renormalised_outputs_are_those_of_the_running_statistics():
    """Ioffe 2017, section 3: with r and d within their bounds, after the warmup."""
    norm = BatchRenorm(3, momentum=0.5, warmup=2)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    rows = torch.ones(50, dtype=torch.bool)
    outputs = []
    for _ in range(3):
        with batch_statistics(norm, rows):
            outputs.append(norm(x).detach())
        norm.follow()
        x = x * 1.1 + 0.3
    for plain in outputs[:2]:
        torch.testing.assert_close(plain.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    x, norm.count = x + 100, torch.tensor(0.0)
    with batch_statistics(norm, rows):
        plain = norm(x)
    norm.count += 2
    with batch_statistics(norm, rows):
        far, near = norm(x), norm(x - 100)
    torch.testing.assert_close(near, norm(x - 100))
    torch.testing.assert_close(far.mean(0), torch.full((3,), MAX_SHIFT))
    torch.testing.assert_close(plain.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
