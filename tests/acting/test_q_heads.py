"""Heads of distributions and noisy heads: numpy is torch, with and without noise."""

import numpy as np
import pytest
import torch

from rlrun.acting.step import NumpyStep, TorchStep, make_step
from rlrun.nets.forward_noise import MEAN_WEIGHTS
from rlrun.nets.qnet import DistNet
from rlrun.schema import TorsoConfig
from rlrun.types import Spec
from tests.acting.test_step import play
from tests.nets.cells import memory_config
from tests.policy.factory import SPEC, dqn, r2d2

SHAPES = [
    {"distribution": kind, "noisy": noisy, "dueling": dueling, "head_hidden": head}
    for kind in ("none", "categorical", "quantile", "implicit")
    for noisy in (None, 0.7)
    for dueling, head in ((False, ()), (True, (5,)))
    if kind != "none" or noisy
]


def make_net(seed=0, memory="lstm", **changes) -> DistNet:
    config = r2d2(**changes).config
    torch.manual_seed(seed)
    spec = Spec(SPEC.obs, SPEC.action)
    return DistNet(
        config, TorsoConfig("mlp", (8, 6), "elu", False), memory_config(memory, 7, 1.0), spec
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("memory", ["lstm", "none"])
def test_numpy_is_torch(shape, memory):
    net = make_net(memory=memory, **shape)
    steps = [NumpyStep(net, 4), TorchStep(net, 4)]
    values = {}
    for noise in (None, 1, 2) if shape["noisy"] else (None,):
        for step in steps:
            if shape["noisy"]:
                step.perturb(None if noise is None else np.random.default_rng(noise))
        one, two = (play(step, SPEC.obs) for step in steps)
        for got, want in zip(one, two, strict=True):
            assert got.dtype == want.dtype == np.float32
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-6)
        values[noise] = one[0]
    assert len({x.tobytes() for x in values.values()}) == len(values), "noise changes nothing"
    assert isinstance(make_step(net, 4), NumpyStep)


@pytest.mark.parametrize("kind", [NumpyStep, TorchStep])
@pytest.mark.parametrize("shape", SHAPES[-4:], ids=str)
def test_a_step_keeps_its_weights_until_it_is_refreshed(kind, shape):
    net, other = make_net(**shape), make_net(seed=1, **shape)
    step, before = kind(net, 4), play(kind(net, 4), SPEC.obs)
    with torch.no_grad():
        for own, new in zip(net.parameters(), other.parameters(), strict=True):
            own.copy_(new)
    for got, want in zip(play(step, SPEC.obs), before, strict=True):
        np.testing.assert_array_equal(got, want)
    step.refresh()
    for got, want in zip(play(step, SPEC.obs), play(kind(other, 4), SPEC.obs), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["categorical", "quantile", "implicit"])
def test_acting_values_are_the_means_of_the_learned_distributions(kind):
    """Values of the acting step against the criterion's mean."""
    policy = dqn(distribution=kind, prev_inputs=False)
    obs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = policy.net.outputs(policy.net.inputs(obs, obs), MEAN_WEIGHTS)
        want = policy.criterion.mean(outputs)
    step = policy.actor(6).net_step
    none = np.zeros(6, np.int64), np.zeros(6, np.float32), ()
    got, _ = step(obs.numpy(), np.ones(6, bool), *none)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
