"""Both sides of a transport that carries frames of ``rlrun.codec``.

Weights are a stream of deltas (each to the one or two before it), rows are chunks that stand alone.
A collector that lost a frame, or joined late, raises ``NeedKeyFrame``. The learner answers with a
delta to the frame that this collector has, or with a key frame.
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
    """Bytes of one stream since the last call of ``metrics``."""

    raw: int = 0
    coded: int = 0

    def add(self, raw: int, coded: int) -> None:
        """Count one message."""
        self.raw += raw
        self.coded += coded

    def metrics(self, name: str) -> dict[str, float]:
        """Return ratio and coded bytes, and reset them; empty where nothing was sent."""
        raw, coded = self.raw, self.coded
        self.raw = self.coded = 0
        if not raw:
            return {}
        return {f"codec/{name}_ratio": coded / raw, f"codec/{name}_bytes": float(coded)}


class CodedLearnerSide:
    """Encodes weights, decodes rows."""

    def __init__(self, config: TransportConfig, number: int) -> None:
        """``number``: index of the collector whose rows are received."""
        self.weights = Encoder(
            "weights", keep=config.keep, key_seconds=config.key_seconds, coder=config.weights
        )
        self.rows = Decoder(_row_stream(number))
        self.sent, self.received = Traffic(), Traffic()

    def pack(self, weights: dict[str, Tensor]) -> bytes:
        """Return a delta to the weights packed before, the first time a key frame."""
        frame = self.weights.encode(weights)
        self.sent.add(sum(w.nbytes for w in weights.values()), len(frame))
        return frame

    def answer(self, need: NeedKeyFrame) -> bytes | None:
        frame = self.weights.answer(need)
        if frame is not None:
            self.sent.add(0, len(frame))
        return frame

    def unpack(self, message: bytes) -> Chunk:
        """Return the rows in newly allocated arrays.

        Raises: DamagedFrame, ForeignFrame, StaleFrame, LimitExceeded.
        """
        tree = self.rows.decode(message)
        chunk = Chunk(**tree_map(np.array, tree))
        self.received.add(chunk_bytes(chunk), len(message))
        return chunk

    def metrics(self) -> dict[str, float]:
        return self.sent.metrics("weights") | self.received.metrics("chunks")


class CodedCollectorSide:
    """Decodes weights, encodes rows."""

    def __init__(
        self, config: TransportConfig, number: int, *, thin: Callable[[Chunk], Chunk]
    ) -> None:
        self.weights = Decoder("weights")
        self.rows = Encoder(_row_stream(number), keep=2, key_seconds=0.0, coder=config.chunks)
        self.thin = thin

    def unpack(self, message: bytes) -> dict[str, Tensor]:
        """Return the weights.

        Raises: NeedKeyFrame, DamagedFrame, ForeignFrame, StaleFrame, LimitExceeded.
        """
        tensors: dict[str, Tensor] = as_tensors(self.weights.decode(message))
        return tensors

    def pack(self, chunk: Chunk) -> bytes:
        """Return a frame that needs no other to be decoded."""
        chunk = self.thin(chunk)
        return self.rows.encode_chunk({name: getattr(chunk, name) for name in CHUNK_FIELDS})


def _row_stream(number: int) -> str:
    """The name of the stream of a collector's rows."""
    return f"rows/{number}"


def chunk_bytes(chunk: Chunk) -> int:
    """Bytes of all arrays."""
    fields: Tree = tuple(getattr(chunk, name) for name in CHUNK_FIELDS)
    return sum(int(x.nbytes) for x in tree_leaves(fields))
