"""Which statistic an experiment's design allows, with the reason in one sentence."""

from dataclasses import dataclass
from typing import Literal

from rlrun.errors import ConfigError
from rlrun.reports.intervals import MIN_SEEDS, few_seeds


@dataclass(frozen=True, slots=True)
class Design:
    """An experiment as far as the choice of a statistic depends on it.

    environments: how many. seeds: of a setting in an environment.
    score: "return", any number for each seed (also its share of successful episodes), or
    "success", 0 or 1 for each seed.
    normalized: scores of different environments share a scale.
    """

    environments: int
    seeds: int
    score: Literal["return", "success"] = "return"
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A statistic and the reason for it.

    statistic: "points" (each seed, no interval), "mean" (``mean_interval`` and
    ``tolerance_interval``), "success" (``success_interval``), "iqm" (``iqm``, ``optimality_gap``,
    ``performance_profile``; without intervals for few seeds), or "mean each" (every environment has
    its own mean). The report shows aggregates over environments for "iqm" alone.
    """

    statistic: str
    why: str


def choose(design: Design) -> Choice:
    """Return the statistic for ``design``.

    Raises: ConfigError for a design without environments or seeds.

    Source: Agarwal et al. 2021, section 4; Patterson et al. 2024.
    """
    environments, n = design.environments, design.seeds
    if min(environments, n) < 1:
        raise ConfigError(
            f"design = {environments} environments, {n} seeds: has nothing to summarise; one or "
            "more of each is allowed; finish a run first"
        )
    if environments > 1 and design.normalized:
        why = (
            f"{environments} environments: the interquartile mean, which no single environment or "
            "outlier decides; failed seeds show in the optimality gap and in the profile."
        )
        few = f" {few_seeds(n)}" if n < MIN_SEEDS else ""
        return Choice("iqm", why + few)
    if n < MIN_SEEDS:
        return Choice("points", few_seeds(n))
    if environments > 1:
        return Choice(
            "mean each",
            f"{environments} environments without a common scale or setting: each has its own "
            "mean, because an average would follow the environment with the largest scores.",
        )
    if design.score == "success":
        return Choice(
            "success",
            f"Each of {n} seeds succeeds or fails: the success rate with its binomial interval, "
            "because a t interval would leave 0 to 1 and be empty when all succeed.",
        )
    return Choice(
        "mean",
        f"One environment: the mean of all {n} seeds, never the IQM, which trims away the seeds "
        "that fail.",
    )
