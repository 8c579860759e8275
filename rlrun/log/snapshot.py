"""Progress of a run at one time, the input of progress displays."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """Counters, rates and latest values of a run."""

    title: str
    env_steps: int
    total_steps: int
    updates: int
    fps: float  # env steps per second over the last interval
    eta: float | None  # seconds; None: unknown
    latest: Mapping[str, float]

    @property
    def fraction(self) -> float:
        """Completed fraction of the run, in [0, 1]."""
        return min(self.env_steps / max(self.total_steps, 1), 1.0)


def format_duration(seconds: float) -> str:
    """Format seconds as 0:07, 12:30 or 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
