"""Both ends of a link that carries frames of ``rlrun.codec``.

Weights are a stream of deltas (each to the one or two before it), rows are chunks that stand alone.
A collector that lost a frame, or joined late, says so with ``NeedKeyFrame``; the learner answers
with a delta to what that collector holds, or a key frame.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rlrun.codec import Decoder, Encoder, NeedKeyFrame, as_tensors
from rlrun.schema import TransportConfig
from rlrun.tree import Tree, tree_leaves, tree_map
from rlrun.types import CHUNK_FIELDS, Chunk


@dataclass(slots=True)
class Traffic:
    """Bytes of one stream since the last record."""

    raw: int = 0
    coded: int = 0

    def add(self, raw: int, coded: int) -> None:
        """One more message."""
        self.raw += raw
        self.coded += coded

    def metrics(self, name: str) -> dict[str, float]:
        """Ratio and coded bytes, and a new beginning; nothing where nothing was sent."""
        raw, coded = self.raw, self.coded
        self.raw = self.coded = 0
        if not raw:
            return {}
        return {f"codec/{name}_ratio": coded / raw, f"codec/{name}_bytes": float(coded)}


class CodedLearnerEnd:
    """See ``rlrun.transport.LearnerEnd``."""

    def __init__(self, config: TransportConfig, number: int) -> None:
        """``number``: of the collector whose rows are received."""
        self.weights = Encoder(
            "weights", keep=config.keep, key_seconds=config.key_seconds, coder=config.weights
        )
        self.rows = Decoder(_rows(number))
        self.sent, self.received = Traffic(), Traffic()

    def pack(self, weights: dict[str, Tensor]) -> bytes:
        """A delta to the weights packed before, the first time a key frame."""
        frame = self.weights.encode(weights)
        self.sent.add(sum(w.nbytes for w in weights.values()), len(frame))
        return frame

    def answer(self, need: NeedKeyFrame) -> bytes | None:
        """See ``rlrun.transport.LearnerEnd``."""
        frame = self.weights.answer(need)
        if frame is not None:
            self.sent.add(0, len(frame))
        return frame

    def unpack(self, message: bytes) -> Chunk:
        """The rows, in memory of their own.

        Raises: DamagedFrame, ForeignFrame, StaleFrame, LimitExceeded.
        """
        tree = self.rows.decode(message)
        chunk = Chunk(**tree_map(np.array, tree))
        self.received.add(_nbytes(chunk), len(message))
        return chunk

    def metrics(self) -> dict[str, float]:
        """See ``rlrun.transport.LearnerEnd``."""
        return self.sent.metrics("weights") | self.received.metrics("chunks")


class CodedCollectorEnd:
    """See ``rlrun.transport.CollectorEnd``."""

    def __init__(
        self, config: TransportConfig, number: int, *, thin: Callable[[Chunk], Chunk]
    ) -> None:
        self.weights = Decoder("weights")
        self.rows = Encoder(_rows(number), keep=2, key_seconds=0.0, coder=config.chunks)
        self.thin = thin

    def unpack(self, message: bytes) -> dict[str, Tensor]:
        """The weights.

        Raises: NeedKeyFrame, DamagedFrame, ForeignFrame, StaleFrame, LimitExceeded.
        """
        tensors: dict[str, Tensor] = as_tensors(self.weights.decode(message))
        return tensors

    def pack(self, chunk: Chunk) -> bytes:
        """A frame that stands alone."""
        chunk = self.thin(chunk)
        return self.rows.encode_chunk({name: getattr(chunk, name) for name in CHUNK_FIELDS})


def _rows(number: int) -> str:
    """The stream of a collector's rows."""
    return f"rows/{number}"


def _nbytes(chunk: Chunk) -> int:
    """Bytes of all arrays."""
    fields: Tree = tuple(getattr(chunk, name) for name in CHUNK_FIELDS)
    return sum(int(x.nbytes) for x in tree_leaves(fields))
