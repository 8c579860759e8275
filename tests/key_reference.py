"""``python -m tests.key_reference`` writes the key table, ``rlrun/cli/keys.json``, anew.

From schema, yaml files and READMEs.
"""

import json
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from rlrun.cli import key_table
from rlrun.cli.key_table import BASES, GROUPS, PRESETS, Option, read_option
from rlrun.config.reader import field_types
from rlrun.env.wrappers import WRAPPERS
from rlrun.schema import (
    OPTION_CONFIGS,
    WRAPPER_CONFIGS,
    Config,
    ScheduleConfig,
    Seconds,
)
from rlrun.schema.ranges import MEMORIES
from rlrun.schema.spelling import RENAMED
from rlrun.schema.studies import COMMAND_CONFIGS

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
LAUNCHERS = "hydra/launcher"
TASKS = "bench_tasks.yaml"  # a table of tasks, not of keys
KEYS = Path(key_table.FILE)
METRICS = ROOT / "rlrun/log/metrics.txt"  # name: meaning
TOPICS = {  # topic -> (README of a room, its section)
    "commands": ("cli", "Commands"),
    "determinism": ("run", "Determinism"),
    "ending": ("run", "Ending"),
    "exit codes": ("cli", "Exit codes"),
    "exploration": ("policy", "Exploration"),
    "extras": ("env", "Extras"),
    "files": ("run", "Files"),
    "health": ("reports", "Run health"),
    "environments": ("env", "Your own environments"),
    "environment checks": ("env", "Environment checks"),
    "metrics": ("log", "Metrics"),
    "overrides": ("config", "Overrides"),
    "python": ("api", "From Python"),
    "report": ("reports", "Reports"),
    "resume": ("run", "Resuming"),
    "search": ("sweeps", "Search"),
    "seeds until decided": ("sweeps", "Seeds until decided"),
    "statistics": ("reports", "Statistics"),
    "sweep": ("sweeps", "Sweeps"),
    "trust": ("config", "Code that a config names"),
    "videos": ("video", "Watching an agent"),
    "windows": ("buffer", "Windows"),
    "wrappers": ("env", "Wrappers"),
    "yaml files": ("config", "Your own yaml files"),
}


def table_text() -> str:
    """The text of keys.json: see ``rlrun.cli.key_table.Table``. A key is a line."""
    prefixes = {g: "" if g in PRESETS else g for g in GROUPS}
    prefixes |= {BASES: "", LAUNCHERS: "hydra.launcher"}
    options = {group: _read(group, prefix) for group, prefix in prefixes.items()}
    files = [read_option(CONF / f"{name}.yaml", "") for name in ("config", *COMMAND_CONFIGS)]
    root = {name: key for file in files for name, key in file.keys.items()}
    chosen = {g: o for g, o in files[0].chooses.items() if g in GROUPS and o != "null"}
    chosen |= options["policy"][chosen["policy"]].chooses
    of_groups = (n for g in GROUPS if g not in PRESETS for o in options[g].values() for n in o.keys)
    of_bases = (
        f"{base if base in GROUPS else 'policy'}.{n}"
        for base, option in options[BASES].items()
        for n in option.keys
    )
    facts = {name: _facts(name) for name in dict.fromkeys([*root, *of_groups, *of_bases])}
    table = {
        "chosen": chosen,
        "root": root,
        "options": {g: {n: o._asdict() for n, o in named.items()} for g, named in options.items()},
        "facts": {name: about for name, about in facts.items() if about},
        "renamed": RENAMED,
        "topics": {topic: _section(*where) for topic, where in TOPICS.items()},
        "metrics": dict(line.split(": ", 1) for line in METRICS.read_text("utf-8").splitlines()),
        "wrappers": {name: _wrapper(name) for name in WRAPPERS},
    }
    return f"{_lines(table)}\n"


def _read(group: str, prefix: str) -> dict[str, Option]:
    return {p.stem: read_option(p, prefix) for p in sorted((CONF / group).glob("*.yaml"))}


def _lines(value: Any, indent: str = "") -> str:
    """JSON with a line for every entry of a mapping."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = (f"{indent} {json.dumps(k)}: {_lines(v, f'{indent} ')}" for k, v in value.items())
    return "{\n" + ",\n".join(inner) + f"\n{indent}}}"


def _section(room: str, title: str) -> str:
    """The section of a room's README, its links as their texts."""
    text = (ROOT / "rlrun" / room / "README.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found is not None, f"rlrun/{room}/README.md has no section {title}"
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", found[1].strip())
    return f"{title}\n\n{plain}"


def _wrapper(name: str) -> tuple[str, str]:
    """(name and arguments, effect)."""
    arguments = [field.name for field in fields(WRAPPER_CONFIGS[name])][1:]
    return " ".join([name, *arguments]), WRAPPERS[name][1]


def _facts(name: str) -> dict[str, Any]:
    """What the schema says of a key: allowed values, who reads it, which keys decide that."""
    declared = _declared(name)
    metadata = next((m for _, _, m in declared), {})
    reader, other = metadata.get("read_when"), metadata.get("default_of")
    conditions = [c.key for every in reader.any_of for c in every] if reader else []
    allowed = _allowed_by_option(name.partition(".")[0], declared)
    if name == "memory.name":
        allowed = " | ".join((*MEMORIES, "none", "mypkg.mod:Class"))
    facts = {
        "allowed": allowed,
        "read_when": str(reader or ""),
        "default_of": other,
        "conditions": [*conditions, *([other] if other else [])],
    }
    return {fact: value for fact, value in facts.items() if value}


def _allowed_by_option(group: str, declared: list[tuple[str, Any, Mapping[str, Any]]]) -> str:
    """Allowed values; those of fewer options follow with their names."""
    options: dict[str, list[str]] = {}
    for option, kind, metadata in declared:
        options.setdefault(_allowed(kind, metadata), []).append(option)
    first, *others = sorted(options, key=lambda text: -len(options[text])) or [""]
    others = [text for text in others if f"{text} or null" not in options]
    named = [f"{text} for {group}={', '.join(sorted(options[text]))}" for text in others]
    return "; ".join([first, *named])


def _declared(name: str) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """(option, type, metadata) of a key in every class that has it."""
    group, _, rest = name.partition(".")
    kinds = OPTION_CONFIGS.get(group)
    if kinds is None:
        kinds = {"": COMMAND_CONFIGS.get(group) or field_types(Config).get(group)}
    if not rest:
        kinds, rest = {"": Config}, name
        if name not in field_types(Config):
            return []
    found = [(o, _field(k, rest.split("."))) for o, k in kinds.items() if is_dataclass(k)]
    return [(option, *one) for option, one in found if one is not None]


def _field(cls: Any, parts: list[str]) -> tuple[Any, Mapping[str, Any]] | None:
    """(type, metadata) of the field that ``parts`` lead to, parts of a schedule included."""
    metadata = {field.name: field.metadata for field in fields(cls)}
    if parts[0] not in metadata:
        return None
    kind = field_types(cls)[parts[0]]
    if len(parts) == 1:
        return kind, metadata[parts[0]]
    inner = [k for k in (kind, *get_args(kind)) if is_dataclass(k)]
    return _field(inner[0], parts[1:]) if inner else None


def _allowed(kind: Any, metadata: Mapping[str, Any]) -> str:
    """Type and range of a key in words: ``number within [0, 1] or null``."""
    if get_origin(kind) in (Union, types.UnionType):
        inner = [k for k in get_args(kind) if k is not types.NoneType]
        null = " or null" if len(inner) < len(get_args(kind)) else ""
        return " or ".join(_allowed(k, metadata) for k in inner) + null
    within = metadata.get("range")
    return f"{_type_text(kind)} {within}" if within is not None else _type_text(kind)


def _type_text(kind: Any) -> str:
    """The type of a key in words."""
    origin = get_origin(kind)
    if origin is Literal:
        return " | ".join(map(str, get_args(kind)))
    if origin is tuple:
        inner = _type_text(get_args(kind)[0])
        return f"list of lists of {inner[8:]}" if inner[:8] == "list of " else f"list of {inner}s"
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


if __name__ == "__main__":
    KEYS.write_text(table_text(), "utf-8")
