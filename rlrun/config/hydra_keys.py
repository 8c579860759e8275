"""The keys of Hydra that yaml files may set. All others are for the command line.

Through ``hydra.*`` a config can start code (``job.env_set``, ``job_logging``, ``callbacks``) or
name files to write, so users' files may set only the keys of ``ALLOWED``. The composed ``hydra``
node is compared with that of the shipped files and the same command line. ``@package``, defaults
lists and search paths cannot bypass this.
"""

import logging.config
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.config_errors import code_error, config_error
from rlrun.config.directories import check_below, check_inside, check_written
from rlrun.errors import ConfigError
from rlrun.schema import Config, RayConfig
from rlrun.schema.override import Override, keys_of, read_overrides
from rlrun.trust import note_typed_env, require_trusted_env


@contextmanager
def hydra_restored() -> Iterator[None]:
    """Restore Hydra's state after the block.

    The process may be a Hydra application or a notebook that calls Hydra.
    """
    hydra, config, version = GlobalHydra.instance(), HydraConfig.instance(), VersionBase.instance()
    before = hydra.hydra, config.cfg, version.version_base
    try:
        yield
    finally:
        hydra.hydra, config.cfg, version.version_base = before


def resolve_hydra_from(cfg: DictConfig) -> None:
    """Make ``${hydra:KEY}`` read the hydra node of ``cfg``, which becomes read-only.

    ``HydraConfig.set_config`` does the same but copies the node, which takes a fifth of a job's
    time.
    """
    OmegaConf.set_readonly(cfg.hydra, True)
    HydraConfig.instance().cfg = cfg  # type: ignore[assignment]


ALLOWED = (
    "run.dir", "sweep.dir", "sweep.subdir", "sweeper.params", "sweeper.max_batch_size",
    "job.config.override_dirname.exclude_keys",
)  # fmt: skip
MAX_JOBS = 10_000  # per sweep
ADDRESSES = ("pipeline.address", "logger.mlflow")  # addresses must be typed
_PATHS = ("run.dir", "sweep.dir")  # sweep.subdir is checked in every job
_ABSENT = "(removed)"  # the value of a key that one of two nodes lacks
_COMPUTED = ("runtime", "job.override_dirname", "job.config_name", "searchpath")  # by Hydra
_PLUGINS = ("hydra._internal.core_plugins.", "hydra_plugins.", "rlrun.sweeps.")


def typed_overrides(cfg: DictConfig, kind: str = "task") -> list[Override]:
    """Return the overrides of a command line, interpolations (of each job) unresolved."""
    values = OmegaConf.to_container(cfg.hydra.overrides[kind], resolve=False)
    assert isinstance(values, list)
    return read_overrides(map(str, values))


def check_files(cfg: DictConfig, shipped: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError if files set keys of the hydra node that only a command line may set.

    ``shipped``: the config of the shipped files and the command line's hydra overrides.
    ``overrides``: those of the command line.
    """
    expected, actual = (OmegaConf.to_container(c.hydra, resolve=False) for c in (shipped, cfg))
    assert isinstance(expected, dict)
    assert isinstance(actual, dict)
    for key, value in sorted(_differences(expected, actual), key=itemgetter(0)):
        if key == "overrides":  # more than was typed
            words = [text for name in ("hydra", "task") for text in value[name]]
            if sorted(map(str, words)) != sorted(overrides):
                raise _only_typed("overrides", [text for text in words if text not in overrides])
        elif not key.startswith(_COMPUTED):
            _check_value(key, value, cfg)


def check_primary(config: DictConfig) -> None:
    """Raise ConfigError if a --config-name file names other places of yaml files."""
    value = OmegaConf.select(config, "hydra.searchpath")
    if value is not None:
        raise _only_typed("searchpath", OmegaConf.to_container(value))


def check_node(cfg: DictConfig) -> None:
    """Raise ConfigError if the hydra node names code that is not Hydra's or a plugin's."""
    node = OmegaConf.to_container(cfg.hydra, resolve=False)
    _check_targets(node, "hydra")
    subdir = node.get("output_subdir") if isinstance(node, dict) else None
    if isinstance(subdir, str):
        check_inside("hydra.output_subdir", subdir)


def check_values(config: Config, overrides: Sequence[Override]) -> None:
    """Raise ConfigError if a file names a path or an environment that only a command line may name.

    These are paths to write to outside the working directory, and environments of untrusted
    packages.
    """
    typed = keys_of(overrides)
    if "env.id" not in typed:
        require_trusted_env(config.env.id)
    note_typed_env(config.env.id)
    if config.run.dir is not None and "run.dir" not in typed:
        check_below("run.dir", config.run.dir)
    check_written(config, typed)


def check_addresses(config: Config, typed: Collection[str]) -> None:
    """Raise ConfigError if a file, not a ``typed`` key, names a machine to connect to."""
    ray = config.pipeline if isinstance(config.pipeline, RayConfig) else None
    values = (None if ray is None else ray.address, config.logger.mlflow)
    for key, value in zip(ADDRESSES, values, strict=True):
        if value is not None and key not in typed:
            wrong = "comes from a file, which may not choose an address to contact"
            fix = f"type {key}={shlex.quote(str(value))}, or {key}=null"
            raise config_error(key, value, wrong, "an address that you type is allowed", fix)


def check_jobs(overrides: Sequence[Override]) -> None:
    """Raise ConfigError for a sweep of no or more than ``MAX_JOBS`` jobs, before it is expanded."""
    jobs = 1.0
    for override in overrides:
        swept = override.parsed.value() if override.parsed.is_sweep_override() else None
        if isinstance(swept, RangeSweep):
            start, stop, step = (float(x or 0) for x in (swept.start, swept.stop, swept.step))
            count = (stop - start) / step if step else MAX_JOBS + 1.0
            if count <= 0:
                allowed, fix = "a range of at least one value is allowed", "check its ends"
                raise config_error(override.key, override.value, "has no values", allowed, fix)
            jobs *= max(1.0, count)
        elif isinstance(swept, ChoiceSweep):
            jobs *= max(1, len(swept.list))
        if not jobs <= MAX_JOBS:
            allowed, fix = f"at most {MAX_JOBS} jobs are allowed", "sweep over less"
            raise config_error(override.key, override.value, "too many jobs", allowed, fix)


def _differences(expected: Any, actual: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the deepest values of ``actual`` that differ from ``expected``."""
    if path in ("overrides", *ALLOWED) or not (
        isinstance(expected, dict) and isinstance(actual, dict)
    ):
        if expected != actual:
            yield path, actual
        return
    for name in dict.fromkeys([*expected, *actual]):
        inner = f"{path}.{name}" if path else str(name)
        yield from _differences(expected.get(name, _ABSENT), actual.get(name, _ABSENT), inner)


def _check_value(key: str, value: Any, cfg: DictConfig) -> None:
    if key not in ALLOWED:
        raise _only_typed(key, value)
    if key in _PATHS:
        cfg = cfg.copy()  # made read-only by this
        resolve_hydra_from(cfg)
        with suppress(OmegaConfBaseException):  # reported on use
            check_inside(f"hydra.{key}", str(OmegaConf.select(cfg, f"hydra.{key}")))
    if key == "sweeper.params" and isinstance(value, Mapping):
        for name, inner in value.items():
            if Override(str(name)).is_hydra:
                raise _only_typed(f"{key}.{name}", inner)


def _only_typed(key: str, value: Any) -> ConfigError:
    wrong = "a file may not set this"
    allowed = f"files may set hydra.{{{', '.join(ALLOWED)}}}"
    fix = f"remove it from the yaml, or type hydra.{key}=VALUE on the command line"
    return config_error(f"hydra.{key}", value, wrong, allowed, fix)


def _check_targets(value: object, path: str) -> None:
    for key, inner in value.items() if isinstance(value, dict) else ():
        full, text = f"{path}.{key}", str(inner)
        if key == "_target_" and not text.startswith(_PLUGINS):
            raise code_error(full, inner, "Hydra's own parts and installed hydra_plugins")
        foreign = key == "()" or (key == "class" and not text.startswith("logging."))
        if "logging" in path and foreign:
            raise code_error(full, inner, "classes of Python's logging")
        _check_targets(inner, full)


def check_logging(cfg: DictConfig, run_dir: Path, overrides: Sequence[Override]) -> None:
    """Raise ConfigError unless Python accepts the logging that ``overrides`` ask for.

    ``run_dir``: the directory for its files. No file is opened, and no directory made.
    """
    for name in ("hydra_logging", "job_logging"):
        if any(override.is_hydra and name in override for override in overrides):
            _check(cfg, name, run_dir)


def _check(cfg: DictConfig, name: str, run_dir: Path) -> None:
    try:
        settings = _resolved(cfg, name, run_dir)
        if settings is None or settings["root"] is None:  # none, as hydra/job_logging=none
            return
        for handler in (settings.get("handlers") or {}).values():
            if "filename" in handler:
                path = Path(handler["filename"]).absolute()
                if path.parent != run_dir.absolute() and not path.parent.is_dir():
                    allowed = "a file of the run directory or an existing one is allowed"
                    wrong = "its directory does not exist"
                    raise config_error(f"hydra.{name}", path, wrong, allowed, "make it first")
                handler["delay"] = True  # opens the file at the first message
        logging.config.dictConfig(settings)
    except ConfigError:
        raise
    except Exception as e:  # formatters and handlers may raise anything
        text = " ".join(f"{e} {e.__cause__ or ''}".split())
        allowed = "logging as Python's logging.config has it is allowed"
        fix = "correct hydra.* on the line"
        raise config_error(f"hydra.{name}", "(command line)", text, allowed, fix) from e


def _resolved(cfg: DictConfig, name: str, run_dir: Path) -> Any:
    runtime = cfg.hydra.runtime
    with read_write(runtime), open_dict(runtime):
        runtime.output_dir = str(run_dir)
        try:
            resolve_hydra_from(cfg)
            return OmegaConf.to_container(cfg.hydra[name], resolve=True)
        finally:
            runtime.output_dir = "???"  # as composed
