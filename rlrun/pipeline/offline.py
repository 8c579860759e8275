"""The offline pipeline: learn from a dataset alone; environments are for evaluation only."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlrun.errors import ConfigError
from rlrun.pipeline.serial import Serial

_NO_WINDOWS = np.empty(0, np.int64)


@dataclass(slots=True)
class Offline(Serial):
    """``Serial`` without collecting: one turn is ``learner.update_per_collect`` updates on what
    ``buffer.load`` brought.

    No env step is ever taken to learn from, so the clock counts updates: wherever a run says
    ``env_steps`` (total_steps, eval_every, schedules, metrics.jsonl) an offline run means updates.
    ``collector`` only showed shapes.
    """

    clock: ClassVar[str] = "updates"

    def close(self) -> None:
        """See ``Serial.close``; the collector's environments were closed before."""
        self.evaluator.close()

    def _collect_and_learn(self) -> None:
        assert self.learner is not None, "checked in rlrun.config"
        self.unsaved = True
        done = self.learner.step(0, _NO_WINDOWS)
        if not done:
            rows, least = self.learner.buffer.rows, self.learner.config.learning_starts
            raise ConfigError(
                f"learner.learning_starts = {least}: the dataset brought {rows} steps in "
                f"{len(self.learner.buffer)} windows, nothing can be learned; at least one window "
                "and learning_starts steps are needed; lower it, or load a larger dataset"
            )
        self.counters.env_steps += done
        self.log.progress(self.counters.env_steps, self.counters.updates)

    def _collected(self) -> dict[str, float]:
        return {}

    def _load_collector(self, state: dict[str, Any]) -> None:
        """Nothing was collected: the environments need not go on."""
