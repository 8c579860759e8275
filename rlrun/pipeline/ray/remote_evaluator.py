"""The evaluator's role as the loop sees it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rlrun.pipeline.evaluate import Evaluation
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import RETRY_SECONDS, Roles
from rlrun.types import Policy

POLL_SECONDS = 0.25


class RemoteEvaluator:
    """The evaluator's role; ``start`` does not wait for it."""

    def __init__(self, roles: Roles) -> None:
        self.roles, self.steps = roles, 0
        self.number = 0  # of the evaluation whose result is wanted

    def run_until(
        self, stop: Callable[[], bool], policy: Policy, *, env_steps: int
    ) -> Evaluation | None:
        """As ``Evaluator.run_until``."""
        found: list[Evaluation] = []
        self.start(weights_of(policy), env_steps, found.append)
        while not found:
            self.roles.pump.run(POLL_SECONDS)
            if stop():
                return None
        return found[0]

    def start(
        self, weights: dict[str, np.ndarray], env_steps: int, done: Callable[[Evaluation], None]
    ) -> None:
        """Evaluate ``weights``; ``done`` is called with the result, by the pump."""
        self.number += 1
        number, reply = self.number, self.roles.evaluator.handle.run.remote(weights, env_steps)

        def again() -> None:
            if number == self.number:
                self.start(weights, env_steps, done)

        def replied(found: Any) -> None:
            self.steps += 1
            if number != self.number:
                return
            if isinstance(found, Lost):
                self.roles.note_lost(self.roles.evaluator, found)
                self.roles.pump.after(RETRY_SECONDS, again)
                return
            evaluation, lines = self.roles.value(self.roles.evaluator, found)
            self.roles.write_log(self.roles.evaluator, lines)
            done(evaluation)

        self.roles.pump.when(reply, replied)

    def abandon(self) -> None:
        """Do without the result of the evaluation that is under way."""
        self.number += 1

    def close(self) -> None:
        """Nothing: the roles are closed together."""


def weights_of(policy: Policy) -> dict[str, np.ndarray]:
    """Copies of a policy's weights as arrays."""
    return {name: np.array(w.numpy(force=True)) for name, w in policy.weights().items()}
