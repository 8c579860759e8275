"""Hydra behind one class: compose, expand sweeps, run.

Uses ``hydra._internal`` because Hydra 1.3 has no public way to compose as its command line does
(--config-dir, sweeps) without writing to the disk. Hence the pin hydra-core<1.4.
"""

import copy
import json
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as Parsed
from hydra.core.utils import configure_log, run_job, setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict
from omegaconf.resolvers import oc

from rlrun.config import hydra_keys, reader
from rlrun.config.config_errors import (
    UnknownKey,
    as_config_error,
    config_error,
    possible_keys,
    unknown_key,
)
from rlrun.config.directories import undo_logging
from rlrun.errors import ConfigError, remember
from rlrun.schema import Config, EnvConfig
from rlrun.schema.override import Override, keys_of, read_overrides
from rlrun.schema.spelling import RENAMED, nearest

VERSION_BASE = "1.3"
_MOST_TEXTS = 1000  # cached parts of configs as yaml
_yaml_texts: dict[str, str] = {}
_MOST_CHOSEN = 256  # cached configs of chosen options, half a megabyte each


def _environment_variable(name: str, *default: object) -> object:
    """Resolve ``${oc.env:NAME}``. The value, which may be a secret, is kept out of messages."""
    value = oc.env(name, *default)
    if name in os.environ:
        remember(os.environ[name], name)
    return value


_ANY_ID = ("gym", "pettingzoo")  # options of env that need an env.id


def _env_name(option: str, env_id: str) -> str:
    """Resolve ``${env_name:OPTION,ID}``: the environment in the name of a run directory."""
    return re.sub(r"[^\w.-]+", "_", env_id)[-100:] if option in _ANY_ID else option


OmegaConf.register_new_resolver("oc.env", _environment_variable, replace=True)
OmegaConf.register_new_resolver("env_name", _env_name, replace=True)
_FREE = tuple(f"env.{name}" for name in reader.FREE)  # dicts whose keys the environment defines
_EXCLUSIVE = {  # keys, of which one is a number, the other null
    "learner.update_per_collect": "learner.replay_ratio",
    "policy.target_update_every": "policy.target_tau",
}
_EXCLUSIVE |= dict(zip(_EXCLUSIVE.values(), _EXCLUSIVE, strict=True))


def shipped_conf() -> Path:
    """Return the directory of rlrun's own yaml files, in the package or the checkout."""
    spec = find_spec("rlrun.conf")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    return Path(__file__).resolve().parents[2] / "conf"


def read_shipped(name: str) -> Any:
    """Return the content of one of rlrun's own yaml files, without that of its defaults."""
    return OmegaConf.load(shipped_conf() / f"{name}.yaml")


@cache
def _shipped_config(overrides: tuple[str, ...]) -> DictConfig:
    loader = ConfigLoaderImpl(create_config_search_path(f"file://{shipped_conf()}"))
    return loader.load_configuration("config", list(overrides), RunMode.MULTIRUN)


def _check_directory(directory: Path) -> None:
    """Raise ConfigError for a user's file that has a shipped name or is too large.

    Hydra would ignore a file with a shipped name.
    """
    shipped, resolved = shipped_conf().resolve(), directory.resolve()
    for path in reader.yaml_files(directory):
        name = path.relative_to(directory)
        if (shipped / name).is_file() and shipped != resolved:
            wrong = f"{name} has the name of a file that rlrun ships, which would win"
            raise config_error("--config-dir", directory, wrong, "new names", f"rename {name}")
        reader.check_yaml_words(reader.read_yaml(path), path)


def _check_defaults(name: str, result: ConfigResult) -> None:
    """Raise ConfigError if the defaults list of a user's option chooses a part of Hydra.

    Hydra takes such a choice only from the primary file and silently drops others.
    """
    group, _, option = name.rpartition("/")
    if not group or group.startswith("hydra"):
        return
    for default in result.defaults_list or ():
        chosen = str(getattr(default, "group", None) or "").lstrip("/")
        if chosen.partition("/")[0] == "hydra":
            value = getattr(default, "value", None)
            wrong = f"{group}={option} may not choose it, Hydra would ignore it"
            raise config_error(chosen, value, wrong, "a command line may choose it",
                               f"remove it from {name}.yaml and type {chosen}={value}")  # fmt: skip


class _Repository(ConfigRepository):
    """Hydra's yaml files, each parsed once."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        self._parsed: dict[str, ConfigResult | None] = {}
        super().initialize_sources(config_search_path)

    def __deepcopy__(self, memo: Any) -> "_Repository":
        """Share the files: Hydra copies a repository before it gives it other sources."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._parsed:
            result = self._parsed[config_path] = super().load_config(config_path)
            if result is not None and "command-line" in str(result.provider):
                _check_defaults(config_path, result)
        return copy.deepcopy(self._parsed[config_path])  # composing takes its nodes


class _Chosen:
    """The config of the jobs of a sweep that choose the same options.

    Copying all nodes costs more than all other work for a job. So one copy gets the values of one
    job after another, and only the groups with values are copied again.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self._original, self._job = cfg, cfg.copy()
        self._changed: set[str] = set()  # top-level keys of _job

    def with_values(self, values: Sequence[Parsed]) -> DictConfig:
        """Return the config with these values, valid until the next call."""
        if list(self._job) != list(self._original) or not self._changed <= {*self._original}:
            self._job = self._original.copy()
        else:
            with open_dict(self._job):
                for name, node in self._original.items_ex(resolve=False, keys=[*self._changed]):
                    self._job[name] = node  # a copy
        self._changed = {override.key_or_group.partition(".")[0] for override in values}
        ConfigLoaderImpl._apply_overrides_to_config(list(values), self._job)
        return self._job


class Composer:
    """Composes configs like ``rlrun KEY=VALUE…``. Nothing is written to the disk."""

    def __init__(
        self, *, config_name: str | None = None, config_dir: str | os.PathLike[str] | None = None
    ) -> None:
        version.setbase(VERSION_BASE)
        self.config_name = config_name or "config"
        search = create_config_search_path(f"file://{shipped_conf()}")
        if config_dir is not None:
            path = Path(config_dir).absolute()
            if not os.path.isdir(path):
                wrong = "no such directory"
                raise config_error("--config-dir", config_dir, wrong, "a directory", "name it")
            _check_directory(path)
            anchor = SearchPathQuery(provider="schema")
            search.prepend(provider="command-line", path=f"file://{path}", anchor=anchor)
        GlobalHydra.instance().clear()
        self.hydra = Hydra.create_main_hydra2(task_name="rlrun", config_search_path=search)
        self.hydra.config_loader = loader = ConfigLoaderImpl(search)
        self._repository = loader.repository = _Repository(search)
        self._parser = OverridesParser.create(config_loader=self.hydra.config_loader)
        self.foreign = config_dir is not None  # whether users' files are read
        self._known: dict[str, Override] = {}  # of ``parse``
        self._chosen: dict[tuple[str, ...], _Chosen] = {}

    def groups(self) -> list[str]:
        return [g for g in self.hydra.config_loader.list_groups("") if not g.startswith("_")]

    def options(self, group: str) -> list[str]:
        """Return the options of a group, including those of --config-dir."""
        return self.hydra.config_loader.get_group_options(group, ObjectType.CONFIG)

    def content(self, name: str) -> Any:
        """Return the content of the yaml file ``name``, empty if there is none."""
        result = self._repository.load_config(name)
        return OmegaConf.create() if result is None else result.config

    def compose(self, typed: Sequence[str], *, sweep: bool = False) -> DictConfig:
        """Return the composed config with its ``hydra`` node.

        Raises: ConfigError if it cannot be composed.
        """
        overrides = self.parse(typed)
        with self.errors(overrides), warnings.catch_warnings():
            if self.foreign and self.config_name != "config":
                hydra_keys.check_primary(self.content(self.config_name))
            # about a missing search path
            warnings.filterwarnings("error", category=UserWarning, module="hydra")
            cfg = self.hydra.compose_config(
                config_name=self.config_name, overrides=[*overrides],
                run_mode=RunMode.MULTIRUN if sweep else RunMode.RUN,
                with_log_configuration=False,
            )  # fmt: skip
            self._check_hydra(cfg, overrides)
            return cfg

    @contextmanager
    def errors(self, overrides: Sequence[str]) -> Iterator[None]:
        """Raise any error of the block, of which Hydra has all kinds, as a ConfigError."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as e:
            raise as_config_error(e, overrides, self.groups(), self.options) from e

    def _check_hydra(self, cfg: DictConfig, overrides: Sequence[Override]) -> None:
        """Raise ConfigError for a hydra node that runs code or that files may not set."""
        if not self.foreign and "hydra" not in " ".join(overrides):
            return  # that of the shipped files
        if self.foreign or any("hydra.searchpath" in o for o in overrides):
            typed = [str(o) for o in overrides if o.is_hydra and "searchpath" not in o]
            hydra_keys.check_files(cfg, _shipped_config(tuple(typed)), overrides)
        hydra_keys.check_node(cfg)

    def parse(self, typed: Sequence[str]) -> list[Override]:
        """Return the overrides parsed by Hydra's grammar."""
        overrides = [self._known.setdefault(o, o) for o in read_overrides(typed)]
        for override in overrides:
            if override.parsed is not None:
                continue
            with self.errors(overrides):
                (parsed,) = self._parser.parse_overrides([str(override)])
            if is_free(parsed.key_or_group) or (parsed.key_or_group == "env" and "{" in override):
                reader.check_override(parsed)
            override.parsed = parsed
        return overrides

    def jobs(self, cfg: DictConfig) -> list[list[Override]]:
        """Return the overrides of every job of a sweep."""
        sweeper = cfg.hydra.sweeper
        if not str(sweeper.get("_target_", "")).endswith(".BasicSweeper"):
            wrong = "settings that depend on the scores of earlier ones are rlrun search"
            key, fix = "hydra/sweeper", "basic is allowed; leave it out"
            raise ConfigError(f"{key}: {wrong}; {fix}", key=key)
        params = sweeper.get("params") or {}
        if not isinstance(params, DictConfig | dict):
            wrong, allowed = "is not a mapping", "a mapping {key: values} is allowed"
            raise config_error("hydra.sweeper.params", params, wrong, allowed, "write one")
        of_files = [f"{key!s}={values}" for key, values in params.items()]
        parsed = self.parse([*of_files, *hydra_keys.typed_overrides(cfg)])
        hydra_keys.check_jobs(parsed)
        for override in parsed:
            if override.key == "sweep" and override.parsed.is_sweep_override():
                wrong, fix = "a preset is one sweep", f"write 'sweep=[{override.value}]'"
                raise config_error("sweep", override.value, wrong, "a list is allowed", fix)
        size = sweeper.max_batch_size
        if size is not None and size < 1:
            key, allowed = "hydra.sweeper.max_batch_size", "an integer >= 1 or null"
            raise config_error(key, size, "holds no job", allowed, "leave it out")
        with self.errors(hydra_keys.typed_overrides(cfg)):
            batches = BasicSweeper.split_arguments([o.parsed for o in parsed], size)
        if not any(batches):
            empty = next(o for o in parsed if "glob(" in o.value)
            allowed = f"a pattern of {', '.join(self.options(empty.key))} is allowed"
            raise config_error(empty.key, empty.value, "matches no option", allowed, "change it")
        return [read_overrides(job) for batch in batches for job in batch]

    def compose_job(
        self, cfg: DictConfig, overrides: Sequence[str], num: int, unnamed: Collection[str] = ()
    ) -> DictConfig:
        """Return the config of one job of the sweep ``cfg``, equal to that of a single run.

        It is valid until the next job is composed: files are read and nodes made once for all jobs
        that choose the same options. ``unnamed``: keys left out of the name of its directory.
        """
        typed = self.parse(overrides)
        with self.errors(typed):
            values = [override for override in typed if self._is_value(override)]
            choices = [override for override in typed if override not in values]
            job = self._choose(cfg, choices).with_values([o.parsed for o in values])
        task = [o.parsed for o in typed if not o.is_hydra]
        naming = job.hydra.job.config.override_dirname
        with flag_override(job.hydra, "readonly", False), open_dict(job):
            job.hydra.overrides.task = [str(override.input_line) for override in task]
            excluded = [*naming.exclude_keys, *unnamed]
            name = get_overrides_dirname(task, excluded, naming.item_sep, naming.kv_sep)
            # One part of a path, although values of a sweep may be paths themselves.
            job.hydra.job.override_dirname = "".join(
                c if c.isprintable() and c not in "/\\" else "_" for c in name
            )
            job.hydra.job.id, job.hydra.job.num = str(num), num
        OmegaConf.copy_cache(from_config=cfg, to_config=job)
        return job

    def _choose(self, cfg: DictConfig, choices: Sequence[Override]) -> "_Chosen":
        """Return the composed config shared by the jobs of ``cfg`` that choose these options."""
        hydra = hydra_keys.typed_overrides(cfg, "hydra")
        key = (*map(str, hydra), "", *map(str, choices))
        if key not in self._chosen:
            if len(self._chosen) == _MOST_CHOSEN:
                del self._chosen[next(iter(self._chosen))]
            job = self.hydra.config_loader.load_sweep_config(cfg, [*map(str, choices)])
            self._check_hydra(job, [*hydra, *choices])
            self._chosen[key] = _Chosen(job)
        return self._chosen[key]

    def _is_value(self, override: Override) -> bool:
        """Return True for a value of rlrun, False for an option or a key of Hydra."""
        if override.is_hydra:
            return False
        is_group = self._repository.group_exists(override.parsed.key_or_group)
        return not is_group or isinstance(override.parsed.value(), dict)

    def directory(self, cfg: DictConfig, key: str) -> Path:
        """Return the path in ``key`` of the hydra node, e.g. ``hydra.run.dir``."""
        hydra_keys.resolve_hydra_from(cfg)
        with self.errors([]):
            value = OmegaConf.select(cfg, key)
        if not isinstance(value, str) or not value:
            raise config_error(key, value, "is not a path", "a path is allowed", f"set {key}=PATH")
        return Path(value)

    def run(self, task: TaskFunction, cfg: DictConfig) -> int:
        """Run ``task`` in ``hydra.run.dir``, like ``Hydra.run`` without composing.

        Return what it returns, or raise it if it is an exception.
        """
        try:
            configure_log(cfg.hydra.hydra_logging, cfg.hydra.verbose)
            callbacks = Callbacks(cfg)
            callbacks.on_run_start(config=cfg, config_name=self.config_name)
            context = HydraContext(config_loader=self.hydra.config_loader, callbacks=callbacks)
            done = run_job(task, cfg, "hydra.run.dir", None, context)
        except (HydraException, ValueError, OSError) as e:  # errors of the task are in ``done``
            undo_logging(Path(cfg.hydra.run.dir))
            text = " ".join(f"{e} {e.__cause__ or ''}".split())
            allowed = "logging and callbacks as Hydra has them are allowed"
            raise ConfigError(f"hydra: {text}; {allowed}; correct hydra.* on the line") from e
        callbacks.on_run_end(config=cfg, config_name=self.config_name, job_return=done)
        ended: int | Exception = done.return_value
        if isinstance(ended, Exception):
            raise ended
        return ended

    @contextmanager
    def multirun(self, cfg: DictConfig, sweep_dir: Path) -> Iterator[None]:
        """Do around this block what Hydra does of a sweep besides its jobs."""
        with flag_override(cfg.hydra, "readonly", False):
            cfg.hydra.sweep.dir, cfg.hydra.mode = str(sweep_dir), RunMode.MULTIRUN
        if not (sweep_dir / "multirun.yaml").exists():
            OmegaConf.save(cfg, sweep_dir / "multirun.yaml")
        callbacks = Callbacks(cfg)
        callbacks.on_multirun_start(config=cfg, config_name=self.config_name)
        try:
            yield
        finally:
            callbacks.on_multirun_end(config=cfg, config_name=self.config_name)

    def sweep(self, task: TaskFunction, overrides: Sequence[str]) -> list[Any]:
        """Run ``task`` in every job by Hydra's launcher and return the results."""
        args = [*overrides, "hydra.mode=MULTIRUN"]
        batches = self.hydra.multirun(self.config_name, task, args)
        return [job.return_value for batch in batches or [] for job in batch]

    def rewrite(self, typed: Sequence[str]) -> list[Override]:
        """Rewrite ``env.length=50`` as ``env.kwargs.length=50``, and add ``++`` to new keys of free
        dicts.

        If one of two keys that exclude each other is typed, the other becomes null.
        """
        overrides = self.parse(typed)
        doubtful, others, keys = list[Override](), list[str](), keys_of(overrides)
        for override in overrides:
            if is_free(override.key) and override[:1] not in "+~":
                doubtful.append(override)
            other = _EXCLUSIVE.get(override.key)
            if other is not None and other not in keys and override.value != "null":
                others.append(other)
        if not (doubtful or others):
            return overrides
        cfg = self.compose([o for o in overrides if o not in doubtful], sweep=True)
        nulls = [Override(f"{o}=null") for o in others if OmegaConf.select(cfg, o) is not None]
        kwargs = self._env_kwargs(cfg) if doubtful else {}
        rewritten = [rewrite_override(o, kwargs, cfg) if o in doubtful else o for o in overrides]
        return rewritten + nulls

    def _env_kwargs(self, cfg: DictConfig) -> dict[str, set[str]]:
        """Return the keys of the free dicts, in a sweep those of any environment."""
        jobs = self.jobs(cfg)
        configs = (self.compose_job(cfg, job, 0) for job in jobs[:64]) if jobs else [cfg]
        known: dict[str, set[str]] = {name: set() for name in _FREE}
        for config in configs:
            for name in _FREE:
                known[name] |= {str(k) for k in OmegaConf.select(config, name) or {}}
        return known


def is_free(key: str) -> bool:
    """Return whether ``key`` is an argument of the environment, with or without ``kwargs``."""
    parts = key.split(".")
    if parts[0] != "env" or len(parts) < 2:
        return False
    return ".".join(parts[:2]) in _FREE or parts[1] not in reader.field_types(EnvConfig)


def rewrite_override(
    override: Override, known: Mapping[str, set[str]], cfg: DictConfig
) -> Override:
    """Return ``env.kwargs.length=50`` for ``env.length=50``, and ``++`` before new arguments.

    ``known``: the arguments in ``env.kwargs`` and ``env.eval_kwargs``.
    """
    key, value = override.key, override.value
    parts = key.split(".")
    name = ".".join(parts[:2])
    if name not in _FREE:
        if parts[1] in known["env.kwargs"]:
            return Override(f"env.kwargs.{override.removeprefix('env.')}")
        names = {*reader.field_types(EnvConfig), *known["env.kwargs"]}
        candidates = possible_keys(key, cfg, names)
        is_shipped = str(cfg.env.id).startswith("rlrun/")  # whose yaml names all arguments
        if not candidates and not is_shipped and not nearest(parts[1], names):
            candidates = [f"env.kwargs.{parts[1]}"]  # an argument that its yaml does not name
        raise unknown_key(key, value, names, candidates=candidates)
    new = len(parts) == 2 or parts[2] not in known[name]
    return Override(f"++{override}") if new else override


def read_composed(cfg: DictConfig) -> Config:
    """Return the dataclasses of a composed config. Its ``hydra`` node is only used to resolve.

    Raises: ConfigError.
    """
    if "hydra" in cfg:
        hydra_keys.resolve_hydra_from(cfg)
    values: dict[str, Any] = {}
    try:
        for key in cfg:
            if key == "hydra":
                continue
            value = "???" if OmegaConf.is_missing(cfg, key) else _unresolved(cfg._get_node(key))
            if "$" in repr(value):  # an interpolation
                value = cfg[key]
                if OmegaConf.is_config(value):
                    value = OmegaConf.to_container(value, resolve=True)
            values[str(key)] = value
    except Exception as e:  # resolvers may raise anything
        raise as_config_error(e, [], [], lambda group: []) from e
    return reader.read_config(values)


def _unresolved(node: Any) -> Any:
    """``OmegaConf.to_container(node, resolve=False, enum_to_str=True)``, ten times as fast."""
    content = node._value()
    if isinstance(content, dict):
        return {key: _unresolved(inner) for key, inner in content.items()}
    if isinstance(content, list):
        return [_unresolved(inner) for inner in content]
    return content.name if isinstance(content, Enum) else content


def to_yaml(cfg: DictConfig) -> str:
    """Return the composed config as yaml without hydra, interpolations (secrets) unresolved."""
    texts = []
    for name in cfg:
        if name == "hydra":
            continue
        value = _unresolved(cfg._get_node(name))
        shown = f"{name!r}: {value!r}"
        if shown not in _yaml_texts:  # the yaml of a group is made once for all jobs of a sweep
            if len(_yaml_texts) >= _MOST_TEXTS:
                _yaml_texts.clear()
            _yaml_texts[shown] = OmegaConf.to_yaml({name: value})
        texts.append(_yaml_texts[shown])
    return "".join(texts) or "{}\n"


def read_presets(composer: Composer, cfg: DictConfig, overrides: Sequence[Override]) -> Config:
    """Read the dataclasses of the composed ``cfg``.

    Raises: ConfigError, which names the experiment that set an unknown key.
    """
    try:
        return read_composed(cfg)
    except UnknownKey as e:
        experiment = cfg.hydra.runtime.choices.get("experiment")
        group, key = str(e.key).partition(".")[0], str(e.key)
        typed = {override.key: override for override in overrides if override[:1] not in "+~"}
        if key in typed or not e.owned or key in RENAMED or group not in typed or group == key:
            raise
        content = composer.content(f"experiment/{experiment}")
        if experiment is None or OmegaConf.select(content, key) is None:
            raise
        wrong, allowed = f"it sets {key}, which {typed[group]} does not have", "allowed is its own"
        fix = f"leave {typed[group]} or the experiment out"
        raise config_error("experiment", experiment, wrong, f"{allowed} {group}", fix) from e


def pack(cfg: DictConfig) -> dict[str, Any]:
    """Return the composed config of a job in JSON's types, interpolations unresolved."""
    hydra = _unresolved(cfg.hydra)
    for name in ("help", "hydra_help"):  # which no job reads
        hydra.pop(name, None)
    now = OmegaConf.get_cache(cfg).get("now", {})  # ${now:...} is the same time everywhere
    times = [[list(key), value] for key, value in now.items() if isinstance(key, tuple)]
    return {"config": to_yaml(cfg), "hydra": hydra, "now": times}


def place(packed: dict[str, Any], sweep_dir: Path, subdir: str | None) -> str:
    """Return the packed job as JSON with the directory of its sweep. ``subdir``: its own name."""
    packed["hydra"]["sweep"]["dir"] = str(sweep_dir)
    if subdir is not None:
        packed["hydra"]["sweep"]["subdir"] = subdir
    return json.dumps(packed)


def unpack(text: str) -> DictConfig:
    """Return the composed config that was packed."""
    packed = json.loads(text)
    setup_globals()
    cfg = OmegaConf.create(packed["config"])
    assert isinstance(cfg, DictConfig)
    node = OmegaConf.structured(HydraConf)
    OmegaConf.set_struct(node, False)  # its files have keys that its class lacks
    cfg.hydra = OmegaConf.merge(node, packed["hydra"])
    OmegaConf.set_struct(cfg, True)
    cache: dict[str, Any] = defaultdict(dict)
    cache["now"] = {tuple(key): value for key, value in packed["now"]}
    OmegaConf.set_cache(cfg, cache)
    return cfg


def run_packed(task: TaskFunction, text: str) -> Any:
    """Run ``task`` as Hydra runs a job of a sweep: its directory, logging, callbacks."""
    cfg = unpack(text)
    HydraConfig.instance().set_config(cfg)
    context = HydraContext(config_loader=Composer().hydra.config_loader, callbacks=Callbacks(cfg))
    done = run_job(task, cfg, "hydra.sweep.dir", "hydra.sweep.subdir", context)
    return done.return_value
