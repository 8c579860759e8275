"""The runs of a report, grouped and scored, and the functions that its sections share."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rlrun.errors import ConfigError
from rlrun.reports import figures, intervals
from rlrun.reports.document import Cell, Interval, Picture, Section, Table
from rlrun.reports.groups import Axis, Group, group_runs, scored
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
    """The runs of a report, grouped and scored. ``draw``: with figures.

    ``references``: environment -> the scores that count as 0 and 1; without them the lowest and the
    highest score in the report.
    """

    runs: list[RunData]
    kind: str
    threshold: float = _NAN
    axes: tuple[Axis, ...] = ("env_steps", "wall")
    draw: bool = True
    baseline: str | None = None
    references: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def groups(self) -> list[Group]:
        """Every group, the baseline first, then in the order of their first run.

        Raises: ConfigError if ``baseline`` is part of no setting's name, or of several.
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
        return list(dict.fromkeys(group.environment for group in self.groups))

    def of(self, environment: str) -> list[Group]:
        """Return the groups of an environment, settings in the same order everywhere."""
        settings = list(dict.fromkeys(group.setting for group in self.groups))
        groups = [group for group in self.groups if group.environment == environment]
        return sorted(groups, key=lambda group: settings.index(group.setting))

    @cached_property
    def complete(self) -> dict[str, list[Group]]:
        """The settings with scores in every environment of several, and their groups.

        Trials of a search are left out, because their scores chose the setting.
        """
        places = [env for env in self.environments if scored(self.of(env))]
        by_setting: dict[str, list[Group]] = {}
        for group in scored(self.groups) if len(places) > 1 else ():
            by_setting.setdefault(group.setting, []).append(group)
        return {
            setting: sorted(groups, key=lambda group: places.index(group.environment))
            for setting, groups in by_setting.items() if len(groups) == len(places)
        }  # fmt: skip

    @cached_property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Environment -> the scores that count as 0 and 1."""
        scales = {}
        for env in self.environments:
            if groups := scored(self.of(env)):
                x = np.concatenate([group.scores for group in groups])
                scales[env] = self.references.get(env, (float(x.min()), float(x.max())))
        return scales

    @cached_property
    def matrices(self) -> dict[str, list[intervals.Floats]]:
        """Setting -> normalised scores in each environment, for `complete` settings."""
        return {
            setting: [normalised(group.scores, self.scales[group.environment]) for group in groups]
            for setting, groups in self.complete.items()
        }

    @property
    def meaning(self) -> str:
        """Return the meaning of the score."""
        best = "best of the last {} evaluations, a maximum and so biased upwards"
        return _MEANING.get(self.kind, best.format(self.kind.partition(":")[2]))

    def place(self, environment: str) -> str:
        """Return the environment's name as part of a caption, "" if there is only one."""
        return f"{environment}: " if len(self.environments) > 1 else ""

    def stem(self, what: str, environment: str) -> str:
        """Return the name of a figure's files."""
        number = self.environments.index(environment) + 1
        return f"figure_{what}" + (f"_{number}" if len(self.environments) > 1 else "")


def interval_of(estimate: intervals.Estimate | None) -> Interval:
    """Return a table cell of an estimate, empty for None."""
    if estimate is None:
        return Interval(_NAN, _NAN, _NAN)
    low, high = (_NAN if edge is None else edge for edge in (estimate.low, estimate.high))
    return Interval(estimate.value, low, high)


def reasons(named: Sequence[tuple[str, str]]) -> list[str]:
    """Return each distinct sentence once, with the groups that it is about unless it is all."""
    whose: dict[str, dict[str, None]] = {}  # sentence -> groups, each once
    for name, why in named:
        whose.setdefault(why, {})[name] = None
    if len(whose) == 1:
        return list(whose)
    return [f"{', '.join(names) if len(names) <= 3 else f'{len(names)} settings'}: {why}"
            for why, names in whose.items()]  # fmt: skip


def uncounted(group: Group) -> str:
    """Return the runs of a group that its score leaves out: "1 failed, 2 running"."""
    parts = [f"{n} {why}" for why, n in Counter(map(_why_unscored, group.unscored)).items()]
    if again := len(group.repeats):
        parts.append(f"{again} repeated seed{'s' if again > 1 else ''}")
    return ", ".join(parts)


def _why_unscored(run: RunData) -> str:
    if run.status != "done":
        return run.status
    return "with damaged metrics" if run.damage else "without evaluations"


def threshold_of(findings: Findings, groups: Sequence[Group]) -> float:
    """Return the given threshold, else the run.stop_return that all runs share."""
    if math.isfinite(findings.threshold):
        return findings.threshold
    values = {run.stop_return for group in groups for run in group.everything}
    return values.pop() if len(values) == 1 else _NAN


def across_section(findings: Findings) -> Section | None:
    """Return the aggregates over all environments of each setting that has scores in all of them.

    None if no setting has scores in all of several environments.
    """
    if not findings.complete:
        return None
    rows: list[tuple[Cell, ...]] = []
    whys: list[tuple[str, str]] = []
    profiles: list[
        tuple[str, intervals.Floats, intervals.Floats, intervals.Floats, intervals.Floats]
    ] = []
    tau = np.linspace(0, 1, 101)
    for setting, scores in findings.matrices.items():
        matrix, left_out = intervals.balanced(scores)
        middle = intervals.stratified_bootstrap(intervals.aggregate_iqm, matrix)
        gap = intervals.stratified_bootstrap(intervals.aggregate_optimality_gap, matrix)
        rows.append((setting, len(scores), len(matrix), interval_of(middle), interval_of(gap)))
        whys.append((setting, f"{middle.why} {left_out}".strip()))
        profiles.append((setting, tau, *intervals.performance_profile(matrix, tau)))
    text = [
        "Several environments: the interquartile mean (IQM) of all normalised scores, and how far "
        "they fall short of 1 (optimality gap), with stratified bootstrap intervals. The middle "
        "half says little about rare failures: see the scores of each environment.",
        _scale_text(findings),
        *reasons(whys),
    ]
    pictures: list[Picture] = []
    if findings.draw:
        title = (
            "performance profiles: the share of runs above each normalised score, 95 % pointwise"
        )
        pictures = figures.profile_figure(profiles, name="figure_profiles", title=title)
    columns = ("setting", "environments", "seeds", "IQM", "optimality gap")
    table = Table("aggregates", columns, rows)
    return Section("Across environments", text, [table], pictures)


def normalised(scores: intervals.Floats, scale: tuple[float, float]) -> intervals.Floats:
    """Return (score - low) / (high - low), or 0.5 if high equals low."""
    low, high = scale
    return (scores - low) / (high - low) if high > low else np.full(len(scores), 0.5)


def _scale_text(findings: Findings) -> str:
    scales = findings.scales.items()
    ranges = ", ".join(f"{env} {low:.4g} to {high:.4g}" for env, (low, high) in scales)
    if findings.scales.keys() <= findings.references.keys():
        return f"Normalised scores: 0 to 1 is {ranges} (--reference)."
    return (
        f"Normalised scores: 0 to 1 is {ranges}; where no --reference ENV=LOW:HIGH is given these "
        "are the lowest and the highest score of this report, so that they change with the runs in "
        "it."
    )


def parse_references(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return environment -> (low, high) of ``ENV=LOW:HIGH``. Raises: ConfigError."""
    references = {}
    for text in texts:
        name, _, scale = text.rpartition("=")
        try:
            low, high = map(float, scale.split(":"))
        except ValueError:
            low = high = math.nan
        if not name or not math.isfinite(high - low) or low >= high:
            raise ConfigError(
                f"--reference = {text}: is not a scale; ENV=LOW:HIGH with LOW < HIGH is allowed; "
                "e.g. --reference CartPole-v1=20:500",
                key="--reference",
            )
        references[name] = (low, high)
    return references


def check_references(findings: Findings) -> None:
    """Raise ConfigError for a reference to an environment that is not in the report."""
    for name, (low, high) in findings.references.items():
        if name not in findings.environments:
            raise ConfigError(
                f"--reference = {printable(name)}={low:g}:{high:g}: no such environment; "
                f"{'; '.join(findings.environments[:8])} are in the report; name one of them",
                key="--reference",
            )
