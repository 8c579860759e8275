"""Precision, threads, memory, compilation and CUDA graphs of a learner's updates."""

import ctypes
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nets.memory.gated import GRU, LSTM, Unroll
from rlrun.nets.torso import Blocks, Stack
from rlrun.types import Segment

_logger = logging.getLogger(__name__)

LOSS_SCALE = 1024.0  # a power of two: exact
CPU = torch.device("cpu")
RECOMPILE_LIMIT = 64  # versions of Stack.forward: layers, shapes, with or without gradients

Precision = Literal["float32", "tf32", "bf16"]
T = TypeVar("T")
P = ParamSpec("P")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGEST_ON_HEAP = 1 << 25  # bytes; the largest value that glibc allows
_KEPT = 1 << 29  # bytes of freed memory that the process keeps


def keep_freed_memory() -> bool:
    """Let malloc keep freed arrays of up to 32 MiB instead of returning their pages to the system.

    Updates allocate arrays of the same sizes repeatedly. By default each one of a few MiB is mapped
    anew and its pages fault at the first write, which takes a third of an update of cql_sac and a
    tenth of one of R2D2. Returns False if the C library has no ``mallopt`` (not glibc).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP) and mallopt(_M_TRIM_THRESHOLD, _KEPT))


class Compute:
    """Settings of an update, chosen by the config alone.

    No measurement during a run may select arithmetic, because runs must be reproducible.
    """

    def __init__(
        self,
        precision: Precision = "float32",
        *,
        target_thread: bool = False,
        graph: bool = False,
        compile: bool = False,
        unroll: Unroll | None = None,
        device: torch.device = CPU,
    ) -> None:
        """``target_thread``: ``run_in_thread`` uses a second thread, on a GPU also a second stream.

        ``graph``: updates on a GPU are captured as CUDA graphs (``CudaGraph``). ``compile``: see
        ``prepare``. ``unroll``: of LSTMs and GRUs; None: torch's. ``device``: where updates are
        computed.
        """
        self.precision, self.target_thread = precision, target_thread
        self.graph, self.compile, self.on_gpu = graph, compile, device.type == "cuda"
        self.unroll, self.called = unroll, False  # called: ``run_in_thread``
        self.pool: ThreadPoolExecutor | None = None
        self.stream: torch.cuda.Stream | None = None
        if target_thread and self.on_gpu:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def prepare(self, *nets: nn.Module) -> None:
        """Give memories their ``unroll``. ``compile`` torsos and heads with torch.compile.

        Copies of a network, which actors make, are not compiled. Layers that cannot be compiled run
        uncompiled, with a warning from torch.
        """
        for part in (part for net in nets for part in net.modules()):
            if type(part) is LSTM or type(part) is GRU:  # a subclass may be another cell
                part.compiled = self.unroll
        if not self.compile:
            return
        on_cpu = all(p.device.type == "cpu" for net in nets for p in net.parameters())
        if on_cpu and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
            _logger.warning(
                "learner.compile: there is no C++ compiler (g++); layers run uncompiled"
            )
            self.compile = False
            return
        _suppress_compile_errors()
        for part in (part for net in nets for part in net.modules()):
            if isinstance(part, Stack | Blocks):
                part.compile()

    def compiled(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return ``function``, on a GPU compiled into few kernels if ``compile`` is set."""
        return torch.compile(function) if self.compile and self.on_gpu else function

    def autocast(self, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
        """Return what makes the context of networks: bf16 rounds factors of products to bfloat16.

        Weights, sums, losses and the optimiser stay float32. The caller casts outputs back.
        """
        if self.precision != "bf16":
            return nullcontext
        return partial(torch.autocast, device.type, torch.bfloat16)

    def loss_scale(self, device: torch.device) -> float:
        """Return the factor of losses whose gradients are divided by it again.

        On a GPU autocast computes recurrent layers in float16, whose smallest numbers are too large
        for gradients: with TD errors of 0.01 those of an LSTM are 12 % off, scaled 0.3 %.
        """
        return LOSS_SCALE if self.precision == "bf16" and device.type == "cuda" else 1.0

    def run_in_thread(self, function: Callable[[], T]) -> Callable[[], T]:
        """Start ``function``, in a second thread if ``target_thread``. Return what waits for it.

        The result does not depend on the thread, because the second one uses as many torch threads.
        Gradient mode and autocast are settings of a thread, so ``function`` must set its own. The
        first call compiles, which torch cannot do in two threads at once.
        """
        alone, self.called = self.compile and not self.called, True
        if alone or not self.target_thread:
            result = function()
            return lambda: result
        if self.pool is None:
            options = (torch.get_num_threads(), self.compile)
            self.pool = ThreadPoolExecutor(1, "target", initializer=_init_thread, initargs=options)
        if self.stream is None:
            return self.pool.submit(function).result
        return _in_stream(self.pool, self.stream, function)


def _in_stream(
    pool: ThreadPoolExecutor, stream: torch.cuda.Stream, function: Callable[[], T]
) -> Callable[[], T]:
    """Start ``function`` in the pool and its kernels in ``stream``, behind those of this stream.

    A thread of its own, because cuDNN puts the recurrent layers of one thread one behind another.
    """
    stream.wait_stream(torch.cuda.current_stream())

    def run() -> T:
        with torch.cuda.stream(stream):
            return function()

    future = pool.submit(run)

    def wait() -> T:
        result = future.result()
        torch.cuda.current_stream().wait_stream(stream)
        return result

    return wait


DEFAULT_COMPUTE = Compute()

# rlrun flushes denormal numbers to zero while it computes, as JAX and TensorFlow do: Adam's moments
# of units without gradient decay until they are denormal, and then slow a step down severalfold on
# Intel CPUs. The mode is a thread's and applies to numpy and numba; a new thread inherits it.
_DENORMAL = np.float32(1e-40)


def flushes() -> bool:
    """Return whether this thread treats denormal numbers as zero."""
    return bool(_DENORMAL * np.float32(1) == 0)


@contextmanager
def flushed() -> Iterator[None]:
    """Flush denormal numbers within the block, in this thread and in those it starts.

    Has no effect on CPUs without this mode.
    """
    before = flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def tensor_cores(precision: Precision) -> Iterator[None]:
    """Let GPUs round the factors of float32 products to TF32 in the block, unless ``float32``.

    By default torch does so in convolutions and recurrent layers, but not in linear ones. The
    setting belongs to the process.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, cudnn.allow_tf32
    products.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        products.allow_tf32, cudnn.allow_tf32 = before


@cache
def cpu_has_bf16_lstm() -> bool:
    """Return whether this CPU can train an LSTM under bf16 autocast, found by trying.

    oneDNN has the kernel only for some instruction sets (on x86 from AVX-512 on). All other
    operations that autocast rounds have a slower form on every CPU.
    """
    device, x = torch.device("cpu"), torch.zeros(2, 1, 1)
    with torch.random.fork_rng(devices=[]):  # the initial weights are random
        lstm = nn.LSTM(1, 1)
    try:
        for learning in (False, True):  # two kernels: without and with a gradient
            with torch.set_grad_enabled(learning), Compute("bf16").autocast(device)():
                out = lstm(x)[0]
        out.float().sum().backward()
    except RuntimeError:  # "could not create a primitive descriptor ..."
        return False
    return True


def _init_thread(threads: int, compiled: bool) -> None:
    """Apply the settings that every thread has for itself."""
    torch.set_num_threads(threads)
    if compiled:
        _suppress_compile_errors()


def _suppress_compile_errors() -> None:
    """Let this thread run layers uncompiled if compiling them fails."""
    import torch._dynamo  # takes a second

    torch._dynamo.config.suppress_errors = True
    torch._dynamo.config.error_on_nested_fx_trace = False  # while the other thread compiles
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT


WARM_UP = (
    3  # updates before the capture: libraries allocate and select kernels in their first calls
)

Result = tuple[Tensor, dict[str, Tensor]]  # priorities, metrics
GradientStep = Callable[..., Result]  # (windows, their weights, *learning rates)


def cuda_capture(function: Callable[[], Result]) -> Callable[[], Result]:
    """Capture the kernels of ``function`` without running them. The returned callable runs them.

    Raises: RuntimeError if an operation cannot be captured.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay() -> Result:
        graph.replay()
        return result

    return replay


class CudaGraph:
    """A gradient step captured as a CUDA graph, for windows of one shape.

    It computes the same numbers, except that Adam's step size is rounded to float32.
    """

    def __init__(self, function: GradientStep, device: torch.device) -> None:
        self.function, self.device = function, device
        self.enabled, self.warmed_up = True, 0
        self.replay: Callable[[], Result] | None = None
        self.graph_inputs: tuple[Segment, Tensor] | None = None
        self.rates: list[Tensor] = []  # learning rates, which a replay reads

    def step(self, segment: Segment, weight: Tensor, *rates: float) -> Result:
        """Make one step: the first few kernel by kernel, later ones as a graph.

        Windows with partial burn-ins always run kernel by kernel, and so do all if the capture
        fails.
        """
        if not self.enabled or segment.partial:
            return self.function(segment, weight, *rates)
        if not self.rates:
            self.rates = [torch.zeros((), device=self.device) for _ in rates]
        for static_rate, rate in zip(self.rates, rates, strict=True):
            static_rate.fill_(rate)
        if self.warmed_up < WARM_UP:
            self.warmed_up += 1
            return self._in_side_stream(segment, weight)
        if self.replay is None and not self._capture_graph(segment, weight):
            return self.function(segment, weight, *self.rates)
        assert self.replay is not None
        assert self.graph_inputs is not None
        inputs = [*self.graph_inputs[0].tensors(), self.graph_inputs[1]]
        tensors = [*segment.tensors(), weight]
        if [x.shape for x in tensors] != [x.shape for x in inputs]:
            return self.function(segment, weight, *self.rates)
        torch._foreach_copy_(inputs, tensors)
        priority, metrics = self.replay()
        return priority.clone(), {name: x.clone() for name, x in metrics.items()}

    def _in_side_stream(self, segment: Segment, weight: Tensor) -> Result:
        """Make one step in a separate stream, as in a capture."""
        if self.device.type != "cuda":
            return self.function(segment, weight, *self.rates)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            result = self.function(segment, weight, *self.rates)
        torch.cuda.synchronize(self.device)
        return result

    def _capture_graph(self, segment: Segment, weight: Tensor) -> bool:
        """Capture the step. Return False if that fails."""
        inputs = segment.map(Tensor.clone), weight.clone()
        try:
            self.replay = cuda_capture(lambda: self.function(*inputs, *self.rates))
        except RuntimeError as e:
            why = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            _logger.warning(
                "learner.cuda_graph: the update cannot be captured (%s); kernels are "
                "launched one by one", why,
            )  # fmt: skip
            self.enabled = False
            return False
        self.graph_inputs = inputs
        return True
