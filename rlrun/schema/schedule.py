"""A number that follows the clock."""

import math
from dataclasses import dataclass
from typing import Literal

from rlrun.schema.ranges import need, positive


@dataclass(frozen=True)
class ScheduleConfig:
    """A number that depends on environment steps; a bare number in yaml is ``constant``."""

    kind: Literal["constant", "linear", "exponential", "cosine", "piecewise"]
    start: float
    end: float
    over: float | None  # env steps; null: run.total_steps. For exponential: the time constant
    points: tuple[tuple[float, float], ...] | None  # piecewise only: [[env_steps, value], ...]

    def __post_init__(self) -> None:
        positive(self, "over")
        if self.kind == "piecewise":
            points = self.points or ()
            steps = [step for step, _ in points]
            need(
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


def schedule_within(config: object, key: str, low: float, high: float) -> None:
    schedule: ScheduleConfig = getattr(config, key)
    for value in schedule.values():
        span = f"[{low:g}, {high:g}]" if math.isfinite(high) else f"[{low:g}, inf)"
        need(low <= value <= high, key, value, f"must stay within {span}")
