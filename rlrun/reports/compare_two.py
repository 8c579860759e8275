"""``rlrun compare``: two sides, each of one setting, environment by environment."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlrun.errors import ConfigError
from rlrun.reports.findings import interval_of, uncounted
from rlrun.reports.groups import Group, differences, group_runs, side_of
from rlrun.reports.intervals import mean_interval
from rlrun.reports.runs import RunData, printable, read_runs
from rlrun.reports.tables import Cell, Table, terminal_lines
from rlrun.reports.versus import Versus, corrected, sentence, versus

_MOST = 30  # keys of a config diff


def compare_lines(a: str, b: str, kind: str) -> Iterator[str]:
    """Yield the config diff, both scores and the verdict on B against A, in each environment.

    Raises: ConfigError for a side without a score, of several settings, or in other environments.
    """
    runs = {"A": read_runs([a]), "B": read_runs([b])}
    joint = group_runs([*runs["A"], *runs["B"]], kind)
    sides = {name: side_of(joint, own) for name, own in runs.items()}
    for name, argument in (("A", a), ("B", b)):
        _check_side(name, argument, sides[name])
    by_env = {name: {g.environment: g for g in groups} for name, groups in sides.items()}
    both = [env for env in by_env["A"] if env in by_env["B"]]
    if not both:
        found = {name: ", ".join(envs) for name, envs in by_env.items()}
        raise ConfigError(
            f"B = {printable(b)}: no environment in common; A has {found['A']}, B has "
            f"{found['B']}; compare runs of the same environment"
        )
    yield from _config_lines(sides["A"][0], sides["B"][0])
    yield from _code_lines(runs)
    yield ""
    yield from terminal_lines(_score_table(by_env, both))
    for name in ("A", "B"):
        if alone := [env for env in by_env[name] if env not in both]:
            yield f"only in {name}: {', '.join(alone)}"
    yield ""
    compared = corrected([_versus(by_env["A"][env], by_env["B"][env]) for env in both])
    for one in compared:
        place = f"{one.environment}: " if len(both) > 1 else ""
        yield f"{place}{sentence(one)}"
    tested = sum(not math.isnan(one.adjusted) for one in compared)
    if tested > 1:
        yield f"p is corrected for {tested} comparisons (Holm)."


def _check_side(name: str, argument: str, groups: Sequence[Group]) -> None:
    if any(group.trial for group in groups):
        raise ConfigError(
            f"{name} = {printable(argument)}: holds trials of a search, which chose by their "
            "scores, so that no test on them holds; runs on fresh seeds are allowed; compare "
            "'SEARCH_DIR/runs/final_*'"
        )
    settings = list(dict.fromkeys(group.setting for group in groups))
    if len(settings) > 1:
        raise ConfigError(
            f"{name} = {printable(argument)}: holds {len(settings)} settings "
            f"({'; '.join(settings[:4])}{'; ...' if settings[4:] else ''}); one is allowed; name "
            "its runs with a glob in quotes, or use rlrun report"
        )
    if not any(group.runs for group in groups):
        missing = "; ".join(filter(None, map(uncounted, groups))) or "no config can be read"
        raise ConfigError(
            f"{name} = {printable(argument)}: has no score ({missing}); runs that are done are "
            "needed; finish them with rlrun resume"
        )


def _versus(a: Group, b: Group) -> Versus:
    """The comparison with the sides as names."""
    return versus(replace(a, setting="A"), replace(b, setting="B"))


def _config_lines(a: Group, b: Group) -> Iterator[str]:
    rows = differences([a.keys, b.keys])
    if not rows:
        yield "config: only seeds and keys of recording differ"
        return
    shown: list[tuple[Cell, ...]] = [(name, *values) for name, values in rows[:_MOST]]
    yield from terminal_lines(Table("config", ("key", "A", "B"), shown))
    if rows[_MOST:]:
        yield f"and {len(rows) - _MOST} more keys"


def _code_lines(runs: dict[str, list[RunData]]) -> Iterator[str]:
    """Return the differences besides the config: commit and versions."""
    for what, key in (("commit", "git"), ("versions", "versions"), ("machine", "host")):
        found = {name: {str(run.record.get(key)) for run in own} for name, own in runs.items()}
        if found["A"] != found["B"]:
            yield f"{what}: differs between A and B (run.json, {key})"


def _score_table(by_env: dict[str, dict[str, Group]], both: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for env in both:
        for name in ("A", "B"):
            group = by_env[name][env]
            mean = mean_interval(group.scores, bounds=group.bounds) if group.runs else None
            score = None if mean is None else interval_of(mean)
            rows.append((env, name, len(group.runs), score, uncounted(group)))
    return Table("scores", ("environment", "side", "seeds", "score", "not counted"), rows)
