"""Number of updates that new rows pay for."""

from rlrun.schema import LearnerConfig
from rlrun.types import Window


class Pacer:
    """``update_per_collect`` updates a chunk, or as many as learn ``replay_ratio`` rows per row."""

    def __init__(self, config: LearnerConfig, window: Window) -> None:
        self.config, self.rows_per_update = config, config.batch_size * window.learned
        self.credit = 0.0  # rows to be learned by the next updates

    def updates_for(self, rows: int, chunks: int = 1) -> int:
        """Return the number of updates that ``rows`` new rows in so many chunks pay for."""
        if self.config.update_per_collect is not None:
            return self.config.update_per_collect * chunks
        assert self.config.replay_ratio is not None  # LearnerConfig: exactly one is set
        self.credit += rows * self.config.replay_ratio
        updates = int(self.credit // self.rows_per_update)
        self.credit -= updates * self.rows_per_update
        return updates
