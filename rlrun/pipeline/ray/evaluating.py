"""The role of the evaluator: greedy episodes with the weights it is given."""

from typing import Any

import numpy as np
import torch

from rlrun.pipeline.evaluate import Evaluator
from rlrun.pipeline.ray.messages import answered, constructed
from rlrun.pipeline.ray.process import prepare, unpacked
from rlrun.types import Policy


class EvaluatorRole:
    """Plays evaluation episodes in environments of its own."""

    @constructed
    def __init__(self, make: bytes) -> None:
        """``make``: packed, () -> (evaluator, policy whose weights are replaced)."""
        self.log = prepare("evaluator", threads=1)
        self.evaluator: Evaluator
        self.policy: Policy
        self.evaluator, self.policy = unpacked(make)()

    @answered
    def run(self, weights: dict[str, np.ndarray], env_steps: int) -> Any:
        """(the ``Evaluation`` of ``weights``, the log)."""
        self.policy.load({name: torch.from_numpy(np.array(w)) for name, w in weights.items()})
        return self.evaluator.run(self.policy, env_steps=env_steps), self.log.take()

    @answered
    def close(self) -> Any:
        self.evaluator.close()
        return None
