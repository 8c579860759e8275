"""The parts of a pipeline, as far as its loop uses them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.evaluate import Evaluation
from rlrun.pipeline.progress import LoopProgress
from rlrun.pipeline.source import Source
from rlrun.types import Policy


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
    """What a run is made of; its loop, and what stands beside the loop, share them."""

    run_dir: Path
    log: Log
    progress: LoopProgress
    source: Source
    policy: Policy
    buffer: LoopBuffer | None  # None: the policy does not learn
    learner: LoopLearner | None
    evaluator: LoopEvaluator
    bonus: RND | None = None  # the learner adds it to rewards
