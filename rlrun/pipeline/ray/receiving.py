"""Chunks as they arrive at a shard or the learner: each once, in order."""

from collections.abc import Mapping
from typing import Any

from rlrun.errors import CodecError
from rlrun.pipeline.overlapped import Check
from rlrun.pipeline.ray.messages import Payload
from rlrun.pipeline.transport import AutoLearnerSide
from rlrun.types import Chunk


class Receiver:
    """Unpacks chunks of several collectors; the driver may send any of them again."""

    def __init__(self, sides: Mapping[int, AutoLearnerSide], check: Check) -> None:
        """``sides``: of the transport, by number of the collector; ``check``: of their rows."""
        self.sides, self.check = sides, check
        self.expected: dict[int, int] = {}  # collector -> sequence number of its next chunk
        self.damaged = self.repeated = 0  # chunks, since the role began

    def again(self, collector: int, seq: int) -> bool:
        """Return whether the chunk was received before."""
        found = seq < self.expected.get(collector, seq)
        self.repeated += found
        return found

    def early(self, collector: int, seq: int, since: int) -> bool:
        """Return whether a chunk before this one is missing; none before ``since`` comes."""
        self.expected[collector] = max(since, self.expected.get(collector, since))
        return seq > self.expected[collector]

    def unpack(self, collector: int, payload: Payload, *, corrupt: bool) -> Chunk | None:
        """Return the rows, None: the frame is damaged. ``corrupt``: damage it first (tests).

        Raises: CheckpointError: they are not rows of this run.
        """
        message: Any = payload.message
        if corrupt and isinstance(message, bytes):
            at = len(message) // 2
            message = message[:at] + bytes([message[at] ^ 0x10]) + message[at + 1 :]
        elif corrupt:
            self.damaged += 1
            return None
        try:
            chunk = self.sides[collector].unpack(message)
        except CodecError:
            self.damaged += 1
            return None
        return self.check(chunk, f"pipeline = ray: collector {collector}")

    def accept(self, collector: int, seq: int) -> None:
        """Note that the chunk is stored."""
        self.expected[collector] = seq + 1

    @property
    def seconds(self) -> float:
        """Seconds of coding so far."""
        return sum(side.seconds for side in self.sides.values())

    def state_dict(self) -> dict[str, Any]:
        return {"expected": {str(n): seq for n, seq in self.expected.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.expected = {int(n): int(seq) for n, seq in state["expected"].items()}
