"""Offline learning: the buffer was filled from a dataset, environments are for evaluation only."""

from collections.abc import Callable
from typing import Any, ClassVar

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.errors import ConfigError
from rlrun.schema import LearnerConfig
from rlrun.types import Counters


class OfflineSource:
    """Yields no chunks; ``learner.update_per_collect`` updates are one turn of the loop.

    No env step is taken to learn from, so the clock counts updates: ``env_steps`` of an offline run
    (total_steps, eval_every, schedules, metrics.jsonl) means updates.
    """

    clock: ClassVar[str] = "updates"
    phase: ClassVar[str] = "learn"

    def __init__(self, config: LearnerConfig, buffer: Replay | Mixed, counters: Counters) -> None:
        self.config, self.buffer, self.counters = config, buffer, counters
        self.stop: Callable[[], bool] = lambda: False
        self.pulse = 0.0

    @property
    def seconds(self) -> dict[str, float]:
        return {}

    @property
    def inexact(self) -> None:
        return None

    def next_chunk(self) -> None:
        return None

    def after_updates(self, updates: int) -> None:
        """Advance the clock.

        Raises: ConfigError when the dataset is too small to learn from.
        """
        if not updates:
            raise ConfigError(
                f"learner.learning_starts = {self.config.learning_starts}: the dataset has "
                f"{self.buffer.rows} steps in {len(self.buffer)} windows, nothing can be learned; "
                "at least one window and learning_starts steps are needed; lower it, or load "
                "a larger dataset"
            )
        self.counters.env_steps += updates

    def metrics(self) -> dict[str, float]:
        return {}

    def transport_metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"collector": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass
