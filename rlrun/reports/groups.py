"""Runs that differ in nothing but the seed, their names, and the keys in which groups differ."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlrun.reports.bounds import return_bounds
from rlrun.reports.intervals import UNBOUNDED, Bounds
from rlrun.reports.records import Floats
from rlrun.reports.runs import RunData, flatten, printable, resolve
from rlrun.reports.score import score

# Keys that say where to run and how to record, not what is computed.
IGNORED = (
    "seed", "device", "run.dir", "run.max_time", "run.keep_checkpoints", "run.checkpoint_every",
)  # fmt: skip
IGNORED_GROUPS = ("logger.", "checkpoint.", "sweep.", "resume.")
_ENVIRONMENT = ("env.id", "env.kwargs", "env.eval_kwargs")  # what the score is measured in
_LONGEST = 60  # characters of a label
TRIAL = " (trial)"  # runs whose scores a search has chosen by
MISSING = "(no such key)"


@dataclass(frozen=True)
class Group:
    """Runs of one setting in one environment.

    ``runs``: those with a score, one for each seed, by seed. ``unscored``: not done. ``repeats``:
    further runs of a seed that is already in ``runs``: equal seeds are no independent evidence.
    """

    environment: str
    setting: str
    keys: dict[str, Any]
    kind: str
    bounds: Bounds = UNBOUNDED  # returns that the environment allows
    runs: list[RunData] = field(default_factory=list)
    unscored: list[RunData] = field(default_factory=list)
    repeats: list[RunData] = field(default_factory=list)

    @property
    def scores(self) -> Floats:
        """Scores of ``runs``, [n]."""
        return np.array([score(run, self.kind) for run in self.runs], np.float64)

    @property
    def seeds(self) -> list[int | None]:
        """Seeds of ``runs``."""
        return [run.seed for run in self.runs]

    @property
    def trial(self) -> bool:
        """Whether a search has chosen by these scores: they are no sample to test."""
        return any(run.trial for run in self.runs)

    @property
    def stopped(self) -> bool:
        """Whether seeds=auto chose when to stop adding seeds: ordinary tests do not hold."""
        return any(run.auto is not None for run in self.runs)

    @property
    def failed_again(self) -> list[RunData]:
        """Runs that failed although an earlier run of their seed is done and counts."""
        began = {run.seed: run.text("started") for run in self.runs}
        return [
            run
            for run in self.unscored
            if run.status == "failed" and began.get(run.seed, "~") < run.text("started")
        ]

    @property
    def everything(self) -> list[RunData]:
        """Every run of the group."""
        return [*self.runs, *self.unscored, *self.repeats]


def group_runs(runs: Sequence[RunData], kind: str = "final") -> list[Group]:
    """Return the groups, in the order of their first run. Runs without a config are in none.

    ``kind``: the score, see `score`.
    """
    usable = [run for run in runs if run.config and run.status != "damaged"]
    environments = _environments(usable)
    settings = _settings(usable, environments)
    by_key: dict[tuple[str, str, bool], list[RunData]] = {}
    for run, environment, keys in zip(usable, environments, settings, strict=True):
        by_key.setdefault((environment, _canonical(keys), run.trial), []).append(run)
    distinct: dict[str, dict[str, Any]] = {_canonical(keys): keys for keys in settings}
    given = [name for run in usable for name in _overridden(run)]
    labels = dict(zip(distinct, labels_of(list(distinct.values()), given), strict=True))
    bounds = {
        place: return_bounds(
            [r for r, own in zip(usable, environments, strict=True) if own == place]
        )
        for place in dict.fromkeys(environments)
    }
    return [
        _group(
            Group(
                environment, labels[key] + TRIAL * trial, distinct[key], kind, bounds[environment]
            ),
            members,
        )
        for (environment, key, trial), members in by_key.items()
    ]


def _group(group: Group, members: Sequence[RunData]) -> Group:
    """Fill a group: of the runs of a seed that have a score the one started last counts."""
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
    """Return the groups with scores that no search has chosen by: those that may be tested."""
    return [group for group in groups if group.runs and not group.trial]


def best_groups(groups: Sequence[Group], count: int) -> list[Group]:
    """Return the groups with the highest mean scores, in their own order; of few groups all."""
    if len(groups) <= count:
        return list(groups)
    means = [group.scores.mean() if group.runs else -math.inf for group in groups]
    kept = np.argsort(means)[::-1][:count]
    return [groups[i] for i in sorted(kept)]


def side_of(groups: Sequence[Group], runs: Sequence[RunData]) -> list[Group]:
    """Return the groups with the members alone that are among ``runs``; empty ones are left out."""
    own = {id(run) for run in runs}
    found = []
    for group in groups:
        members = [run for run in group.everything if id(run) in own]
        empty = replace(group, runs=[], unscored=[], repeats=[])
        found += [_group(empty, members)] if members else []
    return found


def relevant(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a config that change what is computed."""
    return {
        name: value
        for name, value in keys.items()
        if name not in IGNORED and not name.startswith(IGNORED_GROUPS)
    }


def _is_environment(name: str) -> bool:
    return name.startswith(_ENVIRONMENT) and name.split(".")[1] in ("id", "kwargs", "eval_kwargs")


def _environments(runs: Sequence[RunData]) -> list[str]:
    """The name of each run's environment: its id, and the arguments that vary with that id."""
    keys = [{n: v for n, v in run.keys.items() if _is_environment(n)} for run in runs]
    varying = {
        env_id: varying_keys([k for k in keys if k.get("env.id") == env_id])
        for env_id in {_canonical(k.get("env.id")): k.get("env.id") for k in keys}.values()
        if isinstance(env_id, str)
    }
    names = []
    for own in keys:
        env_id = own.get("env.id")
        parts = [printable(env_id).rpartition("/")[2]]
        for name in varying.get(env_id, []) if isinstance(env_id, str) else []:
            short = name.removeprefix("env.").removeprefix("kwargs.")
            parts += [f"{short}={show(own[name])}"] if own.get(name, {}) != {} else []
        names.append(" ".join(parts))
    return names


def _settings(runs: Sequence[RunData], environments: Sequence[str]) -> list[dict[str, Any]]:
    """The keys of each run but those of its environment.

    Keys below ``env`` that are constant within every environment belong to it (env.stop_value).
    """
    keys = [{n: v for n, v in relevant(run.keys).items() if not _is_environment(n)} for run in runs]
    places = dict.fromkeys(environments)
    if len(places) < 2:
        return folded(
            [{n: resolve(v, r.keys) for n, v in k.items()} for k, r in zip(keys, runs, strict=True)]
        )
    _refer(keys, runs)
    varying = set()
    for place in places:
        inside = [k for k, e in zip(keys, environments, strict=True) if e == place]
        varying.update(varying_keys(inside))
    return folded([{n: v for n, v in k.items() if n[:4] != "env." or n in varying} for k in keys])


def folded(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return configs whose mappings are one value where others have a value or another kind there.

    So a schedule stands beside a constant under one name: ``policy.lr``, not ``policy.lr.start``.
    """
    whole: set[str] = set()
    fields: dict[str, set[frozenset[str]]] = {}
    for keys in configs:
        below: dict[str, set[str]] = {}
        for name in keys:
            parent, _, last = name.rpartition(".")
            below.setdefault(parent, set()).add(last)
        for name, lasts in below.items():
            if "kind" in lasts:
                fields.setdefault(name, set()).add(frozenset(lasts))
    for name, sets in fields.items():
        if len(sets) > 1 or any(name in keys for keys in configs):
            whole.add(name)
    return [_fold(keys, whole) for keys in configs] if whole else [*configs]


def _fold(keys: dict[str, Any], whole: Collection[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in keys.items():
        parent, _, last = name.rpartition(".")
        if parent in whole:
            out.setdefault(parent, {})[last] = value
        else:
            out[name] = value
    return out


def _refer(keys: Sequence[dict[str, Any]], runs: Sequence[RunData]) -> None:
    """Write a value as ``${env.key}`` where another run does and it is that value: they are equal.

    Resolved, they would differ between environments.
    """
    references: dict[str, dict[str, None]] = {}
    for own in keys:
        for name, value in own.items():
            if isinstance(value, str) and value.startswith("${env."):
                references.setdefault(name, {})[value] = None
    for own, run in zip(keys, runs, strict=True):
        for name in references.keys() & own.keys():
            same = (r for r in references[name] if resolve(r, run.keys) == own[name])
            own[name] = next(same, own[name])


def identity(config: dict[str, Any]) -> str:
    """Return a text that is equal for the configs of runs that compute the same, seed included."""
    keys = dict(flatten(config))
    used = {"seed": keys.get("seed"), **relevant(keys)}
    return _canonical({name: resolve(value, keys) for name, value in used.items()})


def varying_keys(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The keys, in the order of the configs, that have more than one value (or are missing)."""
    names = dict.fromkeys(name for keys in configs for name in keys)
    return [n for n in names if len({_canonical(k.get(n, MISSING)) for k in configs}) > 1]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _overridden(run: RunData) -> list[str]:
    """The keys that the command line of a run changed; ``policy=dqn`` is policy.name."""
    names = []
    for override in run.overrides:
        name = override.partition("=")[0].lstrip("+~")
        names += [name, f"{name}.name", name.replace("env.", "env.kwargs.", 1)]
    return names


def labels_of(configs: Sequence[dict[str, Any]], given: Sequence[str] = ()) -> list[str]:
    """Return a short distinct name for each of several distinct settings.

    The keys that tell them apart: the policy, then those given on the command line; a key that
    tells no more of them apart is left out.
    """
    if len(configs) == 1:
        return [show(configs[0].get("policy.name", "all runs"))]
    varying = varying_keys(configs)
    rank = {name: i for i, name in reversed(list(enumerate(given)))}
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
    """``short name=value`` of each of ``names`` (key -> short name) in each config."""
    return [
        " ".join(
            ("" if key == "policy.name" else f"{name}=") + show(keys[key])
            for key, name in names.items()
            if key in keys
        )
        or f"{next(iter(names.values()))}={MISSING}"
        for keys in configs
    ]


def _last_part(key: str) -> str:
    return key.removesuffix(".name") if key.endswith(".name") else key.rpartition(".")[2]


def _first_words(keys: Sequence[str]) -> dict[str, str]:
    """``state`` for ``policy.state_init``, where no other key is ``state``."""
    names = {key: _last_part(key) for key in keys}
    words = [name.partition("_")[0] for name in names.values()]
    return {key: word if words.count(word) == 1 else names[key]
            for (key, word) in zip(names, words, strict=True)}  # fmt: skip


def show(value: Any) -> str:
    """A config value as the command line writes it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict) and "kind" in value:
        return _schedule(value)
    text = json.dumps(value, default=str, ensure_ascii=False)
    return printable(text)


def _schedule(fields: dict[str, Any]) -> str:
    """A schedule in words: ``linear 0.001 to 0 over 50000``."""
    parts = [show(fields["kind"])]
    if "points" in fields and fields["points"] is not None:
        parts.append(show(fields["points"]))
    elif fields["kind"] == "constant":
        parts.append(show(fields.get("start")))
    else:
        parts.append(f"{show(fields.get('start'))} to {show(fields.get('end'))}")
        if fields.get("over") is not None:
            parts.append(f"over {show(fields['over'])}")
    return printable(" ".join(parts))


def differences(configs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return (key, value in each config) of every key in which they differ."""
    return [
        (name, [show(keys[name]) if name in keys else MISSING for keys in configs])
        for name in varying_keys(configs)
    ]
