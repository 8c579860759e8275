"""Sources of chunks, in which the pipelines differ: serial and offline."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.errors import CheckpointError, ConfigError
from rlrun.pipeline.collector import Collector
from rlrun.schema import LearnerConfig
from rlrun.types import Chunk, Counters, Policy

if TYPE_CHECKING:
    from rlrun.pipeline.transport import InProcess  # imports the codec


class Source(Protocol):
    """The source of the rows that a pipeline learns from. It advances the run's clock."""

    clock: ClassVar[str] = "env steps"  # unit of ``env_steps``: "env steps" or "updates"
    phase: ClassVar[str]  # what ``next_chunk`` waits for, see ``rlrun.pipeline.stop``

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each part of collecting since this process began."""
        return {}

    @property
    def pulse(self) -> float:
        """A number that changes with every step of the environments."""
        return 0.0

    @property
    def inexact(self) -> str | None:
        """Why a resumed run differs or would differ from an uninterrupted one; None: it does not.

        It is known after the first ``state_dict`` or ``load_state_dict``.
        """
        return None

    def stop_when(self, stop: Callable[[], bool]) -> None:
        """Set the function that is asked during a chunk whether to interrupt it."""
        return

    def next_chunk(self) -> Any:
        """Return the next rows in the form that the buffer takes, and add them to the counters.

        None: the buffer already has all rows.

        Raises: ChunkInterrupted if ``stop`` was true; the rows so far are part of the state.
        """

    def after_updates(self, updates: int) -> None:
        """Note the number of updates that followed a chunk."""
        return

    def metrics(self) -> dict[str, float]:
        """Return collect/ metrics since the last call."""
        return {}

    def transport_metrics(self) -> dict[str, float]:
        """Return codec/ metrics since the last call."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of the checkpoint. May set the policy's exploration generator."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a whole checkpoint, whose counters and policy are loaded already."""

    def close(self) -> None:
        """Close environments and processes."""
        return


class SerialSource(Source):
    """A collector in this process that acts with the learner's present weights."""

    phase: ClassVar[str] = "collect"

    def __init__(self, collector: Collector, policy: Policy, transport: "InProcess | None") -> None:
        """``transport``: from the learner's ``policy`` to the collector's; None: they are one."""
        self.collector, self.policy, self.transport = collector, policy, transport

    def stop_when(self, stop: Callable[[], bool]) -> None:
        self.collector.stop = stop

    @property
    def pulse(self) -> float:
        return self.collector.seconds["env"]

    @property
    def seconds(self) -> dict[str, float]:
        return self.collector.seconds

    @property
    def inexact(self) -> str | None:
        return self.collector.inexact

    def next_chunk(self) -> Chunk:
        if self.transport is None:
            return self.collector.collect()
        self.collector.policy.load(self.transport.weights(self.policy.weights()))
        return self.transport.rows(self.collector.collect())

    def metrics(self) -> dict[str, float]:
        return self.collector.metrics()

    def transport_metrics(self) -> dict[str, float]:
        return self.transport.metrics() if self.transport is not None else {}

    def state_dict(self) -> dict[str, Any]:
        return {"collector": self.collector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "received" in state:
            raise CheckpointError(
                "pipeline.name = serial: the checkpoint holds a chunk in flight; allowed is the "
                "pipeline the run began with; set pipeline=overlapped"
            )
        self.collector.load_state_dict(state["collector"])
        if (
            generator := state["collector"].get("generator")
        ) is not None:  # of a collector in another process
            self.policy.generator.bit_generator.state = generator

    def close(self) -> None:
        self.collector.env.close()


class OfflineSource(Source):
    """A source without chunks: one turn of the loop is ``learner.update_per_collect`` updates.

    The clock counts updates: ``env_steps`` of an offline run (total_steps, eval_every, schedules,
    metrics.jsonl) means updates.
    """

    clock: ClassVar[str] = "updates"
    phase: ClassVar[str] = "learn"

    def __init__(self, config: LearnerConfig, buffer: Replay | Mixed, counters: Counters) -> None:
        self.config, self.buffer, self.counters = config, buffer, counters

    def next_chunk(self) -> None:
        return None

    def after_updates(self, updates: int) -> None:
        """Advance the clock. Raises: ConfigError if the dataset is too small to learn from."""
        if not updates:
            raise ConfigError(
                f"learner.learning_starts = {self.config.learning_starts}: the dataset has "
                f"{self.buffer.steps} steps in {len(self.buffer)} windows, nothing can be learned; "
                "at least one window and learning_starts steps are needed; lower it, or load "
                "a larger dataset"
            )
        self.counters.env_steps += updates

    def state_dict(self) -> dict[str, Any]:
        return {"collector": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
