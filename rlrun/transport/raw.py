"""Both ends of a link that carries values as they are."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.types import Chunk


class RawLearnerEnd:
    """See ``rlrun.transport.LearnerEnd``."""

    def pack(self, weights: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """Arrays that share memory with tensors on the host: for a wire that copies."""
        return {name: w.numpy(force=True) for name, w in weights.items()}

    def answer(self, need: Any) -> Any:
        """Raw weights need nothing."""
        raise AssertionError("raw weights have no base")

    def unpack(self, message: Chunk) -> Chunk:
        """The message."""
        return message

    def metrics(self) -> dict[str, float]:
        """None: nothing is coded."""
        return {}


class RawCollectorEnd:
    """See ``rlrun.transport.CollectorEnd``."""

    def unpack(self, message: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Tensors that share memory with the arrays."""
        return {name: torch.from_numpy(w) for name, w in message.items()}

    def pack(self, chunk: Chunk) -> Chunk:
        """The chunk."""
        return chunk
