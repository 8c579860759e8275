"""A run as a trial: the settings and the short name that TensorBoard shows. Torch-free."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.log import eval_metrics
from rlrun.log.trial import IGNORED, IGNORED_GROUPS, NAMED, TrialRow, Value, trial_name
from rlrun.reports.runs import flatten, parse_config, resolve, sweep_jobs
from rlrun.run.files import typed_texts
from rlrun.schema import Config
from rlrun.schema.override import read_overrides

if TYPE_CHECKING:
    from rlrun.run.record import RunRecord  # imports torch

_NO_SETTINGS = ("hydra", "sweep", "logger", "watchdog.", *IGNORED_GROUPS)
_NOT_NAMED = ("run.", "eval.", "debug")  # they say how long, not what


def trial_of(run_dir: Path, raw_yaml: str, started: str) -> TrialRow:
    """Return the trial of a run from its config and its typed overrides.

    Within a sweep its settings are those that differ between jobs; otherwise all that were typed.
    The name ends with the time ``started`` (ISO 8601), because TensorBoard merges trials of one
    name.
    """
    typed = typed_settings(typed_texts(run_dir))
    try:
        config = parse_config(raw_yaml.encode())
    except ValueError:  # a missing name must not stop a run
        config = {}
    settings = settings_of(config, typed)
    in_sweep = (run_dir.parent / "sweep.json").is_file()
    differing = _swept(run_dir) if in_sweep else frozenset(settings)
    shown = differing if in_sweep else worth_naming(differing)
    name = f"{trial_name(settings, shown)} {started[11:19]}".strip()
    return TrialRow(name, settings, differing)


def worth_naming(keys: Collection[str]) -> frozenset[str]:
    """Return the keys that say what is trained, not for how long."""
    return frozenset(key for key in keys if not key.startswith(_NOT_NAMED))


def final_metrics(record: "RunRecord") -> dict[str, float]:
    """Return the metrics of a finished run: those of its last evaluation, steps, seconds."""
    metrics = eval_metrics(record.eval or {})
    if record.best_eval is not None:
        metrics["eval/best_return_mean"] = record.best_eval["return_mean"]
    return metrics | {"run/env_steps": record.env_steps, "time/wall_seconds": record.wall_seconds}


def typed_settings(overrides: Sequence[str]) -> dict[str, str]:
    """Return {key: value as typed} of the overrides that affect what is computed."""
    typed = {}
    for override in read_overrides(overrides):
        key = override.key
        if "=" in override and key not in IGNORED and not key.startswith(_NO_SETTINGS):
            typed[key] = override.value
    return typed


def settings_of(
    config: Mapping[str, Any], typed: Mapping[str, str], elsewhere: Collection[str] = ()
) -> dict[str, Value]:
    """Return ``policy``, ``env``, ``seed`` and the ``typed`` keys, with the values of ``config``.

    A value from a resolver (``${oc.env:...}``) is shown as that text, because it may be a secret.
    ``elsewhere``: keys typed for other runs. A schedule is shown as ``0.001 -> 0.0001``. Keys that
    the config lacks are left out: those of other policies, and options of groups without a name.
    """
    keys = dict(flatten(dict(config)))
    env_id = re.split(r"[/:]", str(keys.get("env.id", "?")))[-1]  # ALE/Pong-v5 is pong
    env = typed.get("env") or re.sub(r"-v\d+$", "", env_id).lower()
    seed = str(keys.get("seed", "?"))  # a name, not a quantity
    named = (typed.get("policy") or keys.get("policy.name", "?"), env, seed)
    settings: dict[str, Value] = dict(zip(NAMED, map(_value, named), strict=True))
    for key, text in typed.items():
        settings.setdefault(key, _shown(key, keys) if key in keys else _parsed(text))
    for key in elsewhere:
        start, end = f"{key}.start", f"{key}.end"
        if present := [k for k in (key, f"{key}.name") if k in keys]:
            settings.setdefault(key, _shown(present[0], keys))
        elif start in keys and end in keys:
            settings.setdefault(key, f"{_shown(start, keys)} -> {_shown(end, keys)}")
    return settings


def differing_keys(trials: Sequence[Mapping[str, Value]]) -> frozenset[str]:
    """Return the settings in which ``trials`` differ."""
    keys = {key for settings in trials for key in settings}
    return frozenset(k for k in keys if len({repr(s.get(k)) for s in trials}) > 1)


def policy_title(config: Config, run_dir: Path) -> str:
    """Return the name of the policy: for a user's class the typed option, or the class name."""
    name = config.policy.name
    if ":" not in name:
        return name
    typed = typed_settings(typed_texts(run_dir))
    option = None if "policy.name" in typed else typed.get("policy")
    return option or name.partition(":")[2]


def _swept(run_dir: Path) -> frozenset[str]:
    """Return the settings in which the jobs of the run's sweep differ."""
    jobs = [job.sweep.get("overrides") for job in sweep_jobs(run_dir.parent)]
    lines = [[str(x) for x in job] for job in jobs if isinstance(job, list)]
    typed = [typed_settings(line) for line in lines]
    seeds = {text for line in lines for text in line if text.startswith("seed=")}
    return differing_keys(typed) | ({"seed"} if len(seeds) > 1 else set())


def _parsed(text: str) -> Value:
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _shown(key: str, keys: dict[str, Any]) -> Value:
    return _value(resolve(keys[key], keys))


def _value(value: Any) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    return "null" if value is None else str(value)
