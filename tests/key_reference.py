"""The key table: ``python -m tests.key_reference`` writes ``rlrun/cli/keys.json`` and the key
reference in conf/README.md anew, from schema, yaml files and READMEs.
"""

import json
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from rlrun.cli import key_table
from rlrun.cli.key_table import BASES, GROUPS, PRESETS, TOPICS, Key, Option, Table, read_option
from rlrun.config.reader import field_types
from rlrun.env.wrappers import WRAPPERS
from rlrun.schema import (
    COMMAND_CONFIGS,
    OPTION_CONFIGS,
    WRAPPER_CONFIGS,
    Config,
    ScheduleConfig,
    Seconds,
)
from rlrun.schema.spelling import RENAMED
from tests import installed

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
LAUNCHERS = "hydra/launcher"
TASKS = "bench_tasks.yaml"  # a table of tasks, not of keys
KEYS, README = Path(key_table.FILE), CONF / "README.md"
BEGIN, END = "<!-- config:begin -->\n", "<!-- config:end -->\n"

# -- rlrun/cli/keys.json ---------------------------------------------------------------------------


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
    of_bases = (f"policy.{n}" for option in options[BASES].values() for n in option.keys)
    facts = {name: _facts(name) for name in dict.fromkeys([*root, *of_groups, *of_bases])}
    table = {
        "chosen": chosen,
        "root": root,
        "options": {g: {n: o._asdict() for n, o in named.items()} for g, named in options.items()},
        "facts": {name: about for name, about in facts.items() if about},
        "renamed": RENAMED,
        "topics": {topic: _section(*where) for topic, where in TOPICS.items()},
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
    return f"{title}\n\n" + re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", found[1].strip())


def _wrapper(name: str) -> tuple[str, str]:
    """(name and arguments, effect)."""
    arguments = [field.name for field in fields(WRAPPER_CONFIGS[name])][1:]
    return " ".join([name, *arguments]), WRAPPERS[name][1]


def _facts(name: str) -> dict[str, Any]:
    """What the schema says of a key: allowed values, who reads it, which keys decide that."""
    declared = _declared(name)
    texts = dict.fromkeys(_allowed(kind, metadata) for kind, metadata in declared)
    metadata = next((m for _, m in declared), {})
    reader, other = metadata.get("read_when"), metadata.get("default_of")
    conditions = [c.key for every in reader.any_of for c in every] if reader else []
    facts = {
        "allowed": ", or ".join(text for text in texts if f"{text} or null" not in texts),
        "read_when": str(reader or ""),
        "default_of": other,
        "conditions": [*conditions, *([other] if other else [])],
    }
    return {fact: value for fact, value in facts.items() if value}


def _declared(name: str) -> list[tuple[Any, Mapping[str, Any]]]:
    """(type, metadata) of a key in every class that has it."""
    group, _, rest = name.partition(".")
    if group in OPTION_CONFIGS:
        kinds = [*OPTION_CONFIGS[group].values()]
    else:
        kinds = [COMMAND_CONFIGS.get(group) or field_types(Config).get(group)]
    if not rest:
        return [_field(Config, [name])] if name in field_types(Config) else []
    found = [_field(kind, rest.split(".")) for kind in kinds if is_dataclass(kind)]
    return [one for one in found if one is not None]


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
    if "or_class" in metadata:
        return " | ".join((*metadata["or_class"], "mypkg.mod:Class"))
    within = metadata.get("range")
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


# -- conf/README.md --------------------------------------------------------------------------------

HEAD = ("key", "default", "unit, meaning; source")
ORDER = (  # as a reader wants them
    *("policy", "torso", "memory", "buffer", "explore", "bonus"),
    *("collector", "learner", "env", "agents", "logger", "pipeline", "transport"),
)


def readme_tables(table: Table) -> str:
    """The generated section of conf/README.md."""
    root = {name: key for name, key in table.root.items() if key.value}
    of_commands = {n for n in root if n.partition(".")[0] in COMMAND_CONFIGS}
    out = "### Root and `run`\n\n" + _keys({n: k for n, k in root.items() if n not in of_commands})
    for command in COMMAND_CONFIGS:
        keys = {n: k for n, k in root.items() if n.startswith(f"{command}.")}
        out += f"\n### `{command}`\n\n{_keys(keys)}"
    out += f"\n### Tasks of `bench`\n\n{_tasks()}"
    for group in ORDER:
        out += f"\n### `{group}`\n\n"
        out += _environments(table) if group == "env" else _group(table, group)
    out += "\n### `hydra.launcher`\n\n" + _table(*HEAD)
    for name, option in table.options[LAUNCHERS].items():
        for key, (value, comment) in option.keys.items():
            out += _row(f"`{key}`", f"`{value}` ({name})", comment)
    out += "\n### `sweep`\n\n" + _table("preset", "what it runs")
    for name, option in table.options["sweep"].items():
        out += _row(f"`sweep={name}`", option.about)
    return f"{out}\n### Presets: `experiment` and `debug`\n\n{_presets(table)}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"


def _table(*head: str) -> str:
    return _row(*head) + _row(*("---" for _ in head))


def _default(values: dict[str, str], among: int) -> str:
    """``1`` where all options agree, else ``1`` (a, b), ``2`` (c)."""
    by_value: dict[str, list[str]] = {}
    for option, value in values.items():
        by_value.setdefault(value, []).append(option)
    if len(by_value) == 1 and len(values) == among:
        (value,) = by_value
        return f"`{value}`" if value else "(the keys below)"
    shown = ((f"`{v}`" if v else "(the keys below)", names) for v, names in by_value.items())
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in shown)


def _keys(keys: Mapping[str, Key]) -> str:
    rows = (_row(f"`{name}`", f"`{key.value}`", key.comment) for name, key in keys.items())
    return _table(*HEAD) + "".join(rows)


def _ordered(table: Table, group: str) -> dict[str, dict[str, Key]]:
    """option -> keys, those of bases too, the option with the most keys first."""
    found = {o: table.own_keys(group, o) for o in table.options[group]}
    chosen = table.chosen.get(group)
    first = chosen if group == "policy" else None  # the others are told apart from it
    order = {o: (o != first, -len(keys), o != chosen) for o, keys in found.items()}
    return dict(sorted(found.items(), key=lambda entry: order[entry[0]]))


def _group(table: Table, group: str) -> str:
    found, options = _ordered(table, group), table.options[group]
    heirs = {o: next((p for p in options[o].parents if p in options), None) for o in found}
    keys: dict[str, Key] = {}
    for own in found.values():
        keys |= {name: key for name, key in own.items() if name not in keys}
    out = _table(*HEAD)
    for name, key in keys.items():
        values = {o: own[name].value for o, own in found.items() if name in own}
        among = sum(o in values or heirs[o] is None for o in found)
        out += _row(f"`{name}`", _default(values, among), key.comment)
    for option in found:
        if brings := options[option].chooses:
            chosen = ", ".join(f"`{g}={o}`" for g, o in brings.items())
            rest = f" and the rest from {heirs[option]}" if heirs[option] else ""
            out += f"\n`{group}={option}` brings {chosen}{rest}.\n"
    return out


def _environments(table: Table) -> str:
    """The meaning of the keys of an environment, then the values of each."""
    columns = ("id", "wrappers", "frame_stack", "reward_scale", "stop_value", "total_steps",
               "eval_every", "warmup_steps", "success")  # fmt: skip
    found = {o: option.keys for o, option in table.options["env"].items()}
    out = _table(*HEAD)
    for name, key in found["cartpole"].items():
        per_env = name.removeprefix("env.") in (*columns, "note", "kwargs", "eval_kwargs")
        # The source of these comments is about cartpole alone.
        text = key.meaning if per_env else key.comment
        out += _row(f"`{name}`", "see below" if per_env else f"`{key.value}`", text)
    out += "\n" + _table("env", *columns, "needs")
    for option, keys in found.items():
        module = option in installed.PRESETS and installed.module_of(option)
        values = (f"`{keys[f'env.{column}'].value}`" for column in columns)
        out += _row(f"`{option}`", *values, installed.extra_of(module))
    out += "\n" + _table("argument", "env", "default", "unit, meaning; source")
    for option, keys in found.items():
        for name, key in keys.items():
            if name.startswith(("env.kwargs.", "env.eval_kwargs.")):
                out += _row(f"`{name}`", f"`{option}`", f"`{key.value}`", key.comment)
    return out


def _presets(table: Table) -> str:
    found = {
        (g, o): keys for g in ("experiment", "debug") for o, keys in _ordered(table, g).items()
    }
    chosen = {(g, o): table.options[g][o].chooses for g, o in found}
    out = _table("key", *(f"`{g}={o}`" for g, o in found))
    for group in dict.fromkeys(g for brings in chosen.values() for g in brings):
        out += _row(f"`{group}=`", *(_cell(brings.get(group)) for brings in chosen.values()))
    order = dict.fromkeys(n for keys in found.values() for n, key in keys.items() if key.value)
    for name in sorted(order, key=lambda n: n.split(".")[0]):
        keys = (own.get(name) for own in found.values())
        out += _row(f"`{name}`", *(_cell(key and key.value) for key in keys))
    return out


def _cell(value: str | None) -> str:
    return "" if value is None else f"`{value}`"


def _tasks() -> str:
    """A row for each task of ``rlrun bench memory``."""
    out = _table(
        "task", "overrides", "env steps", "return of random actions", "published elsewhere"
    )
    for name, task in yaml.safe_load((CONF / TASKS).read_text("utf-8")).items():
        published = ", ".join(f"{value} ({who})" for who, value in task["published"].items())
        words = f"`{' '.join(task['overrides'])}`"
        out += _row(f"`{name}`", words, str(task["steps"]), str(task["random"]), published)
    return out


# -- both files ------------------------------------------------------------------------------------


def readme(table: Table) -> str:
    """The text of conf/README.md."""
    before, _, rest = README.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{readme_tables(table)}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    KEYS.write_text(table_text(), "utf-8")
    README.write_text(readme(Table()), "utf-8")
