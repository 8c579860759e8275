"""How a learner computes: in which precision, and whether part of an update has its own thread."""

import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal, TypeVar

import torch
from torch import nn

from rlrun.nets.torso import Stack

_logger = logging.getLogger(__name__)
RECOMPILED = 64  # versions of Stack.forward: of layers, of shapes, with and without gradients

Precision = Literal["float32", "bf16"]
T = TypeVar("T")


class Compute:
    """Chosen by the config alone: nothing measured while a run goes on may select arithmetic."""

    def __init__(
        self,
        precision: Precision = "float32",
        *,
        target_thread: bool = False,
        graph: bool = False,
        compile: bool = False,
    ) -> None:
        """``target_thread``: what is given to ``beside`` runs in a second thread. ``graph``: an
        update on a GPU is launched as a whole, see ``nets.graphed``. ``compile``: see ``prepare``.
        """
        self.precision, self.target_thread = precision, target_thread
        self.graph, self.compile = graph, compile
        self.pool: ThreadPoolExecutor | None = None

    def prepare(self, *nets: nn.Module) -> None:
        """Let torch.compile fuse the layers of torsos and heads, where it is asked for.

        Memories keep their own kernels. Copies of a network, as actors make, are not compiled. What
        cannot be compiled is run as it is, and torch says so.
        """
        if not self.compile:
            return
        on_cpu = all(p.device.type == "cpu" for net in nets for p in net.parameters())
        if on_cpu and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
            wrong = "learner.compile: there is no C++ compiler (g++); layers run as they are"
            _logger.warning(wrong)
            return
        _be_lenient()
        for part in (part for net in nets for part in net.modules()):
            if isinstance(part, Stack):
                part.compile()

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Where networks are applied: bf16 rounds the factors of matrix products to bfloat16.

        Weights, sums, losses and the optimiser stay float32; who leaves the context casts back.
        """
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16)

    def beside(self, function: Callable[[], T]) -> Callable[[], T]:
        """Start ``function``; calling what is returned waits for its result.

        Same numbers either way: a thread of its own computes with as many torch threads. Gradient
        mode and autocast belong to a thread: ``function`` sets what it needs.
        """
        if not self.target_thread:
            result = function()
            return lambda: result
        if self.pool is None:
            given = (torch.get_num_threads(), self.compile)
            self.pool = ThreadPoolExecutor(1, "beside", initializer=_begin, initargs=given)
        future: Future[T] = self.pool.submit(function)
        return future.result


PLAIN = Compute()


@cache
def cpu_has_bf16_lstm() -> bool:
    """Whether this CPU can learn an LSTM under ``Compute("bf16").autocast``; asked by trying.

    oneDNN has the kernel for some instruction sets only (on x86 from AVX-512 on), whatever the
    shape. Everything else that autocast rounds has a slower form on every CPU.
    """
    device, x = torch.device("cpu"), torch.zeros(2, 1, 1)
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn
        lstm = nn.LSTM(1, 1)
    try:
        for learning in (False, True):  # two kernels: acting targets, and what has a gradient
            with torch.set_grad_enabled(learning), Compute("bf16").autocast(device):
                out = lstm(x)[0]
        out.float().sum().backward()
    except RuntimeError:  # "could not create a primitive descriptor ..."
        return False
    return True


def _begin(threads: int, compiled: bool) -> None:
    """What belongs to a thread, in a new one."""
    torch.set_num_threads(threads)
    if compiled:
        _be_lenient()


def _be_lenient() -> None:
    """This thread runs layers as they are where they cannot be compiled."""
    import torch._dynamo  # a second

    torch._dynamo.config.suppress_errors = True
    torch._dynamo.config.recompile_limit = RECOMPILED
