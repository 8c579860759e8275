"""How the score depends on the keys that vary: main effects, and the share of variance of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.reports.groups import MISSING, Group, show, varying_keys
from rlrun.reports.records import Floats
from rlrun.reports.runs import finite

MAX_LEVELS = 8  # values of a number, above which they are put into ranges
BINS = 5  # ranges with equally many values
MAX_KEYS = 12  # keys with the largest shares that are shown


@dataclass(frozen=True)
class Level:
    """A value of a key, or a range of values. ``x`` [n], ``scores`` [n]: of its runs."""

    name: str
    x: Floats
    scores: Floats


@dataclass(frozen=True)
class Effect:
    """A key, or keys that always vary together, and the scores at each of its values.

    ``values``: every value as text, in order; ``numbers`` [V]: the same, NaN where one is no
    number. ``levels``: the values, or ranges of a number that has more than ``MAX_LEVELS``.
    ``share``: of the variance of all scores that lies between the means of the levels (eta
    squared), in [0, 1].
    """

    keys: tuple[str, ...]
    values: list[str]
    numbers: Floats
    levels: list[Level]
    share: float

    @property
    def name(self) -> str:
        """The first key, and how many always vary with it."""
        more = len(self.keys) - 1
        return self.keys[0] + (f" (and {more} with it)" if more else "")


def effects(groups: Sequence[Group]) -> list[Effect]:
    """Return the main effects of the keys that vary between groups of one environment.

    Largest share first. The share is SS_between / SS_total over runs, one key at a time: shares of
    a balanced grid add up to at most 1, the rest is interactions and seeds. With few runs for each
    value it is biased upwards, and keys that are correlated share what they explain.

    Source: Fisher 1925, the correlation ratio; main effects as in Hutter et al. 2014, section 2.
    """
    scored = [group for group in groups if len(group.runs)]
    by_partition: dict[tuple[object, ...], list[str]] = {}
    for name in varying_keys([group.keys for group in scored]):
        shown = [value_text(group, name) for group in scored]
        order = {text: i for i, text in enumerate(dict.fromkeys(shown))}
        own = name if len(order) > MAX_LEVELS else None  # a sampled number has a value for each
        by_partition.setdefault((own, *(order[text] for text in shown)), []).append(name)
    found = [_effect(scored, tuple(names)) for names in by_partition.values()]
    return sorted(found, key=lambda effect: -effect.share)


def value_text(group: Group, name: str) -> str:
    """The value of a key in a group, as the command line writes it."""
    return show(group.keys[name]) if name in group.keys else MISSING


def _effect(groups: Sequence[Group], names: tuple[str, ...]) -> Effect:
    names = tuple(
        sorted(names, key=lambda n: (n != "policy.name", not n.endswith(".name"), n.count(".")))
    )
    numbers = {value_text(g, names[0]): finite(g.keys.get(names[0])) for g in groups}
    ordered = sorted(numbers, key=lambda t: math.inf if math.isnan(numbers[t]) else numbers[t])
    axis = np.array([numbers[text] for text in ordered])
    sets = [[text] for text in ordered]
    if len(ordered) > MAX_LEVELS and np.isfinite(axis).all():
        sets = [list(part) for part in np.array_split(np.array(ordered), BINS)]
    levels = []
    for texts in sets:
        members = [group for group in groups if value_text(group, names[0]) in texts]
        x = [np.full(len(g.scores), numbers[value_text(g, names[0])]) for g in members]
        name = texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
        scores = np.concatenate([group.scores for group in members])
        levels.append(Level(str(name), np.concatenate(x), scores))
    return Effect(names, ordered, axis, levels, explained([level.scores for level in levels]))


def explained(scores: Sequence[Floats]) -> float:
    """Return SS_between / SS_total of the scores at each level; 0 where all scores are equal."""
    every = np.concatenate(list(scores))
    spread = float(np.ptp(every))
    if spread <= 1e-12 * float(np.abs(every).max()):  # the sums of squares are rounding
        return 0.0
    center = every.mean()
    total = float(np.square((every - center) / spread).sum())
    between = sum(len(x) * float((x - center).mean() / spread) ** 2 for x in scores)
    return min(1.0, between / total)
