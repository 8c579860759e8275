"""The error of action values due to the recurrent state that windows start from."""

from typing import Protocol

import torch
from torch import Tensor

from rlrun.functional.rows import masked_mean, rows
from rlrun.functional.value import ScalarCriterion
from rlrun.nets.qnet import QNet
from rlrun.types import Segment, Tree, Window


class UnrollsWindows(Protocol):
    """A policy that unrolls a recurrent Q-network over windows."""

    net: QNet
    window: Window
    criterion: ScalarCriterion

    def inputs(self, segment: Segment) -> tuple[Tree, Tensor]: ...

    def initial_state(self, batch: int) -> Tree: ...

    def unroll(
        self, net: QNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree
    ) -> Tensor: ...


@torch.no_grad()
def delta_q(policy: UnrollsWindows, windows: Segment, history: Segment) -> dict[str, Tensor]:
    """Error of Q at the first and last learned row for a stored and for a zero state.

    |q(h') - q(h)|_2 / |max_a q(h)| averaged over windows, where h is the state unrolled by the
    present network from the trajectory's start (``history``, the rows before each window) and
    h' the one after burn-in from the stored or the zero state.
    Source: R2D2 section 3, figure 1 (there h is the stored state of every row).
    """
    bs, last, net = policy.window.burnin, policy.window.learned - 1, policy.net
    past, inputs = policy.inputs(history), policy.inputs(windows)
    lengths = history.valid.sum(0)
    zero = policy.initial_state(len(lengths))
    true = net.memory.state_after(net.inputs(*rows(past, 0, -1)), lengths, zero)

    def values(state: Tree) -> Tensor:
        return policy.criterion.mean(policy.unroll(net, inputs, windows, state))

    q = values(true)
    scale = q.amax((0, 2)).abs().clamp(min=1e-6)
    full = windows.valid[bs + last]
    found: dict[str, Tensor] = {}
    if not full.any():
        return found
    for name, state in (("stored", windows.state), ("zero", zero)):
        gap = (values(state) - q).norm(dim=-1) / scale
        found[f"train/delta_q_{name}_first"] = masked_mean(gap[0], full)
        found[f"train/delta_q_{name}_last"] = masked_mean(gap[last], full)
    return found
