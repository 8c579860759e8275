"""Both sides of a transport in one process, as the serial pipeline has them."""

import time
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlrun.codec import NeedKeyFrame
from rlrun.types import Chunk

if TYPE_CHECKING:
    from rlrun.transport import CollectorSide, LearnerSide

RETRY_SECONDS = 0.02  # between two requests for a key frame, whose rate is limited


class InProcess:
    """Hands every message from one side to the other at once."""

    def __init__(self, learner: "LearnerSide", collector: "CollectorSide") -> None:
        self.learner, self.collector = learner, collector

    def weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the learner's weights as the collector receives them."""
        message = self.learner.pack(weights)
        while True:
            try:
                return self.collector.unpack(message)
            except NeedKeyFrame as need:
                message = wait_for_answer(self.learner, need)

    def rows(self, chunk: Chunk) -> Chunk:
        """Return the collector's rows as the learner receives them."""
        return self.learner.unpack(self.collector.pack(chunk))

    def metrics(self) -> dict[str, float]:
        """codec/ metrics since the last call."""
        return self.learner.metrics()


def wait_for_answer(learner: "LearnerSide", need: NeedKeyFrame) -> Any:
    """Return the message for a collector that lacks the base of a delta, as soon as allowed."""
    while (message := learner.answer(need)) is None:
        time.sleep(RETRY_SECONDS)
    return message
