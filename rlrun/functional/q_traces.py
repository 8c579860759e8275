"""Targets of action values along a trace: Retrace, and Q(lambda) of Peng, Watkins and Harutyunyan.

All are one recursion over the rows after row t, which differ in the coefficient c of the trace and
in the value B that a correction is relative to:

    G_t = r_t + gamma (V_{t+1} + c_{t+1} (G_{t+1} - B_{t+1})),    V = sum_a pi(a) Q(a)

=====================  ===============================  ===========  =====================
trace                  c                                B            pi
=====================  ===============================  ===========  =====================
retrace                lambda min(1, pi(a) / mu(a))     Q(a)         epsilon-greedy
peng_q_lambda          lambda                           V            greedy
watkins_q_lambda       lambda where a is greedy, or 0   Q(a)         greedy
harutyunyan_q_lambda   lambda                           Q(a)         greedy
=====================  ===============================  ===========  =====================

a is the action that was taken, mu(a) the probability it was taken with. Values are those of the
target network; with ``double`` the online network selects the greedy action.
"""

import torch
from torch import Tensor

from rlrun.functional.returns import reverse_scan, trace_continues, value_after
from rlrun.functional.value import greedy, rescale, take_action, unrescale
from rlrun.schema import SwitchedConfig
from rlrun.types import Segment

_LOWEST = -80.0  # log mu below which 1 / mu overflows in float32


def trace_return(
    reward: Tensor,
    value: Tensor,
    baseline: Tensor,
    coefficient: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
) -> Tensor:
    """G_t = r_t + gamma (V_{t+1} + c_{t+1} (G_{t+1} - B_{t+1})) of every row, 0 where not valid.

    terminated[t]: G_t = r_t, and V_{t+1} is not read. truncated[t]: V_{t+1} is that of the end row,
    and the trace ends (c_{t+1} = 0). It also ends after the last row, whose bootstrap is V[T].
    Invalid rows are never read, NaN included, except for the value after a valid row. B and c of
    row 0 are not read. c = 0 gives the one-step target. c = 1 and B = V gives the discounted sum of
    all rewards to the end of the trace. Detached.

    Shapes: ``value`` [T+1, B], the others [T, B]. Source: Munos et al. 2016, eq. 3 and 4, as a
    recursion; Harutyunyan et al. 2016.
    """
    zero = torch.zeros((), dtype=value.dtype, device=value.device)
    continues = trace_continues(terminated, truncated, valid)
    c, base = (
        torch.where(continues, torch.cat([x[1:], x[:1]]), zero) for x in (coefficient, baseline)
    )
    ahead = value_after(value, terminated, valid) - c * base
    one_step = torch.where(valid, reward + gamma * ahead, zero)
    return reverse_scan(one_step, gamma * c).detach()


def epsilon_greedy_policy(q: Tensor, mask: Tensor | None, epsilon: float) -> Tensor:
    """pi [*, A]: epsilon spread over the actions of ``mask``, the rest on argmax_a ``q``."""
    allowed = torch.ones_like(q) if mask is None else mask.to(q.dtype)
    uniform = allowed / allowed.sum(-1, keepdim=True)
    best = torch.zeros_like(q).scatter_(-1, greedy(q, mask).unsqueeze(-1), 1.0)
    return (1 - epsilon) * best + epsilon * uniform


def retrace_coefficient(pi: Tensor, log_mu: Tensor, trace: float) -> Tensor:
    """lambda min(1, pi(a) / mu(a)) [*], from pi(a) and log mu(a) of the actions taken.

    Source: Munos et al. 2016, section 3 (Retrace).
    """
    return trace * (pi * (-log_mu.clamp(min=_LOWEST)).exp()).clamp(max=1.0)


class TraceTarget:
    """The targets y = h(G) of ``policy.trace``, with G computed from h^-1 of the network's outputs.

    h is the value rescaling, the identity if ``policy.value_rescale_eps`` is null. Source:
    Kapturowski et al. 2019, section 2.3; Badia et al. 2020 (Agent57), transformed Retrace.
    """

    def __init__(self, config: SwitchedConfig) -> None:
        self.config = config
        self.epsilon = config.trace_epsilon if config.trace == "retrace" else 0.0

    @torch.no_grad()
    def __call__(
        self,
        q_choice: Tensor,
        q_target: Tensor,
        segment: Segment,
        reward: Tensor,
        mask: Tensor | None,
        *,
        start: int = 0,
    ) -> Tensor:
        """y [T, B] of rows ``start`` to the last of ``segment``, detached; 0 where not valid.

        ``q_choice`` [T+1, B, A]: outputs of the network that defines greedy actions. ``q_target``
        [T+1, B, A]: outputs of the target network. Both are finite in padding, too. ``reward`` [T,
        B]: the shaped one. ``mask`` bool [T+1, B, A]: allowed actions; None: all. Retrace reads
        ``extras["log_prob"]`` [., B], log mu of the actions taken.
        """
        c, eps = self.config, self.config.value_rescale_eps
        ends = (x[start:] for x in (segment.terminated, segment.truncated, segment.valid))
        action = torch.where(segment.valid[start:], segment.action[start:], 0)
        log_mu = segment.extras["log_prob"][start:] if c.trace == "retrace" else None
        q = q_target if eps is None else unrescale(q_target, eps)
        pi = epsilon_greedy_policy(q_choice, mask, self.epsilon)
        value = (pi * q).sum(-1)
        baseline = value[:-1] if c.trace == "peng_q_lambda" else take_action(q[:-1], action)
        coefficient = self.coefficient(take_action(pi[:-1], action), log_mu)
        returns = trace_return(reward, value, baseline, coefficient, *ends, gamma=c.gamma)
        return returns if eps is None else rescale(returns, eps)

    def coefficient(self, pi: Tensor, log_mu: Tensor | None) -> Tensor:
        """c [T, B] from pi(a) of the actions taken; see the table above."""
        trace = self.config.trace_lambda
        if self.config.trace == "retrace":
            assert log_mu is not None, "recorded by ValueActor"
            return retrace_coefficient(pi, log_mu, trace)
        if self.config.trace == "watkins_q_lambda":  # pi of a greedy policy is 1 or 0
            return trace * pi
        return torch.full_like(pi, trace)
