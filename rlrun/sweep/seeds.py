"""``seeds=auto``: seeds are added to every setting until each comparison is decided.

Settings are compared within their environment. All comparisons together are one family: the chance
that any of them names a difference that is not there is at most ``seeds.level``.

Source: Mathieu et al. 2024, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL
agents"; the test is that of ``rlrun.report.sequential``.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.errors import ConfigError
from rlrun.report.intervals import mean_interval
from rlrun.report.sequential import Comparison, Decision
from rlrun.schema import SeedsConfig

Place = tuple[int, int]  # (index of the setting, seed)


@dataclass(frozen=True)
class Setting:
    """What is compared. ``name``: what sets it apart; ``task``: its environment."""

    name: str
    task: str


@dataclass(frozen=True)
class SeedsResult:
    """Scores of each setting, by seed from the first one on, and what they decided."""

    settings: tuple[Setting, ...]
    scores: tuple[tuple[float, ...], ...]
    decision: Decision
    level: float

    @property
    def undecided(self) -> list[tuple[int, int]]:
        """Pairs of settings of which none is known to be better."""
        return [pair for pair, winner in self.decision.winners.items() if winner is None]

    def lines(self) -> list[str]:
        """The result in words."""
        found = []
        for setting, scores in zip(self.settings, self.scores, strict=True):
            e = mean_interval(scores)
            interval = "" if e.low is None else f" [{e.low:.6g}, {e.high:.6g}]"
            found.append(f"{setting.name}: {e.value:.6g}{interval} ({len(scores)} seeds)")
        for (a, b), winner in self.decision.winners.items():
            names = [self.settings[i].name for i in (a, b)]
            if winner is None:
                count = min(len(self.scores[i]) for i in (a, b))
                found.append(f"{names[0]} against {names[1]}: undecided after {count} seeds each")
                continue
            better, worse = names if winner == a else names[::-1]
            count = self.decision.seeds[a, b]
            found.append(f"{better} is better than {worse}: decided after {count} seeds each")
        count = len(self.decision.winners)
        which = "the comparison names" if count == 1 else f"the {count} comparisons together name"
        found.append(
            f"{which} a difference that is not there with a chance of at most {self.level:.0%} "
            "(family-wise)"
        )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Contents of seeds.json."""
        return {
            "settings": [setting.name for setting in self.settings],
            "tasks": [setting.task for setting in self.settings],
            "scores": [list(scores) for scores in self.scores],
            "level": self.level,
            "status": self.decision.status,
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


def check_settings(settings: Sequence[Setting]) -> list[tuple[int, int]]:
    """Return the pairs that are compared. Raises: ConfigError when there is none."""
    indices = range(len(settings))
    pairs = [
        (a, b)
        for a, b in itertools.combinations(indices, 2)
        if settings[a].task == settings[b].task
    ]
    if not pairs:
        raise ConfigError(
            f"seeds = auto: nothing is compared: {len(settings)} settings, no two in the same "
            "environment; two or more are allowed; add one, e.g. policy=dqn,r2d2, or type "
            "seed=range(10)",
            key="seeds",
        )
    return pairs


def run_until_decided(
    settings: Sequence[Setting],
    config: SeedsConfig,
    run: Callable[[Sequence[Place]], Sequence[float]],
    *,
    first_seed: int,
    say: Callable[[str], None] = print,
) -> SeedsResult:
    """Add seeds by groups until every comparison is decided or ``config.max`` is reached.

    ``run`` returns the scores of runs, equal for equal calls: a comparison that was interrupted is
    done again from the first look. Settings that are in no undecided comparison get no more seeds.

    Raises: ConfigError when there is nothing to compare; what ``run`` raises.
    """
    pairs = check_settings(settings)
    starts = range(0, config.max, config.group)
    names = [setting.name for setting in settings]
    comparison = Comparison(names, looks=len(starts), pairs=pairs, level=1.0 - config.level)
    active = sorted({index for pair in pairs for index in pair})
    scores: list[list[float]] = [[] for _ in settings]
    alone = [index for index in range(len(settings)) if index not in active]
    for start in starts:
        seeds = range(first_seed + start, first_seed + min(start + config.group, config.max))
        places = [(index, seed) for seed in seeds for index in (*active, *alone)]
        blocks: list[list[float]] = [[] for _ in settings]
        for (index, _), score in zip(places, run(places), strict=True):
            blocks[index].append(score)
            scores[index].append(score)
        decision = comparison.update(*([] if i in alone else b for i, b in enumerate(blocks)))
        say(decision.why)
        if decision.status != "undecided":
            break
        active, alone = sorted(decision.active), []
    result = tuple(tuple(found) for found in scores)
    return SeedsResult(tuple(settings), result, decision, config.level)
