"""The config of a run directory, read for eval, resume and export."""

import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlrun.config import compose
from rlrun.config.checks import check, check_typed_keys
from rlrun.config.config_errors import config_error
from rlrun.config.directories import check_length, check_written
from rlrun.config.hydra_keys import check_addresses
from rlrun.config.reader import read_yaml
from rlrun.errors import ConfigError, RlrunError
from rlrun.run.files import check_texts, read_record, require_regular_files, require_run
from rlrun.schema import Config
from rlrun.schema.override import Override, keys_of, read_overrides
from rlrun.schema.ranges import format_value
from rlrun.schema.spelling import FIXED, with_present_names
from rlrun.trust import NotTrusted, packages_of, require_trusted_env

_RESUMABLE = (
    "run", "eval", "watchdog", "resume", "checkpoint", "logger", "learner.threads", "device",
    "buffer.mmap", "buffer.max_bytes", "transport", "pipeline.address",
)  # fmt: skip
_GROW = ("run", "eval", "watchdog", "resume", "checkpoint")  # groups of the root yaml


_EVALUATED = ("env", "eval", "device")  # what an evaluation may change


def load(
    run_dir: Path,
    typed: Sequence[str] = (),
    *,
    replay: bool = True,
    fork: bool = False,
    evaluation: bool = False,
    named: Collection[str] | None = None,
) -> tuple[Config, str]:
    """Return the checked config of an earlier run, with ``overrides`` applied, and its yaml.

    ``replay`` False: the config is not used to continue or to read the replay, so the run's device,
    replay directory and addresses do not matter. Otherwise directories to write to must be below
    the working directory, or in ``overrides``. ``fork``: every key may change. ``evaluation``: keys
    of the environment may change, and its arguments replace those of ``eval_kwargs``, too.
    ``named``: the keys of ``overrides`` that were typed, not read from a file; None: all.

    Raises: ConfigError if there is no run, or an override changes a key that a run cannot change,
    or nothing.
    """
    check_length("RUN_DIR", run_dir)
    require_run(run_dir, card=not replay)
    require_regular_files(run_dir)
    check_texts(run_dir)
    cfg, overrides = _changed(run_dir, read_overrides(typed), fork, evaluation)
    named = keys_of(overrides) if named is None else named
    if not replay:
        OmegaConf.update(cfg, "buffer.device", "cpu")
        OmegaConf.update(cfg, "buffer.mmap", None)
    try:
        config = compose.read_composed(cfg)
        require_trusted_env(config.env.id)
    except NotTrusted as e:
        with suppress(RlrunError):  # those that the run's own command line trusted, to be shown
            before = packages_of(read_record(run_dir).get("command"))
            e.packages = list(dict.fromkeys([*before, *e.packages]))
        raise
    if replay:
        check_addresses(config, named)
    check(config, fresh=False)
    check_typed_keys([config], overrides)
    if replay:
        check_written(config, named)
    cfg.resume = {"rescale": False, "allow": []}  # asked for once
    return config, compose.to_yaml(cfg)


def _changed(
    run_dir: Path, overrides: list[Override], fork: bool, evaluation: bool
) -> tuple[DictConfig, list[Override]]:
    """Return config.yaml of a run with overrides that may change it, and these, parsed."""
    composer = compose.Composer()
    with composer.errors(overrides):
        cfg = OmegaConf.create(read_yaml(run_dir / "config.yaml"))
        if not isinstance(cfg, DictConfig):
            wrong = "its config.yaml is damaged"
            raise config_error("RUN_DIR", run_dir, wrong, "a mapping", "restore it")
        if "hydra" in cfg:
            allowed = "the keys of rlrun are allowed"
            raise config_error("hydra", "(config.yaml)", "no run stores this", allowed, "remove it")
        cfg = OmegaConf.create(with_present_names(OmegaConf.to_container(cfg)))
        for key, value in FIXED.items():  # of an earlier version
            group, _, name = key.partition(".")
            if OmegaConf.select(cfg, key) == value:
                del cfg[group][name]
        if {"-q", "--quiet"} & {*_last_command(run_dir)}:  # asked for once
            cfg.logger.pop("progress", None)
        _add_new_keys(cfg)
        OmegaConf.set_struct(cfg, True)
        what = "an evaluation" if evaluation else "a fork" if fork else "a resumed run"
        overrides = composer.parse(_env_arguments(cfg, overrides, evaluation))
        _refuse_options(composer, overrides, what)
        refused = _change(cfg, overrides, _EVALUATED if evaluation else _RESUMABLE, fork)
        if refused:
            raise _refusal(refused, run_dir, evaluation)
        return cfg, overrides


def _last_command(run_dir: Path) -> list[str]:
    """Return the words that last started or continued a run, empty if they cannot be read."""
    with suppress(RlrunError):
        record = read_record(run_dir)
        resumes = record.get("resumes")
        last = resumes[-1] if isinstance(resumes, list) and resumes else record.get("command")
        return [*map(str, last)] if isinstance(last, list) else []
    return []


def published(config_yaml: str) -> str:
    """Return a config's yaml without what concerns the machine and the accounts of its run."""
    cfg: Any = OmegaConf.create(config_yaml)
    cfg.run.dir = None
    cfg.logger = compose.read_shipped("logger/default")
    if "address" in cfg.pipeline:
        cfg.pipeline.address = None
    return compose.to_yaml(cfg)


def _add_new_keys(cfg: DictConfig) -> None:
    """Add the default of every key that is newer than the stored config."""
    names = ("config", "logger/default", "torso/mlp", "_base/env")
    default, logger, torso, env = map(compose.read_shipped, names)

    def add(group: str, keys: Any) -> None:
        cfg[group] = OmegaConf.merge(keys, cfg.get(group) or {})

    for name in _GROW:
        add(name, default[name])
    add("logger", logger)
    add("torso", {"layer_norm": torso.layer_norm})
    policy = cfg.get("policy") or {}
    if policy.get("name") == "pqn":
        add("policy", {"normalize_reward": False})
    add("env", env)
    if (cfg.get("memory") or {}).get("name") in ("lru", "mingru"):  # had no layer after the sums
        add("memory", {"readout": False})
    if "log_std_init" in policy:  # earlier versions acted in the box's unit
        add("policy", {"rescale_actions": False})


def _env_arguments(
    cfg: DictConfig, overrides: Sequence[Override], evaluation: bool
) -> list[Override]:
    """Return ``env.length=9`` as ``env.kwargs.length=9``.

    An evaluation has ``env.eval_kwargs.length=9`` where these have the argument.
    """
    known = {f"env.{node}": {*map(str, cfg.env[node] or {})} for node in ("kwargs", "eval_kwargs")}
    rewritten = []
    for override in overrides:
        if compose.is_free(override.key) and override[:1] not in "+~":
            override = compose.rewrite_override(override, known, cfg)
        name = override.key.removeprefix("env.kwargs.")
        if evaluation and name != override.key and name in known["env.eval_kwargs"]:
            override = Override(f"env.eval_kwargs.{name}={override.value}")
        rewritten.append(override)
    return rewritten


def _refuse_options(composer: compose.Composer, overrides: Sequence[Override], what: str) -> None:
    """Raise ConfigError for several values, none, or an option such as ``memory=gru``.

    Options build other parts than those that were saved.
    """
    groups = composer.groups()
    for override in overrides:
        key, parsed = override.key, override.parsed
        if parsed.is_sweep_override() or parsed.is_delete():
            wrong = "removes a key" if parsed.is_delete() else "holds several values"
            fix = f"{what} takes one value of a key; set {key}=VALUE"
            raise ConfigError(f"{override}: {wrong}; {fix}", key=key)
        group, value = parsed.key_or_group, parsed.value()
        if group not in groups or isinstance(value, dict):
            continue
        wrong = f"{what} continues with the networks, replay and environments of its checkpoint"
        allowed = "single keys are allowed, options of a group are not"
        fix = f"leave it out, or start a new run with {group}={format_value(value)}"
        raise config_error(group, value, wrong, allowed, fix)


def _change(
    cfg: DictConfig, overrides: Sequence[Override], changeable: Sequence[str], fork: bool
) -> list[Override]:
    """Set ``overrides``. Return those that change other keys than ``changeable``."""
    refused: list[Override] = []
    before = {override.key: _plain(cfg, override.key) for override in overrides}
    for override in overrides:
        if override.key == "run.dir" and not fork:
            refused.append(override)
        else:
            new = override.startswith("++") and compose.is_free(override.key)
            OmegaConf.update(cfg, override.key, override.parsed.value(), merge=True, force_add=new)
    allowed = (*changeable, *map(str, cfg.resume.allow))
    others = [] if fork else [o for o in overrides if not o.is_below(*allowed)]
    return refused + [o for o in others if _plain(cfg, o.key) != before[o.key]]


def _refusal(refused: Sequence[Override], run_dir: Path, evaluation: bool) -> ConfigError:
    """Return the error of overrides that a resumed run or an evaluation cannot change."""
    keys = list(dict.fromkeys(override.key for override in refused))
    these = "this" if len(keys) == 1 else "these"
    named = ", ".join(keys), ", ".join(override.value for override in refused)
    if evaluation:
        wrong = f"an evaluation cannot change {these}"
        flag = {"run.eval_episodes": "--episodes", "seed": "--seed"}.get(keys[0])
        fix = f"use {flag}" if flag else "leave it out, or train with it"
        return config_error(*named, wrong, "keys of env and eval may change", fix)
    lines = [override for override in refused if override.key != "run.dir"]
    words = map(shlex.quote, ("rlrun", "fork", str(run_dir), *lines))
    branch = f"branch off: {' '.join(words)} run.dir=NEW"
    insist = f"insist with 'resume.allow=[{','.join(keys)}]'"
    fix = branch if "run.dir" in keys else f"{branch}; or {insist}"
    allowed = f"{', '.join(_RESUMABLE)} may change (not run.dir)"
    return config_error(*named, f"a resumed run cannot change {these}", allowed, fix)


def _plain(cfg: DictConfig, key: str) -> object:
    """Return the value of a key in plain types, interpolations unresolved."""
    value = OmegaConf.select(cfg, key, throw_on_missing=False)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
