"""The squashed Gaussian in numpy against torch's and autograd."""

import numpy as np
import pytest
import torch

from rlrun.functional.continuous import squashed_gaussian
from rlrun.kernels.squashed_gaussian import squashed, squashed_grad


def heads(scale):
    g = np.random.default_rng(0)
    head = g.normal(size=(40, 6)).astype(np.float32) * scale
    head[:3, 3:] = [[-30, -20, 2], [2.5, 1.9, -25], [0, 0, 0]]
    return head, g.normal(size=(40, 3)).astype(np.float32)


@pytest.mark.parametrize("scale", [0.1, 1, 10])
def test_samples(scale):
    head, noise = heads(scale)
    found = squashed(head, noise)
    expected = squashed_gaussian(*torch.from_numpy(head).chunk(2, -1), torch.from_numpy(noise))
    np.testing.assert_allclose(found.action, expected.action, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.log_prob, expected.log_prob, rtol=1e-5, atol=1e-5)
    assert found.action.dtype == found.log_prob.dtype == np.float32
    assert np.isfinite(found.log_prob).all()


@pytest.mark.parametrize("scale", [0.1, 1])
@pytest.mark.parametrize("count", [40, 7])
def test_gradients(scale, count):
    """Bounds of the log standard deviation included; also of the first samples alone."""
    head, noise = heads(scale)
    g = np.random.default_rng(1)
    over_action = g.normal(size=(count, 3)).astype(np.float32)
    over_log = g.normal(size=count).astype(np.float32)
    x = torch.from_numpy(head[:count]).requires_grad_()
    out = squashed_gaussian(*x.chunk(2, -1), torch.from_numpy(noise[:count]))
    (expected,) = torch.autograd.grad(
        [out.action, out.log_prob], [x], [torch.from_numpy(v) for v in (over_action, over_log)]
    )
    found = squashed_grad(squashed(head, noise), over_action, over_log)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
