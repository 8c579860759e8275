"""The shipped yaml files are read once per test process: parsing them is a third of composing."""

import pickle

from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult

from rlrun.config.compose import search_path

_SHIPPED = (search_path(), "pkg://hydra.conf")  # nothing writes to these
_loaded: dict[tuple[str, str], bytes] = {}
_load = ConfigRepository.load_config


def _load_once(self: ConfigRepository, config_path: str) -> ConfigResult | None:
    source = self._find_object_source(config_path, ObjectType.CONFIG)
    if source is None or source.full_path() not in _SHIPPED:
        return _load(self, config_path)
    key = (source.full_path(), config_path)
    if key not in _loaded:
        _loaded[key] = pickle.dumps(_load(self, config_path))
    return pickle.loads(_loaded[key])  # a copy: composing changes it


ConfigRepository.load_config = _load_once
