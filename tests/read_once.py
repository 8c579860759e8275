"""The shipped yaml files are read and merged once per run of the tests, by whichever process.

Composing a config takes longer than most tests: 110 ms, of which reading the files, following
their defaults and merging them are 90. All three depend on the chosen options alone, not on the
values of other keys. Composing with files of a test's own goes Hydra's way.
"""

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from rlrun.config.compose import shipped_conf

_SHIPPED = (f"file://{shipped_conf()}", "pkg://hydra.conf")  # nothing writes to these
_OWN = {*_SHIPPED, "structured://"}
_load = ConfigRepository.load_config
_create_defaults_list = config_loader_impl.create_defaults_list
_compose = ConfigLoaderImpl._compose_config_from_defaults_list
_stored: dict[Any, bytes] = {}
SHARED = "RLRUN_TESTS_READ_ONCE"  # names the directory in which the processes share what they read


def _once(key: Any, make: Callable[[], Any]) -> Any:
    """A copy of what ``make`` returned when it was first called for ``key``."""
    if key not in _stored:
        _stored[key] = _shared(repr(key), make)
    return pickle.loads(_stored[key])


def _shared(key: str, make: Callable[[], Any]) -> bytes:
    directory = os.environ.get(SHARED)
    if directory is None:
        return pickle.dumps(make())
    path = Path(directory) / hashlib.sha256(key.encode()).hexdigest()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        data = pickle.dumps(make())
    partly = path.with_suffix(f".{os.getpid()}")
    partly.write_bytes(data)
    partly.replace(path)
    return data


def _foreign(repo: Any) -> bool:
    return any(source.full_path() not in _OWN for source in repo.get_sources())


def _load_once(self: ConfigRepository, config_path: str) -> ConfigResult | None:
    source = self._find_object_source(config_path, ObjectType.CONFIG)
    if source is None or source.full_path() not in _SHIPPED:
        return _load(self, config_path)
    key = "file", source.full_path(), config_path
    return _once(key, lambda: _load(self, config_path))


def _defaults_once(repo: Any, config_name: str, overrides_list: list[Any], **options: Any) -> Any:
    if _foreign(repo):
        return _create_defaults_list(repo, config_name, overrides_list, **options)
    values = [o for o in overrides_list if o.is_sweep_override() or _is_value(repo, o)]
    choices = [o for o in overrides_list if o not in values]

    def make() -> Any:
        found = _create_defaults_list(repo, config_name, choices, **options)
        found.defaults_tree = None  # nothing reads it when composing
        return found

    key = "defaults", config_name, tuple(o.input_line for o in choices), *options.items()
    found = _once(key, make)
    found.config_overrides = [o for o in values if not o.is_sweep_override()]
    return found


def _is_value(repo: Any, override: Any) -> bool:
    """True for the override of a value, as Hydra's ``Overrides`` tells them from options."""
    return isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)


def _merge_once(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: Any) -> DictConfig:
    if _foreign(repo):
        return _compose(self, defaults, repo)
    key = "merged", *((d.config_path, d.package, d.is_self, d.primary) for d in defaults)
    return _once(key, lambda: _compose(self, defaults, repo))


ConfigRepository.load_config = _load_once
config_loader_impl.create_defaults_list = _defaults_once
ConfigLoaderImpl._compose_config_from_defaults_list = _merge_once
