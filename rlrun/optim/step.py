"""A gradient step from a sample, on a GPU as one captured CUDA graph where that is asked for.

A small network's update is a few hundred kernels of some microseconds, and launching them one by
one takes longer than they run. A graph is launched as a whole. What it holds is fixed: the shapes,
and the addresses its tensors had. So samples are copied into tensors of its own, results out.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from rlrun.functional.value import Loss
from rlrun.optim.compute import Compute
from rlrun.optim.target import TargetPair
from rlrun.types import Sample, Segment, Update

_logger = logging.getLogger(__name__)
WARM_UP = 3  # updates before the capture: libraries allocate and choose at their first calls

Result = tuple[Tensor, dict[str, Tensor]]  # priorities, metrics
Capture = Callable[[Callable[[], Result]], Callable[[], Result]]  # what is run -> what repeats it


class LossOf(Protocol):
    """A policy's loss of windows and their weights."""

    def __call__(self, segment: Segment, weight: Tensor) -> Loss: ...


def cuda_capture(function: Callable[[], Result]) -> Callable[[], Result]:
    """Record what ``function`` launches (nothing runs yet); calling the result runs it.

    Raises: RuntimeError where something in it cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay() -> Result:
        graph.replay()
        return result

    return replay


class Stepper:
    """Loss, descent and target network of one sample: what ``Policy.update`` does."""

    def __init__(
        self,
        pair: TargetPair,  # type: ignore[type-arg]  # any network
        loss: LossOf,
        device: torch.device,
        compute: Compute,
        *,
        capture: Capture = cuda_capture,
    ) -> None:
        """``compute.graph``: updates of windows of one shape become a graph, on a GPU. It computes
        what the update computes, but for Adam's step size, which is rounded to float32."""
        compute.prepare(pair.net, pair.target)
        self.pair, self.loss, self.device, self.capture = pair, loss, device, capture
        self.graph = compute.graph and (device.type == "cuda" or capture is not cuda_capture)
        self.warm = 0
        self.replay: Callable[[], Result] | None = None
        self.held: tuple[Segment, Tensor] | None = None  # what the graph reads
        self.lr = torch.zeros((), device=device)

    def __call__(self, sample: Sample) -> Update:
        """Priorities and metrics; nothing waits for the device."""
        segment, weight = sample.to(self.device)
        lr = self.pair.lr_at(sample.env_steps)
        if self.graph and not segment.partial:
            priority, metrics = self._graphed(segment, weight, lr)
        else:
            priority, metrics = self._step(segment, weight, lr)
        self.pair.follow()
        return Update(priority, metrics | {"train/lr": weight.new_full((), lr)})

    def _step(self, segment: Segment, weight: Tensor, lr: float | Tensor) -> Result:
        out = self.loss(segment, weight)
        norm = self.pair.descend(out.q, out.slope, lr)
        return out.priority, out.metrics | {"train/grad_norm": norm}

    def _graphed(self, segment: Segment, weight: Tensor, lr: float) -> Result:
        """One step: the first few as they are, then as a graph; for ever as they are where a
        capture fails."""
        self.lr.fill_(lr)
        if self.warm < WARM_UP:
            self.warm += 1
            return self._beside(segment, weight)
        if self.replay is None and not self._captured(segment, weight):
            return self._step(segment, weight, self.lr)
        assert self.replay is not None
        assert self.held is not None
        given, held = [*segment.tensors(), weight], [*self.held[0].tensors(), self.held[1]]
        if [x.shape for x in given] != [x.shape for x in held]:
            return self._step(segment, weight, self.lr)
        torch._foreach_copy_(held, given)
        priority, metrics = self.replay()
        return priority.clone(), {name: x.clone() for name, x in metrics.items()}

    def _beside(self, segment: Segment, weight: Tensor) -> Result:
        """One step in a stream of its own, as captures have."""
        if self.device.type != "cuda":
            return self._step(segment, weight, self.lr)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            result = self._step(segment, weight, self.lr)
        torch.cuda.synchronize(self.device)
        return result

    def _captured(self, segment: Segment, weight: Tensor) -> bool:
        """Whether there is a graph now."""
        held = segment.map(Tensor.clone), weight.clone()
        try:
            self.replay = self.capture(lambda: self._step(*held, self.lr))
        except RuntimeError as e:
            why = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            _logger.warning(
                "learner.cuda_graph: the update cannot be captured (%s); updates go on one kernel "
                "at a time", why,
            )  # fmt: skip
            self.graph = False
            return False
        self.held = held
        return True
