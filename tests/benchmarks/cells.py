"""Forward and backward of every recurrent memory over a window, beside ``nn.LSTM``.

The scan of the linear memories alone has a target; whole memories also multiply inputs and outputs
with matrices, as the LSTM does, and are shown without one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.benchmarks.product import linear_scan, make_memory
from tests.benchmarks.timing import Row, calls_for, interleaved, time_calls, timing_row
from tests.compose import config

TARGET = 3.0  # times the speed of nn.LSTM of the same shape (issue)
SHAPE = (512, 32, 128)  # rows, windows, units
SHORT = (64, 8, 32)
MEMORIES = ("mingru", "lru", "ffm", "rtu", "rtu nonlinear", "lmu", "gtrxl", "gru")


def measure(*, repeats: int, seconds: float, shape: tuple[int, int, int] = SHAPE) -> list[Row]:
    """Rows of the scan and of every memory at (rows, windows, units), on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _scan_rows(shape, repeats, seconds) + _memory_rows(shape, repeats, seconds)
    finally:
        torch.set_num_threads(before)


def _scan_rows(shape: tuple[int, int, int], repeats: int, seconds: float) -> list[Row]:
    lstm, rows = _lstm(shape), []
    for name, dtype in (("real", torch.float32), ("complex", torch.complex64)):
        for constant in (False, True):
            decay = 0.9 * torch.rand(shape[-1:] if constant else shape).to(dtype)
            given = [decay, torch.randn(shape, dtype=dtype), torch.zeros(shape[1:], dtype=dtype)]
            given, weight = [x.requires_grad_() for x in given], torch.randn(shape, dtype=dtype)

            def scan(given: list[Tensor] = given, weight: Tensor = weight) -> object:
                return torch.autograd.grad(linear_scan(*given), given, weight)

            label = f"scan, {name}{', constant decay' if constant else ''}"
            rows.append(_row(label, shape, scan, lstm, repeats, seconds, target=TARGET))
    return rows


def _memory_rows(shape: tuple[int, int, int], repeats: int, seconds: float) -> list[Row]:
    lstm = _lstm(shape)
    return [
        _row(f"unroll, {name}", shape, _memory(name, shape), lstm, repeats, seconds)
        for name in MEMORIES
    ]


def _row(
    name: str, shape: Sequence[int], ours: Callable[[], object], other: Callable[[], object],
    repeats: int, seconds: float, **fields: Any,
) -> Row:  # fmt: skip
    time_calls(ours, 2)
    calls, own_calls = calls_for(other, seconds), calls_for(ours, seconds)
    pairs = interleaved(
        lambda: time_calls(ours, own_calls), lambda: time_calls(other, calls), repeats
    )
    setting = dict(zip(("rows", "windows", "units"), shape, strict=True))
    return timing_row(name, setting, "nn.LSTM", pairs, kind="speedup", **fields)


def _memory(name: str, shape: tuple[int, int, int]) -> Callable[[], object]:
    """Forward and backward of a memory as its yaml has it, of the width of the LSTM."""
    rows, windows, units = shape
    option, *variant = name.split()
    words = [f"memory.recurrence={v}" for v in variant]
    words += [f"memory.hidden={units // 2 if option == 'rtu' else units}"]
    memory = make_memory(config("policy=r2d2", f"memory={option}", *words).memory, units)
    x, parameters = torch.randn(rows, windows, units), list(memory.parameters())
    state = memory.initial_state(windows, x.device)
    weight = torch.randn(rows, windows, memory.size)
    return lambda: torch.autograd.grad(memory.unroll(x, state)[0], parameters, weight)


def _lstm(shape: tuple[int, int, int]) -> Callable[[], object]:
    units = shape[-1]
    lstm, x, weight = nn.LSTM(units, units), torch.randn(shape), torch.randn(shape)
    parameters = list(lstm.parameters())
    return lambda: torch.autograd.grad(lstm(x)[0], parameters, weight)
