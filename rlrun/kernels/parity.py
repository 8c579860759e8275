"""Comparison of a kernel with the policy's own loss before a run's first update."""

import logging
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlrun.errors import NumericError
from rlrun.policy.base import LearningPolicy
from rlrun.schema import ControlConfig, PPOConfig, PQNConfig
from rlrun.types import Sample, Update

TOLERANCE = 1e-4  # relative to max(1, |x|) per gradient step; float32 rounding is some 1e-6
# Shares of rows above a threshold: rounding decides whether on-policy ratios exceed 1.
SHARES = {"train/rho_clipped", "train/clip_fraction"}
MOST_PASSES = 2  # over a rollout; autograd takes its time for each
NOISE, MIN_NOISE = 0.3, 0.05  # on targets' parameters, relative to their size, and at least
_logger = logging.getLogger(__name__)


class KernelCheck:
    """Removes a policy's kernel if it does not compute the gradients of the policy's own loss.

    After an edit of the loss, the run then uses the edited loss with torch, and a warning says so.
    The comparison has no other effect. Edits that only change later updates need
    learner.backend=torch.
    """

    def __init__(self, policy: LearningPolicy[Any]) -> None:
        self.policy, self.kernel = policy, policy.kernel

    def __call__(self, sample: Sample) -> None:
        """Compare kernel and autograd on the sample of a run's first update."""
        policy = self.policy
        before, seconds = _copy(policy.state_dict()), dict(policy.seconds)
        gap = self.gap(sample)
        policy.load_state_dict(before)
        policy.seconds.update(seconds)
        agrees = gap <= TOLERANCE
        policy.kernel = self.kernel if agrees else None
        if not agrees:
            _logger.warning(
                "learner.backend: the numpy kernel does not compute this loss (difference %.1g); "
                "learner.backend=torch is used", gap,
            )  # fmt: skip

    def gap(self, sample: Sample) -> float:
        """Return the largest difference per gradient step between kernel and autograd.

        When a run begins, target networks equal the online ones, actions are those of the present
        policy, delayed steps are not due, and hardly any episode ends, so many edits would make no
        difference. Both computations therefore start from perturbed target networks with every step
        due, and learn from rows some of which end or come from another policy.
        """
        policy, sample = self.policy, probe_of(sample)
        probe, config = _other_targets(policy.state_dict()), policy.config
        if isinstance(config, PPOConfig | PQNConfig):
            policy.config = replace(config, epochs=min(config.epochs, MOST_PASSES))
        if isinstance(policy.config, ControlConfig):
            probe["updates"] = policy.config.actor_every - 1
        results = []
        try:
            for kernel in (None, self.kernel):
                policy.kernel = kernel
                policy.load_state_dict(_copy(probe))
                results.append((policy.learn(sample), _copy(policy.state_dict())))
        except NumericError:  # an overflow, which ends the run if the update has it, too
            return 0.0
        finally:
            policy.config = config
        (expected, after), (computed, state) = results
        return largest_gap(expected, after, computed, state) / max(1, expected.steps)


def largest_gap(
    expected: Update, after: dict[str, Any], computed: Update, state: dict[str, Any]
) -> float:
    """Return the largest difference of priorities, metrics and Adam's first moments.

    Differences are relative to max(1, |x|), for the moments of a parameter to their norm. First
    moments are linear in the gradients. Parameters are not: Adam makes a whole step even for a
    gradient of rounding size.
    """
    if not (_finite(expected) or _finite(computed)):
        return 0.0  # an overflow, which ends the run
    compared = expected.metrics.keys() - SHARES
    numbers = [[torch.as_tensor(x.metrics[k]) for x in (expected, computed)] for k in compared]
    gaps = [_gap(*pair) for pair in numbers]
    if expected.metrics.keys() != computed.metrics.keys():
        return torch.inf
    if expected.priority is not None and computed.priority is not None:
        gaps.append(_gap(expected.priority, computed.priority))
    moments = zip(_moments(after), _moments(state), strict=True)
    gaps += [_largest((a - b).norm() / a.norm().clamp(min=1e-8)) for a, b in moments]
    return max(gaps)


def _moments(state: Any) -> list[Tensor]:
    """Return the first moments of every ``Adam`` in a policy's state."""
    if not isinstance(state, dict):
        return []
    moments = list(state["mean"]) if {"mean", "square", "steps"} <= state.keys() else []
    return moments + [x for value in state.values() for x in _moments(value)]


def _finite(update: Update) -> bool:
    return all(math.isfinite(x) for x in update.metrics.values())


def _gap(expected: Tensor, computed: Tensor) -> float:
    return _largest((expected - computed).abs() / expected.abs().clamp(min=1))


def _largest(x: Tensor) -> float:
    return float(x.nan_to_num(torch.inf).max()) if x.numel() else 0.0


def _copy(state: Any) -> Any:
    """Return a copy of a state dict that shares no tensor with it."""
    if isinstance(state, dict):
        return {k: _copy(x) for k, x in state.items()}
    if isinstance(state, (tuple, list)):
        return type(state)(_copy(x) for x in state)
    return state.clone() if isinstance(state, Tensor) else state


def _other_targets(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a policy's state with noise on the parameters of target networks."""
    random = torch.Generator().manual_seed(0)
    noisy: dict[str, Any] = _copy(state)
    parts = [noisy, *(x for x in noisy.values() if isinstance(x, dict))]
    for x in (x for part in parts for x in part.get("target", {}).values()):
        if x.ndim > 0:
            size = (NOISE * x.square().mean().sqrt()).clamp(min=MIN_NOISE)
            x += size * torch.randn(x.shape, generator=random)
    return noisy


def probe_of(sample: Sample) -> Sample:
    """Return the rows of ``sample``, one in eight terminated and one in eight truncated.

    In rollouts the log-probabilities of the acting policy get noise of half a nat.
    """
    segment, random = sample.segment, torch.Generator().manual_seed(0)
    coin = torch.rand(segment.valid.shape, generator=random)
    terminated = segment.terminated | (segment.valid & (coin < 0.125))
    truncated = segment.truncated | (segment.valid & (coin > 0.875))
    extras = dict(segment.extras)
    if "log_prob" in extras:
        log_prob = extras["log_prob"]
        extras["log_prob"] = log_prob + 0.5 * torch.randn(log_prob.shape, generator=random)
    segment = replace(segment, terminated=terminated, truncated=truncated, extras=extras)
    return replace(sample, segment=segment)
