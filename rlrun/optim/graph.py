"""A gradient step captured as a CUDA graph.

A small network's update is a few hundred kernels of some microseconds, and launching them one by
one takes longer than running them. A graph is launched as a whole. Its shapes and the addresses of
its tensors are fixed, so samples are copied into tensors of its own, and results out of them.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from rlrun.optim.adam import Rate
from rlrun.types import Segment

_logger = logging.getLogger(__name__)
WARM_UP = (
    3  # updates before the capture: libraries allocate and select kernels in their first calls
)

Result = tuple[Tensor, dict[str, Tensor]]  # priorities, metrics
Capture = Callable[[Callable[[], Result]], Callable[[], Result]]  # function -> its replay


class GradientStep(Protocol):
    """One gradient step on windows and their weights."""

    def __call__(self, segment: Segment, weight: Tensor, *rates: Rate) -> Result: ...


def cuda_capture(function: Callable[[], Result]) -> Callable[[], Result]:
    """Capture the kernels of ``function`` without running them; the returned callable runs them.

    Raises: RuntimeError where something in it cannot be captured.
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

    def __init__(
        self, function: GradientStep, device: torch.device, *, capture: Capture = cuda_capture
    ) -> None:
        self.function, self.device, self.capture = function, device, capture
        self.enabled, self.warmed_up = True, 0
        self.replay: Callable[[], Result] | None = None
        self.graph_inputs: tuple[Segment, Tensor] | None = None
        self.rates: list[Tensor] = []  # learning rates, which a replay reads

    def step(self, segment: Segment, weight: Tensor, *rates: float) -> Result:
        """One step: the first few launched kernel by kernel, then as a graph.

        Windows with partial burn-ins are launched kernel by kernel, and all where a capture fails.
        """
        if not self.enabled or segment.partial:
            return self.function(segment, weight, *rates)
        if not self.rates:
            self.rates = [torch.zeros((), device=self.device) for _ in rates]
        for own, rate in zip(self.rates, rates, strict=True):
            own.fill_(rate)
        if self.warmed_up < WARM_UP:
            self.warmed_up += 1
            return self._in_side_stream(segment, weight)
        if self.replay is None and not self._capture_graph(segment, weight):
            return self.function(segment, weight, *self.rates)
        assert self.replay is not None
        assert self.graph_inputs is not None
        inputs = [*self.graph_inputs[0].tensors(), self.graph_inputs[1]]
        given = [*segment.tensors(), weight]
        if [x.shape for x in given] != [x.shape for x in inputs]:
            return self.function(segment, weight, *self.rates)
        torch._foreach_copy_(inputs, given)
        priority, metrics = self.replay()
        return priority.clone(), {name: x.clone() for name, x in metrics.items()}

    def _in_side_stream(self, segment: Segment, weight: Tensor) -> Result:
        """One step in a stream of its own, as in a capture."""
        if self.device.type != "cuda":
            return self.function(segment, weight, *self.rates)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            result = self.function(segment, weight, *self.rates)
        torch.cuda.synchronize(self.device)
        return result

    def _capture_graph(self, segment: Segment, weight: Tensor) -> bool:
        """Capture the step; False where that fails."""
        inputs = segment.map(Tensor.clone), weight.clone()
        try:
            self.replay = self.capture(lambda: self.function(*inputs, *self.rates))
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
