"""Evaluation in parallel with training: the driver's handle of the evaluator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlrun.pipeline.evaluate import Evaluation
from rlrun.pipeline.parts import LoopEvaluations, require_finite
from rlrun.pipeline.ray.actor import POLL_SECONDS, Lost, Role, Roles
from rlrun.pipeline.ray.roles import Weights
from rlrun.pipeline.stop import StopRequest
from rlrun.types import Policy


class RemoteEvaluator:
    """The driver's handle of the evaluator, which works between ``start`` and ``result``."""

    def __init__(self, role: Role, roles: Roles) -> None:
        self.role, self.roles, self.steps = role, roles, 0
        self.under_way: tuple[Weights, int] | None = None  # weights, env steps
        self.reply: Any = None

    def run_until(
        self, stop: Callable[[], bool], policy: Policy, *, env_steps: int
    ) -> Evaluation | None:
        """Evaluate as ``Evaluator.run_until``."""
        self.start(policy, env_steps)
        evaluation = None
        while evaluation is None and not stop():
            evaluation = self.result(POLL_SECONDS)
        self.under_way = None
        return evaluation

    def start(self, policy: Policy, env_steps: int) -> None:
        """Start an evaluation of the present weights of ``policy``."""
        weights = {name: np.array(w.numpy(force=True)) for name, w in policy.weights().items()}
        self.under_way = weights, env_steps
        self.reply = self.role.call("run", *self.under_way)

    def result(self, seconds: float = 0.0) -> Evaluation | None:
        """Return the started evaluation, or None if it is not done within ``seconds``."""
        assert self.under_way is not None
        if not self.roles.wait([self.reply], seconds):
            return None
        self.steps += 1
        try:
            evaluation: Evaluation = self.role.value(self.reply)
        except Lost as e:
            self.role.replace(e)
            self.reply = self.role.call("run", *self.under_way)
            return None
        return evaluation

    def close(self) -> None:
        """Do nothing: ``Roles`` closes all roles."""


@dataclass(slots=True, kw_only=True)
class RayEvaluations(LoopEvaluations):
    """Evaluations in parallel with training, except the last one and those in rounds.

    An evaluation is recorded when it is done, at the env step of its weights. One that becomes due
    meanwhile is skipped.
    """

    evaluator: RemoteEvaluator
    rounds: bool

    def after_chunk(self, before: int, stop: StopRequest) -> None:
        self._record_if_done()
        LoopEvaluations.after_chunk(self, before, stop)

    def evaluate(self, stop: StopRequest) -> None:
        steps = self.parts.progress.counters.env_steps
        if self.rounds or self.solved or steps >= self.config.total_steps:
            while self.evaluator.under_way is not None and not stop():
                self._record_if_done(POLL_SECONDS)
            LoopEvaluations.evaluate(self, stop)
        elif self.evaluator.under_way is None:
            require_finite(self.parts)
            self.pending = True
            self.evaluator.start(self.parts.policy, steps)

    def _record_if_done(self, seconds: float = 0.0) -> None:
        evaluator = self.evaluator
        if evaluator.under_way is None or (found := evaluator.result(seconds)) is None:
            return
        (weights, steps), evaluator.under_way, self.pending = evaluator.under_way, None, False
        self.record(found, steps, {name: torch.from_numpy(w) for name, w in weights.items()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluator.under_way = None  # of an abandoned run
        LoopEvaluations.load_state_dict(self, state)
