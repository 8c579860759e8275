"""Both sides of a transport that codes messages only where that makes them arrive sooner.

Coding n bytes at a ratio r, with e bytes/s to encode and d to decode, pays where the link is slower
than (1 - r) / (1/e + 1/d). Frames are lossless, so the choice changes no number. A message tells
by its type what it is: frames are bytes.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.schema import TransportConfig
from rlrun.transport.coded import CodedCollectorSide, CodedLearnerSide, chunk_bytes
from rlrun.transport.raw import RawCollectorSide, RawLearnerSide
from rlrun.types import Chunk

TRIED_WEIGHTS = 3  # versions coded before the rule decides: the third is a delta to two


def break_even(ratio: float, encode: float, decode: float) -> float:
    """Bytes/s of the link below which coding pays; ``encode``, ``decode``: bytes/s, raw."""
    return max(0.0, 1.0 - ratio) / (1.0 / encode + 1.0 / decode)


class AutoLearnerSide:
    """Sends weights, receives rows."""

    def __init__(self, config: TransportConfig, number: int, *, link: float) -> None:
        """``link``: bytes/s, infinite where messages stay in the memory of one machine."""
        self.link, self.coded_side = link, CodedLearnerSide(config, number)
        self.raw_side, self.versions = RawLearnerSide(), 0
        self.coded = math.isfinite(link) or config.name == "coded"
        self.decided = config.name == "coded" or not self.coded
        self.seconds = 0.0  # in coding
        self.sent = [0, 0]  # bytes of weights, raw and sent

    def pack(self, weights: dict[str, Tensor]) -> Any:
        raw = sum(w.nbytes for w in weights.values())
        if not self.coded:
            self.sent = [self.sent[0] + raw, self.sent[1] + raw]
            return self.raw_side.pack(weights)
        began = time.perf_counter()
        frame = self.coded_side.pack(weights)
        took = time.perf_counter() - began
        self.seconds += took
        self.sent = [self.sent[0] + raw, self.sent[1] + len(frame)]
        self.versions += 1
        if not self.decided and self.versions >= TRIED_WEIGHTS:
            # Decoding runs the same loops as encoding: within a third of its time.
            speed = raw / max(took, 1e-9)
            self.coded = self.link < break_even(len(frame) / max(raw, 1), speed, speed)
            self.decided = True
        return frame

    def answer(self, need: Any) -> Any:
        return self.coded_side.answer(need)

    def unpack(self, message: Any) -> Chunk:
        if not isinstance(message, bytes):
            return self.raw_side.unpack(message)
        began = time.perf_counter()
        chunk = self.coded_side.unpack(message)
        self.seconds += time.perf_counter() - began
        return chunk

    def metrics(self) -> dict[str, float]:
        return self.coded_side.metrics()


class AutoCollectorSide:
    """Receives weights, sends rows."""

    def __init__(
        self,
        config: TransportConfig,
        number: int,
        *,
        link: float,
        thin: Callable[[Chunk], Chunk],
    ) -> None:
        """``link``: as for ``AutoLearnerSide``; ``thin``: as for ``CodedCollectorSide``."""
        self.link, self.coded_side = link, CodedCollectorSide(config, number, thin=thin)
        self.raw_side, self.number, self.config = RawCollectorSide(), number, config
        self.coded = math.isfinite(link) or config.name == "coded"
        self.decided = config.name == "coded" or not self.coded
        self.seconds, self.last_bytes = 0.0, (0, 0)  # of the last chunk: raw, sent

    def unpack(self, message: Any) -> dict[str, Tensor]:
        if not isinstance(message, bytes):
            return self.raw_side.unpack(message)
        began = time.perf_counter()
        weights = self.coded_side.unpack(message)
        self.seconds += time.perf_counter() - began
        return weights

    def request(self) -> Any:
        """The request for a frame that this side can decode, of a late joiner or after damage."""
        return self.coded_side.weights.key_frame_request()

    def pack(self, chunk: Chunk) -> Any:
        raw = chunk_bytes(chunk)
        if not self.coded:
            self.last_bytes = raw, raw
            return self.raw_side.pack(chunk)
        began = time.perf_counter()
        frame = self.coded_side.pack(chunk)
        took = time.perf_counter() - began
        self.seconds += took
        if not self.decided and len(chunk.reward):
            self.coded, self.decided = self._pays(raw, frame, took), True
            if not self.coded:
                self.last_bytes = raw, raw
                return self.raw_side.pack(chunk)
        self.last_bytes = raw, len(frame)
        return frame

    def _pays(self, raw: int, frame: bytes, took: float) -> bool:
        """Apply the rule to the first chunk, which is decoded here once to time it."""
        receiver = CodedLearnerSide(self.config, self.number)
        began = time.perf_counter()
        receiver.unpack(frame)
        decoded = time.perf_counter() - began
        speeds = raw / max(took, 1e-9), raw / max(decoded, 1e-9)
        return self.link < break_even(len(frame) / max(raw, 1), *speeds)


def nbytes(message: Any) -> int:
    """Bytes that a message takes on a link, but for a few of structure."""
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, Chunk):
        return chunk_bytes(message)
    return sum(np.asarray(x).nbytes for x in message.values())
