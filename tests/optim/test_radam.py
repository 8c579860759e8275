"""RAdam is torch's, with gradients clipped before."""

import pytest
import torch

from rlrun.optim.radam import RAdam


@pytest.mark.parametrize("flat", [False, True])
def test_steps_are_those_of_torch(flat):
    """Before and after the sixth step, where the denominators begin to count."""
    torch.manual_seed(0)
    start = [torch.randn(3, 2), torch.randn(4)]
    ours, theirs = ([x.clone().requires_grad_() for x in start] for _ in range(2))
    mine = RAdam(ours, eps=1e-6, grad_clip=1.5)
    if flat:
        mine.flatten()
    torchs = torch.optim.RAdam(theirs, lr=0.1, eps=1e-6)
    for step in range(12):
        grads = [torch.randn_like(x) for x in start]
        lr = 0.1 / (step + 1)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        want = torch.nn.utils.clip_grad_norm_(theirs, 1.5)
        torchs.param_groups[0]["lr"] = lr
        torchs.step()
        norm = mine.step([g.clone() for g in grads], lr)
        torch.testing.assert_close(norm, want)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
