"""The first update is computed both ways; an edited loss is run as written."""

import copy
import subprocess
import sys

import pytest
import torch

from rlrun.config.backend import KERNELS, RECURRENT_KERNELS
from rlrun.kernels.parity import probe_of
from rlrun.policy.base import Losses
from rlrun.run.build import backend_used, policy_class, with_kernel
from rlrun.run.plan import make_plan
from tests.compose import config
from tests.kernels.make import NAMES, line, policy_of, samples_of
from tests.pages import ROOT
from tests.policy.make import assert_equal_states

FAMILIES = ("dqn", "r2d2", "sac", "ppo", "a2c", "pqn")  # one of each shape of ``loss``


def test_every_kernel_is_known_to_the_rule():
    assert sorted(KERNELS | RECURRENT_KERNELS) == sorted(NAMES)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_comparison_leaves_no_trace(name):
    """A kernel that was compared has the bits of one that never was."""
    words = line(name)
    samples, checked, plain = samples_of(words, 2), policy_of(words), policy_of(words)
    plain.check = None
    for sample in samples:
        one, two = checked.update(sample), plain.update(sample)
        assert one.metrics == two.metrics
        assert one.steps == two.steps
    assert checked.config == plain.config
    assert_equal_states(checked, plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_one_backend_is_one_of_the_other(name):
    words = line(name)
    ours, text, back = policy_of(words), policy_of(words, text=True), policy_of(words)
    first, second = samples_of(words, 2)
    ours.update(first)
    text.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert_equal_states(ours, text)
    back.load_state_dict(copy.deepcopy(text.state_dict()))
    one, two = (p.update(second).metrics["train/loss"] for p in (ours, back))
    assert one == two
    assert_equal_states(ours, back)


@pytest.mark.parametrize("name", NAMES)
def test_an_edited_loss_is_run_as_written(name, monkeypatch, caplog):
    words, cls = line(name), policy_class(name)
    place = "control_losses" if hasattr(cls, "control_losses") else "loss"
    loss = getattr(cls, place)

    def edited(self, *given, **more):
        out = loss(self, *given, **more)
        if isinstance(out, Losses):
            return out._replace(losses={part: 1.01 * x for part, x in out.losses.items()})
        changed = (1.01 * out[0], *out[1:])
        return type(out)(*changed) if hasattr(out, "_fields") else changed

    monkeypatch.setattr(cls, place, edited)
    ours, text, plan = policy_of(words), policy_of(words, text=True), make_plan(config(*words))
    assert backend_used(ours, plan).name == "numpy"
    for sample in samples_of(words, 2):
        one, two = ours.update(sample), text.update(sample)
        losses = [[x for k, x in u.metrics.items() if "loss" in k] for u in (one, two)]
        assert losses[1]
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    assert ours.kernel is None
    # their weights have other alignments, by which torch's products round (AVX2)
    torch.testing.assert_close(ours.weights(), text.weights(), rtol=1e-6, atol=1e-7)
    (message,) = caplog.messages
    assert "learner.backend=torch" in message
    assert backend_used(ours, plan).name == "torch"


def online_targets(original):
    """No target network."""
    pairs = [("target", "net"), ("q_target", "q")]

    def loss(self, *given, **more):
        name, online = next(p for p in pairs if hasattr(self, p[0]))
        kept = getattr(self, name)
        setattr(self, name, getattr(self, online))
        try:
            return original(self, *given, **more)
        finally:
            setattr(self, name, kept)

    return loss


def larger_actor_loss(original):
    def loss(self, batch):
        out = original(self, batch)
        larger = {part: 1.01 * x for part, x in out.losses.items() if part == "actor"}
        return out._replace(losses=out.losses | larger)

    return loss


def wider_clip(original):
    return lambda self, batch, params, value, clip, **more: original(
        self, batch, params, value, 0.5 * clip, **more
    )


def bootstrap_from_terminations(original):
    def gae(reward, value, terminated, *rest, **more):
        return original(reward, value, torch.zeros_like(terminated), *rest, **more)

    return gae


def no_rho_clip(original):
    return lambda *given, **more: original(*given, **{**more, "rho_clip": 1e9})


LATER = {  # edits that change nothing of an update from a run's first state
    "dqn-target": ("dqn", "loss", online_targets, ()),
    "r2d2-target": ("r2d2", "loss", online_targets, ()),
    "sac-target": ("sac", "control_losses", online_targets, ()),
    "sac-actor": ("sac", "control_losses", larger_actor_loss, ("policy.actor_every=2",)),
    "ppo-clip": ("ppo", "loss", wider_clip, ()),
}


@pytest.mark.parametrize("edit", LATER)
def test_an_edit_that_shows_later_is_found(edit, monkeypatch, caplog):
    name, place, change, more = LATER[edit]
    words, cls = line(name, *more), policy_class(name)
    (sample,) = samples_of(words, 1)
    policy = policy_of(words)
    policy.update(sample)
    assert policy.kernel is not None, "the text as it stands"
    monkeypatch.setattr(cls, place, change(getattr(cls, place)))
    policy = policy_of(words)
    policy.update(sample)
    assert policy.kernel is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("name", "function", "change"),
    [("a2c", "gae", bootstrap_from_terminations), ("impala", "vtrace", no_rho_clip)],
)
def test_kernels_take_advantages_from_the_text(name, function, change, monkeypatch):
    words, module = line(name), sys.modules[policy_class(name).__module__]
    sample = probe_of(samples_of(words, 1)[0])  # rows end, and an older policy acted
    written = policy_of(words).update(sample).metrics["train/policy_loss"]
    monkeypatch.setattr(module, function, change(getattr(module, function)))
    ours, text = policy_of(words), policy_of(words, text=True)
    loss, expected = (p.update(sample).metrics["train/policy_loss"] for p in (ours, text))
    assert ours.kernel is not None
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert abs(loss - written) > 1e-3 * abs(written)


def test_a_subclass_learns_by_its_own_loss():
    words = line("dqn")
    policy = policy_of(words, text=True)
    policy.__class__ = type("Own", (policy_class("dqn"),), {})
    assert with_kernel(policy, make_plan(config(*words))).kernel is None


WITHOUT = """
import sys
sys.modules["rlrun.kernels"] = None  # its import raises
from rlrun.config import backend
backend.KERNELS.clear()
backend.RECURRENT_KERNELS.clear()
backend.GATED = ()
from rlrun.cli.main import main
line = "policy=r2d2 env=cartpole debug=smoke logger.progress=off logger.tensorboard=false"
assert main(line.split()) == 0
assert not [name for name in sys.modules if name.startswith("rlrun.kernels.")]
"""


def test_without_the_room_and_its_table_everything_works(tmp_path):
    given = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", WITHOUT], **given)
    assert done.returncode == 0, done.stderr[-2000:]
    files = [path for path in (ROOT / "rlrun").rglob("*.py") if "kernels" not in path.parts]
    imports = [path for path in files if "from rlrun.kernels" in path.read_text()]
    assert len(imports) == 1, "beside the table, one place imports them"
