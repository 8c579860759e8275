"""Errors of Hydra, OmegaConf and yaml as one line: key, value, what is wrong, allowed, fix."""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import fields

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError, safe_load

from rlrun.config.reader import fail, runs_code, unknown, unknown_option
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


def _given(key: str, overrides: Sequence[str]) -> str:
    """What the command line says about ``key``, or about the mapping around it."""
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


def _unknown_key(
    cause: ConfigAttributeError | ConfigKeyError, overrides: Sequence[str], groups: Sequence[str]
) -> ConfigError:
    key = str(cause.full_key or cause.key)
    given = _given(_whole(key, overrides), overrides)
    parent = cause.parent_node
    if key.endswith("_target_"):
        return runs_code(key, given)
    known = [str(k) for k in parent] if isinstance(parent, DictConfig) else []
    if not known and "." in key:
        return _no_parts(key, given)
    if "." not in key:
        known = [k for k in dict.fromkeys([*known, *groups]) if k != "hydra"]
    root = parent._get_root() if isinstance(parent, DictConfig) else None
    return unknown(key, given, known, homes=homes(_whole(key, overrides), root, known))


def homes(key: str, root: object, known: Collection[str]) -> list[str]:
    """Full keys of the config ``root`` that ``key`` may have meant: gamma is policy.gamma.

    Those with its last part as theirs, by our name or that of other libraries; else, for a key of
    no group that is like none of ``known``, those whose last part is like it.
    """
    if not isinstance(root, DictConfig):
        return []
    places: dict[str, list[str]] = {}
    for group in map(str, root):
        part = root._get_node(group)
        if group == "hydra" or not isinstance(part, DictConfig) or part._is_missing():
            continue
        for name in () if part._is_none() else map(str, part):
            places.setdefault(name, []).append(f"{group}.{name}")
    group, _, last = key.rpartition(".")
    aliases = SYNONYMS.get(last.lower(), "").split()
    said = [[name] if name in root else places.get(name, []) for name in (last, *aliases)]
    near = [
        place for found in said for place in found if place == f"{group}.{place.split('.')[-1]}"
    ]
    found = near or next(filter(None, said), [])
    if not found and "." not in key and not nearest(key, known):
        found = [place for name in nearest(key, places, 1) for place in places[name]]
    return [place for place in found if place != key][:_MOST]


def _no_parts(key: str, given: str) -> ConfigError:
    """The error for policy.lr.start=1 where policy.lr is a number."""
    name, _, part = key.rpartition(".")
    if part not in {f.name for f in fields(ScheduleConfig)}:
        return unknown(key, given, [])
    fix = f"set the whole, e.g. '{name}={{kind: linear, {part}: {given}, ...}}'"
    return fail(key, given, f"{name} has no parts", f"{name}=VALUE is allowed", fix)


def _whole(key: str, overrides: Sequence[str]) -> str:
    """The override that led to ``key`` (Hydra names the first part that does not exist)."""
    names = [override_key(o) for o in overrides]
    return next((n for n in names if n == key or n.startswith(key + ".")), key)


def _missing_option(e: MissingConfigException, options: Options) -> ConfigError:
    name = e.missing_cfg_file or ""
    group, _, option = name.replace(".yaml", "").rpartition("/")
    if not group:
        return ConfigError(
            f"--config-name = {name}: no such file; a yaml in --config-dir; leave it out for config"
        )
    there = [o for o in options(group) if o != "__init__"]
    if group != "env":
        return unknown_option(group, option, there)
    any_id = "any Gymnasium id: env=gym env.id="
    if not re.search(r"-v\d+$", option):
        return ConfigError(f"{unknown_option(group, option, there)}; {any_id}ID")
    name = re.sub(r"\W", "_", option).lower()
    names = (name, re.sub(r"_v\d+$", "", name))
    close = next(([n] for n in names if n in there), nearest(names[1], there, 2))
    fix = f"did you mean {' or '.join(f'env={n}' for n in close)}?; " if close else ""
    wrong, allowed = "that is an id, not a name", "names are those of rlrun list"
    return fail(group, option, wrong, allowed, f"{fix}{any_id}{option}")


def explain(
    e: BaseException, overrides: Sequence[str], groups: Sequence[str], options: Options
) -> ConfigError:
    """One line for anything that composing a config can raise."""
    cause = e.__cause__ if isinstance(e.__cause__, OmegaConfBaseException) else e
    if isinstance(e, MissingConfigException):
        return _missing_option(e, options)
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
        return _unknown_key(cause, overrides, groups)
    if isinstance(cause, OmegaConfBaseException) and (cause.full_key or cause.key):
        key = str(cause.full_key or cause.key)
        given = _given(key, overrides)
        value = _raw(cause) if given == _FROM_YAML else given
        wrong = _first_line(cause.msg or str(cause))
        return fail(key, value, wrong, "see --cfg job for what there is", f"change {key}")
    return _other(e, overrides, groups, options)


def _raw(cause: OmegaConfBaseException) -> object:
    """The unresolved value that ``cause`` is about."""
    node = cause.parent_node
    values = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else None
    return values.get(cause.key) if isinstance(values, dict) else None


def _other(
    e: BaseException, overrides: Sequence[str], groups: Sequence[str], options: Options
) -> ConfigError:
    message = str(e)
    if "Ambiguous value" in message:
        found = re.search(r"argument '([^']*)'", message)
        text = found.group(1) if found else "override"
        key, _, value = text.partition("=")
        allowed = f"a list is '{key}=[{value}]'"
        return fail(key, value, "several values", allowed, "a sweep needs -m")
    found = re.search(r"Could not override '([^']+)'", message)
    if found and "defaults list" in message:
        key = found.group(1)
        return unknown(key, _given(key, overrides), [g for g in groups if g != "hydra"], "group")
    for text in overrides if "Config group override" in message else ():
        key, _, value = text.partition("=")
        if key in groups and (value == "null" or not value.isidentifier()):
            return unknown_option(key, value, options(key))
    if isinstance(e, YAMLError):
        return ConfigError(f"yaml: {' '.join(message.split())}; valid yaml is allowed; correct it")
    what = f"{' '.join(overrides) or 'config'}: {_first_line(message)}"
    return ConfigError(f"{what}; see --cfg job for what there is; rlrun --help has examples")
