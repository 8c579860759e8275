"""The section of scores: means over seeds with intervals, the next seed, success rates."""

import math
from collections.abc import Sequence

import numpy as np

from rlrun.reports import figures
from rlrun.reports.across import complete_settings
from rlrun.reports.design import Choice, Design, choose
from rlrun.reports.document import Section
from rlrun.reports.figures import MAX_GROUPS, MAX_ROWS, Picture
from rlrun.reports.findings import Findings, interval_of, reasons, uncounted
from rlrun.reports.groups import Group, best_groups
from rlrun.reports.intervals import (
    UNBOUNDED,
    mean_interval,
    success_interval,
    tolerance_interval,
)
from rlrun.reports.tables import Cell, Interval, Table, show_number

_NAN = math.nan
_COLUMNS = (
    "environment", "setting", "seeds", "score", "next seed", "min", "max", "not counted",
)  # fmt: skip


def score_section(found: Findings) -> Section:
    """The score of every group with its interval, where the next seed falls, and success rates."""
    shown = [group for place in found.environments for group in _in_table(found.of(place))]
    means = {id(g): mean_interval(g.scores, bounds=g.bounds) for g in shown if g.runs}
    nexts = {id(g): tolerance_interval(g.scores, bounds=g.bounds) for g in shown if g.runs}
    none = Interval(_NAN, _NAN, _NAN)
    cells = {key: interval_of(mean) for key, mean in means.items()}
    rows: list[tuple[Cell, ...]] = []
    for g in shown:
        following = interval_of(nexts[id(g)])._replace(value=_NAN) if g.runs else none
        low, high = (float(g.scores.min()), float(g.scores.max())) if g.runs else (_NAN, _NAN)
        rows.append(
            (g.environment, g.setting, len(g.runs), cells.get(id(g), none), following, low, high,
             uncounted(g))
        )  # fmt: skip
    whys = reasons([(g.setting, means[id(g)].why) for g in shown if g.runs])
    claims = [(g.setting, nexts[id(g)].why) for g in shown if g.runs and nexts[id(g)].claimed]
    choice = design_choice(found)
    text = [
        f"Score: {found.meaning}. A seed is one trial; episodes of a seed are not.",
        *([choice.why] if choice is not None else []),
        *(why for why in whys if choice is None or why not in choice.why),
        *(f"Next seed: {why}" for why in reasons(claims)),
        *_cuts([g for g in shown if g.runs and means[id(g)].claimed]),
        *_cautions(found),
    ]
    tables = [Table("scores", _COLUMNS, rows)]
    if (rates := _success_table(shown)) is not None:
        tables.append(rates)
        text.append(
            "Success: share of successful episodes of each seed's final weights, over seeds. The "
            "interval is binomial over seeds where every seed succeeds always or never, else that "
            "of a mean; episodes of a seed are not independent."
        )
    pictures: list[Picture] = []
    for environment in found.environments if found.draw else []:
        pictures += _score_figure(found, environment, cells)
    return Section("Scores", text, tables, pictures)


def design_choice(found: Findings) -> Choice | None:
    """Return the statistic that the design of the experiment allows; None without a score.

    Seeds: the most that a setting has, as each one with fewer says so itself. Environments share a
    scale where a setting has scores in all of them.
    """
    seeds = max((len(group.runs) for group in found.groups), default=0)
    if not seeds:
        return None
    places = {group.environment for group in found.groups if group.runs}
    return choose(Design(len(places), seeds, normalized=bool(complete_settings(found))))


def _in_table(groups: Sequence[Group]) -> list[Group]:
    """The groups in their order; of many the best first."""
    if len(groups) <= MAX_GROUPS:
        return list(groups)
    return sorted(groups, key=lambda g: -g.scores.mean() if g.runs else math.inf)


def _score_figure(found: Findings, environment: str, cells: dict[int, Interval]) -> list[Picture]:
    every = found.of(environment)
    own = _in_table(best_groups(every, MAX_ROWS))
    title = f"{found.place(environment)}every seed's score"
    if any(math.isfinite(cells[id(group)].low) for group in own if group.runs):
        title += "; a bar is a 95 % interval"
    if len(own) < len(every):
        title += f"; the best {len(own)} of {len(every)} settings"
    none = Interval(_NAN, _NAN, _NAN)
    return figures.score_figure(
        own, [cells.get(id(group), none) for group in own],
        name=found.stem("scores", environment), title=title, label=f"score ({found.kind})",
    )  # fmt: skip


def _cuts(groups: Sequence[Group]) -> list[str]:
    """Return which returns an environment allows, where that is known."""
    known = {g.environment: g.bounds for g in groups if g.bounds != UNBOUNDED}
    ranges = ", ".join(f"{env} {_range(*bounds)}" for env, bounds in known.items())
    if not known:
        return []
    return [f"Intervals end at the returns that are possible, by what is known or seen: {ranges}."]


def _range(low: float, high: float) -> str:
    if math.isinf(low):
        return f"{show_number(high)} at most"
    return f"{show_number(low)} {f'to {show_number(high)}' if math.isfinite(high) else 'at least'}"


def _cautions(found: Findings) -> list[str]:
    """What flatters a setting."""
    out = []
    diverged = [g.setting for g in found.groups if any(r.exit_code == 4 for r in g.unscored)]
    if diverged:
        out.append(
            f"Runs of {', '.join(dict.fromkeys(diverged))} diverged (exit code 4) and have no "
            "score: the mean of the others flatters a setting that diverges."
        )
    again = [f"{g.setting} (seed {r.seed})" for g in found.groups for r in g.failed_again]
    if again:
        out.append(
            f"Failed when run again: {', '.join(dict.fromkeys(again))}. The last run of a seed "
            "that is done counts, which flatters a setting that fails now and then."
        )
    if any(run.trial for run in found.runs):
        out.append(
            "The best trial of a search was chosen by these scores, which therefore flatter it; "
            "its score is the one on fresh seeds."
        )
    return out


def _success_table(groups: Sequence[Group]) -> Table | None:
    """The success rate of every group whose environment reports success; None where none does."""
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        found = [run.successes for run in group.runs if run.successes is not None]
        if found:
            shares = np.array([good / episodes for good, episodes in found])
            rate, method = success_rate(shares)
            rows.append((group.environment, group.setting, len(shares), rate, method))
    columns = ("environment", "setting", "seeds", "success", "interval")
    return Table("success", columns, rows) if rows else None


def success_rate(shares: np.ndarray) -> tuple[Interval, str]:
    """Return the mean success of seeds and the name of its interval.

    ``shares`` [n]: successful episodes of each seed, in [0, 1]; so is the interval.
    """
    n, certain = len(shares), bool(np.isin(shares, (0.0, 1.0)).all())
    choice = choose(Design(1, n, "success" if certain else "return"))
    if choice.statistic == "success":
        got = success_interval(int(shares.sum()), n)
    else:
        got = mean_interval(shares, bounds=(0.0, 1.0))
    return interval_of(got), got.method
