"""Which statistic an experiment's design allows, and why, in one sentence each."""

from dataclasses import dataclass
from typing import Literal

from rlrun.errors import ConfigError
from rlrun.report.comparison import MIN_PAIRS
from rlrun.report.intervals import MIN_SEEDS, few_seeds, missed_share

Score = Literal["return", "success"]


@dataclass(frozen=True, slots=True)
class Design:
    """An experiment as far as the choice of a statistic depends on it.

    environments: how many. seeds: the fewest of any setting in any environment.
    score: "return", any number for each seed (also its share of successful episodes), or
    "success", 0 or 1 for each seed.
    settings: how many are compared. paired: they have the same seeds.
    normalized: scores of different environments share a scale.
    """

    environments: int
    seeds: int
    score: Score = "return"
    settings: int = 1
    paired: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The statistic of one setting and of a comparison, with the reason of each.

    statistic: "points" (each seed, no interval), "mean" (``mean_interval`` and
    ``tolerance_interval``), "success" (``success_interval``), "iqm" (``iqm``, ``optimality_gap``,
    ``performance_profile``), or "mean each" (every environment has its own mean).
    comparison: None (one setting, or too few seeds), "paired" or "unpaired" (``difference``),
    "aggregate" (``aggregate_difference``), or "improvement" (``probability_of_improvement``).
    comparison_why is "" where there is none.
    """

    statistic: str
    why: str
    comparison: str | None
    comparison_why: str


def choose(design: Design) -> Choice:
    """Return the statistic for ``design``.

    Raises: ConfigError for a design without environments, seeds or settings.

    Source: Agarwal et al. 2021, section 4; Patterson et al. 2024, sections 3 and 4.
    """
    if min(design.environments, design.seeds, design.settings) < 1:
        raise ConfigError(
            f"design = {design.environments} environments, {design.seeds} seeds, "
            f"{design.settings} settings: has nothing to summarise; one or more of each is "
            "allowed; finish a run first"
        )
    if design.seeds < MIN_SEEDS:
        return Choice("points", few_seeds(design.seeds), None, "")
    return Choice(*_statistic(design), *_comparison(design))


def _statistic(design: Design) -> tuple[str, str]:
    n, missed = design.seeds, missed_share(design.seeds)
    if design.environments > 1:
        if design.normalized:
            return "iqm", (
                f"{design.environments} environments: the interquartile mean, which no single "
                "environment or outlier decides; failed seeds show in the optimality gap and in "
                "the profile."
            )
        return "mean each", (
            f"{design.environments} environments on scales of their own: each has its own mean, "
            "for an average would follow the environment with the largest scores."
        )
    if design.score == "success":
        return "success", (
            f"Each of {n} seeds succeeds or fails: the success rate with its binomial interval, "
            "for a t interval leaves 0 to 1 and is empty when all succeed."
        )
    return "mean", (
        f"One environment: the mean of all {n} seeds, never the IQM, which trims away the seeds "
        f"that fail; what hits fewer than {missed:.0%} of seeds may not have shown yet."
    )


def _comparison(design: Design) -> tuple[str | None, str]:
    if design.settings < 2:
        return None, ""
    many = design.settings * (design.settings - 1) // 2
    holm = f", corrected for {many} comparisons (Holm)" if many > 1 else ""
    if design.environments > 1:
        if design.normalized:
            return "aggregate", (
                "Difference of the IQMs, bootstrapped together; p permutes seeds within each "
                f"environment{holm}."
            )
        return "improvement", (
            f"Probability of improvement, which needs no common scale of environments{holm}."
        )
    if design.paired and design.seeds >= MIN_PAIRS:
        return "paired", f"Interval of the difference, paired by seed{holm}."
    reason = "seeds differ"
    if design.paired:
        reason = f"{design.seeds} pairs cannot reach p = 0.05"
    return "unpaired", f"Interval of the difference, unpaired as {reason}{holm}."
