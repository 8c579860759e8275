"""No policy ever takes an action that the environment forbids, and masks reach the targets."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.buffer.rollout import Rollout
from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.env.action_mask import ActionMaskObservation
from rlrun.errors import ConfigError
from rlrun.functional.explore import Temperature, boltzmann, draw_categorical, epsilon_greedy
from rlrun.functional.masks import (
    FORBIDDEN,
    allowed_actions,
    has_mask,
    mask_logits_numpy,
    unmasked,
)
from rlrun.functional.offline import conservative_gap
from rlrun.functional.policy import categorical, mask_logits
from rlrun.log import Log
from rlrun.pipeline.stop import StopRequest
from rlrun.types import Counters, Spec
from tests.compose import config
from tests.env.masked import Masked

ENV = ("env=gym", "env.id=tests.env.masked:tests/Masked-v0", "env.total_steps=600")
TINY = ("debug=smoke", "logger.progress=off", "logger.tensorboard=false", "run.total_steps=600")
ROLLOUT = "collector.num_envs=4 collector.n_sample=64"


@pytest.mark.parametrize(
    "line",
    [
        "policy=dqn",
        "policy=dqn explore=boltzmann explore.temperature=100",
        "policy=rainbow",
        "policy=qrdqn policy.prev_inputs=true",
        "policy=iqn policy.noisy=9",
        "policy=mdqn",
        "policy=r2d2",
        "policy=r2d2_c51 policy.noisy=9",
        "policy=r2d2_qr explore=boltzmann",
        *(f"policy={name} {ROLLOUT}" for name in ("ppo policy.epochs=2", "a2c", "impala")),
        *(f"policy={name} {ROLLOUT} memory=lstm" for name in ("ppo policy.epochs=2", "impala")),
        f"policy=pqn {ROLLOUT}",
        f"policy=pqn {ROLLOUT} memory=gru policy.prev_inputs=true",
        f"policy=a2c {ROLLOUT} memory=gru policy.prev_inputs=true policy.separate_value=true",
        "policy=bc pipeline=serial learner=transitions learner.learning_starts=100",
        "policy=bc_recurrent pipeline=serial learner=transitions learner.learning_starts=100",
        "policy=cql pipeline=serial learner=transitions learner.learning_starts=100",
        "policy=iql pipeline=serial learner=transitions learner.learning_starts=100",
    ],
)
def test_a_run_takes_no_forbidden_action(tmp_path, line):
    """Collecting, evaluating and resuming; the environment raises if one is taken."""
    c = config(*line.split(), *ENV, *TINY)
    with Log(c.logger, tmp_path, total_steps=600, title="") as log:
        pipeline = build.make_pipeline(make_plan(c), tmp_path, log)
        result = pipeline.run(StopRequest())
        pipeline.close()
    assert pipeline.counters.env_steps >= 600
    assert pipeline.counters.updates > 0
    assert 0 < result.final["return_mean"] <= 6


@pytest.mark.parametrize("policy", ["rainbow", "r2d2"])
def test_a_mask_from_info_is_kept_to(tmp_path, policy):
    shown = ("env.kwargs={where: info}", "env.wrappers=[{name: mask_from_info}]")
    c = config(f"policy={policy}", *ENV, *shown, *TINY)
    with Log(c.logger, tmp_path, total_steps=600, title="") as log:
        pipeline = build.make_pipeline(make_plan(c), tmp_path, log)
        pipeline.run(StopRequest())
        pipeline.close()
    assert pipeline.counters.updates > 0


def test_the_mask_is_learned_from(tmp_path):
    """The best allowed action is worth 1, a forbidden one's value never enters a target."""
    c = config(
        "policy=dqn", *ENV, "logger.progress=off", "logger.tensorboard=false",
        "run.total_steps=4000", "run.eval_every=4000", "policy.gamma=0.5", "policy.nstep=1",
        "learner.learning_starts=200", "collector.num_envs=4",
    )  # fmt: skip
    with Log(c.logger, tmp_path, total_steps=4000, title="") as log:
        pipeline = build.make_pipeline(make_plan(c), tmp_path, log)
        result = pipeline.run(StopRequest())
        pipeline.close()
    assert result.final["return_mean"] >= 5.9


def test_a_random_policy_keeps_to_the_mask(tmp_path):
    c = config("policy=random", *ENV, *TINY)
    with Log(c.logger, tmp_path, total_steps=600, title="") as log:
        pipeline = build.make_pipeline(make_plan(c), tmp_path, log)
        pipeline.run(StopRequest())
        pipeline.close()
    assert pipeline.counters.env_steps >= 600


# -- distributions over actions --------------------------------------------------------------------


def observed(mask, seed=0):
    """Observations [*] of the environment with that ``mask`` [*, A]."""
    mask = torch.as_tensor(mask)
    box = torch.rand(*mask.shape[:-1], 2, generator=torch.Generator().manual_seed(seed))
    return {"action_mask": mask.to(torch.int8), "observation": box}


def test_logits_within_a_mask_by_hand():
    """Softmax of (0, log 3, 5) over the first two: 1/4, 3/4; entropy and slopes know no third."""
    logits = torch.tensor([[0.0, math.log(3), 5.0]], requires_grad=True)
    choice = categorical(mask_logits(logits, observed([[1, 1, 0]])), torch.tensor([1]), (3,))
    torch.testing.assert_close(choice.log_prob, torch.tensor([math.log(3 / 4)]))
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    torch.testing.assert_close(choice.entropy, torch.tensor([entropy]))
    (slope,) = torch.autograd.grad(choice.log_prob.sum(), logits, retain_graph=True)
    torch.testing.assert_close(slope, torch.tensor([[-0.25, 0.25, 0.0]]))
    (slope,) = torch.autograd.grad(choice.entropy.sum(), logits)
    pair = torch.tensor([0.0, math.log(3)], requires_grad=True)
    alone = torch.autograd.grad(torch.distributions.Categorical(logits=pair).entropy(), pair)[0]
    torch.testing.assert_close(slope, torch.cat([alone, torch.zeros(1)])[None])


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_forbidden_actions_are_never_sampled(at):
    """Forbidden ones before, between and behind the allowed, whose logits are the lowest."""
    mask = np.ones((100_000, 4), np.int8)
    mask[:, at] = 0
    logits = np.where(mask, np.float32(-3), np.float32(50))
    head = mask_logits_numpy(logits, {"action_mask": mask})
    action, log_prob = draw_categorical(head, (4,), np.random.default_rng(0))
    assert at not in action
    np.testing.assert_allclose(log_prob, math.log(1 / 3), rtol=1e-5)
    share = np.bincount(action, minlength=4) / len(action)
    np.testing.assert_allclose(np.delete(share, at), 1 / 3, atol=0.01)
    assert at not in draw_categorical(head, (4,), None)[0]


def test_the_highest_uniform_number_draws_an_allowed_action():
    """Times the total it rounds to the total, which is where the forbidden last one begins."""

    class Highest:
        def random(self, count, dtype):
            return np.full(count, np.nextafter(np.float32(1), np.float32(0)))

    for count in range(1, 60):
        head = np.zeros((1, count + 1), np.float32)
        head[:, -1] = FORBIDDEN
        action, log_prob = draw_categorical(head, (count + 1,), Highest())
        assert action == count - 1
        assert np.isfinite(log_prob).all()


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_acting_and_learning_have_the_same_masked_distribution(name, memory):
    """Stored and recomputed log-probs are equal and finite in every row."""
    c = config(f"policy={name}", f"memory={memory}", *ENV, *TINY, *ROLLOUT.split(),
               "policy.head_hidden=[8]")  # fmt: skip
    collector = build.make_collector(make_plan(c), Counters())
    policy, store = collector.policy, Rollout(collector.example(), rows=400, stack=1)
    chunk = collector.collect()
    store.add(chunk)
    rows = policy.prepare(store.take(0).segment)
    head, _ = policy.outputs(rows)
    choice = policy.net.evaluate_actions(head[:-1], rows.action)
    torch.testing.assert_close(
        choice.log_prob[rows.valid], rows.behaviour_log_prob[rows.valid], rtol=1e-4, atol=1e-5
    )
    mask = rows.obs["action_mask"][:-1][rows.valid] != 0
    assert not mask.all()
    p = head[:-1][rows.valid].softmax(-1)
    assert not p[~mask].any()
    within = (p[mask] * p[mask].log()).sum() / len(p)
    torch.testing.assert_close(-choice.entropy[rows.valid].mean(), within)
    (slope,) = torch.autograd.grad(choice.entropy.sum() + choice.log_prob.sum(), head)
    assert torch.isfinite(slope).all()
    assert not slope[:-1][rows.valid][~mask].any()
    collector.env.close()


@pytest.mark.parametrize("policy", ["ppo", "a2c", "impala"])
def test_masked_on_policy_learns(tmp_path, policy):
    """Actions 1 to 4 pay 1 where they are the highest allowed: knowing the mask is all it takes,
    and the network does not see it, so only preferring high numbers is left: 6 of 6."""
    c = config(
        f"policy={policy}", *ENV, "logger.progress=off", "logger.tensorboard=false",
        "run.total_steps=8000", "run.eval_every=8000", "policy.gamma=0.5", "policy.lr=3e-3",
        "collector.num_envs=8", "collector.n_sample=128", "learner.batch_size=64",
    )  # fmt: skip
    with Log(c.logger, tmp_path, total_steps=8000, title="") as log:
        pipeline = build.make_pipeline(make_plan(c), tmp_path, log)
        result = pipeline.run(StopRequest())
        pipeline.close()
    assert result.final["return_mean"] >= 5.9


@pytest.mark.parametrize("name", ["bc", "iql"])
def test_imitation_is_of_allowed_actions(name):
    """A forbidden action's logit gets no gradient and no probability, however high it is."""
    spec = Spec(Masked().observation_space, gym.spaces.Discrete(4))
    c = config(f"policy={name}", *ENV, *TINY)
    net = build.make_policy(make_plan(c, (spec.obs, spec.action, 1))).net
    obs = observed([[1, 0, 1, 1]])
    with torch.no_grad():
        net.head[-1].bias[1] = 50.0
    out = net.apply_mask(net.unroll(net.inputs(obs)[None], ())[0][0], obs)
    log_prob = net.log_prob(out, torch.tensor([2]))
    assert log_prob.item() > -5
    slope = torch.autograd.grad(log_prob.sum(), net.head[-1].bias)[0]
    assert slope[1] == 0
    assert slope[2] > 0


def test_conservatism_is_over_allowed_actions():
    """log(1 + 3) - log 3: the third, forbidden value plays no part, nor does it get a gradient."""
    q = torch.tensor([[0.0, math.log(3), 9.0]], requires_grad=True)
    action = torch.tensor([1])
    mask = torch.tensor([[True, True, False]])
    gap = conservative_gap(q, action, mask)
    assert gap.item() == pytest.approx(math.log(4 / 3))
    (grad,) = torch.autograd.grad(2 * gap, q)
    torch.testing.assert_close(grad, torch.tensor([[0.5, -0.5, 0.0]]))


@pytest.mark.parametrize("policy", ["ppo", "iql", "random"])
def test_masks_of_several_choices_are_refused(policy):
    from rlrun.config import check

    class Several(Masked):
        def __init__(self):
            super().__init__()
            box = policy == "iql"
            self.action_space = (
                gym.spaces.Box(-1, 1, (4,), np.float32) if box else gym.spaces.MultiDiscrete([2, 2])
            )

    name = f"tests/SeveralMask{policy}-v0"
    gym.register(name, lambda: Several())
    try:
        c = config(f"policy={policy}", "pipeline=serial", "env=gym",
                   f"env.id={name}", *TINY)  # fmt: skip
        with pytest.raises(ConfigError, match=r"action_mask, its actions are \w+; a mask of Disc"):
            check(c)
    finally:
        del gym.registry[name]


def test_masks_of_the_wrong_width_are_refused():
    from rlrun.config import check

    class Wide(Masked):
        def __init__(self):
            super().__init__()
            parts = dict(self.observation_space.spaces)
            parts["action_mask"] = gym.spaces.MultiBinary(7)
            self.observation_space = gym.spaces.Dict(parts)

    gym.register("tests/WideMask-v0", lambda: Wide())
    try:
        c = config("policy=dqn", "env=gym", "env.id=tests/WideMask-v0", *TINY)
        with pytest.raises(ConfigError, match=r"action_mask is of shape \[7\]; one number per"):
            check(c)
    finally:
        del gym.registry["tests/WideMask-v0"]


def test_masks_from_info():
    env = ActionMaskObservation(Masked(where="info"))
    assert has_mask(env.observation_space)
    assert not has_mask(unmasked(env.observation_space))
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        assert env.observation_space.contains(obs)
        np.testing.assert_array_equal(obs["action_mask"], env.unwrapped.mask)
        action = int(np.flatnonzero(obs["action_mask"])[0])
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
    with pytest.raises(ValueError, match="info has no action_mask"):
        ActionMaskObservation(Masked(where="obs")).reset(seed=0)
    with pytest.raises(ValueError, match="Discrete"):
        ActionMaskObservation(gym.make("Pendulum-v1"))


def test_a_mask_of_zeros_allows_all():
    obs = {"action_mask": np.array([[0, 0, 0], [0, 1, 0]], np.int8)}
    assert allowed_actions(obs).tolist() == [[True, True, True], [False, True, False]]


def test_random_actions_are_uniform_over_the_allowed():
    rng, n = np.random.default_rng(0), 30_000
    mask = np.tile([True, False, True, True], (n, 1))
    q = np.tile(np.array([0, 9, 0, 5], np.float32), (n, 1))
    always = epsilon_greedy(q, np.ones(n, np.float32), rng, mask)
    share = np.bincount(always, minlength=4) / n
    np.testing.assert_allclose(share, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.015)
    assert (epsilon_greedy(q, None, rng, mask) == 3).all()
    half = epsilon_greedy(q, np.full(n, 0.5, np.float32), rng, mask)
    np.testing.assert_allclose(np.mean(half == 3), 0.5 + 0.5 / 3, atol=0.015)


@pytest.mark.parametrize("masked", [False, True])
def test_boltzmann_is_the_softmax(masked):
    rng, n = np.random.default_rng(0), 60_000
    row = np.array([1.0, 0.0, 2.0, 9.0 if masked else 1.5], np.float32)
    mask = np.tile([True, True, True, not masked], (n, 1))
    heat = np.full(n, 0.7, np.float32).view(Temperature)
    got = boltzmann(np.tile(row, (n, 1)), heat, rng, mask if masked else None)
    e = np.exp(row / 0.7) * mask[0]
    np.testing.assert_allclose(np.bincount(got, minlength=4) / n, e / e.sum(), atol=0.01)
    assert not masked or (got != 3).all()
    cold = boltzmann(np.tile(row, (n, 1)), np.zeros(n), rng, mask)
    assert (cold == (2 if masked else 3 if row[3] > 2 else 2)).all()
