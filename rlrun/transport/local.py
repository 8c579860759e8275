"""Both ends of a link in one process: what the serial pipeline runs through."""

import time
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlrun.codec import NeedKeyFrame
from rlrun.types import Chunk

if TYPE_CHECKING:
    from rlrun.transport import CollectorEnd, LearnerEnd

WAIT_SECONDS = 0.02  # between two tries to get a key frame, which are rationed


class Local:
    """Carries values from one end to the other at once."""

    def __init__(self, learner: "LearnerEnd", collector: "CollectorEnd") -> None:
        self.learner, self.collector = learner, collector

    def weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the collector gets of the learner's weights."""
        message = self.learner.pack(weights)
        while True:
            try:
                return self.collector.unpack(message)
            except NeedKeyFrame as need:
                message = answered(self.learner, need)

    def rows(self, chunk: Chunk) -> Chunk:
        """What the learner gets of the collector's rows."""
        return self.learner.unpack(self.collector.pack(chunk))

    def metrics(self) -> dict[str, float]:
        """codec/ metrics since the last call."""
        return self.learner.metrics()


def answered(learner: "LearnerEnd", need: NeedKeyFrame) -> Any:
    """The message for a collector that lacks a base, waited for where key frames are rationed."""
    while (message := learner.answer(need)) is None:
        time.sleep(WAIT_SECONDS)
    return message
