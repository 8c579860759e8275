"""The overlapped pipeline: the next chunk is collected while the learner works on the last."""

from dataclasses import dataclass
from typing import Any

from rlrun.errors import RlrunError
from rlrun.pipeline.collector import Brought
from rlrun.pipeline.remote import Gathered, Remote, Settled, settled
from rlrun.pipeline.serial import Serial
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
    settled: Settled | None = None  # behind the chunk that was counted last
    landed: Gathered | None = None  # collected before it was asked for
    crashed: RlrunError | None = None  # a chunk nobody asked for yet ended with it

    def close(self) -> None:
        """See ``Serial.close``."""
        assert self.remote is not None
        self.remote.close()
        Serial.close(self)

    def _next_chunk(self) -> Chunk:
        assert self.remote is not None
        if self.crashed is not None:
            raise self.crashed
        gathered, self.landed = self.landed, None
        if gathered is None:
            if not self.remote.flying:
                self.remote.start(self.counters.env_steps)
            gathered = self.remote.result()
        self.collector.brought, self.collector.seconds = gathered.brought, gathered.seconds
        self.collector.account()
        self.settled = gathered.after
        if self.counters.env_steps < self.run_config.total_steps:
            self.remote.start(self.counters.env_steps)  # before this chunk is stored or learned
        return gathered.chunk

    def _link_metrics(self) -> dict[str, float]:
        assert self.remote is not None
        return self.remote.link.metrics()

    def state_dict(self) -> dict[str, Any]:
        """That of ``Serial`` and the chunk in flight, which is waited for.

        When that chunk fails the state is the one before it: what was learned is saved.
        """
        assert self.remote is not None
        if self.remote.flying:
            try:
                self.landed = self.remote.result()
            except RlrunError as e:
                self.crashed = e
        after = self.landed.after if self.landed is not None else self.settled
        after = after or settled(self.collector)  # nothing was collected yet
        self.policy.generator.bit_generator.state = after.generator
        state = Serial.state_dict(self) | {"collector": after.collector}
        if self.landed is not None:
            chunk, brought = self.landed.chunk, self.landed.brought
            rows = {name: getattr(chunk, name) for name in chunk.__slots__}
            state["flight"] = {"rows": rows, "steps": brought.steps, "finished": brought.finished}
        return state

    def _load_collector(self, state: dict[str, Any]) -> None:
        assert self.remote is not None
        behind = Settled(state["collector"], dict(self.policy.generator.bit_generator.state))
        flight, clock = state.get("flight"), self.counters.env_steps
        if flight is None:
            self.settled = behind
        else:
            finished = [(float(r), int(n)) for r, n in flight["finished"]]
            brought = Brought(int(flight["steps"]), finished)
            clock += brought.steps
            seconds = self.collector.seconds
            self.landed = Gathered(Chunk(**flight["rows"]), brought, seconds, behind)
        self.remote.load(behind, clock)
