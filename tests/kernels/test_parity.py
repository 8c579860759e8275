"""The first update is computed both ways; an edited loss is run as written."""

import copy
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.build.plan import make_plan
from rlrun.build.policy import KERNELS, backend_used, policy_class
from rlrun.config.checks.backend import WITH_KERNEL
from rlrun.errors import NumericError
from rlrun.kernels.parity import SHARES, CheckedKernel
from rlrun.types import tree_leaves
from tests.compose import config
from tests.policy.updates import policy_of, samples_of

LINES = {
    name: (f"policy={name}", "env=cartpole")
    for name in ("r2d2", "dqn", "ppo", "a2c", "impala", "pqn")
}
LINES |= {name: (f"policy={name}", "env=pendulum") for name in ("sac", "td3", "ddpg")}
ON_POLICY = ("ppo", "a2c", "impala", "pqn")
UPDATES = {name: 3 if name in ON_POLICY else 20 for name in LINES}


@pytest.fixture(scope="module", params=list(KERNELS))
def case(request, tmp_path_factory):
    """(config line of a policy with a kernel, samples of its first updates)."""
    name, directory = request.param, tmp_path_factory.mktemp(request.param)
    return LINES[name], samples_of(*LINES[name], directory=directory, count=UPDATES[name])


def kernel_name(policy):
    return type(policy.kernel).__name__


def test_every_kernel_is_known_to_the_rule():
    assert sorted(KERNELS) == sorted(WITH_KERNEL) == sorted(LINES)


def test_updates_are_those_of_the_text(case):
    """Values, first moments (linear in the gradients) and parameters of every update."""
    line, samples = case
    ours, text = policy_of(*line), policy_of(*line, "learner.backend=torch")
    assert isinstance(ours.kernel, CheckedKernel)
    assert text.kernel is None
    for sample in samples:
        one, two = ours.update(sample), text.update(sample)
        assert list(one.metrics) == list(two.metrics)
        for key in two.metrics.keys() - SHARES:
            given = one.metrics[key], two.metrics[key]
            torch.testing.assert_close(*given, rtol=1e-4, atol=1e-5, msg=key)
        if two.priority is not None:
            torch.testing.assert_close(one.priority, two.priority, rtol=1e-4, atol=1e-5)
    assert kernel_name(ours) == KERNELS[line[0].removeprefix("policy=")].split(":")[1]
    for x, y in zip(tree_leaves(ours.weights()), tree_leaves(text.weights()), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_the_comparison_leaves_no_trace(case):
    """A kernel that was compared has the bits of one that never was."""
    line, samples = case
    checked, plain = policy_of(*line), policy_of(*line)
    plain.kernel = plain.kernel.kernel
    for sample in samples[:3]:
        one, two = checked.update(sample), plain.update(sample)
        for key, value in two.metrics.items():
            assert torch.equal(one.metrics[key], value), key
    same_state(checked, plain)


def same_state(one, two):
    for x, y in zip(tree_leaves(one.state_dict()), tree_leaves(two.state_dict()), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else np.array_equal(x, y)


def test_an_edited_loss_is_run_as_written(case, monkeypatch, caplog):
    line, samples = case
    cls = policy_class(line[0].removeprefix("policy="))
    loss = cls.loss

    def edited(self, *given, **more):
        out = loss(self, *given, **more)
        changed = (1.01 * out[0], *out[1:])
        return type(out)(*changed) if hasattr(out, "_fields") else changed

    monkeypatch.setattr(cls, "loss", edited)
    ours, text = policy_of(*line), policy_of(*line, "learner.backend=torch")
    plan = make_plan(config(*line))
    assert backend_used(ours, plan).name == "numpy"
    for sample in samples[:3]:
        ours.update(sample)
        text.update(sample)
    assert ours.kernel is None
    for x, y in zip(tree_leaves(ours.weights()), tree_leaves(text.weights()), strict=True):
        assert torch.equal(x, y)
    (message,) = caplog.messages
    assert "the numpy kernel does not compute this loss" in message
    assert "learner.backend=torch is used" in message
    assert backend_used(ours, plan) == ("torch", "the numpy kernel does not compute this loss")


def without_target(original):
    return lambda self, net, row, noise: original(self, self.net, row, noise)


def without_double(original):
    def q_values(self, net, row, noise):
        return original(self, net if torch.is_grad_enabled() else self.target, row, noise)

    return q_values


def online_critics(original):
    def loss(self, batch):
        kept, self.q_target = self.q_target, self.q
        try:
            return original(self, batch)
        finally:
            self.q_target = kept

    return loss


def larger_actor_loss(original):
    def loss(self, batch):
        out = original(self, batch)
        return out if out.actor is None else out._replace(actor=1.01 * out.actor)

    return loss


def wider_clip(original):
    return lambda self, batch, params, value, clip, **more: original(
        self, batch, params, value, 0.5 * clip, **more
    )


def no_rho_clip(original):
    return lambda *given, **more: original(*given, **{**more, "rho_clip": 1e9})


def bootstrap_from_terminations(original):
    def gae(reward, value, terminated, *rest, **more):
        return original(reward, value, torch.zeros_like(terminated), *rest, **more)

    return gae


LATER = {  # edits that change nothing of an update from a run's first state
    "dqn-target": ("dqn", "q_values", without_target, ()),
    "dqn-double": ("dqn", "q_values", without_double, ()),
    "sac-target": ("sac", "loss", online_critics, ()),
    "sac-actor": ("sac", "loss", larger_actor_loss, ("policy.actor_every=2",)),
    "ppo-clip": ("ppo", "loss", wider_clip, ()),
    "a2c-end": ("a2c", "rlrun.policy.a2c.gae", bootstrap_from_terminations, ()),
    "impala-rho": ("impala", "rlrun.policy.impala.vtrace", no_rho_clip, ()),
}


@pytest.mark.parametrize("name", LATER)
def test_an_edit_that_shows_later_is_found(name, monkeypatch, caplog, tmp_path):
    policy, place, edit, words = LATER[name]
    (sample,) = samples_of(*LINES[policy], *words, directory=tmp_path, count=1)
    plain = policy_of(*LINES[policy], *words)
    plain.update(sample)
    assert plain.kernel is not None, "the text as it stands"
    if place.startswith("rlrun."):
        module, function = place.rsplit(".", 1)
        monkeypatch.setattr(place, edit(getattr(sys.modules[module], function)))
    else:
        cls = policy_class(policy)
        monkeypatch.setattr(cls, place, edit(getattr(cls, place)))
    ours = policy_of(*LINES[policy], *words)
    ours.update(sample)
    assert ours.kernel is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("reward", [1e25, float("nan")])
def test_numbers_that_overflow_are_not_an_edit(case, reward, caplog):
    """The update ends in Adam's error, without numpy's own warnings before it."""
    line, samples = case
    policy, segment = policy_of(*line), samples[0].segment
    sample = replace(samples[0], segment=replace(segment, reward=segment.reward + reward))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NumericError, match="train/grad_norm = "):
            policy.update(sample)
    assert policy.kernel is not None
    assert not caplog.messages


def test_a_checkpoint_of_one_backend_is_one_of_the_other(case):
    line, samples = case
    ours, text = policy_of(*line), policy_of(*line, "learner.backend=torch")
    for sample in samples[:2]:
        ours.update(sample)
    text.load_state_dict(copy.deepcopy(ours.state_dict()))
    same_state(ours, text)
    back = policy_of(*line)
    back.load_state_dict(copy.deepcopy(text.state_dict()))
    assert torch.equal(*(p.update(samples[2]).metrics["train/loss"] for p in (ours, back)))


def test_a_subclass_learns_by_its_own_loss():
    from rlrun.build import policy as build

    plan = make_plan(config(*LINES["dqn"]))
    cls = policy_class("dqn")
    own = type("Own", (cls,), {})
    made = policy_of(*LINES["dqn"])
    made.kernel, made.__class__ = None, own
    assert build.with_kernel(made, plan).kernel is None
