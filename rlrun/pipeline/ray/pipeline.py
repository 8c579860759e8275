"""Evaluations and the state of a run whose parts are roles; the loop over them is the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlrun.pipeline.parts import LoopEvaluations, Parts, Saving, require_finite
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.remote_evaluator import RemoteEvaluator, weights_of
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.stop import StopRequest


@dataclass(slots=True)
class Arrivals:
    """Chunks that shards have stored and the loop has not taken."""

    parts: Parts
    learn: Callable[[Any, int], None] = lambda chunk, before: None  # ``Pipeline.learn``

    def take(self) -> None:
        """Count them, and learn what they pay for, as the loop would have done."""
        source, counters = self.parts.source, self.parts.progress.counters
        if isinstance(source, AsyncSource):
            while chunks := source.quiesce():
                for chunk in chunks:
                    before = counters.env_steps
                    source.count(chunk.info)
                    self.learn([chunk], before)

    def go_on(self) -> None:
        """Let the collectors collect again after ``take``."""
        if isinstance(self.parts.source, AsyncSource):
            self.parts.source.go_on()


@dataclass(slots=True, kw_only=True)
class RayEvaluations(LoopEvaluations):
    """Evaluations beside the training, but for the last one and where collectors wait in rounds.

    One that is under way is recorded at the env step of its weights when it is done. One that falls
    due meanwhile is left out.
    """

    evaluator: RemoteEvaluator
    learner: RemoteLearner
    arrivals: Arrivals
    under_way: tuple[int, dict[str, np.ndarray]] | None = None  # env steps, weights
    evaluated: list[Any] = field(default_factory=list)  # its result, until it is recorded

    def after_chunk(self, before: int, stop: StopRequest) -> None:
        if self.evaluated:
            self._record_under_way()
        LoopEvaluations.after_chunk(self, before, stop)

    def _ends(self) -> bool:
        return self.parts.progress.counters.env_steps >= self.config.total_steps or self.solved

    def evaluate(self, stop: StopRequest) -> None:
        if self._ends() or not isinstance(self.parts.source, AsyncSource):
            self._finish_under_way(stop)
            self.arrivals.take()  # nothing comes after the last evaluation
            LoopEvaluations.evaluate(self, stop)
            if not self._ends():  # an older result had solved it
                self.arrivals.go_on()
        elif self.under_way is None:
            require_finite(self.parts)
            steps = self.parts.progress.counters.env_steps
            self.under_way = steps, weights_of(self.parts.policy)
            self.pending = True
            self.evaluator.start(self.under_way[1], steps, self.evaluated.append)

    def _finish_under_way(self, stop: StopRequest) -> None:
        while self.under_way is not None and not stop():
            if self.evaluated:
                self._record_under_way()
            else:
                self.learner.roles.pump.run(0.25)

    def _record_under_way(self) -> None:
        assert self.under_way is not None
        steps, weights = self.under_way
        self.under_way, self.pending = None, False
        own = {name: torch.from_numpy(w) for name, w in weights.items()}
        self.parts.policy.load(own)  # the best are saved; ``sync`` brings the present ones back
        self.record(self.evaluated.pop(), steps)

    def abandon(self) -> None:
        """Do without the evaluation that is under way."""
        self.evaluator.abandon()
        self.under_way = None
        self.evaluated.clear()


@dataclass(slots=True, kw_only=True)
class RaySaving(Saving):
    """The state of the roles; the policy here is a copy that follows the learner's."""

    evaluations: RayEvaluations

    def state_dict(self) -> dict[str, Any]:
        learner, arrivals = self.evaluations.learner, self.evaluations.arrivals
        arrivals.take()
        learner.sync()
        state = Saving.state_dict(self)
        arrivals.go_on()
        return state | {"backends": learner.saved["backends"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As ``Saving.load_state_dict``, once nothing of a run that is given up is under way."""
        self.evaluations.abandon()
        self.evaluations.learner.abandon()
        Saving.load_state_dict(self, state)
