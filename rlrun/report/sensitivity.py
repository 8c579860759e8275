"""How the score depends on the keys that vary: main effects, and the share of variance of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.report.groups import MISSING, Group, show, varying_keys
from rlrun.report.runs import Floats, finite

MAX_KEYS = 12  # keys with the largest shares that are shown


@dataclass(frozen=True)
class Effect:
    """A key, or keys that always vary together, and the scores at each of its values.

    ``values``: as text, in order; ``numbers`` [V]: the same, NaN where one is no number;
    ``scores``: those of the runs at each value. ``share``: of the variance of all scores that
    lies between the means at the values (eta squared), in [0, 1].
    """

    keys: tuple[str, ...]
    values: list[str]
    numbers: Floats
    scores: list[Floats]
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
    by_partition: dict[tuple[int, ...], list[str]] = {}
    for name in varying_keys([group.keys for group in scored]):
        shown = [value_text(group, name) for group in scored]
        order = {text: i for i, text in enumerate(dict.fromkeys(shown))}
        by_partition.setdefault(tuple(order[text] for text in shown), []).append(name)
    found = [_effect(scored, tuple(names)) for names in by_partition.values()]
    return sorted(found, key=lambda effect: -effect.share)


def value_text(group: Group, name: str) -> str:
    return show(group.keys[name]) if name in group.keys else MISSING


def _effect(groups: Sequence[Group], names: tuple[str, ...]) -> Effect:
    names = tuple(sorted(names, key=lambda n: (not n.endswith(".name"), n.count("."))))
    by_value: dict[str, list[Floats]] = {}
    numbers: dict[str, float] = {}
    for group in groups:
        text, value = value_text(group, names[0]), group.keys.get(names[0])
        by_value.setdefault(text, []).append(group.scores)
        numbers[text] = finite(value)
    ordered = sorted(by_value, key=lambda t: numbers[t] if numbers[t] == numbers[t] else math.inf)
    scores = [np.concatenate(by_value[text]) for text in ordered]
    axis = np.array([numbers[text] for text in ordered])
    return Effect(names, ordered, axis, scores, explained(scores))


def explained(scores: Sequence[Floats]) -> float:
    """Return SS_between / SS_total of the scores at each value; 0 where all scores are equal."""
    every = np.concatenate(list(scores))
    total = float(((every - every.mean()) ** 2).sum())
    between = sum(len(x) * float((x.mean() - every.mean()) ** 2) for x in scores)
    return between / total if total > 0 else 0.0
