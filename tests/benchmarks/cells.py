"""Forward and backward of every recurrent memory over a window, beside ``nn.LSTM``.

The scan of the linear memories alone has a target; whole memories also multiply inputs and outputs
with matrices, as the LSTM does, and are shown without one.
"""

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.benchmarks.product import linear_scan, make_memory
from tests.benchmarks.rows import Row, beside
from tests.compose import config

TARGET = 3.0  # times the speed of nn.LSTM of the same shape (issue)
SHAPE, SHORT = (512, 32, 128), (64, 8, 32)  # rows, windows, units
MEMORIES = ("mingru", "lru", "ffm", "rtu", "rtu nonlinear", "lmu", "gtrxl", "gru")


def main(o: Namespace) -> list[Row]:
    """Rows of the scan and of every memory, on one thread."""
    shape = SHORT if o.quick else SHAPE
    setting = dict(zip(("rows", "windows", "units"), shape, strict=True))
    lstm, effort = _lstm(shape), (o.rounds, o.seconds)
    rows = [
        beside(f"scan, {name}", setting, "nn.LSTM", scan, lstm, effort, kind="speedup",
               target=TARGET)
        for name, scan in _scans(shape).items()
    ]  # fmt: skip
    return rows + [
        beside(f"unroll, {name}", setting, "nn.LSTM", _memory(name, shape), lstm, effort,
               kind="speedup")
        for name in MEMORIES
    ]  # fmt: skip


def _scans(shape: tuple[int, int, int]) -> dict[str, Callable[[], object]]:
    scans: dict[str, Callable[[], object]] = {}
    for name, dtype in (("real", torch.float32), ("complex", torch.complex64)):
        for constant in (False, True):
            decay = 0.9 * torch.rand(shape[-1:] if constant else shape).to(dtype)
            given = [decay, torch.randn(shape, dtype=dtype), torch.zeros(shape[1:], dtype=dtype)]
            given, weight = [x.requires_grad_() for x in given], torch.randn(shape, dtype=dtype)

            def scan(given: list[Tensor] = given, weight: Tensor = weight) -> object:
                return torch.autograd.grad(linear_scan(*given), given, weight)

            scans[f"{name}{', constant decay' if constant else ''}"] = scan
    return scans


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
