"""Losses of value networks that predict atoms or quantiles, and Munchausen's terms.

``outputs`` are those of the network: action values [*, A], or distributions [*, A, N]. A criterion
selects the outputs of an action (``select``), computes the targets of rows (``target``) and the
loss between the two (``loss``).
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from rlrun.functional.value import RowLoss, ScalarCriterion, take_action
from rlrun.jit import COMPILED, jit_ieee
from rlrun.schema import SwitchedConfig


def support(low: float, high: float, atoms: int) -> Tensor:
    """float32 [N]: the atoms z_i = low + i (high - low) / (N - 1).

    Source: Bellemare et al. 2017, section 4.1.
    """
    return torch.linspace(low, high, atoms)


def project(values: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """The distribution (``values``, ``probabilities``) [*, N] on the grid ``atoms`` [M]: [*, M].

    Every value is clipped to the grid. Its probability is shared between its two neighbours in
    proportion to proximity, so that means within the grid are kept. ``atoms`` are evenly spaced.
    Source: Bellemare et al. 2017, eq. 7 (C51).
    """
    last = len(atoms) - 1
    low, high = atoms[0], atoms[-1]
    position = ((values.clamp(low, high) - low) / (high - low) * last).clamp(0, last)
    below = position.floor()
    share = position - below
    lower = below.long()
    out = probabilities.new_zeros(*values.shape[:-1], last + 1)
    out.scatter_add_(-1, lower, probabilities * (1 - share))
    return out.scatter_add_(-1, (lower + 1).clamp(max=last), probabilities * share)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_i m_i log p_i [*] with p = softmax(``logits``); both [*, N].

    Source: Bellemare et al. 2017, algorithm 1.
    """
    return -(target * logits.log_softmax(-1)).sum(-1)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """KL(m || p) = sum_i m_i (log m_i - log p_i) [*] >= 0, p = softmax(``logits``), 0 log 0 = 0.

    The priority of prioritized replay. Source: Hessel et al. 2018 (Rainbow).
    """
    log_p = logits.detach().log_softmax(-1)
    kl: Tensor = (torch.special.xlogy(target, target) - target * log_p).sum(-1)
    return kl.clamp(min=0)


def midpoints(count: int) -> Tensor:
    """float32 [N]: tau_i = (2 i + 1) / (2 N), the levels of N equally likely quantiles.

    Source: Dabney et al. 2018a (QR-DQN), lemma 2.
    """
    return (torch.arange(count) + 0.5) / count


def quantile_huber(theta: Tensor, target: Tensor, tau: Tensor, *, kappa: float) -> Tensor:
    """sum_i mean_j |tau_i - 1{u_ij < 0}| L_kappa(u_ij) / kappa, u_ij = target_j - theta_i.

    L_kappa(u) is u^2 / 2 up to |u| = kappa and its tangent beyond; ``kappa`` 0 is quantile
    regression, |tau - 1{u < 0}| |u|.
    Shapes: ``theta``, ``tau`` [*, N], ``target`` [*, N'] -> [*].
    ``CompiledQuantileHuber`` is taken for many pairs on the CPU. Source: Dabney et al. 2018a, eq. 9
    and 10; Dabney et al. 2018b (IQN), eq. 3.
    """
    many = theta.numel() * target.shape[-1] >= _MANY_PAIRS and not torch.compiler.is_compiling()
    if many and COMPILED and kappa > 0 and theta.is_cpu and theta.dtype == torch.float32:
        apply: Any = CompiledQuantileHuber.apply
        compiled: Tensor = apply(theta, target, tau, kappa)
        return compiled
    error = target.unsqueeze(-2) - theta.unsqueeze(-1)  # [*, N, N']
    asymmetry = (tau.unsqueeze(-1) - (error.detach() < 0).to(theta.dtype)).abs()
    if kappa == 0:
        loss = error.abs()
    else:
        loss = huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa) / kappa
    return (asymmetry * loss).mean(-1).sum(-1)


_MANY_PAIRS = 2**18  # where arrays of all pairs no longer fit the caches


class CompiledQuantileHuber(torch.autograd.Function):
    """``quantile_huber`` of float32 on the CPU for kappa > 0, without arrays of all pairs.

    Loss and gradient come from one loop. 20 times as fast for TQC's 5 critics.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, target: Tensor, tau: Tensor, kappa: float) -> Tensor:
        rows, shape = theta.shape[:-1].numel(), theta.shape
        a, b, c = (x.detach().reshape(rows, -1).numpy() for x in (theta, target, tau))
        loss, gradient = np.empty(rows, np.float32), np.empty((rows, shape[-1]), np.float32)
        _quantile_huber(a, b, c, np.float32(kappa), loss, gradient)
        ctx.save_for_backward(torch.from_numpy(gradient).reshape(shape))
        return torch.from_numpy(loss).reshape(shape[:-1])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return upstream[0].unsqueeze(-1) * gradient, None, None, None


@jit_ieee
def _quantile_huber(
    theta: np.ndarray,
    target: np.ndarray,
    tau: np.ndarray,
    kappa: np.float32,
    loss: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Fill ``loss`` [R] and its gradient [R, N]; ``theta``, ``tau`` [R, N], ``target`` [R, N'].

    With c = u clipped to +-kappa, L_kappa(u) is c (u - c / 2).
    """
    rows, n = theta.shape
    scale = np.float32(1) / (np.float32(target.shape[1]) * kappa)
    half, one = np.float32(0.5), np.float32(1)
    sums, slopes = np.empty(n, np.float32), np.empty(n, np.float32)
    for r in range(rows):
        quantiles, up, down = theta[r], tau[r], one - tau[r]
        sums[:], slopes[:] = 0, 0
        for y in target[r]:
            for i in range(n):
                u = y - quantiles[i]
                c = kappa if u > kappa else u
                c = -kappa if c < -kappa else c
                wc = (up[i] if u >= 0 else down[i]) * c
                sums[i] += wc * (u - half * c)
                slopes[i] += wc
        loss[r] = sums.sum() * scale
        gradient[r] = slopes * -scale


def cosines(tau: Tensor, count: int) -> Tensor:
    """cos(pi i tau) for i = 0 ... ``count`` - 1: [*] -> [*, count].

    Source: Dabney et al. 2018b (IQN), eq. 4.
    """
    i = torch.arange(count, device=tau.device, dtype=tau.dtype)
    return torch.cos(math.pi * i * tau.unsqueeze(-1))


def log_policy(q: Tensor, *, temperature: float, allowed: Tensor | None = None) -> Tensor:
    """temperature log softmax(q / temperature) [*, A], detached; -inf where not ``allowed``.

    q - v - temperature logsumexp((q - v) / temperature) with v = max q: no exponential overflows.
    Source: Vieillard et al. 2020 (Munchausen), appendix B.1.
    """
    q = q.detach()
    if allowed is not None:
        q = q.masked_fill(~allowed, -torch.inf)
    gap = q - q.amax(-1, keepdim=True)
    return gap - temperature * (gap / temperature).logsumexp(-1, keepdim=True)


def munchausen_reward(
    q: Tensor,
    action: Tensor,
    *,
    scale: float,
    temperature: float,
    clip: float,
    allowed: Tensor | None = None,
) -> Tensor:
    """scale max(temperature log pi(action), clip), pi = softmax(q / temperature), detached.

    Shapes: ``q`` [*, A], ``action`` int64 [*] -> [*]. Added to a row's reward.
    Source: Vieillard et al. 2020, eq. 1 and section 3 (clipping).
    """
    log_pi = take_action(log_policy(q, temperature=temperature, allowed=allowed), action)
    return scale * log_pi.clamp(clip, 0)


def munchausen_value(
    values: Tensor, q: Tensor, *, temperature: float, allowed: Tensor | None = None
) -> Tensor:
    """sum_a pi(a) (values_a - temperature log pi(a)), pi = softmax(q / temperature), detached.

    Shapes: ``q`` [*, A]; ``values`` [*, A] -> [*], or [*, A, N] -> [*, N] for N quantiles.
    Source: Vieillard et al. 2020, eq. 1; for quantiles its section 3 (M-IQN).
    """
    entropy = -log_policy(q, temperature=temperature, allowed=allowed)
    pi = (-entropy / temperature).exp()
    if values.ndim > q.ndim:
        pi, entropy = pi.unsqueeze(-1), entropy.unsqueeze(-1)
    inside = torch.where(pi > 0, pi * (values.detach() + entropy), torch.zeros_like(values))
    return inside.sum(-1 if values.ndim == q.ndim else -2)


class _DistributionCriterion(ScalarCriterion):
    """Base class of criteria with N outputs per action."""

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        index = action.unsqueeze(-1).unsqueeze(-1)
        index = index.expand(*action.shape, 1, outputs.shape[-1])
        return outputs.gather(-2, index).squeeze(-2)


class CategoricalCriterion(_DistributionCriterion):
    """Cross entropy against the target's atoms, projected on the grid (C51).

    Priorities from KL(target || prediction) as in Rainbow. Source: Bellemare et al. 2017,
    algorithm 1; Hessel et al. 2018.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config)
        self.atoms = support(config.v_min, config.v_max, config.atoms).to(device)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.atoms

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        alive = (discount > 0).unsqueeze(-1)
        probabilities = torch.where(alive, bootstrap, torch.zeros_like(bootstrap)).softmax(-1)
        values = super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), self.atoms)
        return project(values, probabilities.detach(), self.atoms)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, taus: Tensor | None
    ) -> RowLoss:
        prediction, target = _where(valid, prediction), _where(valid, target)
        means = self.mean(prediction.detach()), target @ self.atoms
        priority = torch.where(valid, kl_divergence(prediction, target), 0.0)
        return _row_loss(cross_entropy(prediction, target), means, priority, valid)


class QuantileCriterion(_DistributionCriterion):
    """Quantile Huber loss between all pairs of predicted and target quantiles (QR-DQN, IQN).

    Priorities from |difference of the means|. Source: Dabney et al. 2018a, algorithm 1; Dabney et
    al. 2018b, eq. 3.
    """

    def __init__(self, config: SwitchedConfig, device: torch.device) -> None:
        super().__init__(config)
        self.levels, self.kappa = midpoints(config.atoms).to(device), config.kappa

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def target(self, reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
        return super().target(reward.unsqueeze(-1), discount.unsqueeze(-1), bootstrap)

    def loss(
        self, prediction: Tensor, target: Tensor, valid: Tensor, taus: Tensor | None
    ) -> RowLoss:
        prediction, target = _where(valid, prediction), _where(valid, target)
        levels = self.levels.expand_as(prediction) if taus is None else taus
        loss = quantile_huber(prediction, target, levels, kappa=self.kappa)
        means = prediction.detach().mean(-1), target.mean(-1)
        return _row_loss(loss, means, (means[1] - means[0]).abs(), valid)


def _where(valid: Tensor, x: Tensor) -> Tensor:
    return torch.where(valid.unsqueeze(-1), x, torch.zeros_like(x))


def _row_loss(
    loss: Tensor, means: tuple[Tensor, Tensor], priority: Tensor, valid: Tensor
) -> RowLoss:
    td = torch.where(valid, (means[1] - means[0]).abs(), 0.0)
    return RowLoss(torch.where(valid, loss, 0.0), td, priority, *means)


class Munchausen:
    """Munchausen: log pi added to rewards, and soft values instead of maxima.

    pi = softmax(q / temperature) of the target network. Every step of an n-step return gets its
    own log pi: the one-step equation of the paper, unrolled. Source: Vieillard et al. 2020.
    """

    def __init__(self, config: SwitchedConfig, criterion: ScalarCriterion) -> None:
        assert config.munchausen is not None
        self.scale, self.criterion = config.munchausen, criterion
        self.temperature, self.clip = config.munchausen_tau, config.munchausen_clip

    def reward(self, outputs: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        """scale clip(temperature log pi(a), clip, 0) [T, B] of the rows of ``action``.

        ``outputs`` (of the target network) and ``mask`` may have more rows.
        """
        rows = len(action)
        return munchausen_reward(
            self.criterion.mean(outputs[:rows]), action, scale=self.scale,
            temperature=self.temperature, clip=self.clip,
            allowed=None if mask is None else mask[:rows],
        )  # fmt: skip

    def value(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Soft value sum_a pi(a) (outputs_a - temperature log pi(a)), instead of the maximum."""
        q = self.criterion.mean(outputs)
        return munchausen_value(outputs, q, temperature=self.temperature, allowed=mask)
