"""LSTM and GRU in compiled loops are torch's: outputs, states, gradients, whole updates.

Private: a gradient that is a little wrong shows in curves of learning alone.
"""

import numpy as np
import pytest
import torch

from rlrun.jit import COMPILED
from rlrun.kernels import gated
from rlrun.kernels.gated import GatedPasses, unroll
from rlrun.nets.actor_critic import unroll_episodes
from rlrun.nets.memory.gated import GRU, LSTM
from rlrun.policy.compute import Compute
from tests.kernels.make import line, perturb, policy_of, samples_of
from tests.nets.cells import FEATURES, make, state_of, stepped

pytestmark = pytest.mark.skipif(not COMPILED, reason="the loops are compiled by numba")
NAMES = ("lstm", "gru")


@pytest.mark.parametrize("rows", [1, 2, 13])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_states_and_gradients_are_torchs(name, rows):
    """Of inputs, start state and weights; the loss depends on the last state, too."""
    memory, x = make(name), torch.randn(rows, 3, FEATURES, requires_grad=True)
    state = [s.requires_grad_() for s in state_of(memory, 4, 3)]
    weights, found = torch.randn(rows, 3, 6), []
    for memory.compiled in (None, unroll):
        out, last = memory.unroll(x, tuple(state))
        loss = (out * weights).sum() + sum(s.square().sum() for s in last)
        grads = torch.autograd.grad(loss, [x, *state, *memory.parameters()], retain_graph=True)
        found.append([out, *last, *grads])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(AttributeError):  # arrays of the pass are overwritten
        torch.autograd.grad(loss, x)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_zero_where_episodes_begin(name):
    memory, first = make(name), torch.rand(12, 40) < torch.rand(40)
    x, state = torch.randn(12, 40, FEATURES, requires_grad=True), state_of(memory, 5, 40)
    memory.compiled = unroll
    weights, found = torch.randn(12, 40, 6), []
    for out in (
        stepped(memory, x, state, first)[0], unroll_episodes(memory, x, first, state)
    ):  # fmt: skip
        grads = torch.autograd.grad((out * weights).sum(), [x, *memory.parameters()])
        found.append([out, *grads])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    wild = tuple(torch.full_like(s, torch.nan) for s in state)
    first[0] = True
    assert unroll_episodes(memory, x, first, wild).isfinite().all()


def test_gates_that_saturate_stay_within_their_bounds():
    """The fitted tanh ends at +-1 to rounding, and NaN is not hidden."""
    x = np.array([-1e30, -50.0, 50.0, 1e30, np.nan], np.float32)[None, :, None]
    zero = np.zeros((5, 1), np.float32)
    for core, low, high in ((torch.nn.LSTM(1, 1), 0, np.tanh(1)), (torch.nn.GRU(1, 1), -1, 0)):
        for p in core.parameters():
            p.data.fill_(1.0)
        h = GatedPasses(core).unroll(x, (zero, zero)).out[0, :, 0]
        np.testing.assert_allclose(h, [low, low, high, high, np.nan], atol=1e-6)


POLICIES = [
    ("rsac", "memory=lstm"), ("rtd3", "memory=gru"),
    ("r2d2", "memory=gru", "policy.distribution=quantile"),
]  # fmt: skip


@pytest.mark.parametrize("words", POLICIES, ids=" ".join)
def test_updates_are_those_with_torchs_memory(words):
    words = line(words[0], *words[1:], "memory.hidden=5")
    ours, text = (policy_of(words, text=text) for text in (False, True))
    compiled = [
        {m.compiled for p in policy.parts.values() for m in p.net.modules()
         if isinstance(m, LSTM | GRU)} for policy in (ours, text)
    ]  # fmt: skip
    assert compiled == [{unroll}, {None}]
    for policy in (ours, text):
        perturb(policy, 1.0)
    for sample in samples_of(words, 3):
        one, two = ours.update(sample), text.update(sample)
        for key, value in two.metrics.items():
            torch.testing.assert_close(
                float(one.metrics[key]), float(value), rtol=1e-3, atol=1e-4, msg=key
            )
    assert ours.kernel is None


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_a_batch_need_no_other_compilation(name, monkeypatch):
    numba = pytest.importorskip("numba")
    memory, types, loop = make(name), set(), f"_{name}"
    compiled = getattr(gated, loop)
    monkeypatch.setattr(
        gated, loop, lambda *given: types.add(numba.typeof(given)) or compiled(*given)
    )
    x, first = torch.randn(5, 6, FEATURES), torch.rand(5, 6) < 0.5
    for columns in (slice(None), slice(0, 6, 2)):
        part = x[:, columns].contiguous()
        unroll(memory, part, state_of(memory, 4, part.shape[1]), first[:, columns])
    assert len(types) == 1


@pytest.mark.parametrize("name", NAMES)
def test_changed_tensors_and_other_layouts(name):
    """A pass reads inputs, outputs and weights again: changed ones are an error, as in torch."""
    memory, x = make(name), torch.randn(5, 3, FEATURES)
    state, factor, found = state_of(memory, 4, 3), torch.randn(6, 3), []
    for memory.compiled in (None, unroll):
        last = memory.unroll(x, state)[1]
        loss = sum((s.T.contiguous() * factor).square().sum() for s in last)
        found.append(torch.autograd.grad(loss, memory.parameters()))  # of a turned gradient
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    for which in range(3):
        given = x.clone()
        out, last = memory.unroll(given, state)
        with torch.no_grad():
            (given, out, next(memory.parameters()))[which].mul_(2)
        with pytest.raises(RuntimeError):
            out.sum().backward()
    with torch.no_grad():
        out, last = memory.unroll(x, state)
        before = out.clone()
        last[0].zero_()
    assert torch.equal(out, before)
    with pytest.raises(AssertionError):
        memory.unroll(x.double(), state)


@pytest.mark.parametrize("name", NAMES)
def test_a_derived_cell_is_not_bypassed(name):
    memory = make(name)
    derived = type("Derived", (type(memory),), {})
    memory.__class__ = derived
    Compute(unroll=unroll).prepare(torch.nn.Sequential(memory))
    assert memory.compiled is None


MEASURED = [("rsac", "memory=lstm"), ("r2d2", "memory=gru", "policy.distribution=quantile")]


@pytest.mark.parametrize("words", MEASURED, ids=" ".join)
def test_units_of_the_memory_are_measured(words):
    words = line(words[0], *words[1:], "memory.hidden=5")
    policies = [policy_of(words, text=text) for text in (False, True)]
    (sample,), dead = samples_of(words, 1), []
    for policy in policies:
        for part in policy.parts.values():
            for core in part.net.modules():
                if isinstance(core, torch.nn.RNNBase):
                    with torch.no_grad():
                        for p in core.parameters():
                            p[:2] = p[5:7] = p[10:12] = p[-2:] = 0  # units 0 and 1 are constant
        dead.append(policy.dead_units(sample.segment))
    assert dead[0] == dead[1] > 0


def test_wide_lstms_are_torchs():
    """Whole updates with 128 units are slower in the loops; those of a GRU are not."""
    used = {
        (name, units): policy_of(
            line("rsac", f"memory={name}", f"memory.hidden={units}")
        ).compute.unroll
        for name in NAMES for units in (64, 65)
    }  # fmt: skip
    assert used.pop(("lstm", 65)) is None
    assert set(used.values()) == {unroll}
