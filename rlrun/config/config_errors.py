"""Config errors in one form: ``key = value: what is wrong; what is allowed; what to do``."""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from itertools import takewhile

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError, safe_load

from rlrun.errors import ConfigError, ResourceError
from rlrun.schema import OPTION_CONFIGS, ScheduleConfig
from rlrun.schema.override import Override, read_overrides
from rlrun.schema.ranges import format_value
from rlrun.schema.spelling import (
    FIXED,
    GONE,
    GONE_BECAUSE,
    OTHER_OPTIONS,
    RENAMED,
    nearest,
    synonyms,
)

_SHARED = ("learner.", "collector.", "run.")  # groups whose keys every run has
_MANY = 14  # names in an error
_LISTED = 30  # options in an error that has a guess


def config_error(path: str, value: object, wrong: str, allowed: str, fix: str) -> ConfigError:
    """Return the error ``key = value: wrong; allowed; fix``, the form of every config error."""
    return ConfigError(f"{path} = {format_value(value)}: {wrong}; {allowed}; {fix}", key=path)


def require_packages(subject: str, extra: str, *packages: str) -> None:
    """Raise ResourceError, beginning with ``subject``, if a package of an extra is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        wrong = f"the package {missing[0]} is missing; it comes with the extra {extra}"
        raise ResourceError(f"{subject}: {wrong}; pip install 'rlrun[{extra}]'")


class UnknownKey(ConfigError):
    """A key that the config does not have. ``owned``: another option of its group has it."""

    owned = False


def unknown_key(
    path: str,
    value: object,
    known: Collection[str],
    what: str = "key",
    candidates: Collection[str] = (),
) -> UnknownKey:
    """Return the error for a name that does not exist, with the names that do.

    ``candidates``: full keys of that name in other groups, which are better guesses.
    """

    def error(wrong: str, allowed: str, fix: str) -> UnknownKey:
        return UnknownKey(str(config_error(path, value, wrong, allowed, fix)), key=path)

    if path in FIXED or ".".join(path.split(".")[:2]) in GONE:
        why = f"it is fixed at {FIXED[path]}" if path in FIXED else GONE_BECAUSE
        return error(f"is not a key any more: {why}", "no value is allowed", f"remove {path}")
    parent, _, name = path.rpartition(".")
    dot = f"{parent}." if parent else ""
    present = RENAMED.get(path, path)
    if path in RENAMED and present.rpartition(".")[2] in known:
        candidates = [present]
    group, _, last = present.partition(".")
    owners = [f"{group}={option}" for option, kind in OPTION_CONFIGS.get(group, {}).items()
              if last in {f.name for f in fields(kind)}]  # fmt: skip
    if owners and present not in candidates:
        shared = [full_key for full_key in candidates if full_key.startswith(_SHARED)]
        fix = " or ".join([f"remove {path}", *(f"set {full_key}" for full_key in shared)])
        allowed = f"{' or '.join(owners)} has {'it' if present == path else present}"
        wrong_option = error(f"unknown {what}", allowed, fix)
        wrong_option.owned = True
        return wrong_option
    close = [dot + c for c in nearest(name, known)]
    if candidates:
        close, parent = list(candidates), ""
    if close and (candidates or len(known) > _MANY):
        allowed = f"rlrun --cfg job{f' --package {parent}' if parent else ''} shows all"
    else:
        allowed = f"there are {', '.join(sorted(known))}" if known else "there are none"
    fix = f"did you mean {' or '.join(close)}?" if close else f"remove {path}"
    return error(f"unknown {what}", allowed, fix)


def unknown_option(path: str, value: object, options: Collection[str]) -> ConfigError:
    """Return the error for a value (or group option) that is not one of ``options``."""
    same = [o for o in options if o.lower() == str(value).lower()]
    if path.endswith(".name") and (parts := re.fullmatch(r"(\w[\w.]*)\.([A-Z]\w*)", str(value))):
        same = [f"{parts[1]}:{parts[2]}"]
    synonym = OTHER_OPTIONS.get(str(value).lower(), "")
    close = same or ([synonym] if synonym.partition(" ")[0] in options else [])
    close = close or (nearest(value, options, 2) if str(value) else [])
    fix = f"did you mean {' or '.join(f'{path}={c}' for c in close)}?"
    allowed = f"one of {', '.join(sorted(options))}"
    if close and len(options) > _LISTED:
        allowed = "rlrun list shows all"
    fix = fix if close else f"choose one: {path}=NAME"
    return config_error(path, value, "unknown option", allowed, fix)


def code_error(path: str, value: object, allowed: str = "parts are chosen by name") -> ConfigError:
    """Return the error for a key that Hydra would execute."""
    return config_error(path, value, "a config cannot run code", allowed, f"remove {path}")


_FROM_YAML = "(from yaml)"
_MOST = 3  # guesses in an error
Options = Callable[[str], Sequence[str]]


def _typed_value(key: str, overrides: Sequence[Override]) -> str:
    """Return the value that the command line gives ``key``, alone or in a mapping."""
    for override in reversed(overrides):
        name, value = override.key, override.value
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
    cause: ConfigAttributeError | ConfigKeyError,
    overrides: Sequence[Override],
    groups: Sequence[str],
) -> ConfigError:
    key = str(cause.full_key or cause.key)
    typed = _typed_value(_typed_key(key, overrides), overrides)
    parent = cause.parent_node
    if key.endswith("_target_"):
        return code_error(key, typed)
    known = [str(k) for k in parent] if isinstance(parent, DictConfig) else []
    if not known and "." in key:
        return _schedule_part_error(key, typed)
    if "." not in key:
        known = [k for k in dict.fromkeys([*known, *groups]) if k != "hydra"]
    root = parent._get_root() if isinstance(parent, DictConfig) else None
    candidates = possible_keys(_typed_key(key, overrides), root, known)
    return unknown_key(key, typed, known, candidates=candidates)


def possible_keys(key: str, root: object, known: Collection[str]) -> list[str]:
    """Return full keys of the config ``root`` that ``key`` may mean: gamma is policy.gamma.

    These are the keys with the same last part, by rlrun's name or that of other libraries. For a
    key without a group that resembles none of ``known``, they are the keys with a similar last
    part.
    """
    if not isinstance(root, DictConfig):
        return []
    full_names: dict[str, list[str]] = {}
    for group in map(str, root):
        part = root._get_node(group)
        if group == "hydra" or not isinstance(part, DictConfig) or part._is_missing():
            continue
        for name in () if part._is_none() else set(map(str, part)) - {"name"}:
            full_names.setdefault(name, []).append(f"{group}.{name}")
    whole, _, rest = key.replace("-", "_").replace("_", ".", 1).partition(".")
    if f"{whole}.{rest}" in full_names.get(rest, ()):  # policy_lr, env-id
        return [f"{whole}.{rest}"]
    group, _, last = key.rpartition(".")
    aliases = last, *(synonyms(key) or synonyms(last))
    by_name = [[name] if name in root else full_names.get(name, []) for name in aliases]
    same_group = [n for names in by_name for n in names if n == f"{group}.{n.split('.')[-1]}"]
    names = same_group or next(filter(None, by_name), [])
    if not names and "." not in key and not nearest(key, known):
        names = [full for name in nearest(key, full_names, 1) for full in full_names[name]]
    return [full_name for full_name in names if full_name != key][:_MOST]


def _schedule_part_error(key: str, typed: str) -> ConfigError:
    """Return the error for policy.lr.start=1 when policy.lr is a number."""
    name, _, part = key.rpartition(".")
    if part not in {f.name for f in fields(ScheduleConfig)}:
        return unknown_key(key, typed, [])
    fix = f"set the whole, e.g. '{name}={{kind: linear, {part}: {typed}, ...}}'"
    return config_error(key, typed, f"{name} has no parts", f"{name}=VALUE is allowed", fix)


def _typed_key(key: str, overrides: Sequence[Override]) -> str:
    """Return the override that led to ``key``, of which Hydra names only the first missing part."""
    return next((override.key for override in overrides if override.is_below(key)), key)


def _missing_option_error(e: MissingConfigException, options: Options) -> ConfigError:
    name = e.missing_cfg_file or ""
    group, _, option = name.replace(".yaml", "").rpartition("/")
    if not options(group):  # policy=x/y, env=ALE/Pong-v5
        group, _, option = name.replace(".yaml", "").partition("/")
    if not group:
        return ConfigError(
            f"--config-name = {name}: no such file; a yaml in --config-dir; leave it out for config"
        )
    known = [o for o in options(group) if o != "__init__"]
    if group != "env":
        return unknown_option(group, option, known)
    from rlrun.env.catalog import atari_game, choice_of, own_environment  # imports gymnasium

    if (game := atari_game(option)) is not None:
        fix = f"set env=atari env.game={game} torso=nature_cnn"
        wrong, allowed = "Atari games are chosen by a key", "names are those of rlrun list"
        return config_error(group, option, wrong, allowed, fix)
    if not re.search(r"-v\d+$|:", option):
        error = unknown_option(group, option, known)
        return ConfigError(f"{error}; any Gymnasium id: env=gym env.id=ID; {own_environment()}")
    name = re.sub(r"\W", "_", option).lower()
    names = (name, re.sub(r"_v\d+$", "", name))
    close = next(([n] for n in names if n in known), nearest(names[1], known, 2))
    fix = f"did you mean {' or '.join(f'env={n}' for n in close)}?; " if close else ""
    wrong, allowed = "that is an id, not a name", "names are those of rlrun list"
    return config_error(group, option, wrong, allowed, f"{fix}{choice_of(option)}")


def as_config_error(
    e: BaseException, typed: Sequence[str], groups: Sequence[str], options: Options
) -> ConfigError:
    """Return the one-line ConfigError for any error of composing a config."""
    if isinstance(e, ConfigError):
        return e
    overrides = read_overrides(typed)
    cause = e.__cause__ if isinstance(e.__cause__, OmegaConfBaseException) else e
    if isinstance(e, MissingConfigException):
        return _missing_option_error(e, options)
    if isinstance(e, OverrideParseException):
        return _unreadable(Override(str(e.override)), overrides)
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.parent_node is not None:
        return _unknown_key_error(cause, overrides, groups)
    if isinstance(cause, OmegaConfBaseException) and (cause.full_key or cause.key):
        key = str(cause.full_key or cause.key)
        value: object = _typed_value(key, overrides)
        if value == _FROM_YAML:  # unresolved
            node = cause.parent_node or OmegaConf.create()
            values = OmegaConf.to_container(node, resolve=False)
            value = values.get(cause.key) if isinstance(values, dict) else None
        wrong = _first_line(cause.msg or str(cause))
        if wrong == "Cannot merge DictConfig with ListConfig":
            wrong = "a list does not fit here"
        return config_error(key, value, wrong, "see --cfg job for what there is", f"change {key}")
    return _other_error(e, overrides, groups, options)


_SAMPLERS = {  # other libraries' distributions
    "loguniform": "interval({low},{high},log)", "log_uniform": "interval({low},{high},log)",
    "uniform": "interval({low},{high})", "quniform": "interval({low},{high})",
    "randint": "int(interval({low},{high}))", "int_uniform": "int(interval({low},{high}))",
    "grid_search": "choice({all})", "categorical": "choice({all})", "sample": "choice({all})",
}  # fmt: skip
_FORMS = {  # functions of Hydra -> their arguments
    "interval": "LOW,HIGH", "range": "START,STOP,STEP", "choice": "A,B,...", "glob": "PATTERN",
    "int": "NUMBER", "float": "NUMBER", "str": "VALUE", "bool": "VALUE", "json_str": "VALUE",
    "sort": "A,B,...", "shuffle": "A,B,...", "tag": "NAME,SWEEP", "extend_list": "A,B,...",
}  # fmt: skip
_ALLOWED = "numbers, text, [lists], {key: value}"


def _unreadable(override: Override, overrides: Sequence[Override]) -> ConfigError:
    """Return the error for an override that Hydra's grammar cannot read."""
    text, key, typed = override.lstrip("+~"), override.key, override.value
    place = overrides.index(override) if override in overrides else len(overrides) - 1
    after = overrides[place + 1 :]
    if "=" not in override:
        return _no_override(text, overrides[max(place - 1, 0) : max(place, 0)])
    wrong, allowed, fix = "the value cannot be read", _ALLOWED, ""
    words = re.split(r"[\s,;&]+(?=[\w.@+~/]+=)", text)
    function = re.match(r"\s*([a-z_]\w*)\(", typed)
    if len(words) > 1 and typed[:1] not in ("{", "[", "'", '"'):
        wrong, allowed = "is one word", "one KEY=VALUE is allowed in a word"
        fix = f"leave the quotes out: {' '.join(word.rstrip(',;&') for word in words)}"
    elif typed.startswith("="):
        wrong, allowed = "has two equals signs", "one is allowed"
        fix = f"write {key}={typed.lstrip('=')}"
    elif typed.endswith(",") or typed.startswith(","):
        next_words = takewhile(lambda word: "=" not in word, after)  # seed=1, 2, 3
        values = [typed.strip(","), *(word.strip(",") for word in next_words)]
        wrong = "has too many commas"
        allowed = "values with commas and no spaces are allowed with -m"
        fix = f"write {key}={','.join(filter(None, values))}"
    elif function is not None:
        return _function_error(key, typed, function[1])
    elif typed[:1] in ("[", "{"):  # the shell cut it at a space
        whole = {"[": f"{key}=[...]", "{": f"{key}={{...}}"}[typed[:1]]
        fix = f"a value with spaces needs quotes around all of it: '{whole}'"
    elif typed.startswith("(") and typed.endswith(")"):
        fix = f"a list has square brackets: '{key}=[{typed[1:-1]}]'"
    elif typed.strip() == "~":
        fix = f"write {key}=null"
    fix = fix or f"quote it for the shell and for Hydra: \"{key}='...'\""
    return ConfigError(f"{text}: {wrong}; {allowed}; {fix}", key=key)


def _no_override(text: str, before: Sequence[str]) -> ConfigError:
    fix = "a value with spaces needs quotes around all of it: 'KEY=[A, B]'"
    if before and before[0].endswith("="):
        fix = f"an option has no spaces around its equals sign: {before[0]}{text}"
    elif re.fullmatch(r"[\w.]+", text):
        fix = f"write {text}=VALUE, without spaces around the equals sign; {fix}"
    elif ":" in text:
        fix = f"write {text.replace(':', '=', 1)}"
    return ConfigError(f"{text}: is not KEY=VALUE; {_ALLOWED}; {fix}")


def _function_error(key: str, typed: str, name: str) -> ConfigError:
    """Return the error for a function that Hydra lacks, or that takes other arguments."""
    if typed.count("(") != typed.count(")"):
        wrong, allowed = "a bracket is not closed", f"{name}({_FORMS.get(name, '...')}) is allowed"
        fix = f"quote it for the shell: '{key}={name}(...)'"
        return config_error(key, typed, wrong, allowed, fix)
    arguments = [part.strip() for part in typed[len(name) + 1 : -1].split(",")]
    if name == "interval" and arguments[-1] == "log" and len(arguments) == 3:
        return interval_error(key, typed)
    if name in _FORMS:
        form = f"{name}({_FORMS[name]})"
        if name == "interval":
            form += " or interval(LOW,HIGH,log)"
        allowed, fix = f"{form} is allowed", f"write '{key}={name}({_FORMS[name]})'"
        return config_error(key, typed, f"{name} does not take these arguments", allowed, fix)
    forms = "interval(LOW,HIGH), interval(LOW,HIGH,log), int(interval(LOW,HIGH)), choice(A,B)"
    allowed = f"{forms} and range(START,STOP) are allowed"
    fix = "to search, type rlrun search with one of them"
    if name in _SAMPLERS and len(arguments) >= 2:
        low, high, *_ = arguments
        meant = _SAMPLERS[name].format(low=low, high=high, all=",".join(arguments))
        fix = f"type rlrun search '{key}={meant}'"
    return config_error(key, typed, f"there is no function {name}", allowed, fix)


def interval_error(key: str, typed: str) -> ConfigError:
    """Return the error for an interval in a run or a sweep."""
    wrong, allowed = "only a search tries values of an interval", "choices A,B are allowed with -m"
    return config_error(key, typed, wrong, allowed, f"type rlrun search '{key}={typed}'")


def _other_error(
    e: BaseException, overrides: Sequence[Override], groups: Sequence[str], options: Options
) -> ConfigError:
    message = str(e)
    if "Ambiguous value" in message:
        match = re.search(r"argument '([^']*)'", message)
        text = match.group(1) if match else "override"
        key, _, value = text.partition("=")
        allowed = f"a list is '{key}=[{value}]'"
        return config_error(key, value, "several values", allowed, "a sweep needs -m")
    if "requires --multirun" in message or "INTERVAL_SWEEP" in message:
        for key, typed in ((override.key, override.value) for override in overrides):
            if "interval(" in typed:
                return interval_error(key, typed)
            if re.match(r"(choice|range|glob|sort|shuffle|tag)\(", typed):
                fix = f"add -m: rlrun -m '{key}={typed}'"
                return config_error(key, typed, "several values", "one value is allowed", fix)
    twice = ("Could not append to config", "Multiple values for", "force-add of config groups")
    if any(text in message for text in twice):
        match = re.search(r"Multiple values for (\S+?)\.|not supported: '\+\+([^=']+)", message)
        group = (match[1] or match[2]) if match else ""  # that has several options
        for override in overrides:
            key, typed = override.key, override.value
            if override.startswith("+") and f"'{key}'" in f"{message}'{group}'":
                wrong, allowed = "the key exists already", f"{key}=VALUE is allowed"
                return config_error(key, typed, wrong, allowed, f"write {key}={typed}")
    if match := re.search(r"In '(\S+)': Could not override '\S+@", message):
        wrong = "its groups are looked up below its own"
        allowed = "a first line '# @package _global_' is needed to choose groups of the run"
        return ConfigError(f"{match[1]}.yaml: {wrong}; {allowed}; add it")
    if match := re.search(r"In '(\S+)': \w+ raised while composing config:\n(.*)", message):
        wrong = "is a list" if "ListConfig" in match[2] else f"cannot be read ({match[2].strip()})"
        return ConfigError(f"{match[1]}.yaml: {wrong}; lines key: value are allowed; correct it")
    match = re.search(r"Could not override '([^']+)'", message)
    if match and "defaults list" in message:
        key, known = match[1], [group for group in groups if group != "hydra"]
        return unknown_key(key, _typed_value(key, overrides), known, "group")
    for override in overrides if "Config group override" in message else ():
        key, value = override.name, override.value
        is_word = value.isidentifier() and value.lower() not in ("null", "true", "false")
        if key in groups and not is_word:
            return unknown_option(key, value, [o for o in options(key) if o != "__init__"])
    if isinstance(e, YAMLError):
        return ConfigError(f"yaml: {' '.join(message.split())}; valid yaml is allowed; correct it")
    what = f"{' '.join(overrides) or 'config'}: {_first_line(message)}"
    return ConfigError(f"{what}; see --cfg job for what there is; rlrun --help has examples")
