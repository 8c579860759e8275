"""Transport of weights to a collector, and of rows to the learner.

``LearnerSide`` and ``CollectorSide`` are the two sides of one transport: a message that ``pack``
returns on one side is what ``unpack`` takes on the other. Neither depends on the carrier:
``InProcess`` hands them over in one process, ``rlrun.pipeline.overlapped`` sends them by a pipe.
A learner with several collectors packs weights once for all and has one side for each one's rows.

raw         values as they are
coded       frames of ``rlrun.codec``, bit for bit the same values
auto        coded where the link is slower than coding, else raw (pipeline=ray)
in_process  both sides in one process
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from rlrun.schema import TransportConfig
from rlrun.transport.auto import AutoCollectorSide, AutoLearnerSide
from rlrun.transport.coded import CodedCollectorSide, CodedLearnerSide
from rlrun.transport.in_process import InProcess, wait_for_answer
from rlrun.transport.raw import RawCollectorSide, RawLearnerSide
from rlrun.types import Chunk

__all__ = [
    "AutoCollectorSide",
    "AutoLearnerSide",
    "CollectorSide",
    "InProcess",
    "LearnerSide",
    "make_collector_side",
    "make_learner_side",
    "wait_for_answer",
]

Weights = dict[str, Tensor]


class LearnerSide(Protocol):
    """Sends weights, receives rows."""

    def pack(self, weights: Weights) -> Any:
        """Return the message that carries these weights; the tensors may change afterwards."""

    def answer(self, need: Any) -> Any:
        """Return the message for a collector whose ``unpack`` raised ``need`` (NeedKeyFrame).

        None: too soon after the last key frame, to be called again later.
        """

    def unpack(self, message: Any) -> Chunk:
        """Return the rows of a message of the collector's side."""

    def metrics(self) -> dict[str, float]:
        """codec/ metrics of what was packed and unpacked since the last call."""


class CollectorSide(Protocol):
    """Receives weights, sends rows."""

    def unpack(self, message: Any) -> Weights:
        """Return the weights of a message.

        Raises: NeedKeyFrame, which the learner's side can answer.
        """

    def pack(self, chunk: Chunk) -> Any:
        """Return the message that carries these rows; the arrays may be overwritten afterwards."""


def make_learner_side(config: TransportConfig, number: int = 0) -> LearnerSide:
    """The learner's side of ``config``; ``number``: of the collector whose rows it receives."""
    return RawLearnerSide() if config.name != "coded" else CodedLearnerSide(config, number)


def make_collector_side(
    config: TransportConfig, number: int = 0, *, thin: Callable[[Chunk], Chunk] = lambda rows: rows
) -> CollectorSide:
    """The side of ``config`` in collector ``number``.

    ``thin`` blanks arrays that the learner never reads (coded only: raw rows do not get smaller).
    """
    if config.name != "coded":  # auto: both are on one machine
        return RawCollectorSide()
    return CodedCollectorSide(config, number, thin=thin)
