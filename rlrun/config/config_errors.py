"""Config errors in one form: ``key = value: what is wrong; what is allowed; what to do``."""

from collections.abc import Collection
from dataclasses import fields

from rlrun.errors import ConfigError
from rlrun.schema import OPTION_CONFIGS
from rlrun.schema.ranges import format_value
from rlrun.schema.spelling import OTHER_OPTIONS, RENAMED, nearest

_SHARED = ("learner.", "collector.", "run.")  # groups whose keys every run has
_MANY = 14  # names in an error
_LISTED = 30  # options in an error that has a guess


def config_error(path: str, value: object, wrong: str, allowed: str, fix: str) -> ConfigError:
    """The error ``key = value: wrong; allowed; fix``, the form of every config error."""
    return ConfigError(f"{path} = {format_value(value)}: {wrong}; {allowed}; {fix}", key=path)


class UnknownKey(ConfigError):
    """A key that the config does not have."""


def unknown_key(
    path: str,
    value: object,
    known: Collection[str],
    what: str = "key",
    candidates: Collection[str] = (),
) -> UnknownKey:
    """The error for a name that does not exist, with the names that do.

    ``candidates``: full keys of that name in other groups, better guesses than similar names.
    """
    if path in RENAMED:
        candidates = [RENAMED[path]]
    parent, _, name = path.rpartition(".")
    dot = f"{parent}." if parent else ""
    if owners := _options_with(path):
        shared = [other for other in candidates if other.startswith(_SHARED)]
        fix = " or ".join([f"remove {path}", *(f"set {other}" for other in shared)])
        allowed = f"{' or '.join(owners)} has it"
        return UnknownKey(str(config_error(path, value, f"unknown {what}", allowed, fix)), key=path)
    close = [dot + c for c in nearest(name, known)]
    if candidates:
        close, parent = list(candidates), ""
    if close and (candidates or len(known) > _MANY):
        allowed = f"rlrun --cfg job{f' --package {parent}' if parent else ''} shows all"
    else:
        allowed = f"there are {', '.join(sorted(known))}" if known else "there are none"
    fix = f"did you mean {' or '.join(close)}?" if close else f"remove {path}"
    return UnknownKey(str(config_error(path, value, f"unknown {what}", allowed, fix)), key=path)


def _options_with(path: str) -> list[str]:
    """``group=option`` of every option whose class has the key, where classes of a group differ."""
    group, _, name = path.partition(".")
    table = OPTION_CONFIGS.get(group, {})
    return [f"{group}={n}" for n, kind in table.items() if name in {f.name for f in fields(kind)}]


def unknown_option(path: str, value: object, options: Collection[str]) -> ConfigError:
    """The error for a value (or group option) that is none of ``options``."""
    same = [o for o in options if o.lower() == str(value).lower()]
    other = OTHER_OPTIONS.get(str(value).lower(), "")
    close = same or ([other] if other.partition(" ")[0] in options else [])
    close = close or (nearest(value, options, 2) if str(value) else [])
    fix = f"did you mean {' or '.join(f'{path}={c}' for c in close)}?"
    allowed = f"one of {', '.join(sorted(options))}"
    if close and len(options) > _LISTED:
        allowed = "rlrun list shows all"
    return config_error(
        path, value, "unknown option", allowed, fix if close else f"choose one: {path}=NAME"
    )


def code_error(path: str, value: object, allowed: str = "parts are chosen by name") -> ConfigError:
    """The error for a key that Hydra would execute."""
    return config_error(path, value, "a config cannot run code", allowed, f"remove {path}")
