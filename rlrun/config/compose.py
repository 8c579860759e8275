"""Hydra behind one class: compose, expand sweeps, run.

Uses ``hydra._internal`` where Hydra 1.3 has no public way to compose as its command line does
(--config-dir, sweeps) without writing to the disk; hence the pin hydra-core<1.4.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import configure_log, run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict
from omegaconf.resolvers import oc

from rlrun.config.config_errors import config_error, unknown_key
from rlrun.config.directories import undo_logging
from rlrun.config.hydra_errors import HYDRA_ERRORS, as_config_error, override_key, possible_keys
from rlrun.config.hydra_keys import (
    check_files,
    check_jobs,
    check_node,
    check_primary,
    is_hydra_override,
    typed_overrides,
)
from rlrun.config.reader import field_types, read_config
from rlrun.config.yaml_limits import read_yaml, yaml_files
from rlrun.errors import ConfigError
from rlrun.schema import Config, EnvConfig
from rlrun.secrets import remember

VERSION_BASE = "1.3"


def _environment_variable(name: str, *default: object) -> object:
    """``${oc.env:NAME}``; its value, which may be a secret, is kept out of messages."""
    value = oc.env(name, *default)
    if name in os.environ:
        remember(os.environ[name], name)
    return value


OmegaConf.register_new_resolver("oc.env", _environment_variable, replace=True)
_FREE = ("env.kwargs", "env.eval_kwargs")  # dicts whose keys the environment defines
_EXCLUSIVE = (  # of two such keys one is a number, the other null
    ("learner.update_per_collect", "learner.replay_ratio"),
    ("policy.target_update_every", "policy.target_tau"),
)


def search_path() -> str:
    """Hydra's address of the shipped yaml files: in the package, or beside it in a checkout."""
    if find_spec("rlrun.conf") is not None:
        return "pkg://rlrun.conf"
    return f"file://{shipped_conf()}"


def shipped_conf() -> Path:
    """The directory of rlrun's own yaml files."""
    spec = find_spec("rlrun.conf")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    return Path(__file__).resolve().parents[2] / "conf"


@cache
def _shipped_config(overrides: tuple[str, ...]) -> DictConfig:
    loader = ConfigLoaderImpl(create_config_search_path(search_path()))
    return loader.load_configuration("config", list(overrides), RunMode.MULTIRUN)


def _check_directory(directory: Path) -> None:
    """Raise ConfigError for a user's file with a shipped name, which Hydra would ignore, or one
    that is larger than a config."""
    import rlrun

    package, files = Path(rlrun.__file__).parent, list(yaml_files(directory))
    for root in (package / "conf", package.parent / "conf"):
        for path in files:
            name = path.relative_to(directory)
            if (root / name).is_file() and root.resolve() != directory.resolve():
                wrong = f"{name} has the name of a file that rlrun ships, which would win"
                raise config_error("--config-dir", directory, wrong, "new names", f"rename {name}")
    for path in files:
        read_yaml(path)


class Composer:
    """Compose configs as ``rlrun KEY=VALUE…`` does. Nothing is written to the disk."""

    def __init__(self, *, config_name: str | None = None, config_dir: str | None = None) -> None:
        version.setbase(VERSION_BASE)
        self.config_name = config_name or "config"
        search = create_config_search_path(search_path())
        if config_dir is not None:
            path = Path(config_dir).absolute()
            if not path.is_dir():
                raise config_error(
                    "--config-dir", config_dir, "no such directory", "a directory", "name it"
                )
            _check_directory(path)
            anchor = SearchPathQuery(provider="schema")
            search.prepend(provider="command-line", path=f"file://{path}", anchor=anchor)
        GlobalHydra.instance().clear()
        self.hydra = Hydra.create_main_hydra2(task_name="rlrun", config_search_path=search)
        self.foreign = config_dir is not None  # files that rlrun does not ship are read

    def groups(self) -> list[str]:
        """The names of the groups."""
        return [g for g in self.hydra.config_loader.list_groups("") if not g.startswith("_")]

    def options(self, group: str) -> list[str]:
        """The options of a group, those of --config-dir included."""
        return self.hydra.config_loader.get_group_options(group, ObjectType.CONFIG)

    def gives(self, name: str, key: str) -> bool:
        """True if the yaml file ``name`` itself has a value for ``key``."""
        return OmegaConf.select(self._load(name), key) is not None

    def _load(self, name: str) -> Any:
        """The content of the yaml file ``name``, empty where there is none."""
        found = self.hydra.config_loader.repository.load_config(name)  # type: ignore[attr-defined]
        return OmegaConf.create() if found is None else found.config

    def compose(self, overrides: Sequence[str], *, sweep: bool = False) -> DictConfig:
        """The composed config with its ``hydra`` node.

        Raises: ConfigError when it cannot be composed.
        """
        mode = RunMode.MULTIRUN if sweep else RunMode.RUN
        try:
            if self.foreign and self.config_name != "config":
                check_primary(self._load(self.config_name))
            with warnings.catch_warnings():  # of a search path that is not there
                warnings.filterwarnings("error", category=UserWarning, module="hydra")
                cfg = self.hydra.compose_config(
                    config_name=self.config_name,
                    overrides=list(overrides),
                    run_mode=mode,
                    with_log_configuration=False,
                )
        except ConfigError:
            raise
        except Exception as e:  # Hydra asserts on input, and more
            raise as_config_error(e, overrides, self.groups(), self.options) from e
        self._check_hydra(cfg, overrides)
        return cfg

    def _check_hydra(self, cfg: DictConfig, overrides: Sequence[str]) -> None:
        """Raise ConfigError for a hydra node that runs code or that files may not give."""
        if self.foreign or any("hydra.searchpath" in o for o in overrides):
            typed = [o for o in overrides if is_hydra_override(o) and "searchpath" not in o]
            check_files(cfg, self._shipped(tuple(typed)), overrides)
        check_node(cfg)

    def _shipped(self, overrides: tuple[str, ...]) -> DictConfig:
        """The config of the shipped files and these overrides of the hydra node."""
        try:
            return _shipped_config(overrides)
        except Exception as e:
            raise as_config_error(e, overrides, self.groups(), self.options) from e

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """The overrides, parsed by Hydra's grammar."""
        parser = OverridesParser.create(config_loader=self.hydra.config_loader)
        try:
            return parser.parse_overrides(list(overrides))
        except HYDRA_ERRORS as e:
            raise as_config_error(e, overrides, self.groups(), self.options) from e

    def jobs(self, cfg: DictConfig) -> list[list[str]]:
        """The overrides of every job of a sweep; empty for an adaptive sweeper."""
        sweeper = cfg.hydra.sweeper
        if not str(sweeper.get("_target_", "")).endswith(".BasicSweeper"):
            return []
        params = sweeper.get("params") or {}
        if not isinstance(params, DictConfig | dict):
            wrong, allowed = "is no mapping", "a mapping {key: values} is allowed"
            raise config_error("hydra.sweeper.params", params, wrong, allowed, "write one")
        parsed = self.parse([*(f"{k!s}={v}" for k, v in params.items()), *typed_overrides(cfg)])
        check_jobs(parsed)
        size = sweeper.max_batch_size
        if size is not None and size < 1:
            key, allowed = "hydra.sweeper.max_batch_size", "an integer >= 1 or null"
            raise config_error(key, size, "holds no job", allowed, "leave it out")
        try:
            batches = BasicSweeper.split_arguments(parsed, size)
        except HYDRA_ERRORS as e:
            raise as_config_error(e, typed_overrides(cfg), [], self.options) from e
        return [job for batch in batches for job in batch]

    def compose_job(self, cfg: DictConfig, overrides: Sequence[str], num: int) -> DictConfig:
        """The config of one job of the sweep ``cfg``."""
        try:
            job = self.hydra.config_loader.load_sweep_config(cfg, list(overrides))
        except Exception as e:
            raise as_config_error(e, overrides, self.groups(), self.options) from e
        self._check_hydra(job, [*typed_overrides(cfg, "hydra"), *overrides])
        with open_dict(job):
            job.hydra.job.id, job.hydra.job.num = str(num), num
        return job

    def directory(self, cfg: DictConfig, key: str) -> Path:
        """The path that ``key`` of the hydra node gives, e.g. ``hydra.run.dir``."""
        HydraConfig.instance().set_config(cfg)
        try:
            value = OmegaConf.select(cfg, key)
        except HYDRA_ERRORS as e:
            raise as_config_error(e, [], [], self.options) from e
        if not isinstance(value, str) or not value:
            raise config_error(key, value, "is no path", "a path is allowed", f"set {key}=PATH")
        return Path(value)

    def set_directory(self, cfg: DictConfig, path: Path) -> None:
        """Make ``path`` the directory of the single run ``cfg``."""
        with flag_override(cfg.hydra, "readonly", False):
            cfg.hydra.run.dir, cfg.hydra.mode = str(path), RunMode.RUN

    def run(self, task: TaskFunction, cfg: DictConfig) -> Any:
        """Run ``task`` in ``hydra.run.dir``, return its result: ``Hydra.run`` without composing."""
        try:
            configure_log(cfg.hydra.hydra_logging, cfg.hydra.verbose)
            callbacks = Callbacks(cfg)
            callbacks.on_run_start(config=cfg, config_name=self.config_name)
            context = HydraContext(config_loader=self.hydra.config_loader, callbacks=callbacks)
            done = run_job(task, cfg, "hydra.run.dir", None, context)
        except (HydraException, ValueError, OSError) as e:  # those of the task are in ``done``
            undo_logging(Path(cfg.hydra.run.dir))
            text = " ".join(f"{e} {e.__cause__ or ''}".split())
            allowed = "logging and callbacks as Hydra has them are allowed"
            raise ConfigError(f"hydra: {text}; {allowed}; correct hydra.* on the line") from e
        callbacks.on_run_end(config=cfg, config_name=self.config_name, job_return=done)
        return done.return_value

    def sweep(self, task: TaskFunction, overrides: Sequence[str]) -> list[Any]:
        """Run ``task`` in every job by Hydra's launcher and return the results."""
        args = [*overrides, "hydra.mode=MULTIRUN"]
        batches = self.hydra.multirun(self.config_name, task, args)
        return [job.return_value for batch in batches or [] for job in batch]

    def rewrite(self, overrides: Sequence[str]) -> list[str]:
        """``env.length=50`` as ``env.kwargs.length=50``, and ``++`` for new keys of free dicts.

        Of two keys that exclude each other, the one given by files is null where the other is
        typed.
        """
        overrides = [*overrides, *self._exclusive_nulls(overrides)]
        doubtful = [o for o in overrides if _is_free(override_key(o)) and o[:1] not in "+~"]
        if not doubtful:
            return overrides
        cfg = self.compose([o for o in overrides if o not in doubtful], sweep=True)
        kwargs = self._env_kwargs(cfg)
        return [_rewrite_override(o, kwargs, cfg) if o in doubtful else o for o in overrides]

    def _exclusive_nulls(self, overrides: Sequence[str]) -> Iterator[str]:
        """Yield ``learner.replay_ratio=null`` where only ``update_per_collect=4`` was typed."""
        typed = {override_key(o): o.partition("=")[2] for o in overrides}
        for pair in _EXCLUSIVE:
            for key, other in (pair, pair[::-1]):
                if typed.get(key, "null") == "null" or other in typed:
                    continue
                plain = [o for o in overrides if not _is_free(override_key(o))]
                if OmegaConf.select(self.compose(plain, sweep=True), other) is not None:
                    yield f"{other}=null"

    def _env_kwargs(self, cfg: DictConfig) -> dict[str, set[str]]:
        """The keys of the free dicts; in a sweep those of any environment."""
        jobs = self.jobs(cfg)
        configs = [self.compose_job(cfg, job, 0) for job in jobs[:64]] or [cfg]
        known: dict[str, set[str]] = {name: set() for name in _FREE}
        for config in configs:
            for name in _FREE:
                known[name] |= {str(k) for k in OmegaConf.select(config, name) or {}}
        return known


def _is_free(key: str) -> bool:
    parts = key.split(".")
    if parts[0] != "env" or len(parts) < 2:
        return False
    return ".".join(parts[:2]) in _FREE or parts[1] not in field_types(EnvConfig)


def _rewrite_override(override: str, known: Mapping[str, set[str]], cfg: DictConfig) -> str:
    key, equals, value = override.partition("=")
    parts = key.split(".")
    name = ".".join(parts[:2])
    if name not in _FREE:
        if parts[1] in known["env.kwargs"]:
            return f"env.kwargs.{override.removeprefix('env.')}"
        names = {*field_types(EnvConfig), *known["env.kwargs"]}
        raise unknown_key(key, value, names, candidates=possible_keys(key, cfg, names))
    new = len(parts) == 2 or parts[2] not in known[name]
    return f"++{key}{equals}{value}" if new else override


def read_composed(cfg: DictConfig) -> Config:
    """The dataclasses of a composed config (its ``hydra`` node is only used to resolve).

    Raises: ConfigError.
    """
    if "hydra" in cfg:
        HydraConfig.instance().set_config(cfg)
    try:
        values = {str(key): _resolved(cfg, key) for key in cfg if key != "hydra"}
    except Exception as e:  # resolvers raise whatever they like
        raise as_config_error(e, [], [], lambda group: []) from e
    return read_config(values)


def _resolved(cfg: DictConfig, key: Any) -> Any:
    if OmegaConf.is_missing(cfg, key):
        return "???"
    value = cfg[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def strip(cfg: DictConfig) -> DictConfig:
    """A copy without the ``hydra`` node, which interpolations can still reach."""
    if "hydra" not in cfg:
        return cfg
    HydraConfig.instance().set_config(cfg)
    copy = cfg.copy()
    with open_dict(copy):
        del copy["hydra"]
    return copy


def to_yaml(cfg: DictConfig) -> str:
    """The composed config as yaml, interpolations (and so secrets) unresolved, without hydra."""
    return OmegaConf.to_yaml(strip(cfg), resolve=False)
