"""How far a run is, and where its time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlrun.types import Counters


@dataclass(slots=True)
class LoopProgress:
    """What the parts of the loop share."""

    counters: Counters
    rollbacks: int = 0  # to an earlier checkpoint, after updates that were not finite
    phase: str = "start"  # what the loop is doing, for the watchdog
    unsaved: bool = True  # something has changed since the last checkpoint
    seconds: dict[str, float] = field(default_factory=dict)  # of each part in this process

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the seconds of a part that ends without an error."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def due(self, every: int, before: int) -> bool:
        """Return whether a multiple of ``every`` env steps lies behind ``before``."""
        return self.counters.env_steps // every > before // every
