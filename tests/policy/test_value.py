"""DQN and R2D2: updates by a loop over rows, padding without effect, targets, checkpoints."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.types import Segment
from tests.policy import make
from tests.policy.make import build, windows
from tests.reference.value import one_window

PLAIN = {"value_rescale_eps": None}
MUNCHAUSEN = {"munchausen": 0.9, "munchausen_tau": 0.03, "munchausen_clip": -1.0, "double": False}
MASKED = {"spec": make.MASKED}
CASES = {
    "dqn": {},
    "one step": {"nstep": 1, "double": False, "dueling": False, "prev_inputs": True, **PLAIN},
    "c51": {"distribution": "categorical", "noisy": 0.5, **PLAIN},
    "qr": {"distribution": "quantile", "double": False, "dueling": False},
    "iqn": {"distribution": "implicit", "noisy": 0.5, "prev_inputs": True, **PLAIN},
    "mdqn": {**MUNCHAUSEN, **PLAIN, **MASKED},
    "miqn": {"distribution": "implicit", **MUNCHAUSEN, **PLAIN, "noisy": 0.5},
    "masks": {**MASKED, "prev_inputs": True},
    "retrace": {"trace": "retrace", "prev_inputs": True},
    "peng": {"trace": "peng_q_lambda", "double": False, "nstep": 5, **PLAIN},
    "harutyunyan": {"trace": "harutyunyan_q_lambda", "noisy": 0.5, **MASKED},
    "r2d2": {},
    "r2d2 long burn-in": {"burnin_step": 7, "learn_unroll_len": 5, "nstep": 2, "memory": "gru"},
    "r2d2 no burn-in": {
        "burnin_step": 0, "learn_unroll_len": 4, "double": False, "priority_eta": 0.3
    },
    "r2d2 mingru": {"memory": "mingru", "prev_inputs": False, "dueling": False, "gamma": 1.0},
    "r2d2 c51": {"distribution": "categorical", "noisy": 0.5, **PLAIN},
    "r2d2 qr": {"distribution": "quantile", **MASKED},
    "r2d2 iqn": {"distribution": "implicit", "noisy": 0.5, **MUNCHAUSEN, **PLAIN},
    "r2d2 munchausen": {**MUNCHAUSEN, **PLAIN, **MASKED},
    "r2d2 retrace": {"trace": "retrace", "double": False},
    "r2d2 watkins": {"trace": "watkins_q_lambda", "noisy": 0.5, **PLAIN},
}  # fmt: skip
BOTH = pytest.mark.parametrize("name", ["dqn", "r2d2"])


def name_of(case):
    return "r2d2" if case.startswith("r2d2") else "dqn"


def of(case, **more):
    return build(name_of(case), **CASES[case] | more)


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_the_loop_over_rows(case):
    """Loss, gradients and priorities of windows with mixed burn-ins, ends and paddings."""
    policy = make.spread(of(case))
    sample = windows(policy, CASES[case].get("spec", make.DISCRETE))
    count, own = len(sample.weight), make.nets(policy)
    lead = (count,) if policy.window.burnin + policy.window.learned == 1 else (
        policy.window.rows - policy.window.burnin, count)  # fmt: skip
    noise = make.draws(policy, *lead)
    naive = [one_window(own, sample.segment, b, noise) for b in range(count)]
    loss = sum(w * x for w, (x, _) in zip(sample.weight, naive, strict=True)) / count
    want = make.named_gradients(loss, "", own.net)
    update, grads = make.gradients(policy, sample)
    torch.testing.assert_close(update.metrics["train/loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    eta = getattr(own.config, "priority_eta", 1.0)
    priority = [eta * max(d) + (1 - eta) * np.mean(d) if d else 0.0 for _, d in naive]
    np.testing.assert_allclose(update.priority, priority, rtol=2e-3, atol=2e-5)
    make.assert_gradients(grads, want, rtol=2e-3)


def test_masks_matter_and_are_not_read_by_the_network():
    sample = windows(of("masks"), make.MASKED)
    obs = sample.segment.obs
    free = obs | {"action_mask": torch.ones_like(obs["action_mask"])}
    losses = [of("masks").update(s).metrics["train/loss"] for s in (
        sample, replace(sample, segment=replace(sample.segment, obs=free)))]  # fmt: skip
    assert losses[0] != losses[1]
    shapes = {w.shape for w in make.weights(of("masks")).values()}
    assert (8, 3) in shapes, "the torso reads the three numbers alone"


@BOTH
def test_targets_follow_hard_and_soft(name):
    sample, hard = windows(build(name)), build(name, target_update_every=3, target_tau=None)
    equal = []
    for _ in range(6):
        hard.update(sample)
        lag = make.targets(hard)
        equal.append(all(torch.equal(x, lag[k]) for k, x in make.weights(hard).items()))
    assert equal == [False, False, True] * 2
    soft = make.spread(build(name, target_tau=0.25))
    before = make.targets(soft)
    soft.update(sample)
    online = make.weights(soft)
    for k, x in make.targets(soft).items():
        torch.testing.assert_close(x, before[k] + 0.25 * (online[k] - before[k]))


def test_the_next_update_has_other_noise():
    policy = build("dqn", noisy=0.5, lr=make.constant(0.0))
    sample = windows(policy)
    priority = policy.priority(sample)
    torch.testing.assert_close(policy.update(sample).priority, priority)
    assert not torch.equal(policy.update(sample).priority, priority)
    noise = make.noise_at(policy, 0, len(sample.weight))
    passes = [x.layers[0][0] for x in (noise.online, noise.choice, noise.target)]
    assert not any(map(torch.equal, passes, [*passes[1:], passes[0]])), "each pass has its own"


def test_a_seed_fixes_the_networks_and_touches_no_global_generator():
    state = torch.random.get_rng_state()
    a, b, c = (make.weights(build("r2d2", seed=s)) for s in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(x, b[k]) for k, x in a.items())
    assert not all(torch.equal(x, c[k]) for k, x in a.items())


@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru"])
def test_delta_q_is_zero_for_the_true_state_and_not_for_a_zero_one(memory):
    """Histories of 5 and 3 rows; windows with the state that acting had after them."""
    policy, count = build("r2d2", memory=memory, burnin_step=1, learn_unroll_len=8), 6
    lengths = torch.tensor([5, 3] * 3)
    past = make.rollout(policy, steps=5, envs=count, before=0).segment
    valid = torch.arange(5)[:, None] < lengths
    blank = torch.zeros(6, count, dtype=torch.bool)
    first = blank.clone()
    first[0] = True
    history = replace(past, valid=valid, first=first, terminated=blank[1:], truncated=blank[1:])
    actor = policy.actor(count)
    state, seen = actor.initial_state(), []
    action, reward = past.extras["prev_action"].numpy(), past.extras["prev_reward"].numpy()
    for t in range(5):
        act = actor.act(past.obs[t].numpy(), first[t].numpy(), action, reward, state, explore=None)
        state, action, reward = act.state, past.action[t].numpy(), past.reward[t].numpy()
        seen.append([*state, action, reward])
    rows = [[seen[n - 1][i][b] for b, n in enumerate(lengths)] for i in range(len(seen[0]))]
    *state, action, reward = (torch.from_numpy(np.stack(x)) for x in rows)
    whole = windows(policy)
    steps = policy.window.rows - 1
    yes = torch.ones(steps, count, dtype=torch.bool)
    first_windows = make.window(whole, range(count)).segment
    sample: Segment = replace(
        first_windows, valid=yes, terminated=~yes, truncated=~yes, partial=(), state=tuple(state),
        first=torch.zeros(steps + 1, count, dtype=torch.bool),
        extras={"prev_action": action, "prev_reward": reward},
    )  # fmt: skip
    error = {k: v.item() for k, v in policy.delta_q(sample, history).items()}
    assert error["train/delta_q_stored_first"] < 1e-4
    assert error["train/delta_q_stored_last"] < 1e-4
    assert error["train/delta_q_zero_first"] > 1e-3
    assert error["train/delta_q_zero_last"] > 1e-4
    assert error["train/delta_q_zero_last"] != error["train/delta_q_zero_first"]
