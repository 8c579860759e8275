"""One figure for a setting over several environments: IQM, optimality gap, performance profile."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlrun.errors import ConfigError
from rlrun.reports import figures
from rlrun.reports.document import Cell, Picture, Section, Table
from rlrun.reports.findings import Findings, interval_of, reasons
from rlrun.reports.groups import Group, scored
from rlrun.reports.intervals import Floats, balanced, iqm, optimality_gap, performance_profile
from rlrun.reports.runs import printable

_POINTS = 101  # of a profile


def across_section(
    found: Findings, references: Mapping[str, tuple[float, float]]
) -> Section | None:
    """Return the aggregates over all environments of each setting that has scores in all of them.

    ``references``: environment -> the scores that count as 0 and 1; without one the lowest and the
    highest score in the report. None where no setting has scores in all of several environments.
    """
    settings = complete_settings(found)
    if not settings:
        return None
    scales = scales_of(found, references)
    rows: list[tuple[Cell, ...]] = []
    whys: list[tuple[str, str]] = []
    profiles: list[tuple[str, Floats, Floats, Floats, Floats]] = []
    tau = np.linspace(0, 1, _POINTS)
    for setting, own in matrices_of(found, references).items():
        matrix, left_out = balanced(own)
        middle, gap = iqm(matrix), optimality_gap(matrix)
        rows.append((setting, len(own), len(matrix), interval_of(middle), interval_of(gap)))
        whys.append((setting, f"{middle.why} {left_out}".strip()))
        profile = performance_profile(matrix, tau)
        none = np.full(_POINTS, math.nan)
        low = none if profile.low is None else profile.low
        high = none if profile.high is None else profile.high
        profiles.append((setting, tau, profile.value, low, high))
    text = [
        "Several environments: the interquartile mean (IQM) of all normalised scores, and how far "
        "they fall short of 1 (optimality gap), with stratified bootstrap intervals. The middle "
        "half says little about rare failures: see the scores of each environment.",
        _scale_text(scales, references),
        *reasons(whys),
    ]
    pictures: list[Picture] = []
    if found.draw:
        title = (
            "performance profiles: the share of runs above each normalised score, 95 % pointwise"
        )
        pictures = figures.profile_figure(profiles, name="figure_profiles", title=title)
    columns = ("setting", "environments", "seeds", "IQM", "optimality gap")
    table = Table("aggregates", columns, rows)
    return Section("Across environments", text, [table], pictures)


def scales_of(
    found: Findings, references: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return environment -> the scores that count as 0 and 1."""
    return {env: references.get(env) or _extremes(scored(found.of(env))) for env in _places(found)}


def matrices_of(
    found: Findings, references: Mapping[str, tuple[float, float]]
) -> dict[str, list[Floats]]:
    """Return setting -> normalised scores in each environment, for those that have all."""
    settings = complete_settings(found)
    scales = scales_of(found, references) if settings else {}
    return {
        setting: [normalised(group.scores, scales[group.environment]) for group in groups]
        for setting, groups in settings.items()
    }


def complete_settings(found: Findings) -> dict[str, list[Group]]:
    """Return the settings with scores in every environment of several, and their groups.

    Trials of a search are left out: their scores chose the setting.
    """
    places = _places(found)
    if len(places) < 2:
        return {}
    by_setting: dict[str, list[Group]] = {}
    for group in scored(found.groups):
        by_setting.setdefault(group.setting, []).append(group)
    order = places.index
    return {
        setting: sorted(groups, key=lambda g: order(g.environment))
        for setting, groups in by_setting.items()
        if len(groups) == len(places)
    }


def _places(found: Findings) -> list[str]:
    """The environments in which a setting has scores that no search has chosen by."""
    return [env for env in found.environments if scored(found.of(env))]


def _extremes(groups: Sequence[Group]) -> tuple[float, float]:
    scores = np.concatenate([group.scores for group in groups])
    return float(scores.min()), float(scores.max())


def normalised(scores: Floats, scale: tuple[float, float]) -> Floats:
    """Return (score - low) / (high - low); 0.5 where the scale has no length."""
    low, high = scale
    return (scores - low) / (high - low) if high > low else np.full(len(scores), 0.5)


def _scale_text(
    scales: Mapping[str, tuple[float, float]], references: Mapping[str, tuple[float, float]]
) -> str:
    ranges = ", ".join(f"{env} {low:.4g} to {high:.4g}" for env, (low, high) in scales.items())
    if set(scales) <= set(references):
        return f"Normalised scores: 0 to 1 is {ranges} (--reference)."
    return (
        f"Normalised scores: 0 to 1 is {ranges}; where no --reference ENV=LOW:HIGH is given these "
        "are the lowest and the highest score of this report, so that they change with the runs in "
        "it."
    )


def parse_references(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return environment -> (low, high) of ``ENV=LOW:HIGH``. Raises: ConfigError."""
    found = {}
    for text in texts:
        name, _, scale = text.rpartition("=")
        try:
            low, high = map(float, scale.split(":"))
        except ValueError:
            low = high = math.nan
        if not name or not math.isfinite(high - low) or low >= high:
            raise ConfigError(
                f"--reference = {text}: is no scale; ENV=LOW:HIGH with LOW < HIGH is allowed; e.g. "
                "--reference CartPole-v1=20:500",
                key="--reference",
            )
        found[name] = (low, high)
    return found


def check_references(references: Mapping[str, tuple[float, float]], found: Findings) -> None:
    """Raise ConfigError for a reference to an environment that is not in the report."""
    for name, (low, high) in references.items():
        if name not in found.environments:
            raise ConfigError(
                f"--reference = {printable(name)}={low:g}:{high:g}: no such environment; "
                f"{'; '.join(found.environments[:8])} are in the report; name one of them",
                key="--reference",
            )
