"""Linear recurrences along time in log2(T) vector operations instead of T steps."""

from typing import Any

import torch
from torch import Tensor


def linear_scan(decay: Tensor, drive: Tensor, start: Tensor) -> Tensor:
    """h [T, B, H] of h_t = decay_t h_{t-1} + drive_t with h_{-1} = start, for every t at once.

    ``decay``, ``drive`` [T, B, H], ``start`` [B, H]. Values and gradients are those of the loop.
    Only products of decays and sums are formed, no quotient and no logarithm: for |decay| <= 1
    nothing can overflow, and a decay of 0 forgets exactly.
    Source: Ladner & Fischer 1980 (the pairs); Martin & Cundy 2018, section 2 (for recurrences).
    """
    out: Tensor = _LinearScan.apply(decay, drive, start)  # type: ignore[no-untyped-call]
    return out


class _LinearScan(torch.autograd.Function):
    """The gradient of a scan is the scan of the gradient, from the end with the decays shifted.

    With g_t the total derivative dL/dh_t: g_t = grad_t + decay_{t+1} g_{t+1}, so d drive_t = g_t,
    d decay_t = g_t h_{t-1}, d start = decay_0 g_0.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, drive: Tensor, start: Tensor) -> Tensor:
        opened = torch.addcmul(drive[0], decay[0], start).unsqueeze(0)
        h = _scan(decay, torch.cat([opened, drive[1:]]))
        ctx.save_for_backward(decay, start, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, start, h = ctx.saved_tensors
        (grad,) = grads
        none = torch.zeros_like(start)
        next_decay = torch.cat(
            [none.unsqueeze(0), decay[1:].flip(0)]
        )  # decay_{t+1}, last row first
        g = _scan(next_decay, grad.flip(0)).flip(0)
        before = torch.cat([start.unsqueeze(0), h[:-1]])
        return g * before, g, decay[0] * g[0]


def _scan(decay: Tensor, drive: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + drive_t with h_{-1} = 0: odd rows from pairs, then even ones.

    Two rows are one: h_{t+1} = (decay_{t+1} decay_t) h_{t-1} + (decay_{t+1} drive_t + drive_{t+1}).
    Five products per row in all, log2(T) levels.
    """
    rows = len(drive)
    if rows == 1:
        return drive
    even, odd, behind = slice(0, rows - rows % 2, 2), slice(1, None, 2), slice(2, None, 2)
    pair = torch.addcmul(drive[odd], decay[odd], drive[even])
    at_odd = _scan(decay[odd] * decay[even], pair)
    h = torch.empty_like(drive)
    h[0], h[odd] = drive[0], at_odd
    h[behind] = torch.addcmul(drive[behind], decay[behind], at_odd[: (rows - 1) // 2])
    return h
