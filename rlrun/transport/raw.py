"""Both sides of a transport that carries values as they are."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.types import Chunk


class RawLearnerSide:
    """Sends arrays that share memory with the weights, receives chunks."""

    def pack(self, weights: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """Return arrays that share memory with tensors on the host, for a carrier that copies."""
        return {name: w.numpy(force=True) for name, w in weights.items()}

    def answer(self, need: Any) -> Any:
        raise AssertionError("raw weights have no base")

    def unpack(self, message: Chunk) -> Chunk:
        return message

    def metrics(self) -> dict[str, float]:
        return {}


class RawCollectorSide:
    """Receives weights as arrays, sends chunks."""

    def unpack(self, message: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Return tensors that share memory with the arrays."""
        return {name: torch.from_numpy(w) for name, w in message.items()}

    def pack(self, chunk: Chunk) -> Chunk:
        return chunk
