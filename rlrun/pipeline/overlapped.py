"""Overlapped collecting: the next chunk is collected while the learner works on the last."""

from typing import Any, ClassVar

from rlrun.errors import RlrunError
from rlrun.pipeline.collector import ChunkStats, CollectMetrics
from rlrun.pipeline.process import CollectedChunk, CollectorProcess, CollectorState
from rlrun.types import Chunk, Policy


class OverlappedSource:
    """A collector in a process of its own, one chunk ahead of the learner.

    Two threads would share one interpreter lock: measured, no faster than the serial pipeline.

    Chunk k + 1 is collected with the weights from before learning on chunk k: exactly one chunk
    old, however fast either side is, so a run is as deterministic as a serial one. The first chunk
    is collected alone. Evaluations, logs and checkpoints use the learner's weights.
    """

    clock: ClassVar[str] = "env steps"

    def __init__(
        self,
        process: CollectorProcess,
        policy: Policy,
        collect_metrics: CollectMetrics,
        *,
        total_steps: int,
    ) -> None:
        """``policy``: the learner's. No chunk is started from ``total_steps`` on."""
        self.process, self.policy, self.total_steps = process, policy, total_steps
        self.collect_metrics, self.counters = collect_metrics, collect_metrics.counters
        self.seconds: dict[str, float] = {"act": 0.0, "env": 0.0}
        self.counted: CollectorState | None = None  # after the chunk that was counted last
        self.received: CollectedChunk | None = None  # in flight at a checkpoint, not counted yet
        self.pending_error: RlrunError | None = None  # of the chunk in flight at a checkpoint

    def next_chunk(self) -> Chunk:
        if self.pending_error is not None:
            raise self.pending_error
        collected, self.received = self.received, None
        if collected is None:
            if not self.process.in_flight:
                self.process.start(self.counters.env_steps)
            collected = self.process.result()
        self.collect_metrics.commit(collected.stats)
        self.seconds, self.counted = collected.seconds, collected.state
        if self.counters.env_steps < self.total_steps:
            self.process.start(self.counters.env_steps)  # before this chunk is stored or learned
        return collected.chunk

    def after_updates(self, updates: int) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return self.collect_metrics.report()

    def transport_metrics(self) -> dict[str, float]:
        return self.process.transport.metrics()

    def state_dict(self) -> dict[str, Any]:
        """State of the collector and the chunk in flight, which is waited for.

        When that chunk fails, the state is the one before it: all learned updates are saved.
        """
        if self.process.in_flight:
            try:
                self.received = self.process.result()
            except RlrunError as e:
                self.pending_error = e
        after = self.received.state if self.received is not None else self.counted
        after = after or self.process.state()  # nothing was collected yet
        self.policy.generator.bit_generator.state = after.generator
        state: dict[str, Any] = {"collector": after.collector}
        if self.received is not None:
            chunk, stats = self.received.chunk, self.received.stats
            rows = {name: getattr(chunk, name) for name in chunk.__slots__}
            flight = {"rows": rows, "steps": stats.steps, "finished": stats.finished_episodes}
            state["flight"] = flight
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generator = dict(self.policy.generator.bit_generator.state)
        after = CollectorState(state["collector"], generator)
        flight, env_steps = state.get("flight"), self.counters.env_steps
        if flight is None:
            self.counted = after
        else:
            finished = [(float(r), int(n)) for r, n in flight["finished"]]
            stats = ChunkStats(int(flight["steps"]), finished)
            env_steps += stats.steps
            chunk = Chunk(**flight["rows"])
            self.received = CollectedChunk(chunk, stats, self.seconds, after)
        self.process.load(after, env_steps)

    def close(self) -> None:
        self.process.close()
