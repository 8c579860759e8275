"""How weights travel to whoever collects, and rows to whoever learns.

``LearnerEnd`` and ``CollectorEnd`` are the two ends of one link; what ``pack`` returns is what the
wire carries and what the other end's ``unpack`` takes. They know of no wire: ``local`` joins them
in one process, ``rlrun.pipeline.remote`` puts a pipe between them. A learner with several
collectors packs weights once for all of them and has an end for the rows of each.

raw     values as they are
coded   frames of ``rlrun.codec``, bit for bit the same values
local   both ends in one process
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from rlrun.schema import TransportConfig
from rlrun.transport.coded import CodedCollectorEnd, CodedLearnerEnd
from rlrun.transport.local import Local, answered
from rlrun.transport.raw import RawCollectorEnd, RawLearnerEnd
from rlrun.types import Chunk

__all__ = ["CollectorEnd", "LearnerEnd", "Local", "answered", "collector_end", "learner_end"]

Weights = dict[str, Tensor]


class LearnerEnd(Protocol):
    """Sends weights, receives rows."""

    def pack(self, weights: Weights) -> Any:
        """The message that carries these weights; the tensors may change afterwards."""

    def answer(self, need: Any) -> Any:
        """The message for a collector whose ``unpack`` raised ``need`` (NeedKeyFrame).

        None: too soon after the last key frame, ask again.
        """

    def unpack(self, message: Any) -> Chunk:
        """The rows of a message of the other end."""

    def metrics(self) -> dict[str, float]:
        """codec/ metrics of what was packed and unpacked since the last call."""


class CollectorEnd(Protocol):
    """Receives weights, sends rows."""

    def unpack(self, message: Any) -> Weights:
        """The weights of a message. Raises: NeedKeyFrame: tell the other end, it can answer."""

    def pack(self, chunk: Chunk) -> Any:
        """The message that carries these rows; the arrays may be overwritten afterwards."""


def learner_end(config: TransportConfig, number: int = 0) -> LearnerEnd:
    """That of ``config``, whose rows come from collector ``number``."""
    return RawLearnerEnd() if config.name == "raw" else CodedLearnerEnd(config, number)


def collector_end(
    config: TransportConfig, number: int = 0, *, thin: Callable[[Chunk], Chunk] = lambda rows: rows
) -> CollectorEnd:
    """That of ``config`` in collector ``number``.

    ``thin`` blanks what no learner reads (coded only: raw rows do not get smaller).
    """
    if config.name == "raw":
        return RawCollectorEnd()
    return CodedCollectorEnd(config, number, thin=thin)
