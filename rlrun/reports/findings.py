"""The runs of a report, grouped and scored, and what its sections share."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rlrun.errors import ConfigError
from rlrun.reports.document import Interval
from rlrun.reports.groups import Axis, Group, group_runs
from rlrun.reports.intervals import Estimate
from rlrun.reports.runs import RunData, printable

_NAN = math.nan
_MEANING = {
    "final": "mean return of the final weights (run.json, eval.return_mean)",
    "auc": "mean return over all env steps: area under the learning curve from 0 to "
    "run.total_steps (trapezoidal rule; before the first evaluation its value counts, after the "
    "last one that of the last), divided by run.total_steps",
}


@dataclass(frozen=True)
class Findings:
    """The runs of a report, grouped and scored. ``draw``: with figures."""

    runs: list[RunData]
    kind: str
    threshold: float = _NAN
    axes: tuple[Axis, ...] = ("env_steps", "wall")
    draw: bool = True
    baseline: str | None = None

    @cached_property
    def groups(self) -> list[Group]:
        """Every group, the baseline first, then in the order of their first run.

        Raises: ConfigError when ``baseline`` is part of no name of a setting, or of several.
        """
        groups = group_runs(self.runs, self.kind)
        if self.baseline is None:
            return groups
        settings = list(dict.fromkeys(group.setting for group in groups))
        exact = [name for name in settings if name == self.baseline]
        meant = exact or [name for name in settings if self.baseline in name]
        if len(meant) != 1:
            raise ConfigError(
                f"--baseline = {printable(self.baseline)}: is part of {len(meant)} settings; "
                f"{'; '.join(settings[:8])} are there; name one of them",
                key="--baseline",
            )
        return sorted(groups, key=lambda group: group.setting != meant[0])

    @cached_property
    def environments(self) -> list[str]:
        """Every environment, in order."""
        return list(dict.fromkeys(group.environment for group in self.groups))

    def of(self, environment: str) -> list[Group]:
        """The groups of an environment, settings in the same order everywhere."""
        settings = list(dict.fromkeys(group.setting for group in self.groups))
        own = [group for group in self.groups if group.environment == environment]
        return sorted(own, key=lambda group: settings.index(group.setting))

    @property
    def meaning(self) -> str:
        """What the score is."""
        count = self.kind.partition(":")[2]
        best = f"best of the last {count} evaluations, which flatters: a maximum"
        return _MEANING.get(self.kind, best)

    def place(self, environment: str) -> str:
        """A part of a caption: where there is more than one environment, its name."""
        return f"{environment}: " if len(self.environments) > 1 else ""

    def stem(self, what: str, environment: str) -> str:
        """The name of a figure's files."""
        number = self.environments.index(environment) + 1
        return f"figure_{what}" + (f"_{number}" if len(self.environments) > 1 else "")


def interval_of(estimate: Estimate) -> Interval:
    """Return a table cell of an estimate."""
    low, high = (_NAN if edge is None else edge for edge in (estimate.low, estimate.high))
    return Interval(estimate.value, low, high)


def reasons(named: Sequence[tuple[str, str]]) -> list[str]:
    """Return each distinct sentence once, with the groups that it is about unless it is all."""
    whose: dict[str, list[str]] = {}
    for name, why in named:
        whose.setdefault(why, []).append(name)
    if len(whose) == 1:
        return list(whose)
    return [f"{_names(list(dict.fromkeys(names)))}: {why}" for why, names in whose.items()]


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} settings"


def uncounted(group: Group) -> str:
    """Return what is in a group but not in its score: "1 failed, 2 running"."""
    parts = [f"{n} {why}" for why, n in Counter(map(_why_unscored, group.unscored)).items()]
    again = len(group.repeats)
    parts += [f"{again} repeated seed{'s' if again > 1 else ''}"] if again else []
    return ", ".join(parts)


def _why_unscored(run: RunData) -> str:
    if run.status != "done":
        return run.status
    return "with damaged metrics" if run.damage else "without evaluations"


def threshold_of(found: Findings, groups: Sequence[Group]) -> float:
    """Return the threshold given, else the run.stop_value in which all runs agree."""
    if math.isfinite(found.threshold):
        return found.threshold
    values = {run.stop_value for group in groups for run in group.everything}
    return values.pop() if len(values) == 1 else _NAN
