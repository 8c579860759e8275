"""One moment of a run, as a display shows it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One moment of a run."""

    title: str
    env_steps: int
    total_steps: int
    updates: int
    fps: float  # env steps per second over the last interval
    eta: float | None  # seconds; None: not known yet
    latest: Mapping[str, float]

    @property
    def fraction(self) -> float:
        """How much of the run is done, in [0, 1]."""
        return min(self.env_steps / max(self.total_steps, 1), 1.0)


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours from one hour on: 0:07, 12:30, 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
