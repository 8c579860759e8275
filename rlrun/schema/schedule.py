"""Schedules over env steps."""

from dataclasses import dataclass, field
from typing import Literal

from rlrun.schema.ranges import Ranged, positive, require


@dataclass(frozen=True)
class ScheduleConfig(Ranged):
    """A number that depends on environment steps; a bare number in yaml is ``constant``."""

    kind: Literal["constant", "linear", "exponential", "cosine", "piecewise"]
    start: float
    end: float
    # env steps; null: run.total_steps. For exponential: the time constant
    over: float | None = field(metadata=positive())
    points: tuple[tuple[float, float], ...] | None  # piecewise only: [[env_steps, value], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "piecewise":
            points = self.points or ()
            steps = [step for step, _ in points]
            require(
                len(points) >= 2 and steps == sorted(set(steps)),
                "points",
                self.points,
                "piecewise needs at least two [env_steps, value] pairs with rising env_steps",
            )

    def values(self) -> tuple[float, ...]:
        """The numbers between which the schedule stays."""
        if self.kind == "piecewise":
            return tuple(value for _, value in self.points or ())
        return (self.start,) if self.kind == "constant" else (self.start, self.end)
