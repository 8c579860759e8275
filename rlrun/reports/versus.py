"""Comparison of two groups: the interval of the difference, and a verdict in one sentence.

Better means a higher return. ``rlrun compare`` takes two sides with one setting each.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rlrun.errors import ConfigError
from rlrun.reports import document
from rlrun.reports.comparison import (
    CAVEAT,
    PERMUTATIONS,
    Difference,
    aggregate_difference,
    difference,
    holm,
    probability_of_improvement,
)
from rlrun.reports.findings import Findings, interval_of, uncounted
from rlrun.reports.groups import Group, differences, group_runs, scored, side_of
from rlrun.reports.intervals import LEVEL, MIN_SEEDS, Estimate, balanced
from rlrun.reports.runs import SEEDS, parse_score, printable, read_runs

ALL_PAIRS = 4  # groups of which every pair is compared
PAIRS = 10  # seeds from which sides are paired: p can be small enough for 25 comparisons
ACROSS = "all (IQM)"
T = TypeVar("T")


@dataclass(frozen=True)
class Versus:
    """Group ``b`` against group ``a`` in an environment.

    ``gap``: score of b minus score of a. ``chance``: probability that a seed of b beats one of a.
    ``adjusted``: p of the gap, corrected for the number of comparisons; NaN if there is no test.
    """

    environment: str
    a: str
    b: str
    gap: Difference
    chance: Estimate
    paired: bool
    adjusted: float
    family: int = 1
    stopped: bool = False  # seeds=auto chose when to stop: p would not hold

    @property
    def winner(self) -> str | None:
        """Return the better setting, or None while that is undecided."""
        if not self.gap.decided or not self.adjusted <= 1 - LEVEL + 1e-12:
            return None
        return self.b if self.gap.value > 0 else self.a

    @property
    def short(self) -> str:
        """Return the verdict in a word, for a table with the numbers."""
        if self.stopped:
            return "see sequential seeds"
        after = " after correction" if self.gap.decided else ""
        return f"{self.winner} is better" if self.winner else f"undecided{after}"

    @property
    def verdict(self) -> str:
        """Return the verdict with the difference."""
        gap = interval_of(self.gap)
        if self.stopped:
            return f"not tested: seeds=auto chose when to stop; see {SEEDS} or rlrun report;"
        if math.isnan(self.adjusted):
            return f"undecided: {self.gap.why}"
        if self.winner:
            margin = gap if gap.value > 0 else document.Interval(-gap.value, -gap.high, -gap.low)
            return f"{self.winner} is better by {document.show_cell(margin)}"
        text = f"{self.b} minus {self.a} is {document.show_cell(gap)}"
        if self.gap.decided:
            return f"undecided after correction for {self.family} comparisons: {text}"
        low, high = self.gap.low, self.gap.high
        if low is None or high is None:
            return f"undecided: {text}"
        if low <= 0 <= high:
            return f"undecided: {text}, which includes 0"
        return f"undecided: {text}, which leaves out 0, but p is above {1 - LEVEL:.2g}"


def same_seeds(a: Group, b: Group) -> bool:
    """Return whether two groups have the same, known seeds."""
    return a.seeds == b.seeds and None not in a.seeds


def versus(a: Group, b: Group) -> Versus:
    """Return the comparison of two groups with scores.

    It is paired if they have the same seeds and at least ``PAIRS`` of them. This depends only on
    the two groups, so ``rlrun report`` and ``rlrun compare`` give the same interval.

    If one side lacks a seed, nothing is paired, and ``gap.why`` says how many pairs are unused. A
    seed is usually missing because its run failed. Leaving out its partner would compare only the
    seeds that both sides survived, and other means than the report shows.
    """
    paired = same_seeds(a, b) and len(a.runs) >= PAIRS
    gap = difference(b.scores, a.scores, paired=paired)
    if unused := _unused_pairs(a, b):
        gap = replace(gap, why=f"{gap.why.rstrip('.')}; {unused}.")
    chance = probability_of_improvement(b.scores, a.scores)
    stopped = a.stopped or b.stopped
    p = math.nan if gap.p is None or stopped else gap.p
    return Versus(a.environment, a.setting, b.setting, gap, chance, paired, p, stopped=stopped)


def _unused_pairs(a: Group, b: Group) -> str:
    """Return why the seeds that both groups have are not paired, "" if they are, or are few."""
    both = {*a.seeds} & {*b.seeds} - {None}
    if len(both) < PAIRS or same_seeds(a, b):
        return ""
    lacking = len({*a.seeds} ^ {*b.seeds})
    seeds = "1 seed is" if lacking == 1 else f"{lacking} seeds are"
    return f"{len(both)} pairs of equal seed are not used, as {seeds} on one side only"


def pairs(groups: Sequence[T]) -> list[tuple[T, T]]:
    """Return the compared pairs: all of at most ``ALL_PAIRS``, else each with the first."""
    if len(groups) <= ALL_PAIRS:
        return list(itertools.combinations(groups, 2))
    return [(groups[0], other) for other in groups[1:]]


def corrected(comparisons: Sequence[Versus]) -> list[Versus]:
    """Return comparisons with p adjusted for their number (Holm)."""
    out = list(comparisons)
    tested = [i for i, pair in enumerate(comparisons) if not math.isnan(pair.adjusted)]
    for i, p in zip(tested, holm([comparisons[i].adjusted for i in tested]), strict=True):
        out[i] = replace(comparisons[i], adjusted=p, family=len(tested))
    return out


def compare_all(findings: Findings) -> list[Versus]:
    """Return every comparison of a report, corrected as one family."""
    out = [
        versus(*pair) for env in findings.environments for pair in pairs(scored(findings.of(env)))
    ]
    for a, b in pairs(list(findings.matrices)):
        x, y = (balanced(findings.matrices[name])[0] for name in (b, a))
        gap, chance = aggregate_difference(x, y), probability_of_improvement(x, y)
        stopped = any(group.stopped for name in (a, b) for group in findings.complete[name])
        p = math.nan if gap.p is None or stopped else gap.p
        out.append(Versus(ACROSS, a, b, gap, chance, False, p, stopped=stopped))
    return corrected(out)


_COLUMNS = (
    "B - A is the interval of the difference: the intervals of A and B may overlap although the "
    "difference is clear. P(B > A) is how often a seed of B beats one of A."
)


def comparison_section(findings: Findings) -> document.Section | None:
    """Return the comparisons of a report, with a sentence on each.

    None with fewer than two settings in an environment.
    """
    every = compare_all(findings)
    if all(pair.stopped for pair in every):
        return None
    rows: list[tuple[document.Cell, ...]] = [
        (pair.environment, pair.a, pair.b, interval_of(pair.gap), interval_of(pair.chance),
         pair.adjusted, "" if math.isnan(pair.adjusted) else "by seed" if pair.paired else "no",
         pair.short)
        for pair in every
    ]  # fmt: skip
    tested = sum(not math.isnan(pair.adjusted) for pair in every)
    rule = "A verdict needs p of at most 0.05 and an interval without 0."
    if tested > 1:
        rule = (
            f"A verdict needs a p of at most 0.05, corrected for {tested} comparisons (Holm), and "
            "an interval without 0, which is not corrected."
        )
    text = [f"No comparison is decided with fewer than {MIN_SEEDS} seeds per side."]
    text = [_COLUMNS, rule, CAVEAT] if tested else text
    largest = max((scored(findings.of(env)) for env in findings.environments), key=len)
    if len(largest) > ALL_PAIRS:
        first = largest[0].setting
        text.append(
            f"More than {ALL_PAIRS} settings: each is compared with {first} alone (--baseline)."
        )
    seeds = max(len(group.runs) for group in findings.groups)
    patterns = 2 ** (seeds - 1) if seeds >= PAIRS else math.comb(2 * seeds, seeds) / 2
    smallest_p = max(1 / patterns, 1 / PERMUTATIONS)  # of two groups of so many seeds each
    if tested and not findings.matrices and smallest_p * tested > 1 - LEVEL:
        text.append(
            f"{seeds} seeds cannot decide any of {tested} comparisons: add seeds, or compare two "
            "settings with rlrun compare."
        )
    columns = ("environment", "A", "B", "B - A", "P(B > A)", "p", "paired", "verdict")
    places = len({pair.environment for pair in every}) > 1
    sentences = [
        f"{pair.environment}: " * places + sentence(pair) for pair in every if not pair.stopped
    ]
    table = document.Table("comparisons", columns, rows)
    return document.Section("Comparisons", text, [table], lead=sentences)


def sentence(pair: Versus) -> str:
    """Return the verdict with its basis."""
    if math.isnan(pair.adjusted):
        return f"{pair.verdict} {pair.b} minus {pair.a}: {document.show_number(pair.gap.value)}."
    how = "paired by seed" if pair.paired else pair.gap.method
    return f"{pair.verdict} (95 %, {how}, p = {pair.adjusted:.2g}; {pair.gap.why.rstrip('.')})."


_MOST = 30  # keys of a config diff


def compare_lines(a: str, b: str, kind: str) -> Iterator[str]:
    """Yield the verdict on B against A in each environment, both scores and what differs.

    ``kind``: the score, as in `score`.

    Raises: ConfigError for a side without a score, of several settings, or in other environments.
    """
    parse_score(kind)
    runs = {"A": read_runs([a]), "B": read_runs([b])}
    joint = group_runs([*runs["A"], *runs["B"]], kind)
    sides = {name: side_of(joint, side) for name, side in runs.items()}
    _check_side("A", a, sides["A"])
    _check_side("B", b, sides["B"])
    by_env = {name: {g.environment: g for g in groups} for name, groups in sides.items()}
    both = [env for env in by_env["A"] if env in by_env["B"]]
    if not both:
        raise ConfigError(
            f"B = {printable(b)}: no environment in common; A has {', '.join(by_env['A'])}, B has "
            f"{', '.join(by_env['B'])}; compare runs of the same environment"
        )
    named = ([replace(by_env[name][env], setting=name) for name in ("A", "B")] for env in both)
    compared = corrected([versus(a, b) for a, b in named])
    yield from (f"{pair.environment}: " * (len(both) > 1) + sentence(pair) for pair in compared)
    tested = sum(not math.isnan(pair.adjusted) for pair in compared)
    if tested:
        yield CAVEAT + (f" p is corrected for {tested} comparisons (Holm)." if tested > 1 else "")
    yield f"A = {printable(a)}, B = {printable(b)}"
    yield ""
    rows: list[tuple[document.Cell, ...]] = [
        (env, name, len(group.runs), interval_of(group.mean), uncounted(group))
        for env in both for name, group in (("A", by_env["A"][env]), ("B", by_env["B"][env]))
    ]  # fmt: skip
    columns = ("environment", "side", "seeds", "score", "not counted")
    yield from document.terminal_lines(document.Table("scores", columns, rows))
    for name, envs in by_env.items():
        if alone := [env for env in envs if env not in both]:
            yield f"only in {name}: {', '.join(alone)}"
    yield ""
    yield from _config_lines(sides["A"][0], sides["B"][0])
    for what, key in (("commit", "git"), ("versions", "versions"), ("machine", "host")):
        values = {name: {str(run.record.get(key)) for run in side} for name, side in runs.items()}
        if values["A"] != values["B"]:
            yield f"{what}: differs between A and B (run.json, {key})"


def _check_side(name: str, argument: str, groups: Sequence[Group]) -> None:
    settings = list(dict.fromkeys(group.setting for group in groups))
    if any(group.trial for group in groups):
        wrong = (
            "holds trials of a search, which chose by their scores, so that no test on them holds; "
            "runs on fresh seeds are allowed; compare 'SEARCH_DIR/runs/final_*'"
        )
    elif len(settings) > 1:
        wrong = (
            f"holds {len(settings)} settings ({'; '.join(settings[:4])}"
            f"{'; ...' if settings[4:] else ''}); one is allowed; name its runs with a glob in "
            "quotes, or use rlrun report"
        )
    elif not any(group.runs for group in groups):
        missing = "; ".join(filter(None, map(uncounted, groups))) or "no config can be read"
        wrong = f"has no score ({missing}); runs that are done are needed; finish them with rlrun "
        wrong += "resume"
    else:
        return
    raise ConfigError(f"{name} = {printable(argument)}: {wrong}")


def _config_lines(a: Group, b: Group) -> Iterator[str]:
    rows = differences([a.keys, b.keys])
    if not rows:
        yield "config: only seeds and keys of recording differ"
        return
    shown: list[tuple[document.Cell, ...]] = [(name, *values) for name, values in rows[:_MOST]]
    yield from document.terminal_lines(document.Table("config", ("key", "A", "B"), shown))
    if rows[_MOST:]:
        yield f"and {len(rows) - _MOST} more keys"
