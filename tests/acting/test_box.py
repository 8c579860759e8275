"""Sampled actions in a Box."""

import numpy as np
import pytest
import torch

from tests.policy.factory import control


def test_sampled_actions_have_the_density_that_learning_assumes():
    """Samples in numpy against the log-prob in torch: E[-log pi] both ways."""
    outputs = np.tile(np.array([[0.3, -0.4, -0.5, 0.2]], np.float32), (200_000, 1))
    action = control("sac").actor(1).sample(outputs).astype(np.float64)
    mean, log_std = outputs[:, :2].astype(np.float64), outputs[:, 2:].astype(np.float64)
    u = np.arctanh(np.clip(action, -1 + 1e-7, 1 - 1e-7))
    noise = torch.from_numpy((u - mean) / np.exp(log_std))
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.std().item() == pytest.approx(1, abs=0.01)
