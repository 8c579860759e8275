"""Conversion of plain values to the dataclasses of ``rlrun.schema``, strictly.

Unknown and missing keys, wrong types, NaN and infinity are rejected with the full key. The
dataclasses themselves check ranges.
"""

import math
import os
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.config_errors import code_error, config_error, unknown_key, unknown_option
from rlrun.errors import ConfigError
from rlrun.schema import (
    OPTION_CONFIGS,
    WRAPPER_CONFIGS,
    Config,
    EnvConfig,
    Invalid,
    LearnerConfig,
    MemoryConfig,
    PolicyConfig,
    ScheduleConfig,
    Seconds,
    WrapperConfig,
)
from rlrun.schema.ranges import format_value
from rlrun.trust import trusted_class

FREE = ("kwargs", "eval_kwargs")  # mappings whose keys and types the environment defines
_NONE = ("None", "none", "nil", "undefined")
_NO_NUMBER = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)  # in yaml; .inf and .nan are


def check_override(override: Override) -> None:
    """Raise ConfigError for an environment's argument whose type is not what it looks like."""
    value = override._value  # with its quotes, which ``value()`` drops
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
    """Return the value that a yaml file would read for ``word``."""
    try:
        value = OmegaConf.create(f"[{word}]")
        return OmegaConf.to_container(value)[0] if len(value) == 1 else word  # type: ignore[index]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError):
        return word


def check_yaml_words(text: str, path: Path) -> None:
    """Raise ConfigError if a yaml file gives an environment a text that looks like another type."""
    for key, word in _yaml_words(yaml.compose(text, Loader=_Loader), ""):
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


MAX_BYTES = 2**18
MAX_NODES = 10_000  # keys and values, including those of aliases
MAX_DEPTH = 32
MAX_FILES = 2_000  # below --config-dir, of any type
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def yaml_files(directory: Path) -> Iterator[Path]:
    """Yield the yaml files below ``directory``. Raises: ConfigError if it holds too many files."""
    seen = 0
    for parent, directories, names in os.walk(directory):
        seen += len(directories) + len(names)
        if seen > MAX_FILES:
            wrong, allowed = "holds more than yaml files", f"at most {MAX_FILES} files"
            raise config_error("--config-dir", directory, wrong, allowed, "name a smaller one")
        yield from (Path(parent, name) for name in names if name.endswith(".yaml"))


def read_yaml(path: Path) -> str:
    """Return the text of a yaml file.

    Raises: ConfigError if it is not text or not yaml, too large or too deep.
    """
    try:
        if not path.is_file():  # reading a device or a pipe may never end
            raise _refused(path, "is not a regular file", "a file is allowed")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _refused(path, f"has {size} bytes", f"{MAX_BYTES} are allowed")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise _refused(path, f"cannot be read ({reason})", "text in UTF-8 is allowed") from e
    try:
        # Raises for a second document and an anchor twice; libyaml itself stops at 1000 levels.
        nodes, levels = _measure(yaml.compose(text, Loader=_Loader), {})
    except yaml.YAMLError as e:
        wrong = f"is not yaml ({' '.join(str(e).split())})"
        raise _refused(path, wrong, "valid yaml is allowed") from e
    except RecursionError:
        nodes, levels = 0, math.inf
    if nodes > MAX_NODES:
        raise _refused(path, f"has more than {MAX_NODES} values", f"{MAX_NODES} are allowed")
    if levels > MAX_DEPTH:
        raise _refused(path, f"is nested deeper than {MAX_DEPTH}", f"{MAX_DEPTH} levels")
    return text


def _measure(node: Any, known: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Return (nodes, levels) of a yaml node with aliases expanded. ``known``: those of others."""
    if not isinstance(node, yaml.CollectionNode):
        return 1, 0
    if id(node) not in known:
        known[id(node)] = math.inf, 0  # an alias within itself
        pairs = isinstance(node, yaml.MappingNode)
        inside = [part for pair in node.value for part in pair] if pairs else node.value
        sizes = [_measure(part, known) for part in inside]
        deepest = max((levels for _, levels in sizes), default=0)
        known[id(node)] = 1 + sum(nodes for nodes, _ in sizes), 1 + deepest
    return known[id(node)]


def _refused(path: Path, wrong: str, allowed: str) -> ConfigError:
    return config_error(str(path), "(yaml)", wrong, allowed, "correct the file")


_CODE = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")  # of Hydra's instantiate
_NO_VALUE = ("", "None")  # an unset shell variable, and Python's None
_MISSING = "???"  # OmegaConf's mark for a value that must be given


def _meant(value: object) -> str:
    """Return the number that 20k or 1.5M means, "" for anything else."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([kKmM])", str(value))
    return str(round(float(match[1]) * {"k": 1e3, "m": 1e6}[match[2].lower()])) if match else ""


def _fix(path: str, value: object, kind: str) -> str:
    """Return what to set ``path`` to, which has no number of this ``kind``."""
    if isinstance(value, str) and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?(e-?\d+)?", value):
        return 'this is a text: leave its quotes out, or write "${oc.decode:${oc.env:NAME}}"'
    return f"set {path}={_meant(value) or kind}"


_SCALARS = {  # type -> what a value is not, what is allowed, what to type
    bool: ("a truth value", "true or false is allowed", "true"),
    int: ("an integer", "an integer is allowed", "INTEGER"),
    float: ("a finite number", "a finite number is allowed", "NUMBER"),
    str: ("text", "text is allowed", "TEXT"),
    Seconds: ("a duration", "seconds, or a number with a unit (90m, 3.5h, 2d), is allowed", "4h"),
}


def _scalar(kind: type, path: str, value: Any) -> Any:
    """Convert a value to bool, int, float, str or Seconds."""
    if type(value) is kind and kind is not float:
        return value
    if kind is str and type(value) is int:
        return str(value)  # a directory may be called 2024
    with suppress(OverflowError, ValueError):  # an integer of more than 308 digits, no duration
        if kind is Seconds and isinstance(value, str):
            return Seconds.parse(value)
        is_number = type(value) in (int, float) and kind in (int, float, Seconds)
        if is_number and math.isfinite(value) and (kind is not int or value == int(value)):
            return kind(value)
    what, allowed, example = _SCALARS[kind]
    wrong = f"is not {what}" if value is not None else "has no value"
    raise config_error(path, value, wrong, allowed, _fix(path, value, example))


def _literal(options: tuple[str, ...], path: str, value: object) -> str:
    if value is False and "off" in options:
        return "off"  # yaml reads a bare off as false
    if value not in options:
        raise unknown_option(path, value, options)
    return str(value)


def _tuple(args: tuple[Any, ...], path: str, value: object) -> tuple[Any, ...]:
    fixed = args[-1] is not Ellipsis
    if not isinstance(value, (list, tuple)) or (fixed and len(value) != len(args)):
        size, fix = f"a list of {len(args)}" if fixed else "a list", f"set '{path}=[...]'"
        raise config_error(path, value, f"is not {size}", f"{size} is allowed", fix)
    kinds = args if fixed else (args[0],) * len(value)
    parts = enumerate(zip(kinds, value, strict=True))
    return tuple(_value(kind, f"{path}[{i}]", part) for i, (kind, part) in parts)


def _dict(path: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        fix = f"set '{path}={{name: value}}'"
        raise config_error(path, value, "is not a mapping", "a mapping is allowed", fix)
    for key, inner in value.items():
        if inner == _MISSING:
            fix = f"give {path}.{key}=VALUE"
            raise config_error(f"{path}.{key}", inner, "has no value", "a value is needed", fix)
        refuse_code({key: inner}, path)
    return {str(k): v for k, v in value.items()}


def _union(options: tuple[Any, ...], path: str, value: object) -> Any:
    """Convert a value or null, or one of two types, one of which is a list."""
    inner = [t for t in options if t is not types.NoneType]
    if value is None and len(inner) < len(options):
        return None
    if value in _NO_VALUE and str in inner and len(inner) < len(options):
        wrong = "is a text" if value else "is empty"
        allowed = "a text, or null for no value, is allowed"
        raise config_error(path, value, wrong, allowed, f"set {path}=null")
    if len(inner) > 1:
        inner = [t for t in inner if (get_origin(t) is tuple) == isinstance(value, (list, tuple))]
    (only,) = inner
    return _value(only, path, value)


def _value(kind: Any, path: str, value: object) -> Any:
    if value == _MISSING:
        fix = f"give {path}=VALUE"
        raise config_error(path, value, "has no value", "the yaml leaves it to you", fix)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union(get_args(kind), path, value)
    if kind is ScheduleConfig:
        return _schedule(path, value)
    if kind is WrapperConfig:
        return _wrapper(path, value)
    if origin is Literal:
        return _literal(get_args(kind), path, value)
    if origin is tuple:
        return _tuple(get_args(kind), path, value)
    if origin is dict:
        return _dict(path, value)
    if is_dataclass(kind):
        return read_dataclass(kind, value, path)
    return _scalar(kind, path, value)


def _wrapper(path: str, value: object) -> Any:
    """Convert ``{name: delay_obs, steps: 2}``, or a bare name if there are no arguments."""
    if isinstance(value, str):
        value = {"name": value}
    name = value.get("name") if isinstance(value, Mapping) else None
    if name is None or not isinstance(value, Mapping):
        allowed, fix = ", ".join(WRAPPER_CONFIGS), f"write '{path}={{name: delay_obs, steps: 2}}'"
        raise config_error(path, value, "names no wrapper", f"one of {allowed}", fix)
    if name not in WRAPPER_CONFIGS:
        raise unknown_option(path, name, list(WRAPPER_CONFIGS))
    known = [f.name for f in fields(WRAPPER_CONFIGS[str(name)])]
    if missing := [key for key in known if key not in value]:
        form = ", ".join(f"{key}: {name if key == 'name' else key.upper()}" for key in known)
        wrong = f"{', '.join(missing)} is missing"
        raise config_error(path, value, wrong, f"{{{form}}} is allowed", "give it")
    return _read_option(path, value, WRAPPER_CONFIGS)


def _schedule(path: str, value: object) -> ScheduleConfig:
    """Convert a schedule. A bare number is constant; keys that a kind does not need may lack."""
    if not isinstance(value, Mapping):
        start = _scalar(float, path, value)
        return ScheduleConfig(kind="constant", start=start, end=start, over=None, points=None)
    full = {"over": None, "points": None, **value}
    if full.get("kind") == "constant":
        full["end"] = full.get("start")
    if full.get("kind") == "piecewise":
        points = full["points"] or [[0, 0.0]]
        if not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in points):
            allowed = "points: [[STEP, VALUE], ...] is allowed"
            raise config_error(f"{path}.points", points, "are not pairs", allowed, "write pairs")
        full["start"], full["end"] = points[0][-1], points[-1][-1]
    result: ScheduleConfig = read_dataclass(ScheduleConfig, full, path)
    return result


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the resolved types of a dataclass's fields, by name."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def read_dataclass(
    cls: Any, value: object, path: str, parts: Mapping[str, Any] | None = None
) -> Any:
    """Return the dataclass ``cls`` read from a mapping. ``parts``: fields that are read already.

    Raises: ConfigError naming the key.
    """
    if not isinstance(value, Mapping):
        fix = f"set the keys inside, {path}.KEY=VALUE"
        raise config_error(path, value, "is not a mapping", "a mapping of keys is allowed", fix)
    known = field_types(cls)
    dot = f"{path}." if path else ""
    for key in value:
        if key not in known:
            raise unknown_key(f"{dot}{key}", value[key], known)
    done = dict(parts or {})
    for key, kind in known.items():
        full = f"{dot}{key}"
        if key not in value:
            fix = f"give {full}=VALUE or add it to your yaml file"
            raise config_error(full, "(absent)", "the key is missing", "it needs a value", fix)
        if key not in done:
            done[key] = _value(kind, full, value[key])
    try:
        return cls(**done)
    except Invalid as e:
        full = dot + e.key
        fix = "" if ";" in e.text else f"; change {full}"
        raise ConfigError(f"{full} = {format_value(e.value)}: {e.text}{fix}", key=full) from e


def _read_option(path: str, value: object, table: Mapping[str, type]) -> Any:
    """Return the dataclass that ``value['name']`` selects."""
    if not isinstance(value, Mapping) or "name" not in value:
        allowed, fix = f"one of {', '.join(table)}", f"give {path}=NAME"
        raise config_error(path, value, "has no name", allowed, fix)
    name = value["name"]
    if path in ("policy", "memory") and isinstance(name, str) and ":" in name:  # a user's class
        kind = _own_config(trusted_class(f"{path}.name", name), name, path)
        return read_dataclass(kind, value, path)
    if not isinstance(name, str) or name not in table:
        raise unknown_option(f"{path}.name", name, list(table))
    return read_dataclass(table[name], value, path)


def _own_config(cls: type, name: str, group: str) -> type:
    """Return the dataclass of the keys that a user's memory or policy ``cls`` has."""
    if group == "memory":
        return MemoryConfig
    kind = getattr(cls, "config_class", None)
    if not (isinstance(kind, type) and issubclass(kind, PolicyConfig) and is_dataclass(kind)):
        wrong = "the class does not say which keys it has"
        allowed = "a dataclass derived from rlrun.schema.PolicyConfig is allowed"
        fix = "write config_class = DQNConfig (or your own) in the class"
        raise config_error("policy.name", name, wrong, allowed, fix)
    return kind


def read_config(value: Mapping[str, Any]) -> Config:
    """Return the whole config from plain, resolved values.

    Raises: ConfigError naming the key, what is wrong with it and what is allowed.
    """
    # Before the groups that use their values, so that errors name their keys.
    first = {"env": EnvConfig, "learner": LearnerConfig}
    try:
        groups = {k: read_dataclass(cls, value[k], k) for k, cls in first.items() if k in value}
        groups |= {k: _read_option(k, value[k], t) for k, t in OPTION_CONFIGS.items() if k in value}
        result: Config = read_dataclass(Config, value, "", groups)
    except ConfigError:
        refuse_code(value, "")  # the error to report
        raise
    return result


def refuse_code(value: object, path: str) -> None:
    """Raise ConfigError if the config contains a key that Hydra would execute."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        full = f"{path}.{key}" if path else str(key)
        if key in _CODE:
            raise code_error(full, inner)
        refuse_code(inner, full)
