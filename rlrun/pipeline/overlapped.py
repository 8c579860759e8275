"""Overlapped collecting: the next chunk is collected while the learner works on the last."""

from collections.abc import Callable
from typing import Any, ClassVar

from rlrun.errors import EnvError, RlrunError
from rlrun.pipeline.collect_metrics import CollectMetrics, loaded_stats
from rlrun.pipeline.collector import ChunkInterrupted
from rlrun.pipeline.process import CollectedChunk, CollectorProcess
from rlrun.pipeline.received import Check
from rlrun.types import Chunk, Policy


class OverlappedSource:
    """A collector in a process of its own, one chunk ahead of the learner.

    Two threads would share one interpreter lock: measured, no faster than the serial pipeline.

    Chunk k + 1 is collected with the weights from before learning on chunk k: exactly one chunk
    old, however fast either side is, so a run is as deterministic as a serial one. The first chunk
    is collected alone. Evaluations, logs and checkpoints use the learner's weights.
    """

    clock: ClassVar[str] = "env steps"
    phase: ClassVar[str] = "chunk"

    def __init__(
        self,
        process: CollectorProcess,
        policy: Policy,
        collect_metrics: CollectMetrics,
        *,
        check: Check,
        total_steps: int,
    ) -> None:
        """``policy``: the learner's. ``check``: of a checkpoint's chunk. No chunk is started from
        ``total_steps`` on."""
        self.process, self.policy, self.total_steps = process, policy, total_steps
        self.check = check
        self.collect_metrics, self.counters = collect_metrics, collect_metrics.counters
        self.seconds: dict[str, float] = {"act": 0.0, "env": 0.0}
        self.counted: dict[str, Any] | None = None  # state after the chunk counted last
        self.received: CollectedChunk | None = None  # in flight at a checkpoint, not counted yet
        self.pending_error: RlrunError | None = None  # of the chunk in flight at a checkpoint
        self.inexact: str | None = None
        self.pulse = 0.0

    def next_chunk(self) -> Chunk:
        if self.pending_error is not None:
            raise self.pending_error
        collected, self.received = self.received, None
        if collected is None:
            if not self.process.in_flight:
                self.process.start(self.counters.env_steps)
            collected = self.process.result()
        self.collect_metrics.commit(collected.stats, collected.chunk)
        self.seconds, self.counted = collected.seconds, collected.state
        if self.counters.env_steps < self.total_steps:
            self.process.start(self.counters.env_steps)  # before this chunk is stored or learned
        return collected.chunk

    @property
    def stop(self) -> Callable[[], bool]:
        return self.process.stop

    @stop.setter
    def stop(self, stop: Callable[[], bool]) -> None:
        self.process.stop = stop

    def after_updates(self, updates: int) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return self.collect_metrics.report()

    def transport_metrics(self) -> dict[str, float]:
        return self.process.transport.metrics()

    def state_dict(self) -> dict[str, Any]:
        """State of the collector and the chunk in flight, which is waited for.

        When that chunk fails, its rows before the error are in the collector's state. When the
        process has ended, the state is the one before the chunk, without the environments'.
        """
        if self.process.in_flight:
            try:
                self.received = self.process.result()
            except RlrunError as e:
                self.pending_error = e
            except ChunkInterrupted:  # it is lost
                pass
        state = self._collector_state() | self.collect_metrics.state_dict()
        self.inexact = state["inexact"]
        if self.received is None:
            return {"collector": state}
        chunk, stats = self.received.chunk, self.received.stats
        rows = {name: getattr(chunk, name) for name in chunk.__slots__}
        flight = {"rows": rows, "steps": stats.steps, "finished": stats.finished_episodes}
        return {"collector": state, "flight": flight}

    def _collector_state(self) -> dict[str, Any]:
        try:
            return self.process.state()
        except EnvError:
            last = self.received.state if self.received is not None else self.counted
            if last is None:
                raise
            return last

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generator = dict(self.policy.generator.bit_generator.state)  # of a serial checkpoint
        collector, flight = {"generator": generator, **state["collector"]}, state.get("flight")
        if self.process.in_flight:  # of the run that is given up (run.on_nan=rollback)
            self.process.result()
        self.received = self.pending_error = None
        self.collect_metrics.load_state_dict(collector)
        env_steps = self.counters.env_steps
        if flight is None:
            self.counted = collector
        else:
            chunk = self.check(Chunk(**flight["rows"]), "checkpoint, flight")
            stats = loaded_stats("flight", flight)
            env_steps += stats.steps
            self.received = CollectedChunk(chunk, stats, self.seconds, collector)
        self.inexact = self.process.load(collector | {"finished": [], "actions": None}, env_steps)

    def close(self) -> None:
        self.process.close()
