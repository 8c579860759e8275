"""Linear recurrences along time, real and complex: one scan for all linear memories."""

from typing import Any

import torch
from torch import Tensor


def linear_scan(decay: Tensor, drive: Tensor, start: Tensor) -> Tensor:
    """h [T, B, H] of h_t = decay_t h_{t-1} + drive_t with h_{-1} = start, for every t.

    ``decay`` [T, B, H], or [H] if it is the same in all rows, ``drive`` [T, B, H], ``start`` [B,
    H], all real or all complex. H may be several sides, of which decays may have 1s instead. Values
    and gradients equal those of a loop. Only products and sums are formed, no quotient and no
    logarithm: for |decay| <= 1 nothing overflows, and a decay of 0 forgets exactly. On the CPU this
    is an in-place loop with one fused operation of B x H numbers per row. Other devices take
    log2(T) levels of operations on T x B x H numbers. Source: Ladner & Fischer 1980 (the pairs);
    Martin & Cundy 2018, section 2 (for recurrences).
    """
    out: Tensor = _LinearScan.apply(decay, drive, start)  # type: ignore[no-untyped-call]
    return out


class _LinearScan(torch.autograd.Function):
    """The gradient of a scan is a scan of the gradient, from the end, with shifted decays.

    With g_t the total derivative dL/dh_t: g_t = grad_t + conj(decay_{t+1}) g_{t+1}, so d drive_t =
    g_t, d decay_t = g_t conj(h_{t-1}), d start = conj(decay_0) g_0.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, drive: Tensor, start: Tensor) -> Tensor:
        first = torch.addcmul(drive[0], _row(decay, 0), start)
        h = (_in_place if _row_by_row(drive) else _in_pairs)(decay, drive, first)
        ctx.save_for_backward(decay, start, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, start, h = ctx.saved_tensors
        grad = grads[0].conj_physical()  # conj(g) has the decays themselves
        if _row_by_row(grad):
            g = _in_place_reverse(decay, grad)
        else:  # row t has decay_{t+1}, rows from the last one
            behind = decay if decay.ndim == 1 else decay.roll(-1, 0).flip(0)
            g = _in_pairs(behind, grad.flip(0), grad[-1]).flip(0)
        d_decay = torch.empty_like(h)
        torch.mul(g[1:], h[:-1], out=d_decay[1:])
        torch.mul(g[0], start, out=d_decay[0])
        d_decay = d_decay.sum_to_size(decay.shape)
        d_start = _row(decay, 0) * g[0]
        if not g.is_complex():
            return d_decay, g, d_start
        return d_decay.conj_physical_(), g.conj_physical_(), d_start.conj_physical_()


def _row_by_row(x: Tensor) -> bool:
    """Return whether rows are computed one by one: on a GPU each would be a kernel launch."""
    return x.device.type == "cpu"


def _row(decay: Tensor, t: int) -> Tensor:
    return decay if decay.ndim == 1 else decay[t]


def _in_place(decay: Tensor, drive: Tensor, first: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + drive_t for t >= 1 with h_0 = ``first``, row by row."""
    h = torch.empty_like(drive, memory_format=torch.contiguous_format)
    rows, drives = h.unbind(0), drive.unbind(0)
    decays = [decay] * len(rows) if decay.ndim == 1 else decay.unbind(0)
    rows[0].copy_(first)
    for t in range(1, len(rows)):
        torch.addcmul(drives[t], decays[t], rows[t - 1], out=rows[t])
    return h


def _in_place_reverse(decay: Tensor, drive: Tensor) -> Tensor:
    """h_t = decay_{t+1} h_{t+1} + drive_t with h_T = 0, from the last row."""
    h = torch.empty_like(drive, memory_format=torch.contiguous_format)
    rows, drives = h.unbind(0), drive.unbind(0)
    decays = [decay] * len(rows) if decay.ndim == 1 else decay.unbind(0)
    rows[-1].copy_(drives[-1])
    for t in range(len(rows) - 2, -1, -1):
        torch.addcmul(drives[t], decays[t + 1], rows[t + 1], out=rows[t])
    return h


def _in_pairs(decay: Tensor, drive: Tensor, first: Tensor) -> Tensor:
    """``_in_place`` in log2(T) levels."""
    drive = torch.cat([first.unsqueeze(0), drive[1:]])
    return _scan_pairs(decay.expand_as(drive), drive)


def _scan_pairs(decay: Tensor, drive: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + drive_t with h_{-1} = 0: odd rows from pairs, then even ones.

    Two rows are one: h_{t+1} = (decay_{t+1} decay_t) h_{t-1} + (decay_{t+1} drive_t + drive_{t+1}).
    Five products per row in all, log2(T) levels.
    """
    length = len(drive)
    if length == 1:
        return drive
    even, odd, behind = slice(0, length - length % 2, 2), slice(1, None, 2), slice(2, None, 2)
    pair = torch.addcmul(drive[odd], decay[odd], drive[even])
    at_odd = _scan_pairs(decay[odd] * decay[even], pair)
    h = torch.empty_like(drive)
    h[0], h[odd] = drive[0], at_odd
    h[behind] = torch.addcmul(drive[behind], decay[behind], at_odd[: (length - 1) // 2])
    return h
