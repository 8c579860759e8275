"""The text of ``rlrun help KEY|GROUP|TOPIC``, from the schema, the yaml files and the READMEs.

Needs neither Hydra nor torch. Topics are sections of READMEs, so that each text stands once.
"""

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rlrun.cli import yaml_keys
from rlrun.cli.list import GROUPS, TOPICS
from rlrun.cli.yaml_keys import PRESETS, Key, option_keys, yamls
from rlrun.errors import ConfigError
from rlrun.schema import COMMAND_CONFIGS, OPTION_CONFIGS, Config, ScheduleConfig, Seconds
from rlrun.schema.ranges import Range
from rlrun.schema.spelling import RENAMED, SYNONYMS, nearest

_OF_SWEEPS = ("sweep.", "hydra.launcher", "hydra/launcher")  # on the line, in no run's config
_ROOT_GROUPS = {  # of conf/config.yaml
    "run": "length of a run, evaluations, checkpoints",
    "checkpoint": "what checkpoints keep besides",
    "eval": "how an evaluation ends",
    "watchdog": "what happens when nothing happens",
    "resume": "what `rlrun resume` may change",
    "search": "what `rlrun search` tries and how it chooses",
    "bench": "what `rlrun bench memory` runs",
    "probe": "what `rlrun probe` trains",
    "seeds": "how `seeds=auto` adds seeds until a comparison is decided",
}
_COMMANDS = {
    "search": "rlrun search",
    "seeds": "sweeps (-m) with seeds=auto",
    "bench": "rlrun bench memory",
    "probe": "rlrun probe",
}  # that read a group
_WIDTH = 100  # columns
_NAMED = 6  # options in a line of defaults
_VALUES = 12  # lines of defaults
_BESIDE = 3  # keys before and after that are named


def help_lines(word: str, config_dir: str | None = None) -> Iterator[str]:
    """The lines about a key, a group, an option or a topic.

    Raises: ConfigError when ``word`` is none of them, with the nearest.
    """
    reference = Reference(config_dir)
    word = word.strip().lower() if word.strip().lower() in TOPICS else word.strip()
    group, _, option = word.partition("=")
    if group in reference.groups and not option and word not in TOPICS:
        return reference.group(group)
    if option in reference.options.get(group, ()):
        return reference.option(group, option)
    if group.startswith(_OF_SWEEPS):
        return _topic("sweep")
    if word.replace("_", " ") in TOPICS:
        return _topic(word.replace("_", " "))
    found = reference.named(group)
    if not found:
        chosen = [g for g in reference.options if word.lower() in reference.options[g]]
        if not chosen:
            raise reference.unknown(word)
        texts = ["\n".join(reference.option(g, word.lower())) for g in chosen]
        return iter("\n\n".join(texts).splitlines())
    entries = ["\n".join(reference.key(name)) for name in found]
    return iter("\n\n".join(entries).splitlines())


@dataclass(frozen=True)
class Reference:
    """Every key of every yaml, those of ``config_dir`` included."""

    config_dir: str | None

    @cached_property
    def options(self) -> dict[str, dict[str, dict[str, Key]]]:
        """group -> option -> keys; the option of a run without arguments comes first."""
        chosen = yaml_keys.chosen()
        found = {}
        for group in GROUPS:
            names = sorted(yamls(group, self.config_dir), key=lambda o: o != chosen.get(group))
            found[group] = {o: option_keys(group, o, self.config_dir) for o in names}
        return found

    @cached_property
    def keys(self) -> dict[str, dict[str, Key]]:
        """full name -> option -> key; "" is the option of a key of config.yaml."""
        root = yaml_keys.root_keys()
        found = {name: {"": key} for name, key in root.items() if name not in _ROOT_GROUPS}
        for group, options in self.options.items():
            for option, keys in options.items() if group not in PRESETS else ():
                for name, key in keys.items():
                    found.setdefault(name, {})[option] = key
        return found

    @cached_property
    def groups(self) -> dict[str, str]:
        """group -> what it is about."""
        return GROUPS | _ROOT_GROUPS

    def named(self, word: str) -> list[str]:
        """The full names of the keys that ``word`` may mean: all of it, or the last part."""
        word = RENAMED.get(word, word)
        if word in self.keys and word not in self.groups:
            return [word]
        if word.startswith("env."):  # env.length is env.kwargs.length
            return [n for n in (f"env.kwargs.{word.removeprefix('env.')}",) if n in self.keys]
        return [n for n in self.keys if n.count(".") == 1 and n.rpartition(".")[2] == word]

    def unknown(self, word: str) -> ConfigError:
        """The error for a word that means nothing."""
        last = word.rpartition(".")[2]
        lasts = {n.rpartition(".")[2]: n for n in reversed(self.keys)}
        options = [f"{g}={o}" for g, named in self.options.items() for o in named]
        close = [n for other in SYNONYMS.get(last.lower(), "").split() for n in self.named(other)]
        close = close or nearest(word, options if "=" in word else [*TOPICS, *self.groups])
        if "." in word:
            close = nearest(word, self.keys)
        close = close or [lasts[n] for n in nearest(last, lasts)]
        guess = f"did you mean {' or '.join(close[:3])}?"
        fix = guess if close else "rlrun --help shows the groups"
        allowed = f"a key, a group, GROUP=OPTION, or a topic: {', '.join(TOPICS)}"
        return ConfigError(f"rlrun help {word}: nothing has that name; {allowed}; {fix}")

    def key(self, name: str) -> Iterator[str]:
        """The lines about one key."""
        by_option = self.keys[name]
        first = next(iter(by_option.values()))
        yield _wrapped(f"{name}: ", first.meaning)
        group = name.partition(".")[0] if "" not in by_option else ""
        if allowed := self._allowed(name):
            yield _wrapped("  allowed  ", allowed)
        label = "  default  "
        lines = [*self._defaults(name, group)]
        for line in lines[:_VALUES]:
            yield _wrapped(label, line)
            label = " " * len(label)
        if len(lines) > _VALUES:
            yield f"{label}{len(lines) - _VALUES} more: rlrun help {group}=OPTION"
        yield _wrapped("  read by  ", self._readers(name, group, by_option))
        presets = [
            f"{g}={o} ({keys[name].value})"
            for g in PRESETS
            for o, keys in self.options[g].items()
            if name in keys and keys[name].value
        ]
        if presets:
            yield _wrapped("  set by   ", ", ".join(presets))
        yield _wrapped("  see also ", ", ".join(self._related(name)))

    def _defaults(self, name: str, group: str) -> Iterator[str]:
        """A line for every value and source: the value, the options that have it, the source."""
        by_line: dict[tuple[str, str], list[str]] = {}
        for option, key in self.keys[name].items():
            value = key.value or self._parts(name, option)
            by_line.setdefault((value, key.source), []).append(option)
        for (value, source), options in by_line.items():
            named = ", ".join(options[:_NAMED])
            more = f" and {len(options) - _NAMED} more" if len(options) > _NAMED else ""
            whose = f"  {group}={named}{more}" if group and len(by_line) > 1 else ""
            yield f"{value}{whose}{f'  ({source})' if source else ''}"

    def _parts(self, name: str, option: str) -> str:
        """The values of a mapping that are not null."""
        parts = {
            n.removeprefix(f"{name}."): keys.get(option)
            for n, keys in self.keys.items()
            if n.startswith(f"{name}.")
        }
        given = [f"{n}: {k.value}" for n, k in parts.items() if k and k.value not in ("", "null")]
        return f"{{{', '.join(given)}}}"

    def _related(self, name: str) -> list[str]:
        """Keys that decide whether ``name`` is read or that it decides about, then neighbours."""
        conditions = {n: _conditions(self._metadata(n)) for n in self.keys}
        found = [c for c in conditions[name] if c in self.keys or c in self.groups]
        found += [n for n, keys in conditions.items() if name in keys]
        parent = name.rpartition(".")[0]
        beside = [n for n in self._neighbours(name) if n.rpartition(".")[0] == parent]
        place = beside.index(name)
        found += beside[max(0, place - _BESIDE) : place + _BESIDE + 1]
        return [n for n in dict.fromkeys(found) if n not in (name, f"{parent}.name")]

    def _neighbours(self, name: str) -> list[str]:
        option = next(iter(self.keys[name]))
        group = name.partition(".")[0]
        return list(self.options[group][option] if option else yaml_keys.root_keys())

    def _metadata(self, name: str) -> Mapping[str, Any]:
        return next((m for _, m in self._declared(name)), {})

    def _declared(self, name: str) -> list[tuple[Any, Mapping[str, Any]]]:
        """(type, metadata) of a key in every class that has it."""
        group, _, rest = name.partition(".")
        classes: list[Any] = [Config] if not rest else _classes(group)
        parts = [rest] if rest else [group]
        if "." in rest:
            parts = rest.split(".")
        found = [d for cls in classes if (d := _declaration(cls, parts)) is not None]
        return found

    def _allowed(self, name: str) -> str:
        """Type and range, as they are checked."""
        found = [_allowed(kind, m) for kind, m in self._declared(name)]
        texts = [text for text in dict.fromkeys(found) if f"{text} or null" not in found]
        return ", or ".join(texts)

    def _readers(self, name: str, group: str, by_option: Mapping[str, Key]) -> str:
        """The runs that read a key."""
        if other := self._metadata(name).get("default_of"):
            return f"{other}, whose default it is"
        scope = _COMMANDS.get(name.partition(".")[0], "every run")
        if group in OPTION_CONFIGS and len(by_option) < len(self.options[group]):
            scope = f"{group}={', '.join(sorted(by_option))}"
        elif name.startswith(("env.kwargs.", "env.eval_kwargs.")):
            scope = f"env={', '.join(sorted(by_option))}"
        reader = self._metadata(name).get("read_when")
        if reader is None:
            return scope
        return f"runs with {reader}" if scope == "every run" else f"{scope}, with {reader}"

    def group(self, group: str) -> Iterator[str]:
        """The lines about a group: its options and its keys."""
        yield f"{group}: {self.groups[group]}"
        options = self.options.get(group, {})
        width = max((len(o) for o in options), default=0) + 2
        files_of = yamls(group, self.config_dir)
        for option in options:
            yield _wrapped(f"  {option:<{width}}", yaml_keys.first_comment(files_of[option]))
        names = [n for n in self.keys if n.startswith(f"{group}.")]
        tops = [n for n in names if n.count(".") == 1]
        if tops:
            yield ""
            lasts = (n.rpartition(".")[2] for n in tops)
            yield _wrapped(f"keys, {group}.KEY: ", ", ".join(lasts))
        yield ""
        example = f"rlrun help {group}={next(iter(options))}, " if options else ""
        yield f"more: {example}rlrun help {(tops or ['policy.nstep'])[-1]}"

    def option(self, group: str, option: str) -> Iterator[str]:
        """The lines about an option: what it chooses besides, and its keys."""
        path = yamls(group, self.config_dir)[option]
        yield _wrapped(f"{group}={option}: ", yaml_keys.first_comment(path))
        chosen = yaml_keys.companions(path)
        if chosen:
            yield _wrapped("  chooses ", ", ".join(f"{g}={o}" for g, o in chosen.items()))
        keys = self.options[group][option]
        width = min(max((len(f"{n} = {k.value}") for n, k in keys.items()), default=0), 44) + 2
        for name, key in keys.items():
            yield _wrapped(f"  {f'{name} = {key.value}':<{width}}", key.comment)


def _conditions(metadata: Mapping[str, Any]) -> list[str]:
    reader = metadata.get("read_when")
    every = [c.key for conditions in reader.any_of for c in conditions] if reader else []
    return [*every, *([metadata["default_of"]] if "default_of" in metadata else [])]


def _classes(group: str) -> list[Any]:
    """The dataclasses of a group's options."""
    if group in OPTION_CONFIGS:
        return list(OPTION_CONFIGS[group].values())
    kind = COMMAND_CONFIGS.get(group) or _fields(Config).get(group, (None, {}))[0]
    return [kind] if kind is not None else []


@cache
def _fields(cls: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Name -> (type, metadata) of the fields of a dataclass."""
    kinds = get_type_hints(cls)  # evaluates the annotations anew at every call
    return {field.name: (kinds[field.name], field.metadata) for field in fields(cls)}


def _declaration(cls: Any, parts: Sequence[str]) -> tuple[Any, Mapping[str, Any]] | None:
    """(type, metadata) of the field that ``parts`` lead to, parts of a schedule included."""
    if parts[0] not in _fields(cls):
        return None
    kind, metadata = _fields(cls)[parts[0]]
    if len(parts) == 1:
        return kind, metadata
    inner = [k for k in (kind, *get_args(kind)) if is_dataclass(k)]
    return _declaration(inner[0], parts[1:]) if inner else None


def _allowed(kind: Any, metadata: Mapping[str, Any]) -> str:
    """Type and range of a key in words: ``number within [0, 1] or null``."""
    if get_origin(kind) in (Union, types.UnionType):
        inner = [k for k in get_args(kind) if k is not types.NoneType]
        null = " or null" if len(inner) < len(get_args(kind)) else ""
        return " or ".join(_allowed(k, metadata) for k in inner) + null
    if "or_class" in metadata:
        return " | ".join((*metadata["or_class"], "mypkg.mod:Class"))
    within: Range | None = metadata.get("range")
    return f"{_type_text(kind)} {within}" if within is not None else _type_text(kind)


def _type_text(kind: Any) -> str:
    """The type of a key in words."""
    origin = get_origin(kind)
    if origin is Literal:
        return " | ".join(map(str, get_args(kind)))
    if origin is tuple:
        return f"list of {_type_text(get_args(kind)[0])}s"
    if origin is dict:
        return "mapping"
    if kind is ScheduleConfig:
        return "number or schedule {kind, start, end, over, points}"
    names = {
        int: "integer",
        float: "number",
        bool: "true or false",
        str: "text",
        Seconds: "duration",
    }
    return names.get(kind, "wrapper")


def _topic(topic: str) -> Iterator[str]:
    """The section of a README, its links as their texts."""
    room, title = TOPICS[topic]
    text = (Path(__file__).resolve().parents[1] / room / "README.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found is not None, f"rlrun/{room}/README.md has no section {title}"
    body = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", found[1].strip())
    yield f"{title}\n\n{body}"


def _wrapped(label: str, text: str) -> str:
    indent = " " * min(len(label), 48)
    return fill(label + text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
