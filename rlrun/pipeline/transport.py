"""Transport of weights to a collector, and of rows to the learner.

``LearnerSide`` and ``CollectorSide`` are the two sides of one transport: each unpacks the messages
that the other packs. They do not depend on the carrier. ``InProcess`` hands messages over in one
process, ``rlrun.pipeline.overlapped`` sends them through a pipe. With several collectors the
learner packs the weights once, and has one side per collector for the rows.

raw   values as they are
coded frames of ``rlrun.codec``, which decode to the same values bit for bit
auto  coded if the link is slower than coding, else raw (pipeline=ray)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlrun.codec import Decoder, Encoder, NeedKeyFrame, as_tensors
from rlrun.schema import TransportConfig
from rlrun.spaces import Tree, tree_leaves, tree_map
from rlrun.types import CHUNK_FIELDS, Chunk

if TYPE_CHECKING:
    from rlrun.buffer.cutter import Cutter

Weights = dict[str, Tensor]


class LearnerSide:
    """Sends weights and receives rows. This class sends raw values."""

    def pack(self, weights: Weights) -> Any:
        """Return the message that carries ``weights``.

        Raw: arrays that share memory with tensors in host memory, for a carrier that copies.
        """
        return {name: w.numpy(force=True) for name, w in weights.items()}

    def answer(self, need: NeedKeyFrame) -> Any:
        """Return the message for a collector whose ``unpack`` raised ``need``.

        None: the last key frame is too recent; call again later.
        """
        raise AssertionError("raw weights have no base")

    def unpack(self, message: Any) -> Chunk:
        """Return the rows of a collector's message."""
        chunk: Chunk = message
        return chunk

    def metrics(self) -> dict[str, float]:
        """Return codec/ metrics of the messages since the last call."""
        return {}


class CollectorSide:
    """Receives weights and sends rows. This class sends raw values."""

    def unpack(self, message: Any) -> Weights:
        """Return the weights of a message. Raw weights share its memory.

        Raises: NeedKeyFrame, which the learner's side can answer.
        """
        return {name: torch.from_numpy(w) for name, w in message.items()}

    def pack(self, chunk: Chunk) -> Any:
        """Return the message that carries ``chunk``."""
        return chunk


def make_learner_side(config: TransportConfig, number: int = 0) -> LearnerSide:
    """Return the learner's side that receives the rows of collector ``number``."""
    return LearnerSide() if config.name != "coded" else CodedLearnerSide(config, number)


def make_collector_side(
    config: TransportConfig, number: int = 0, *, thin: Callable[[Chunk], Chunk] = lambda rows: rows
) -> CollectorSide:
    """Return the side of collector ``number``.

    ``thin`` zeros arrays that the learner never reads (coded only: raw rows would not get smaller).
    """
    if config.name != "coded":  # auto, unless ``decided``: both are on one machine
        return CollectorSide()
    return CodedCollectorSide(config, number, thin=thin)


class InProcess:
    """Passes every message from one side to the other at once."""

    def __init__(self, learner: LearnerSide, collector: CollectorSide) -> None:
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
        """Return codec/ metrics since the last call."""
        return self.learner.metrics()


RETRY_SECONDS = 0.02  # between two requests for a key frame, whose rate is limited


def wait_for_answer(learner: LearnerSide, need: NeedKeyFrame) -> Any:
    """Return the message for a collector that lacks the base of a delta, as soon as allowed."""
    while (message := learner.answer(need)) is None:
        time.sleep(RETRY_SECONDS)
    return message


@dataclass(slots=True)
class Traffic:
    """Byte counts of one stream since the last call of ``metrics``."""

    raw: int = 0
    coded: int = 0

    def add(self, raw: int, coded: int) -> None:
        """Count one message."""
        self.raw += raw
        self.coded += coded

    def metrics(self, name: str) -> dict[str, float]:
        """Return compression ratio and coded bytes, and reset them. Empty if nothing was sent."""
        raw, coded = self.raw, self.coded
        self.raw = self.coded = 0
        if not raw:
            return {}
        return {f"codec/{name}_ratio": coded / raw, f"codec/{name}_bytes": float(coded)}


class CodedLearnerSide(LearnerSide):
    """Encodes weights, decodes rows."""

    def __init__(self, config: TransportConfig, number: int) -> None:
        """``number``: index of the collector whose rows are received."""
        self.weights = Encoder(
            "weights", keep=config.keep, key_seconds=config.key_seconds, coder=config.weights
        )
        self.rows = Decoder(f"rows/{number}")
        self.sent, self.received = Traffic(), Traffic()

    def pack(self, weights: dict[str, Tensor]) -> bytes:
        """Return a delta to the last packed weights, or a key frame at the first call."""
        frame = self.weights.encode(weights)
        self.sent.add(sum(w.nbytes for w in weights.values()), len(frame))
        return frame

    def answer(self, need: NeedKeyFrame) -> bytes | None:
        frame = self.weights.answer(need)
        if frame is not None:
            self.sent.add(0, len(frame))
        return frame

    def unpack(self, message: bytes) -> Chunk:
        """Return the rows in new arrays.

        Raises: DamagedFrame, ForeignFrame, StaleFrame, LimitExceeded.
        """
        tree = self.rows.decode(message)
        chunk = Chunk(**tree_map(np.array, tree))
        self.received.add(chunk_bytes(chunk), len(message))
        return chunk

    def metrics(self) -> dict[str, float]:
        return self.sent.metrics("weights") | self.received.metrics("chunks")


class CodedCollectorSide(CollectorSide):
    """Decodes weights, encodes rows."""

    def __init__(
        self, config: TransportConfig, number: int, *, thin: Callable[[Chunk], Chunk]
    ) -> None:
        self.weights = Decoder("weights")
        self.rows = Encoder(f"rows/{number}", keep=2, key_seconds=0.0, coder=config.chunks)
        self.thin = thin

    def unpack(self, message: bytes) -> dict[str, Tensor]:
        """Return the weights.

        Raises: NeedKeyFrame, DamagedFrame, ForeignFrame, StaleFrame, LimitExceeded.
        """
        tensors: dict[str, Tensor] = as_tensors(self.weights.decode(message))
        return tensors

    def pack(self, chunk: Chunk) -> bytes:
        """Return a frame that can be decoded without any other."""
        chunk = self.thin(chunk)
        return self.rows.encode_chunk({name: getattr(chunk, name) for name in CHUNK_FIELDS})


def chunk_bytes(chunk: Chunk) -> int:
    fields: Tree = tuple(getattr(chunk, name) for name in CHUNK_FIELDS)
    return sum(int(x.nbytes) for x in tree_leaves(fields))


class StateFilter:
    """Zeros the states of collected rows from which no window starts: zeros compress well.

    The index of a row in its trajectory decides. All states are kept where the index is not enough:
    with ``residual: last``, and in a trajectory whose first row was not seen.
    """

    def __init__(self, cutter: "Cutter") -> None:
        """``cutter``: a new one of the collector's columns, which is only read."""
        self.cutter, self.keep_all = cutter, cutter.plain and cutter.residual == "last"
        # Index of the next row in its trajectory; -1: unknown.
        self.index = np.full(len(cutter.origin), -1, np.int64)

    def filter(self, chunk: Chunk) -> Chunk:
        """Return the chunk with unused states zeroed. The chunk's arrays are not changed."""
        if self.keep_all or not tree_leaves(chunk.states):
            return chunk
        keep = self.may_start(chunk.first[: len(chunk.reward)])

        def blank(x: np.ndarray) -> np.ndarray:
            wide = keep[..., *(None,) * (x.ndim - 2)]
            filtered: np.ndarray = np.where(wide, x, 0).astype(x.dtype)
            return filtered

        return replace(chunk, states=tree_map(blank, chunk.states))

    def may_start(self, first: np.ndarray) -> np.ndarray:
        """Return whether a window may start at each of the next rows, bool [T, B]."""
        rows = np.arange(len(first), dtype=np.int64)[:, None]
        opened = np.maximum.accumulate(np.where(first, rows, -1), axis=0)
        known = (opened >= 0) | (self.index >= 0)
        index = np.where(opened >= 0, rows - opened, rows + self.index)
        self.index = np.where(known[-1], index[-1] + 1, -1)
        stride = self.cutter.stride
        if self.cutter.plain:
            starts = index % stride == 0
        else:  # a window that starts at the row learns after its full burn-in
            starts = ((index + self.cutter.window.burnin) % stride == 0) | (index == 0)
        keep: np.ndarray = starts | ~known
        return keep


SLOW_LINK = 500 * 125_000.0  # bytes/s: below it the codec saves time, well above not


def decided(config: TransportConfig, link: float) -> TransportConfig:
    """Return ``config`` without ``auto``: coded if ``link`` (bytes/s) is slower than coding."""
    if config.name != "auto":
        return config
    return replace(config, name="coded" if link < SLOW_LINK else "raw")


def message_bytes(message: Any) -> int:
    """Return the bytes that a message takes on a link, without a few of structure."""
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, Chunk):
        return chunk_bytes(message)
    return sum(np.asarray(x).nbytes for x in message.values())
