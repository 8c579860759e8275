"""The update of a kernel is that of the policy's text: priorities, metrics, parameters."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.errors import NumericError
from rlrun.jit import COMPILED
from rlrun.kernels import layers
from rlrun.kernels.layers import tanh
from rlrun.types import tree_leaves
from tests.env.base import Env
from tests.kernels.make import CONTROL, NAMES, line, perturb, policy_of, samples_of
from tests.policy.make import SPACES, assert_equal_states

pytestmark = pytest.mark.skipif(not COMPILED, reason="kernels are compiled by numba")
LINEAR = "policy.lr={kind: linear, start: 1e-2, end: 1e-3, over: 300}"
LSTM, GRU = ([f"memory={name}", "memory.hidden=5"] for name in ("lstm", "gru"))
SWITCHES = {  # every branch of a kernel once
    "dqn": [
        [],
        ["policy.double=false", "policy.dueling=false", "policy.nstep=1", LINEAR],
        ["torso.layer_norm=true"],
        ["policy.nstep=2", "policy.td_clip=0.01", "policy.reward_clip=0.02",
         "policy.value_rescale_eps=null"],
        ["policy.max_grad_norm=1e-3", "policy.target_update_every=2", "policy.target_tau=null"],
        ["policy.max_grad_norm=null", "torso.hidden=[]", "policy.head_hidden=[7]"],
    ],
    "r2d2": [
        [],
        ["policy.burnin_step=0", "policy.state_init=zero", "policy.double=false"],
        ["policy.burnin_step=7", "policy.learn_unroll_len=5", "policy.nstep=2", LINEAR],
        ["policy.learn_unroll_len=2", "policy.nstep=1", "policy.dueling=false",
         "policy.head_hidden=[6,5]", "policy.value_rescale_eps=null", "policy.reward_scale=0.3"],
        ["policy.prev_inputs=false", "torso.hidden=[]", "policy.td_clip=0.01"],
        ["policy.reward_clip=0.02", "policy.max_grad_norm=1e-3", "policy.memory_lr=1e-4"],
        ["policy.target_update_every=null", "policy.target_tau=0.1", "policy.max_grad_norm=null"],
        ["torso.layer_norm=true", "torso.hidden=[12,8]"],
        ["memory=gru"],
        ["memory=gru", "policy.burnin_step=7", "policy.nstep=2"],
    ],
    "sac": [
        [],
        ["policy.nstep=1", "policy.td_clip=0.01", "policy.temperature_auto=false", LINEAR],
        ["policy.actor_every=2", "policy.target_entropy=1.5", "policy.max_grad_norm=1e-3"],
        ["torso.hidden=[]", "policy.head_hidden=[9]", "policy.reward_clip=0.02"],
    ],
    "td3": [[], ["policy.actor_every=2", "policy.smoothing=0.5", "policy.smoothing_clip=0.1"],
            ["policy.target_update_every=2", "policy.target_tau=null", "torso.activation=elu"]],
    "ddpg": [[], ["torso.activation=tanh", "policy.td_clip=0.01"]],
    "ppo": [
        ["policy.epochs=3"],
        ["policy.separate_value=false", "policy.value_clip=0.1", "policy.max_grad_norm=null"],
        ["torso.layer_norm=true", "torso.activation=elu"],
        ["policy.entropy_coef=0", "policy.normalize_advantage=false", "policy.max_grad_norm=0.05"],
        ["policy.normalize_obs=true", "learner.batch_size=1000"],
        ["policy.target_kl=0.001", "policy.epochs=10", "torso.hidden=[]", "policy.head_hidden=[5]"],
        ["policy.separate_value=true", "policy.head_hidden=[5]", "torso.activation=elu"],
        [*LSTM, "policy.segment_len=5", "policy.epochs=3"],
        [*LSTM, "policy.prev_inputs=true", "policy.separate_value=false", "policy.value_clip=0.1"],
        [*GRU, "policy.memory_lr=1e-4", "torso.hidden=[]", "policy.max_grad_norm=1e-3", LINEAR],
        [*GRU, "policy.target_kl=0.001", "policy.epochs=10", "policy.head_hidden=[6]"],
        [*GRU, "learner.batch_size=1000", "policy.segment_len=1000", "policy.normalize_obs=true"],
    ],
    "a2c": [[], ["policy.entropy_coef=0", "policy.normalize_advantage=true"], LSTM,
            [*GRU, "policy.separate_value=true", "policy.prev_inputs=true"]],
    "impala": [["policy.rho_clip=1.01"], ["policy.separate_value=true", "policy.c_clip=0.9"],
               [*LSTM, "torso.layer_norm=true"]],
    "pqn": [
        [],
        ["learner.batch_size=1000", "torso.hidden=[]", "policy.head_hidden=[5]"],
        ["policy.dueling=true", "torso.layer_norm=false", "torso.hidden=[20,33]", LINEAR],
        ["torso.activation=tanh", "policy.max_grad_norm=1e-3", "policy.epochs=1"],
        [*GRU, "policy.segment_len=5"],
        [*GRU, "policy.prev_inputs=true", "policy.dueling=true", "policy.memory_lr=1e-4"],
        [*LSTM, "torso.hidden=[]", "policy.head_hidden=[5]", "policy.epochs=1", LINEAR],
    ],
}  # fmt: skip
SIZES = 16, 24, 8  # of batches, as several learners that share a replay get them
ON_POLICY_BOX = ("env=gym", "env.id=test/Levers-v0", "env.kwargs={length: 4}")


def same(words, *, space=None, count=3, scale=1.0, near=1e-4, samples=None):
    """Learn by kernel and by text; compare every update and the end."""
    ours, text = (policy_of(words, space=space, text=text) for text in (False, True))
    for policy in (ours, text):
        perturb(policy, scale)
    seen = []
    for sample in samples or samples_of(words, count, space):
        one, two = ours.update(sample), text.update(sample)
        assert ours.kernel is not None, "the kernel computes the update"
        assert text.kernel is None
        assert one.steps == two.steps
        assert list(one.metrics) == list(two.metrics)
        for name, value in two.metrics.items():
            close = {"rtol": near, "atol": near, "msg": lambda m, n=name: f"{n}: {m}"}
            torch.testing.assert_close(torch.tensor(float(one.metrics[name])), value, **close)
        assert (one.priority is None) == (two.priority is None)
        if two.priority is not None:
            torch.testing.assert_close(one.priority, two.priority, rtol=near, atol=1e-6)
            assert (one.priority >= 0).all()
        kept = one.priority, dict(one.metrics)
        seen.append((kept, (None if kept[0] is None else kept[0].clone(),
                            {k: float(v) for k, v in kept[1].items()})))  # fmt: skip
    for x, y in zip(*(floats(p.state_dict()) for p in (ours, text)), strict=True):
        assert torch.isfinite(x).all()
        torch.testing.assert_close(x, y, rtol=10 * near, atol=max(2e-5, near / 10))
    for (priority, metrics), (before, values) in seen:  # results belong to the caller
        assert before is None or torch.equal(priority, before)
        assert all(float(metrics[k]) == v for k, v in values.items())
    return ours


def floats(state):
    return [x for x in tree_leaves(state) if isinstance(x, torch.Tensor) and x.is_floating_point()]


@pytest.mark.parametrize(
    ("name", "words"), [(n, w) for n, lists in SWITCHES.items() for w in lists], ids=str
)
def test_updates_are_those_of_the_text(name, words):
    same(line(name, *words))


@pytest.mark.parametrize("target_kl", ["null", "1000", "1e-9"])
def test_as_many_random_numbers_as_the_text(target_kl):
    """Also with fewer segments than minibatches of the wanted size."""
    few = "policy.segment_len=64", "learner.batch_size=8", "collector.n_sample=190"
    words = line("ppo", *GRU, *few, "policy.epochs=4", f"policy.target_kl={target_kl}")
    ours, text = policy_of(words), policy_of(words, text=True)
    began = ours.shuffle_generator.bit_generator.state
    for sample in samples_of(words, 3):
        assert ours.update(sample).steps == text.update(sample).steps
        after = ours.shuffle_generator.bit_generator.state
        assert after == text.shuffle_generator.bit_generator.state != began


@pytest.mark.parametrize("memory", [[], LSTM], ids=str)
@pytest.mark.parametrize("name", ["ppo", "a2c", "impala"])
def test_updates_for_real_actions(name, memory):
    same(line(name, *ON_POLICY_BOX, *memory))


def test_updates_for_several_numbers_an_action():
    actions = gym.spaces.MultiDiscrete([2, 4, 3])
    gym.register("test/Several-v0", lambda: Several(actions), disable_env_checker=True)
    try:
        same(line("ppo", "env=gym", "env.id=test/Several-v0", "env.backend=sync"))
    finally:
        del gym.registry["test/Several-v0"]


class Several(Env):
    """Pays the sum of the numbers."""

    observation_space = gym.spaces.Box(-5, 5, (3,), np.float32)

    def __init__(self, actions):
        self.action_space = actions

    def _obs(self):
        return self.np_random.normal(size=3).clip(-5, 5).astype(np.float32)

    def step(self, action):
        self.t += 1
        return self._obs(), float(sum(action)), self.t == 6, False, {}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_every_observation_is_read_the_same(name, space):
    """One-hot from where a discrete space starts, bytes as they are, parts side by side."""
    same(line(name), space=SPACES[space])


@pytest.mark.parametrize("name", ["dqn", "r2d2", "sac", "td3"])
def test_batches_may_differ_in_size(name):
    words = line(name, *(["policy.burnin_step=3"] if name == "r2d2" else []))
    sizes = ((*words, f"learner.batch_size={n}") for n in SIZES)
    same(words, samples=[x for w in sizes for x in samples_of(w, 1)])


@pytest.mark.parametrize("name", ["sac", "td3", "r2d2", "ppo"])
def test_weights_that_saturate(name):
    """Gates and actions at their bounds, log standard deviations beyond theirs, far logits."""
    same(line(name, "torso.activation=tanh"), scale=8, count=2, near=1e-3)


@pytest.mark.parametrize("name", ["sac", "td3", "r2d2"])
def test_a_second_thread_changes_no_bit(name):
    words = line(name, *(["policy.actor_every=2"] if name != "r2d2" else []))
    single, threaded = policy_of(words), policy_of(words)
    threaded.compute.target_thread = True
    for sample in samples_of(words, 3):
        one, two = single.update(sample), threaded.update(sample)
        assert torch.equal(one.priority, two.priority)
        assert one.metrics == two.metrics
    assert_equal_states(single, threaded)
    assert threaded.compute.pool is not None, "something ran in a second thread"
    assert all(p.seconds["backward"] > 0 for p in (single, threaded))


@pytest.mark.parametrize("memory", [[], GRU], ids=str)
@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "pqn"])
@pytest.mark.parametrize("text", [True, False])
def test_a_rollout_without_a_valid_row_changes_nothing(name, text, memory):
    from dataclasses import replace

    words = line(name, *memory)
    (sample,), policy = samples_of(words, 1), policy_of(words, text=text)
    before = [w.clone() for w in policy.weights().values()]
    none = torch.zeros_like(sample.segment.valid)
    out = policy.update(replace(sample, segment=replace(sample.segment, valid=none)))
    assert all(torch.as_tensor(x).isfinite() for x in out.metrics.values())
    for was, now in zip(before, policy.weights().values(), strict=True):
        assert torch.equal(now, was)


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_products_have_the_same_rows_whatever_was_learned_before(name, monkeypatch):
    """Rounding may depend on them, and a resumed run has not seen the rollouts before."""
    from dataclasses import replace

    words, rows, forward = line(name), [], layers.forward
    monkeypatch.setattr(layers, "forward", lambda *a: (rows.append(a[3]), forward(*a)))
    (sample,), used, new = samples_of(words, 1), policy_of(words), policy_of(words)
    fewer = sample.segment.valid.clone()
    fewer[:, 2:] = False
    small = replace(sample, segment=replace(sample.segment, valid=fewer))
    for policy, samples in ((used, (sample, small)), (new, (small, small))):
        for one in samples:
            rows.clear()
            policy.update(one)
        policy.rows = list(rows)
    assert used.rows == new.rows
    assert rows


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_divergence_is_the_learners_to_tell(name, thread):
    """Adam's error ends the update; numpy's own warnings do not stand before it."""
    words = line(name)
    policy, (sample,) = policy_of(words), samples_of(words, 1)
    policy.compute.target_thread = thread and name in (*CONTROL, "r2d2")
    for x in floats(policy.state_dict()):
        if x.ndim > 1:
            x.mul_(1e30)
    with pytest.raises(NumericError, match=r"train/grad_norm = (nan|inf) in update 1: "):
        policy.update(sample)
    assert policy.kernel is not None, "it is no edit of the loss"


# -- private: errors of 1e-7 where a unit saturates vanish in every update ------------------------


@pytest.mark.parametrize("x", [0.0, 1e-3, 0.5, 3.0, 8.0, 8.2, 8.6, 20.0, 1e30, np.inf])
def test_tanh_stays_within_its_bounds(x):
    """Beyond 1 the derivative 1 - y^2 of a saturated unit would have the wrong sign."""
    for value in (np.float32(x), np.float32(-x)):
        assert abs(tanh(value)) <= 1
        assert tanh(value) == pytest.approx(np.tanh(value), rel=1e-6)
