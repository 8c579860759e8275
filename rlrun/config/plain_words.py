"""Unquoted words that the command line and a yaml file read differently, or not as they look.

Hydra's grammar knows ``true``, ``false``, ``null``, ``inf`` and decimal numbers; ``off`` or
``0x10`` is a text to it, and true to an ``if``. Keys of a known type refuse a text by themselves;
arguments of an environment have no type, so these words are refused in them.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.config_errors import config_error
from rlrun.schema.ranges import format_value

FREE = ("kwargs", "eval_kwargs")  # mappings of an env whose keys and types are the environment's
_NONE = ("None", "none", "nil", "undefined")
_NO_NUMBER = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)  # in yaml; .inf and .nan are


def check_override(override: Override) -> None:
    """Raise ConfigError for an argument of an environment that would not be what it reads."""
    value = override._value  # with its quotes, as ``value()`` is not
    choices = value.list if isinstance(value, ChoiceSweep) else value
    for key, word in _plain_words(choices, override.key_or_group):
        meaning = None if word in _NONE else _yaml_value(word)
        if isinstance(meaning, str):
            continue
        wrong = "an unquoted word is a text, and true where the environment asks for a truth value"
        if word not in _NONE:
            wrong += f" (a yaml file reads {format_value(meaning)})"
        allowed = "true, false, null, decimal numbers and quoted text are allowed"
        fix = f"write {format_value(meaning)}, or the text in quotes: \"{key}='{word}'\""
        raise config_error(key, word, wrong, allowed, fix)


def _plain_words(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of the unquoted texts in a parsed value."""
    if isinstance(value, QuotedString):
        return
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _plain_words(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _plain_words(inner, key)


def _yaml_value(word: str) -> Any:
    """Return the value that a yaml file would read in place of ``word``."""
    try:
        value = OmegaConf.create(f"[{word}]")
        return OmegaConf.to_container(value)[0] if len(value) == 1 else word  # type: ignore[index]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError):
        return word


def check_yaml_words(text: str, path: Path) -> None:
    """Raise ConfigError where a yaml file gives an environment a text that looks like no text."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for key, word in _yaml_words(yaml.compose(text, Loader=loader), ""):
        if word in _NONE or _NO_NUMBER.fullmatch(word):
            wrong = f"is the text '{word}' in yaml, which counts as true"
            allowed = "null, .inf, .nan and quoted text are allowed"
            raise config_error(key, word, wrong, allowed, f"correct {path}")


def _yaml_words(node: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of the unquoted texts that are arguments of an environment."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _yaml_words(value, f"{key}.{name.value}".lstrip("."))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _yaml_words(value, key)
    elif set(FREE) & set(key.split(".")[:-1]) and node.tag.endswith(":str") and not node.style:
        yield key, node.value
