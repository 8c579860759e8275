"""Does a task need memory? Scores of agents with and without it, the gap, one sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlrun.reports.comparison import Difference, difference, holm
from rlrun.reports.findings import interval_of
from rlrun.reports.intervals import LEVEL, UNBOUNDED, Bounds, mean_interval
from rlrun.reports.tables import Cell, Table, show_cell
from rlrun.reports.versus import PAIRS

MEMORYLESS, STACKED, RECURRENT, FULL = "memoryless", "frame-stacked", "recurrent", "full state"
_WITH_PAST = (RECURRENT, STACKED)  # agents that see more than the newest observation


@dataclass(frozen=True)
class MemoryGap:
    """Scores [R] of each agent, and the gap of every other one to the memoryless agent.

    ``needed``: whether an agent that sees the past is better, after Holm's correction for two
    comparisons.
    """

    environment: str
    budget: int
    scores: Mapping[str, Sequence[float]]
    bounds: Bounds = UNBOUNDED  # returns that the environment allows

    @property
    def gaps(self) -> dict[str, Difference]:
        """Score of an agent minus that of the memoryless one."""
        base = self.scores[MEMORYLESS]
        return {
            name: difference(own, base, paired=len(own) == len(base) >= PAIRS, bounds=self.bounds)
            for name, own in self.scores.items()
            if name != MEMORYLESS
        }

    def _better(self, names: Sequence[str]) -> list[str]:
        """Those of ``names`` that are better than the memoryless agent, corrected for them all."""
        gaps = self.gaps
        tested = [name for name in names if name in gaps and gaps[name].p is not None]
        ps = holm([p for name in tested if (p := gaps[name].p) is not None])
        return [
            name
            for name, p in zip(tested, ps, strict=True)
            if p <= 1 - LEVEL + 1e-12 and gaps[name].decided and gaps[name].value > 0
        ]

    @property
    def needed(self) -> bool:
        """Whether the task needs memory, as far as these runs show."""
        return bool(self._better(_WITH_PAST))

    @property
    def sentence(self) -> str:
        """The finding, for a reader who has not seen the table."""
        gaps, better = self.gaps, self._better(_WITH_PAST)
        at = f"at {self.budget} env steps"
        gap = show_cell(interval_of(gaps[RECURRENT]))
        if not better:
            if self._better([FULL]):
                hidden = show_cell(interval_of(gaps[FULL]))
                return (
                    f"{self.environment} hides what an agent could use (full state minus "
                    f"memoryless {hidden}), but no agent learned to remember it "
                    f"{at}: a larger budget may."
                )
            return (
                f"{self.environment} shows no need for memory {at}: recurrent minus memoryless is "
                f"{gap}."
            )
        name = max(better, key=lambda one: gaps[one].value)
        short = f", and {name} is the better one" if len(better) > 1 else f", {name} alone"
        value = show_cell(interval_of(gaps[name]))
        return f"{self.environment} needs memory: it is worth {value} {at}{short}."


def gap_table(gap: MemoryGap) -> Table:
    """Return a row for each agent: its score with the interval, its gap, p before correction."""
    rows: list[tuple[Cell, ...]] = []
    for name, scores in gap.scores.items():
        own = gap.gaps.get(name)
        beside: tuple[Cell, ...] = (None, None) if own is None else (interval_of(own), own.p)
        rows.append(
            (name, interval_of(mean_interval(scores, bounds=gap.bounds)), *beside, len(scores))
        )
    return Table("probe", ("agent", "score", "minus memoryless", "p", "seeds"), rows)
