"""The parts of a pipeline as its loop uses them, and its progress."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.errors import NumericError
from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.evaluate import Evaluation
from rlrun.pipeline.source import Source
from rlrun.types import Counters, Policy


@dataclass(slots=True)
class LoopProgress:
    """Progress shared by the parts of the loop."""

    counters: Counters
    rollbacks: int = 0  # to an earlier checkpoint, after updates that were not finite
    phase: str = "start"  # what the loop is doing, for the watchdog
    unsaved: bool = True  # something has changed since the last checkpoint
    seconds: dict[str, float] = field(default_factory=dict)  # of each part in this process

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the seconds of a part that ends without an error."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def due(self, every: int, before: int) -> bool:
        """Return whether a multiple of ``every`` env steps lies behind ``before``."""
        return self.counters.env_steps // every > before // every


_MAY_BE_MINUS_INF = ("log",)  # the logarithm of a coefficient of 0


class LoopBuffer(Protocol):
    """Stores chunks: a replay, a rollout, or several of them elsewhere."""

    def add(self, rows: Any, /) -> np.ndarray:
        """Store what the source returned; return the keys of the windows it completes."""

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics."""

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics of what is compressed."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LoopMeans(Protocol):
    """Sums of metrics."""

    def require_finite(self) -> None:
        """Raise NumericError unless all are finite."""


class LoopLearner(Protocol):
    """Learns as often as new rows pay for."""

    seconds: dict[str, float]

    @property
    def means(self) -> LoopMeans: ...

    def step(self, rows: int, keys: np.ndarray) -> int:
        """Learn after ``rows`` new rows and windows ``keys``; return the number of updates."""

    def metrics(self) -> dict[str, float]:
        """train/ metrics since the last call."""

    def diagnose(self) -> dict[str, float]:
        """train/ metrics of the present networks, at evaluations."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LoopEvaluator(Protocol):
    """Plays evaluation episodes."""

    steps: int  # since the process began, for the watchdog

    def run_until(
        self, stop: Callable[[], bool], policy: Policy, *, env_steps: int
    ) -> Evaluation | None:
        """The evaluation, None as soon as ``stop()`` is true."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a run, shared by its loop and the objects beside the loop."""

    run_dir: Path
    log: Log
    progress: LoopProgress
    source: Source
    policy: Policy
    buffer: LoopBuffer | None  # None: the policy does not learn
    learner: LoopLearner | None
    evaluator: LoopEvaluator
    bonus: RND | None = None  # the learner adds it to rewards


def require_finite(parts: Parts) -> None:
    """Raise NumericError when something that a run learned is NaN or infinite."""
    if parts.learner is not None:
        parts.learner.means.require_finite()
    learned = {"policy": parts.policy.state_dict()}
    if parts.bonus is not None:
        learned["bonus"] = parts.bonus.state_dict()
    found = first_non_finite(learned)
    if found is not None:
        raise NumericError(
            f"{found} is not finite after {parts.progress.counters.updates} updates: the policy "
            "diverged; what is saved must be finite; lower policy.lr or set policy.grad_clip"
        )


@torch.no_grad()
def first_non_finite(state: Any) -> str | None:
    """The path of a tensor in a state tree that holds NaN or infinity; None: all are finite.

    One fused reduction where all is well: norms, which are finite unless an element is not (or a
    sum of squares overflows, so that elements decide).
    """
    named = [(path, x) for path, x in _tensors(state, "") if x.is_floating_point() and x.numel()]
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for _, x in named:
        groups.setdefault((x.dtype, x.device), []).append(x)
    norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in groups.values())
    if all(bool(norm.isfinite().all()) for norm in norms):
        return None
    return next((path for path, x in named if not _is_finite(path, x)), None)


def _is_finite(path: str, x: Tensor) -> bool:
    allowed = x == -torch.inf if path.rpartition("/")[2] in _MAY_BE_MINUS_INF else False
    return bool((x.isfinite() | allowed).all())


def _tensors(node: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every tensor in a tree of dicts, lists and tuples."""
    if isinstance(node, Tensor):
        yield path, node
    elif isinstance(node, Mapping):
        for key, child in node.items():
            yield from _tensors(child, f"{path}/{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from _tensors(child, f"{path}/{i}")
