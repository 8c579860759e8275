"""Versions of the learner's weights, as messages that the driver keeps for the other roles."""

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlrun.codec import NeedKeyFrame
from rlrun.pipeline.transport import LearnerSide, message_bytes
from rlrun.types import Policy


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the weights; ``message`` is an object of Ray."""

    number: int
    message: Any
    updates: int
    env_steps: int


class Weights:
    """The versions published last; a receiver gets those after the one it has.

    A coded version is a delta to the one before it. A receiver that missed more than are kept, or
    is new, gets a key frame.
    """

    def __init__(self, policy: Policy, side: LearnerSide, *, coded: bool, half: bool, keep: int):
        """``half``: rounded to bfloat16 (transport.copies)."""
        self.policy, self.side, self.coded, self.half = policy, side, coded, half
        self.keep, self.versions = keep, list[Version]()
        self.raw_bytes = self.sent_bytes = self.key_frames = 0
        self.seconds = 0.0  # in coding

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def publish(self, updates: int, env_steps: int) -> None:
        """Make the present weights the newest version."""
        import ray

        weights, began = self._rounded(), time.perf_counter()
        message = self.side.pack(weights)
        self.seconds += time.perf_counter() - began if self.coded else 0.0
        self.raw_bytes += sum(w.nbytes for w in weights.values())
        self.sent_bytes += message_bytes(message)
        number = self.newest.number + 1 if self.versions else 0
        self.versions.append(Version(number, ray.put(message), updates, env_steps))
        self.versions = self.versions[-self.keep :]

    def since(self, number: int) -> list[Any]:
        """Messages for a receiver with version ``number``, -1: with none."""
        import ray

        new = [version for version in self.versions if version.number > number]
        if not self.coded:
            return [version.message for version in new[-1:]]
        if not new or new[0].number == number + 1:
            return [version.message for version in new]
        frame = self.side.answer(NeedKeyFrame(0, -1, 0))
        while frame is None and number < 0:  # one was made just now: their rate is limited
            time.sleep(0.02)
            frame = self.side.answer(NeedKeyFrame(0, -1, 0))
        if frame is None:
            return []  # the next order asks again
        self.key_frames += 1
        return [ray.put(frame)]

    def _rounded(self) -> dict[str, Tensor]:
        weights = self.policy.weights()
        if not self.half:
            return weights
        half = {n: x.bfloat16() if x.is_floating_point() else x for n, x in weights.items()}
        if self.coded:
            return half
        return {name: x.to(weights[name].dtype) for name, x in half.items()}  # numpy has none
