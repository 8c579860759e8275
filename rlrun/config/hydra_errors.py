"""Errors of Hydra, OmegaConf and yaml as one line: key, value, what is wrong, allowed, fix."""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import fields

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError, safe_load

from rlrun.config.config_errors import code_error, config_error, unknown_key, unknown_option
from rlrun.errors import ConfigError
from rlrun.schema import ScheduleConfig
from rlrun.schema.spelling import SYNONYMS, nearest

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
_FROM_YAML = "(from yaml)"
_MOST = 3  # guesses in an error
Options = Callable[[str], Sequence[str]]


def override_key(text: str) -> str:
    """The key of ``key=value``, without +, ++ and ~."""
    return text.split("=", 1)[0].lstrip("+~")


def _typed_value(key: str, overrides: Sequence[str]) -> str:
    """The value that the command line gives ``key``, alone or in a mapping."""
    for text in reversed(overrides):
        name, _, value = text.partition("=")
        name = name.lstrip("+~")
        if name == key:
            return value
        if key.startswith(f"{name}.") and value.startswith("{"):  # policy.lr={start: 1, stop: 2}
            with suppress(YAMLError, AttributeError, ValueError):
                for part in key.removeprefix(f"{name}.").split("."):
                    spaced = re.sub(r":(?=\S)", ": ", value)  # Hydra's {a:1}, yaml's {a: 1}
                    value = str(safe_load(spaced).get(part, _FROM_YAML))
                return value
    return _FROM_YAML


def _first_line(text: str) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "cannot be read"


def _unknown_key_error(
    cause: ConfigAttributeError | ConfigKeyError, overrides: Sequence[str], groups: Sequence[str]
) -> ConfigError:
    key = str(cause.full_key or cause.key)
    given = _typed_value(_typed_key(key, overrides), overrides)
    parent = cause.parent_node
    if key.endswith("_target_"):
        return code_error(key, given)
    known = [str(k) for k in parent] if isinstance(parent, DictConfig) else []
    if not known and "." in key:
        return _schedule_part_error(key, given)
    if "." not in key:
        known = [k for k in dict.fromkeys([*known, *groups]) if k != "hydra"]
    root = parent._get_root() if isinstance(parent, DictConfig) else None
    return unknown_key(
        key, given, known, candidates=possible_keys(_typed_key(key, overrides), root, known)
    )


def possible_keys(key: str, root: object, known: Collection[str]) -> list[str]:
    """Full keys of the config ``root`` that ``key`` may have meant: gamma is policy.gamma.

    Those with its last part as theirs, by our name or that of other libraries; else, for a key of
    no group that is like none of ``known``, those whose last part is like it.
    """
    if not isinstance(root, DictConfig):
        return []
    full_names: dict[str, list[str]] = {}
    for group in map(str, root):
        part = root._get_node(group)
        if group == "hydra" or not isinstance(part, DictConfig) or part._is_missing():
            continue
        for name in () if part._is_none() else map(str, part):
            full_names.setdefault(name, []).append(f"{group}.{name}")
    group, _, last = key.rpartition(".")
    aliases = SYNONYMS.get(last.lower(), "").split()
    by_name = [[name] if name in root else full_names.get(name, []) for name in (last, *aliases)]
    same_group = [n for found in by_name for n in found if n == f"{group}.{n.split('.')[-1]}"]
    found = same_group or next(filter(None, by_name), [])
    if not found and "." not in key and not nearest(key, known):
        found = [full for name in nearest(key, full_names, 1) for full in full_names[name]]
    return [full_name for full_name in found if full_name != key][:_MOST]


def _schedule_part_error(key: str, given: str) -> ConfigError:
    """The error for policy.lr.start=1 where policy.lr is a number."""
    name, _, part = key.rpartition(".")
    if part not in {f.name for f in fields(ScheduleConfig)}:
        return unknown_key(key, given, [])
    fix = f"set the whole, e.g. '{name}={{kind: linear, {part}: {given}, ...}}'"
    return config_error(key, given, f"{name} has no parts", f"{name}=VALUE is allowed", fix)


def _typed_key(key: str, overrides: Sequence[str]) -> str:
    """The override that led to ``key`` (Hydra names the first part that does not exist)."""
    names = [override_key(o) for o in overrides]
    return next((n for n in names if n == key or n.startswith(key + ".")), key)


def _missing_option_error(e: MissingConfigException, options: Options) -> ConfigError:
    name = e.missing_cfg_file or ""
    group, _, option = name.replace(".yaml", "").rpartition("/")
    if not options(group):  # policy=x/y
        group, _, option = name.replace(".yaml", "").partition("/")
    if not group:
        return ConfigError(
            f"--config-name = {name}: no such file; a yaml in --config-dir; leave it out for config"
        )
    known = [o for o in options(group) if o != "__init__"]
    if group != "env":
        return unknown_option(group, option, known)
    any_id = "any Gymnasium id: env=gym env.id="
    if not re.search(r"-v\d+$", option):
        return ConfigError(f"{unknown_option(group, option, known)}; {any_id}ID")
    name = re.sub(r"\W", "_", option).lower()
    names = (name, re.sub(r"_v\d+$", "", name))
    close = next(([n] for n in names if n in known), nearest(names[1], known, 2))
    fix = f"did you mean {' or '.join(f'env={n}' for n in close)}?; " if close else ""
    wrong, allowed = "that is an id, not a name", "names are those of rlrun list"
    return config_error(group, option, wrong, allowed, f"{fix}{any_id}{option}")


def as_config_error(
    e: BaseException, overrides: Sequence[str], groups: Sequence[str], options: Options
) -> ConfigError:
    """The one-line ConfigError for anything that composing a config can raise."""
    if isinstance(e, ConfigError):
        return e
    cause = e.__cause__ if isinstance(e.__cause__, OmegaConfBaseException) else e
    if isinstance(e, MissingConfigException):
        return _missing_option_error(e, options)
    if isinstance(e, OverrideParseException):
        text = str(e.override).lstrip("+~")
        key, equals, given = text.partition("=")
        what = "the value cannot be read" if equals else "is no KEY=VALUE"
        fix = f"quote it for the shell and for Hydra: \"{override_key(text)}='...'\""
        if not equals or given[:1] in ("[", "{"):  # the shell cut it at a space
            whole = {"[": f"{key}=[...]", "{": f"{key}={{...}}"}.get(given[:1], "KEY=[A, B]")
            fix = f"a value with spaces needs quotes around all of it: '{whole}'"
        allowed = "numbers, text, [lists], {key: value}"
        return ConfigError(f"{text}: {what}; {allowed}; {fix}")
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.parent_node is not None:
        return _unknown_key_error(cause, overrides, groups)
    if isinstance(cause, OmegaConfBaseException) and (cause.full_key or cause.key):
        key = str(cause.full_key or cause.key)
        given = _typed_value(key, overrides)
        value = _unresolved_value(cause) if given == _FROM_YAML else given
        wrong = _first_line(cause.msg or str(cause))
        return config_error(key, value, wrong, "see --cfg job for what there is", f"change {key}")
    return _other_error(e, overrides, groups, options)


def _unresolved_value(cause: OmegaConfBaseException) -> object:
    """The unresolved value that ``cause`` is about."""
    node = cause.parent_node
    values = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else None
    return values.get(cause.key) if isinstance(values, dict) else None


def _other_error(
    e: BaseException, overrides: Sequence[str], groups: Sequence[str], options: Options
) -> ConfigError:
    message = str(e)
    if "Ambiguous value" in message:
        found = re.search(r"argument '([^']*)'", message)
        text = found.group(1) if found else "override"
        key, _, value = text.partition("=")
        allowed = f"a list is '{key}=[{value}]'"
        return config_error(key, value, "several values", allowed, "a sweep needs -m")
    found = re.search(r"Could not override '([^']+)'", message)
    if found and "defaults list" in message:
        key = found.group(1)
        return unknown_key(
            key, _typed_value(key, overrides), [g for g in groups if g != "hydra"], "group"
        )
    for text in overrides if "Config group override" in message else ():
        key, _, value = text.partition("=")
        if key in groups and (value == "null" or not value.isidentifier()):
            return unknown_option(key, value, options(key))
    if isinstance(e, YAMLError):
        return ConfigError(f"yaml: {' '.join(message.split())}; valid yaml is allowed; correct it")
    what = f"{' '.join(overrides) or 'config'}: {_first_line(message)}"
    return ConfigError(f"{what}; see --cfg job for what there is; rlrun --help has examples")
