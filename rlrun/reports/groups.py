"""Runs that differ only in the seed: their names, keys, learning curves and main effects of keys.

Curves are aligned by the last observation carried forward: at every point of the axis a seed has
the value of its newest evaluation. Interpolation would use evaluations that were not made yet, so
curves would rise too early and sample efficiency would look too good. A finished run keeps its last
value to the end of the axis, because its final weights are its result. Mean and band are those of
the finished runs, at points where all of them have a value, so that every point is a mean over the
same seeds. Runs that failed or are still running are also drawn, and so are finished runs with
damaged or missing evaluations, which the report names. Seeds, mean and band are steps at the same
points of the axis.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rlrun.log.trial import IGNORED, IGNORED_GROUPS
from rlrun.reports import intervals
from rlrun.reports.bounds import return_bounds
from rlrun.reports.runs import Floats, RunData, finite, flatten, printable, resolve, score
from rlrun.schema.override import read_overrides
from rlrun.schema.run import EnvConfig

_ENVIRONMENT = ("env.id", "env.kwargs", "env.eval_kwargs")  # where the score is measured
_DEFAULTS = {f"env.{f.name}" for f in fields(EnvConfig) if "default_of" in f.metadata}
_LONGEST = 60  # characters of a label
TRIAL = " (trial)"  # runs by whose scores a search has chosen
MISSING = "(no such key)"


@dataclass(frozen=True)
class Group:
    """Runs of one setting in one environment.

    ``runs``: those with a score, one per seed, sorted by seed. ``unscored``: not done. ``repeats``:
    further runs of a seed that is already in ``runs``, which are not independent evidence.
    """

    environment: str
    setting: str
    keys: dict[str, Any]
    kind: str
    bounds: intervals.Bounds = intervals.UNBOUNDED  # returns that the environment allows
    runs: list[RunData] = field(default_factory=list)
    unscored: list[RunData] = field(default_factory=list)
    repeats: list[RunData] = field(default_factory=list)

    @cached_property
    def scores(self) -> Floats:
        """The scores of ``runs``, [n]."""
        return np.array([score(run, self.kind) for run in self.runs], np.float64)

    @cached_property
    def mean(self) -> intervals.Estimate | None:
        """Their mean with its interval, or None without a score."""
        return intervals.mean_interval(self.scores, bounds=self.bounds) if self.runs else None

    @cached_property
    def next_seed(self) -> intervals.Estimate | None:
        """The interval in which the next seed falls, or None without a score."""
        return intervals.tolerance_interval(self.scores, bounds=self.bounds) if self.runs else None

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]

    @property
    def trial(self) -> bool:
        """Whether a search has chosen by these scores, so that they are not a sample to test."""
        return any(run.trial for run in self.runs)

    @property
    def stopped(self) -> bool:
        """Whether seeds=auto chose when to stop, which makes ordinary tests invalid."""
        return any(run.auto is not None for run in self.runs)

    @property
    def failed_again(self) -> list[RunData]:
        """Runs that failed although an earlier run of their seed is done and counts."""
        began = {run.seed: run.text("started") for run in self.runs}
        failed = [run for run in self.unscored if run.status == "failed"]
        return [run for run in failed if began.get(run.seed, "~") < run.text("started")]

    @property
    def everything(self) -> list[RunData]:
        """Every run of the group."""
        return [*self.runs, *self.unscored, *self.repeats]


def group_runs(runs: Sequence[RunData], kind: str = "final") -> list[Group]:
    """Return the groups, in the order of their first run. Runs without a config are left out.

    ``kind``: the score, see `score`.
    """
    usable = [run for run in runs if run.config and run.status != "damaged"]
    environments = _environments(usable)
    settings = _settings(usable, environments)
    distinct = {_canonical(keys): keys for keys in settings}
    typed_keys = []
    for key in (override.key for run in usable for override in read_overrides(run.overrides)):
        # ``policy=dqn`` is policy.name, ``env.length=9`` may be an argument.
        typed_keys += [key, f"{key}.name", key.replace("env.", "env.kwargs.", 1)]
    labels = dict(zip(distinct, labels_of(list(distinct.values()), typed_keys), strict=True))
    by_place: dict[str, list[RunData]] = {}
    by_key: dict[tuple[str, str, bool], list[RunData]] = {}
    for run, place, keys in zip(usable, environments, settings, strict=True):
        by_place.setdefault(place, []).append(run)
        by_key.setdefault((place, _canonical(keys), run.trial), []).append(run)
    bounds = {place: return_bounds(members) for place, members in by_place.items()}
    groups = [Group(place, labels[key] + TRIAL * trial, distinct[key], kind, bounds[place])
              for place, key, trial in by_key]  # fmt: skip
    return [_fill(*entry) for entry in zip(groups, by_key.values(), strict=True)]


def _fill(group: Group, members: Sequence[RunData]) -> Group:
    """Return a group with its runs. Of several scored runs of a seed, the newest counts."""
    by_seed: dict[int | None, list[RunData]] = {}
    for run in members:
        if score(run, group.kind) is None:
            group.unscored.append(run)
        else:
            by_seed.setdefault(run.seed, []).append(run)
    for seed in sorted(by_seed, key=lambda s: -1 if s is None else s):
        *earlier, newest = sorted(by_seed[seed], key=lambda run: run.text("started"))
        group.runs.append(newest)
        group.repeats.extend(earlier)
    return group


def scored(groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose scores may be tested, because no search has chosen by them."""
    return [group for group in groups if group.runs and not group.trial]


def best_groups(groups: Sequence[Group], count: int) -> list[Group]:
    """Return the groups with the highest mean scores, in their own order."""
    if len(groups) <= count:
        return list(groups)
    means = [group.scores.mean() if group.runs else -math.inf for group in groups]
    kept = np.argsort(means)[::-1][:count]
    return [groups[i] for i in sorted(kept)]


def side_of(groups: Sequence[Group], runs: Sequence[RunData]) -> list[Group]:
    """Return the groups restricted to ``runs``. Empty ones are left out."""
    ids = {id(run) for run in runs}
    members = [[run for run in group.everything if id(run) in ids] for group in groups]
    return [_fill(replace(group, runs=[], unscored=[], repeats=[]), kept)
            for group, kept in zip(groups, members, strict=True) if kept]  # fmt: skip


def relevant(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a config that change what is computed."""
    return {name: value for name, value in keys.items()
            if name not in IGNORED and not name.startswith(IGNORED_GROUPS)}  # fmt: skip


def _is_environment(name: str) -> bool:
    return ".".join(name.split(".")[:2]) in _ENVIRONMENT


def _environments(runs: Sequence[RunData]) -> list[str]:
    """Return the name of each run's environment: its id, and arguments that vary with that id."""
    keys = [{n: v for n, v in run.keys.items() if _is_environment(n)} for run in runs]
    varying = {
        env_id: varying_keys([k for k in keys if k.get("env.id") == env_id])
        for env_id in {_canonical(k.get("env.id")): k.get("env.id") for k in keys}.values()
        if isinstance(env_id, str)
    }
    names = []
    for env_keys in keys:
        env_id = env_keys.get("env.id")
        parts = [printable(env_id).rpartition("/")[2]]
        for name in varying.get(env_id, []) if isinstance(env_id, str) else []:
            if env_keys.get(name, {}) != {}:
                short = name.removeprefix("env.").removeprefix("kwargs.")
                parts.append(f"{short}={show(env_keys[name])}")
        names.append(" ".join(parts))
    return names


def _settings(runs: Sequence[RunData], environments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the keys of each run except those of its environment.

    Keys below ``env`` that are constant within every environment belong to it (env.stop_return).
    Runs of an earlier version may lack one that is the default of another key, which tells.
    """
    newer = {name for name in _DEFAULTS if any(name not in run.keys for run in runs)}
    keys = [
        {n: v for n, v in relevant(run.keys).items() if n not in newer and not _is_environment(n)}
        for run in runs
    ]
    places = dict.fromkeys(environments)
    if len(places) < 2:
        return folded(
            [{n: resolve(v, r.keys) for n, v in k.items()} for k, r in zip(keys, runs, strict=True)]
        )
    for run_keys, run in zip(keys, runs, strict=True):
        run_keys |= {n: resolve(v, run.keys) for n, v in run_keys.items() if not _of_env(v)}
    _refer(keys, runs)
    varying = set()
    for place in places:
        inside = [k for k, e in zip(keys, environments, strict=True) if e == place]
        varying.update(varying_keys(inside))
    return folded([{n: v for n, v in k.items() if n[:4] != "env." or n in varying} for k in keys])


def folded(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return configs whose mappings are single values if other configs have a value or another
    kind.

    So a schedule and a constant have the same name: ``policy.lr``, not ``policy.lr.start``.
    """
    fields: dict[str, set[frozenset[str]]] = {}  # mapping with a kind -> its keys in each config
    for keys in configs:
        below: dict[str, set[str]] = {}
        for name in keys:
            parent, _, last = name.rpartition(".")
            below.setdefault(parent, set()).add(last)
        for name, lasts in below.items():
            if "kind" in lasts:
                fields.setdefault(name, set()).add(frozenset(lasts))
    used = {name for keys in configs for name in keys}
    whole = {name for name, sets in fields.items() if len(sets) > 1 or name in used}
    out: list[dict[str, Any]] = [{} for _ in configs]
    for folded_keys, keys in zip(out, configs, strict=True):
        for name, value in keys.items():
            parent, _, last = name.rpartition(".")
            if parent in whole:
                folded_keys.setdefault(parent, {})[last] = value
            else:
                folded_keys[name] = value
    return out


def _of_env(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("${env.")


def _refer(keys: Sequence[dict[str, Any]], runs: Sequence[RunData]) -> None:
    """Write a value as ``${env.key}`` if another run does and the values are equal.

    Resolved, they would differ between environments.
    """
    references: dict[str, dict[str, None]] = {}
    for run_keys in keys:
        for name, value in run_keys.items():
            if _of_env(value):
                references.setdefault(name, {})[value] = None
    for run_keys, run in zip(keys, runs, strict=True):
        for name in references.keys() & run_keys.keys():
            same = (r for r in references[name] if resolve(r, run.keys) == run_keys[name])
            run_keys[name] = next(same, run_keys[name])


def identity(config: dict[str, Any]) -> str:
    """Return a text that is equal for configs that compute the same, including the seed."""
    keys = dict(flatten(config))
    used = {"seed": keys.get("seed"), **relevant(keys)}
    return _canonical({n: resolve(v, keys) for n, v in used.items() if n not in _DEFAULTS})


def varying_keys(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys, in the order of the configs, with several values (or missing ones)."""
    names = dict.fromkeys(name for keys in configs for name in keys)
    return [n for n in names if len({_canonical(k.get(n, MISSING)) for k in configs}) > 1]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def labels_of(configs: Sequence[dict[str, Any]], typed_keys: Sequence[str] = ()) -> list[str]:
    """Return a short distinct name for each of several distinct settings.

    Names use the keys that distinguish them: the policy, then keys of the command line. A key that
    distinguishes no more of them is left out.
    """
    if len(configs) < 2:
        return [show(keys.get("policy.name", "all runs")) for keys in configs]
    varying = varying_keys(configs)
    rank = {name: i for i, name in reversed(list(enumerate(typed_keys)))}
    refers = {n for n in varying if any(str(k.get(n)).startswith("${") for k in configs)}
    varying.sort(key=lambda n: (
        n != "policy.name", n not in rank, rank.get(n, 0), not n.endswith(".name"), n in refers
    ))  # fmt: skip
    chosen: list[str] = []
    parts = 1
    for name in varying:
        split = len({_canonical([k.get(c, MISSING) for c in [*chosen, name]]) for k in configs})
        if split > parts:
            chosen, parts = [*chosen, name], split
        if parts == len(configs):
            break
    labels = _labels(configs, {name: _last_part(name) for name in chosen})
    if max(map(len, labels)) > _LONGEST:
        labels = _labels(configs, _first_words(chosen))
    short = [x if len(x) <= _LONGEST else f"{x[: _LONGEST - 1]}…" for x in labels]
    if len(set(short)) < len(short):
        short = [f"{x[: _LONGEST - 8]} ({i})" for i, x in enumerate(labels, 1)]
    return short


def _labels(configs: Sequence[dict[str, Any]], names: dict[str, str]) -> list[str]:
    """Return ``short name=value`` of each of ``names`` (key -> short name) in each config.

    Values that are left to the environment are not named, unless labels would be equal.
    """
    missing = f"{next(iter(names.values()))}={MISSING}"
    full, short = [], []
    for keys in configs:
        parts = {key: ("" if key == "policy.name" else f"{name}=") + show(keys[key])
                 for key, name in names.items() if key in keys}  # fmt: skip
        typed = [text for key, text in parts.items() if not _of_env(keys[key])]
        full.append(" ".join(parts.values()) or missing)
        short.append(" ".join(typed) or full[-1])
    return short if len(set(short)) == len(set(full)) else full


def _last_part(key: str) -> str:
    return key.removesuffix(".name") if key.endswith(".name") else key.rpartition(".")[2]


def _first_words(keys: Sequence[str]) -> dict[str, str]:
    """Return ``state`` for ``policy.state_init`` if no other key is ``state``."""
    words = {key: _last_part(key).partition("_")[0] for key in keys}
    often = Counter(words.values())
    return {key: word if often[word] == 1 else _last_part(key) for key, word in words.items()}


def show(value: Any) -> str:
    """Return a config value as the command line writes it, ``${env.key}`` as ``env.key``."""
    if isinstance(value, str):
        return printable(value[2:].removesuffix("}") if _of_env(value) else value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict) and "kind" in value:
        return _schedule(value)
    return printable(json.dumps(value, default=str, ensure_ascii=False))


def _schedule(fields: dict[str, Any]) -> str:
    """Return a schedule in words: ``linear 0.001 to 0 over 50000``, a constant as its number."""
    kind, start, end, over, points = map(fields.get, ("kind", "start", "end", "over", "points"))
    text = f"{show(kind)} {show(start)} to {show(end)}"
    if points is not None:
        text = f"{show(kind)} {show(points)}"
    elif kind == "constant":
        text = show(start)
    elif over is not None:
        text += f" over {show(over)}"
    return printable(text)


def differences(configs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return (key, value in each config) of every key in which they differ."""
    return [(name, [value_text(keys, name) for keys in configs]) for name in varying_keys(configs)]


def value_text(keys: Mapping[str, Any], name: str) -> str:
    """Return the value of a key in a config, as the command line writes it."""
    return show(keys[name]) if name in keys else MISSING


MAX_LEVELS = 8  # values of a number; more are grouped into ranges
BINS = 5  # ranges with equally many values
MAX_KEYS = 12  # shown keys, those with the largest shares


@dataclass(frozen=True)
class Level:
    """A value of a key, or a range of values. ``x`` [n], ``scores`` [n]: of its runs."""

    name: str
    x: Floats
    scores: Floats


@dataclass(frozen=True)
class Effect:
    """A key, or keys that always vary together, and the scores at each of its values.

    ``values``: every value as text, in order. ``numbers`` [V]: the same as numbers, or NaN.
    ``levels``: the values, or ranges of a number with more than ``MAX_LEVELS`` values. ``share``:
    of the variance of all scores between the means of the levels (eta squared), in [0, 1].
    """

    keys: tuple[str, ...]
    values: list[str]
    numbers: Floats
    levels: list[Level]
    share: float

    @property
    def name(self) -> str:
        """The first key, and how many always vary with it."""
        others = len(self.keys) - 1
        return self.keys[0] + (f" (and {others} with it)" if others else "")


def effects(groups: Sequence[Group]) -> list[Effect]:
    """Return the main effects of the keys that vary between groups of one environment.

    The largest share is first. The share is SS_between / SS_total over runs, one key at a time.
    Shares of a balanced grid add up to at most 1; the rest is interactions and seeds. With few runs
    per value it is biased upwards. Correlated keys share their effect.

    Source: Fisher 1925, the correlation ratio; main effects as in Hutter et al. 2014, section 2.
    """
    scored = [group for group in groups if group.runs]
    by_partition: dict[tuple[object, ...], list[str]] = {}
    for name in varying_keys([group.keys for group in scored]):
        shown = [value_text(group.keys, name) for group in scored]
        order = {text: i for i, text in enumerate(dict.fromkeys(shown))}
        marker = name if len(order) > MAX_LEVELS else None  # sampled numbers differ in every run
        by_partition.setdefault((marker, *(order[text] for text in shown)), []).append(name)
    results = [_effect(scored, names) for names in by_partition.values()]
    return sorted(results, key=lambda effect: -effect.share)


def _effect(groups: Sequence[Group], names: list[str]) -> Effect:
    names.sort(key=lambda n: (n != "policy.name", not n.endswith(".name"), n.count(".")))
    shown = [value_text(group.keys, names[0]) for group in groups]
    values = [finite(group.keys.get(names[0])) for group in groups]
    numbers = dict(zip(shown, values, strict=True))
    ordered = sorted(numbers, key=lambda t: math.inf if math.isnan(numbers[t]) else numbers[t])
    axis = np.array([numbers[text] for text in ordered])
    sets = [[text] for text in ordered]
    if len(ordered) > MAX_LEVELS and np.isfinite(axis).all():
        sets = [part.tolist() for part in np.array_split(np.array(ordered), BINS)]
    levels = []
    for texts in sets:
        members = [(g.scores, numbers[t]) for g, t in zip(groups, shown, strict=True) if t in texts]
        name = texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
        x = np.concatenate([np.full(len(scores), number) for scores, number in members])
        levels.append(Level(name, x, np.concatenate([scores for scores, _ in members])))
    share = explained([level.scores for level in levels])
    return Effect(tuple(names), ordered, axis, levels, share)


def explained(scores: Sequence[Floats]) -> float:
    """Return SS_between / SS_total of the scores at each level, 0 if all scores are equal."""
    every = np.concatenate(list(scores))
    spread = float(np.ptp(every))
    if spread <= 1e-12 * float(np.abs(every).max()):  # the sums of squares are rounding errors
        return 0.0
    center = every.mean()
    total = float(np.square((every - center) / spread).sum())
    between = sum(len(x) * float((x - center).mean() / spread) ** 2 for x in scores)
    share = min(1.0, between / total)
    return share if share > 1e-12 else 0.0  # rounding


MAX_POINTS = 200
Axis = Literal["env_steps", "wall"]


@dataclass(frozen=True)
class Curve:
    """Scores of one group on an axis ``x`` [P], which all its runs share.

    ``seeds``: (run, x [K], return [K]) of every evaluated run, at the points of ``x`` from its
    first evaluation to its last one, for a finished run to the end. ``mean``, ``low``, ``high``
    [P]: NaN where a finished run has no value; low and high also with fewer than 5 runs, or if all
    are equal. ``left_out``: finished runs that are not in the mean because evaluations or times are
    missing.
    """

    group: Group
    seeds: list[tuple[RunData, Floats, Floats]]
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    left_out: list[RunData]


def is_whole(run: RunData) -> bool:
    """Return whether a run is done and all its evaluations are known."""
    return run.status == "done" and len(run.evaluations.env_steps) > 0 and not run.damage


def curve(group: Group, axis: Axis = "env_steps") -> Curve:
    """Return the curve of a group.

    The band is the score's interval (`mean_interval`) at every point. It holds at each point, not
    for the whole curve at once.
    """
    members = [*group.runs, *group.unscored]
    runs = [run for run in members if len(_x(run, axis))]
    x = common_axis([_x(run, axis) for run in runs])
    every = align([(_x(run, axis), run.evaluations.return_mean) for run in runs], x)
    whole = np.array([is_whole(run) for run in runs], bool)
    seeds = []
    for run, values, ended in zip(runs, every, whole, strict=True):
        shown = ~np.isnan(values) & (ended | (x <= _x(run, axis)[-1]))
        seeds.append((run, x[shown], values[shown]))
    left_out = [run for run in members
                if run.status == "done" and not (is_whole(run) and len(_x(run, axis)))]  # fmt: skip
    ends = np.full((3, len(x)), math.nan)  # mean, low, high
    complete = ~np.isnan(every[whole]).any(axis=0) & whole.any()
    if complete.any():
        ends[:, complete] = intervals.mean_band(every[whole][:, complete], bounds=group.bounds)
    mean, low, high = ends
    return Curve(group, seeds, x, mean, low, high, left_out)


def _x(run: RunData, axis: Axis) -> Floats:
    """Return the axis values of a run's evaluations, empty if one is unknown."""
    x = run.evaluations.env_steps if axis == "env_steps" else run.evaluations.wall_seconds
    return x if not np.isnan(x).any() else x[:0]


def common_axis(axes: Sequence[Floats]) -> Floats:
    """Return every point at which a seed was evaluated; of many, evenly spaced points."""
    points: Floats = np.unique(np.concatenate([np.zeros(0), *axes]))
    return points if len(points) <= MAX_POINTS else np.linspace(points[0], points[-1], MAX_POINTS)


def align(seeds: Sequence[tuple[Floats, Floats]], x: Floats) -> Floats:
    """Return the last value at or before every point of ``x``, NaN before the first, [seeds, P]."""
    out = np.full((len(seeds), len(x)), math.nan)
    for row, (points, values) in zip(out, seeds, strict=True):
        index = np.searchsorted(points, x, side="right") - 1
        row[index >= 0] = values[index[index >= 0]]
    return out


def cost_of(run: RunData, threshold: float) -> tuple[float, float]:
    """Return env steps and wall-clock seconds of the first evaluation of at least ``threshold``.

    Both are inf if there is none.
    """
    e = run.evaluations
    at = np.flatnonzero(e.return_mean >= threshold)
    return (float(e.env_steps[at[0]]), float(e.wall_seconds[at[0]])) if len(at) else (math.inf,) * 2


def arrivals(group: Group, threshold: float) -> tuple[list[float], int]:
    """Return the env steps (see `cost_of`) of every seed whose end is known, and how many are left
    out.

    A failed seed (a crash, divergence) counts like any other, as inf if it had not arrived, because
    leaving it out would favour settings that fail. Left out are seeds that have not ended or whose
    evaluations are not all known, even if they have arrived, because the outcome of the others is
    unknown.
    """
    counted = {run.seed for run in group.runs}
    newest = {run.seed: run for run in sorted(group.unscored, key=lambda run: run.text("started"))}
    runs = [*group.runs, *(run for seed, run in newest.items() if seed not in counted)]
    known = [run for run in runs if is_whole(run) or (run.status == "failed" and not run.damage)]
    return [cost_of(run, threshold)[0] for run in known], len(runs) - len(known)


def median_steps(steps: Sequence[float]) -> float:
    """Return the median env steps over seeds, inf if it is a seed that did not arrive."""
    return float(np.median(steps)) if len(steps) else math.nan
