"""Keys of the command line that nothing reads under the rest of the config. Torch-free.

Only typed keys are asked about: files give keys of every option, and a sweep's lines share theirs.
What reads a key is metadata of its field in ``rlrun.schema``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any

from rlrun.config.config_errors import config_error, format_value
from rlrun.config.hydra_errors import override_key
from rlrun.schema import Config
from rlrun.schema.ranges import NOUNS, Condition, Reader, join_words


def check_typed_keys(config: Config, overrides: Sequence[str]) -> None:
    """Raise ConfigError for the first of ``overrides`` that would change nothing."""
    for text in overrides:
        key, value = override_key(text), text.partition("=")[2]
        reason = _unread(config, key) if value != "null" else None
        if reason is not None:
            allowed, fix = reason
            raise config_error(
                key, value, "it would change nothing", allowed, f"{fix}, or leave it out"
            )


def _unread(config: Config, key: str) -> tuple[str, str] | None:
    """(what reads ``key``, what to do) where nothing reads it, else None."""
    group, name = [*key.split("."), ""][:2]  # explore.epsilon.start belongs to explore.epsilon
    known = _fields(config, group)
    metadata: Mapping[str, Any] = known[name].metadata if name in known else {}
    if "default_of" in metadata:
        other = metadata["default_of"]
        value = _value(config, other)
        if value != _value(config, f"{group}.{name}"):
            return f"{other} is {format_value(value)} whatever the environment", f"set {other}"
    reader: Reader | None = metadata.get("read_when")
    if reader is None:
        return None
    unmet = [[c for c in every if not _is_met(config, c)] for every in reader.any_of]
    if not all(unmet):
        return None
    reads = " or ".join(" with ".join(map(str, every)) for every in unmet)
    condition = unmet[0][-1]
    return f"{reads} reads it{_keys_read_instead(config, group, condition)}", _fix(
        config, reader, condition
    )


def _fields(config: Config, group: str) -> dict[str, Field[Any]]:
    part = getattr(config, group, None)
    return {f.name: f for f in fields(part)} if is_dataclass(part) else {}


def _value(config: Config, key: str) -> Any:
    """The value of ``key`` in the config; of a group, the chosen option."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value.name if "." not in key else value


def _is_met(config: Config, condition: Condition) -> bool:
    value = _value(config, condition.key)
    if not condition.values:
        return value not in (None, False)
    own_class = condition.key == "memory" and ":" in value  # it may read any key
    return own_class or format_value(value) in condition.values


def _fix(config: Config, reader: Reader, condition: Condition) -> str:
    if condition.key in NOUNS:
        return f"use {config.policy.recurrent_variant or 'one that does'}"
    return reader.fix or f"set {condition.key}={condition.values[0]}"


def _keys_read_instead(config: Config, group: str, unmet: Condition) -> str:
    """Text with the keys of the group that are read now, and would not be if ``unmet`` were met."""
    keys = []
    for name, field in _fields(config, group).items():
        reader: Reader | None = field.metadata.get("read_when")
        other = reader.any_of[0][0] if reader else unmet
        apart = other.key == unmet.key and not set(unmet.values[:1]) & set(other.values)
        if apart and _is_met(config, other):
            keys.append(f"{group}.{name}")
    return f" (read now: {join_words(keys, 'and')})" if keys else ""
