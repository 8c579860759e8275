"""QMIX and VDN: updates by loops over rows and agents, who has left, masks, acting."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.spaces import JointSpace
from rlrun.types import Spec, tree_map
from tests.policy import make
from tests.policy.make import build, windows
from tests.reference.traces import nstep_rows

N, A, SEEN = 3, 4, 2  # agents, actions, numbers of an observation
COUNTS = [A, A, A - 1]
STATE, EYES = (gym.spaces.Box(-9, 9, (n,), np.float32) for n in (5, SEEN))
TEAM = Spec(JointSpace(EYES, STATE, N), gym.spaces.MultiDiscrete(COUNTS))
SEES_MASK = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(A), "observation": EYES})
MASKED = Spec(JointSpace(SEES_MASK, STATE, N), gym.spaces.MultiDiscrete(COUNTS))
CASES = {
    "qmix": {},
    "vdn": {"mixer": "sum", "priority_eta": 0.3},
    "one step": {"nstep": 1, "double": False, "value_rescale_eps": 1e-3, "memory": "lstm"},
    "lstm": {"nstep": 3, "memory": "lstm", "agent_id": False, "prev_inputs": False},
    "single rows": {"memory": "none", "burnin_step": 0, "dueling": False},
    "masks": {"spec": MASKED},
    "masks, one net": {"spec": MASKED, "double": False, "agent_id": False},
}
BY_CASE = pytest.mark.parametrize("case", CASES)


def of(case, **more):
    return build("qmix", **{"spec": TEAM} | CASES[case] | more)


def team_windows(policy, case="qmix"):
    return windows(policy, CASES[case].get("spec", TEAM))


def agents_q(own, net, segment, b):
    """Q [S, N, A] of window b, one row and one agent after the other, from the stored state."""
    c, steps, out = own.config, len(segment.reward), {}
    valid = [*segment.valid[:, b].tolist(), False]
    start = valid.index(True)
    for i in range(N):
        state = tree_map(lambda s, i=i: s[b, i][None], segment.state)
        for t in range(start, steps + 1):
            before = t > start and valid[t - 1] and not segment.terminated[t - 1, b]
            if not (valid[t] or before):
                continue
            action = segment.extras["prev_action"][b, i]
            reward = segment.extras["prev_reward"][b]
            if t > start:
                action, reward = segment.action[t - 1, b, i], segment.reward[t - 1, b]
            if segment.first[t, b]:
                action, reward = torch.tensor(-1), torch.tensor(0.0)
            previous = net.agents.encode_previous(action[None], c.reward_scale * reward[None])
            seen = tree_map(lambda x, t=t, i=i: x[t, b, i][None], segment.obs["agents"])
            if c.agent_id:
                seen = {"agent": torch.eye(N)[i][None], "observation": seen}
            with torch.set_grad_enabled(t >= own.window.burnin):
                h, state = net.agents.memory.step(net.agents.inputs(seen, previous), state)
            out[t, i] = net.agents.head_outputs(h)[0]
    return out


def allowed(segment, t, b, i):
    """The actions that an agent's mask allows, all it has if there is none or it allows none."""
    seen, count = segment.obs["agents"], COUNTS[i]
    mask = seen["action_mask"][t, b, i, :count] if isinstance(seen, dict) else torch.ones(count)
    return [a for a in range(count) if mask[a] or not mask.any()]


def one_window(own, segment, b):
    """(loss, |delta|s) of window b."""
    c, w = own.config, own.window
    q, lag = (agents_q(own, net, segment, b) for net in (own.net, own.target))
    reward = (segment.reward[w.burnin :, b] * c.reward_scale).tolist()
    ends = [getattr(segment, n)[w.burnin :, b].tolist() for n in
            ("terminated", "truncated", "valid")]  # fmt: skip
    rows, loss, errors = nstep_rows(reward, *ends, c.nstep, c.gamma), torch.zeros(()), []

    def total(net, values, t):
        lived = [v if segment.obs["alive"][t, b, i] else v * 0 for i, v in enumerate(values)]
        return net.mixer(torch.stack(lived), segment.obs["state"][t, b])

    for p in range(w.learned):
        t = w.burnin + p
        if not segment.valid[t, b]:
            continue
        target, k, discount = rows[p]
        if discount:
            choice = q if c.double else lag
            best = [max(allowed(segment, t + k, b, i), key=choice[t + k, i].tolist().__getitem__)
                    for i in range(N)]  # fmt: skip
            later = [lag[t + k, i][a] for i, a in enumerate(best)]
            value = total(own.target, later, t + k).item()
            if c.value_rescale_eps:
                value = unrescaled(value, c.value_rescale_eps)
            target += discount * value
        if c.value_rescale_eps:
            x = target
            target = np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + c.value_rescale_eps * x
        taken = total(own.net, [q[t, i][segment.action[t, b, i]] for i in range(N)], t)
        loss = loss + 0.5 * (target - taken) ** 2 / w.learned
        errors.append(abs(target - taken.item()))
    return loss, errors


def unrescaled(y, eps):
    """The root of h(x) = y by bisection."""
    low, high = -1e7, 1e7
    for _ in range(100):
        x = (low + high) / 2
        below = np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x < y
        low, high = (x, high) if below else (low, x)
    return low


@BY_CASE
def test_an_update_is_the_loop_over_rows_and_agents(case):
    policy = make.spread(of(case))
    sample, own = team_windows(policy, case), make.nets(policy)
    naive = [one_window(own, sample.segment, b) for b in range(len(sample.weight))]
    loss = sum(w * x for w, (x, _) in zip(sample.weight, naive, strict=True)) / len(naive)
    want = make.named_gradients(loss, "", own.net)
    update, grads = make.gradients(policy, sample)
    assert update.metrics["train/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    eta = own.config.priority_eta
    priority = [eta * max(d) + (1 - eta) * np.mean(d) if d else 0.0 for _, d in naive]
    np.testing.assert_allclose(update.priority, priority, rtol=1e-3, atol=1e-5)
    make.assert_gradients(grads, want)
    silent = [k for k, g in grads.items() if not g.any()]
    assert not silent, "every part learns"


# -- acting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["qmix", "lstm", "masks"])
def test_greedy_actions_are_those_of_the_learned_values_along_episodes(case):
    """Previous actions, rewards and states carried; an agent takes actions it has and may take."""
    spec = CASES[case].get("spec", TEAM)
    policy = of(case, burnin_step=0)
    s = make.rollout(policy, spec, explore=None, before=0, steps=9, envs=6).segment
    own = make.nets(policy)
    for b in range(6):
        stop = (*torch.where(s.first[1:-1, b])[0].tolist(), 8)[0] + 1
        valid = torch.arange(9)[:, None].expand(9, 6) < stop
        one = replace(s, valid=valid, terminated=s.terminated & False)
        one = replace(one, first=torch.arange(10)[:, None].expand(10, 6) == 0)
        q = agents_q(own, own.net, one, b)
        for t in range(stop):
            for i in range(N):
                best = max(allowed(s, t, b, i), key=q[t, i].tolist().__getitem__)
                assert s.action[t, b, i] == best


@pytest.mark.parametrize("case", ["qmix", "masks"])
def test_random_actions_are_those_an_agent_has_and_may_take(case):
    spec = CASES[case].get("spec", TEAM)
    policy, actor_obs = of(case), make.random_tree(
        CASES[case].get("spec", TEAM).obs, (200,), np.random.default_rng(0))  # fmt: skip
    actor = policy.actor(200)
    rest = (np.ones(200, bool), np.zeros((200, N), int), np.zeros(200, np.float32))
    action = actor.act(actor_obs, *rest, actor.initial_state(), explore=np.ones(200)).action
    one = make.Segment(*[tree_map(lambda x: torch.from_numpy(x)[None], actor_obs)] * 7)
    for b in range(200):
        for i in range(N):
            assert action[b, i] in allowed(one, 0, b, i)
    assert {*action[:, 0]} == {*range(A)}
    assert action[:, 2].max() == A - 2
    assert spec.action.contains(action[0])
