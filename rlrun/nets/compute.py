"""How a learner computes: in which precision, and whether the target network has its own thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar

import torch

Precision = Literal["float32", "bf16"]
T = TypeVar("T")


class Compute:
    """Chosen by the config alone: nothing measured while a run goes on may select arithmetic."""

    def __init__(
        self, precision: Precision = "float32", *, target_thread: bool = False, graph: bool = False
    ) -> None:
        """``target_thread``: what is given to ``beside`` runs in a second thread. ``graph``: an
        update on a GPU is launched as a whole, see ``nets.graphed``."""
        self.precision, self.target_thread, self.graph = precision, target_thread, graph
        self.pool: ThreadPoolExecutor | None = None

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
            self.pool = ThreadPoolExecutor(
                1, "target", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
            )
        future: Future[T] = self.pool.submit(function)
        return future.result


PLAIN = Compute()
