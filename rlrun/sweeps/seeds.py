"""``seeds=auto``: seeds are added to every setting until each comparison is decided.

Settings are compared within their environment. All comparisons form one family: the probability of
naming any difference that does not exist is at most ``seeds.level``.

Source: Mathieu et al. 2024, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL
agents". The test is that of ``rlrun.reports.comparison``.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlrun.errors import ConfigError
from rlrun.reports.comparison import Comparison, Decision, can_compare
from rlrun.reports.intervals import UNBOUNDED, Bounds, mean_interval
from rlrun.reports.runs import UNDECIDED
from rlrun.schema.studies import SeedsConfig

Place = tuple[int, int]  # (index of the setting, seed)
CAVEAT = (
    "settings of equal mean and unequal spread, e.g. if only one has failing seeds, are "
    "declared different more often: see rlrun help statistics"
)


@dataclass(frozen=True)
class Setting:
    """A compared setting. ``name``: its distinguishing part; ``task``: its environment.

    ``bounds``: returns that the environment allows.
    """

    name: str
    task: str
    bounds: Bounds = UNBOUNDED


@dataclass(frozen=True)
class SeedsResult:
    """Scores of each setting, by seed from ``first_seed`` on, and the decisions so far."""

    settings: tuple[Setting, ...]
    scores: tuple[tuple[float, ...], ...]
    decision: Decision
    config: SeedsConfig
    first_seed: int

    def lines(self) -> list[str]:
        """Return the result in words."""
        lines = []
        for setting, scores in zip(self.settings, self.scores, strict=True):
            mean = mean_interval(scores, bounds=setting.bounds)
            lines.append(f"{setting.name}: {mean} ({len(scores)} seeds)")
        for (a, b), winner in self.decision.winners.items():
            names = [self.settings[i].name for i in (a, b)]
            if winner is None:
                count = min(len(self.scores[i]) for i in (a, b))
                lines.append(f"{names[0]} against {names[1]}: undecided after {count} seeds each")
                continue
            better, worse = names if winner == a else names[::-1]
            count = self.decision.seeds[a, b]
            lines.append(f"{better} is better than {worse}: decided after {count} seeds each")
        count = len(self.decision.winners)
        which = "the comparison names" if count == 1 else f"the {count} comparisons together name"
        chance = f"with a chance of at most {self.config.level:.0%} (family-wise)"
        return [*lines, f"{which} a difference between equal distributions {chance}", CAVEAT]

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of seeds.json: the plan, and the decisions so far."""
        status = self.decision.status
        return {
            **self.plan(),
            "scores": [list(scores) for scores in self.scores],
            "status": UNDECIDED if status == "undecided" else status,
            "looks": self.decision.look,
            "comparisons": [
                {
                    "settings": list(pair),
                    "better": winner,
                    "look": self.decision.looks.get(pair),
                    "seeds": self.decision.seeds.get(pair),
                }
                for pair, winner in self.decision.winners.items()
            ],
        }

    def plan(self) -> dict[str, Any]:
        """Return the choices made before the first run, on which the error rate depends.

        No part may change afterwards.
        """
        names = [setting.name for setting in self.settings]
        tasks = [setting.task for setting in self.settings]
        return {"settings": names, "tasks": tasks, "seed": self.first_seed, **asdict(self.config)}


def plan_seeds(settings: Sequence[Setting], config: SeedsConfig, first_seed: int) -> SeedsResult:
    """Return the result before the first run: no scores, every comparison undecided.

    Raises: ConfigError if nothing is compared, or more than can be tested.
    """
    pairs = _check_settings(settings)
    _check_size(settings, pairs, config)
    active = tuple(sorted({index for pair in pairs for index in pair}))
    decision = Decision("undecided", 0, dict.fromkeys(pairs), {}, {}, active, why="")
    return SeedsResult(tuple(settings), ((),) * len(settings), decision, config, first_seed)


def _check_settings(settings: Sequence[Setting]) -> list[tuple[int, int]]:
    """Return the compared pairs. Raises: ConfigError if there is none."""
    every = itertools.combinations(range(len(settings)), 2)
    pairs = [(a, b) for a, b in every if settings[a].task == settings[b].task]
    if not pairs:
        raise ConfigError(
            f"seeds = auto: nothing is compared: {len(settings)} settings, no two in the same "
            "environment; two or more are allowed; add one, e.g. policy=dqn,r2d2, or type "
            "seed=range(10)",
            key="seeds",
        )
    return pairs


def _check_size(
    settings: Sequence[Setting], pairs: Sequence[tuple[int, int]], config: SeedsConfig
) -> None:
    """Raise ConfigError if a look would take too long or too much memory."""
    looks = math.ceil(config.max / config.group)

    def fits(count: int) -> bool:
        return can_compare(count, looks=looks, seeds=config.max, alpha=config.level)

    if fits(len(pairs)):
        return
    most = 2
    while fits(most * (most + 1) // 2):
        most += 1
    raise ConfigError(
        f"seeds = auto: {len(settings)} settings make {len(pairs)} comparisons, whose {looks} "
        f"looks take too long; {most} settings of one environment are allowed (minutes for each "
        "look); name fewer, lower seeds.max, raise seeds.group, or type seed=range(10)",
        key="seeds",
    )


def check_plan(stored: Any, planned: SeedsResult, path: str) -> None:
    """Raise ConfigError if the seeds.json of a sweep, ``stored``, has another plan.

    Testing again by another plan after an undecided comparison would spend its error twice.
    """
    before = stored if isinstance(stored, dict) else {}
    for key, value in planned.plan().items():
        if before.get(key) == value:
            continue
        if key in ("settings", "tasks"):
            raise ConfigError(
                f"sweep.dir = {path}: its seeds=auto compares other settings (seeds.json); those "
                "that were planned before its first run are allowed; choose a new directory",
                key="sweep.dir",
            )
        name = "seed" if key == "seed" else f"seeds.{key}"
        raise ConfigError(
            f"{name} = {value}: {path} was planned with {name}={before.get(key)} (seeds.json); "
            "another plan after its first run would void the error rate; "
            f"type {name}={before.get(key)} or choose a new sweep.dir",
            key=name,
        )


def run_until_decided(
    planned: SeedsResult,
    run: Callable[[Sequence[Place]], Sequence[float]],
    look: Callable[[SeedsResult], None],
) -> SeedsResult:
    """Add seeds by groups until every comparison is decided or ``seeds.max`` is reached.

    ``run`` returns the scores of the places, in order. Places of an earlier, interrupted call must
    give the same scores, because an interrupted comparison is repeated from the first look.
    Settings without an undecided comparison get no more seeds. ``look`` is called with the result
    after every look.

    Raises: the errors of ``run``.
    """
    config, settings = planned.config, planned.settings
    starts = range(0, config.max, config.group)
    names = [setting.name for setting in settings]
    pairs = list(planned.decision.winners)
    comparison = Comparison(names, looks=len(starts), pairs=pairs, level=1.0 - config.level)
    active = list(planned.decision.active)
    scores: list[list[float]] = [[] for _ in settings]
    alone = [index for index in range(len(settings)) if index not in active]
    result = planned
    for start in starts:
        first = planned.first_seed
        seeds = range(first + start, first + min(start + config.group, config.max))
        places = [(index, seed) for seed in seeds for index in (*active, *alone)]
        blocks: list[list[float]] = [[] for _ in settings]
        for (index, _), score in zip(places, run(places), strict=True):
            blocks[index].append(score)
            scores[index].append(score)
        decision = comparison.update(*([] if i in alone else b for i, b in enumerate(blocks)))
        result = replace(result, scores=tuple(map(tuple, scores)), decision=decision)
        look(result)
        if decision.status != "undecided":
            break
        active, alone = sorted(decision.active), []
    return result
