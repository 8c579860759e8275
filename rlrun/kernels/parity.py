"""The first update of a run is computed twice: as the policy's text says, and by its kernel."""

import logging
from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun.types import Policy, Sample, Update, UpdateKernel

TOLERANCE = 1e-4  # relative to max(1, |x|) per gradient step; float32 rounding is some 1e-6
# Shares of rows above a threshold: on policy ratios are 1, and rounding decides which are above 1.
SHARES = {"train/rho_clipped", "train/clip_fraction"}
_logger = logging.getLogger(__name__)


class ReferencePolicy(Policy, Protocol):
    """A policy whose updates a kernel may compute."""

    kernel: UpdateKernel | None

    def torch_update(self, sample: Sample) -> Update:
        """One learning step as the policy's own text computes it."""


class CheckedKernel:
    """A kernel that takes over once its first update is that of the policy.

    Where it is not (the policy's loss was edited), the policy learns by its own text, and one line
    says so. Nothing else depends on the comparison.
    """

    def __init__(self, policy: ReferencePolicy, kernel: UpdateKernel) -> None:
        self.policy, self.kernel = policy, kernel

    def update(self, sample: Sample) -> Update:
        """The first update of a run, computed both ways."""
        policy = self.policy
        before, seconds = _copy(policy.state_dict()), dict(policy.seconds)
        expected = policy.torch_update(sample)
        after = _copy(policy.state_dict())
        policy.load_state_dict(before)
        policy.seconds.update(seconds)
        computed = self.kernel.update(sample)
        gap = largest_gap(expected, after, computed, policy.state_dict())
        if gap <= TOLERANCE * max(1, expected.steps):
            policy.kernel = self.kernel
            return computed
        policy.kernel = None
        policy.load_state_dict(after)
        _logger.warning(
            "learner.backend: the numpy kernel does not compute this loss (difference %.1g); "
            "learner.backend=torch is used", gap,
        )  # fmt: skip
        return expected


def largest_gap(
    expected: Update, after: dict[str, Any], computed: Update, state: dict[str, Any]
) -> float:
    """The largest difference of priorities, metrics and first moments of Adam after an update.

    Each relative to max(1, |x|), the moments of a parameter to their norm. First moments are linear
    in the gradients; parameters after a step of Adam are not: a gradient of rounding size makes a
    whole step.
    """
    compared = expected.metrics.keys() - SHARES
    gaps = [_gap(expected.metrics[k], computed.metrics[k]) for k in compared]
    if expected.metrics.keys() != computed.metrics.keys():
        return torch.inf
    if expected.priority is not None and computed.priority is not None:
        gaps.append(_gap(expected.priority, computed.priority))
    moments = zip(_moments(after), _moments(state), strict=True)
    gaps += [_norm_gap(one, other) for one, other in moments]
    return max(gaps)


def _moments(state: Any) -> list[Tensor]:
    """First moments of every ``Adam`` in a policy's state."""
    if not isinstance(state, dict):
        return []
    own = list(state["mean"]) if {"mean", "square", "steps"} <= state.keys() else []
    return own + [x for value in state.values() for x in _moments(value)]


def _gap(one: Tensor, other: Tensor) -> float:
    difference = (one - other).abs() / one.abs().clamp(min=1)
    both = one.isnan() & other.isnan()
    return (
        float(torch.where(both, 0.0, difference).nan_to_num(torch.inf).max())
        if one.numel()
        else 0.0
    )


def _norm_gap(one: Tensor, other: Tensor) -> float:
    scale = one.norm().clamp(min=1e-8)
    gap = float((one - other).norm() / scale)
    return gap if gap == gap else (0.0 if bool(one.isnan().any()) else torch.inf)


def _copy(state: Any) -> Any:
    """A copy of a state dict that shares no tensor with it."""
    if isinstance(state, dict):
        return {k: _copy(x) for k, x in state.items()}
    if isinstance(state, (tuple, list)):
        return type(state)(_copy(x) for x in state)
    return state.clone() if isinstance(state, Tensor) else state
