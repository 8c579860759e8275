"""The overlapped pipeline: the next chunk is collected while the learner works on the last."""

from dataclasses import dataclass
from typing import Any

from rlrun.collector import Brought
from rlrun.pipeline.remote import Gathered, Remote
from rlrun.pipeline.serial import Result, Serial
from rlrun.types import Chunk


@dataclass(slots=True)
class Overlapped(Serial):
    """``Serial`` with one chunk in flight, in a process of its own (two threads would share one
    interpreter's lock: measured, no faster than taking turns).

    Chunk k + 1 is collected with the weights from before learning on chunk k: exactly one chunk
    old, however fast either side is, so a run is as deterministic as a serial one. The first chunk
    is collected alone. Evaluations, logs and checkpoints show the learner, as in ``Serial``.
    ``collector`` only counts here.
    """

    remote: Remote | None = None
    landed: Gathered | None = None  # collected before it was asked for

    def run(self) -> Result:
        """See ``Serial.run``; a chunk in flight when the run ends is saved, not learned from."""
        assert self.remote is not None
        try:
            return Serial.run(self)
        finally:
            self.remote.close()

    def _next_chunk(self) -> Chunk:
        assert self.remote is not None
        gathered, self.landed = self.landed, None
        if gathered is None:
            if not self.remote.flying:
                self.remote.start(self.counters.env_steps)
            gathered = self.remote.result()
        self.collector.brought, self.collector.seconds = gathered.brought, gathered.seconds
        self.collector.account()
        return gathered.chunk

    def _take_off(self) -> None:
        assert self.remote is not None
        if self.counters.env_steps < self.run_config.total_steps:
            self.remote.start(self.counters.env_steps)

    def state_dict(self) -> dict[str, Any]:
        """That of ``Serial`` and the chunk in flight, which is waited for."""
        assert self.remote is not None
        if self.remote.flying:
            self.landed = self.remote.result()
        collector = self.remote.state_dict()  # before the policy: brings its generator home
        state = Serial.state_dict(self) | {"collector": collector}
        if self.landed is not None:
            chunk, brought = self.landed.chunk, self.landed.brought
            rows = {name: getattr(chunk, name) for name in chunk.__slots__}
            state["flight"] = {"rows": rows, "steps": brought.steps, "finished": brought.finished}
        return state

    def _load_collector(self, state: dict[str, Any]) -> None:
        assert self.remote is not None
        self.remote.load_state_dict(state["collector"])
        flight = state.get("flight")
        if flight is not None:
            finished = [(float(r), int(n)) for r, n in flight["finished"]]
            brought = Brought(int(flight["steps"]), finished)
            self.landed = Gathered(Chunk(**flight["rows"]), brought, self.collector.seconds)
