"""The key reference in conf/README.md: ``python -m tests.key_reference`` writes it anew."""

import re
from pathlib import Path

import yaml

from rlrun.cli.yaml_keys import PRESETS, Key, companions, file_keys, first_comment, with_bases
from rlrun.schema import COMMAND_CONFIGS
from tests import installed

CONF = Path(__file__).parents[1] / "conf"
TASKS = "bench_tasks.yaml"  # a table of tasks, not of keys
README = CONF / "README.md"
BEGIN, END = "<!-- config:begin -->\n", "<!-- config:end -->\n"

GROUPS = (  # as a reader wants them
    *("policy", "torso", "memory", "buffer", "explore", "bonus"),
    *("collector", "learner", "env", "agents", "logger", "pipeline", "transport"),
)


def options(group: str) -> dict[str, list[Key]]:
    """option -> keys, the one with the most keys first."""
    paths = sorted((CONF / group).glob("*.yaml"))
    prefix = "" if group in PRESETS else group
    found = {p.stem: [*with_bases(p, prefix).values()] for p in paths}
    usual = re.findall(r"- (\w+): (\w+)\n", (CONF / "config.yaml").read_text("utf-8"))
    first = [o for g, o in usual if g == group == "policy"]  # others' keys are told apart from its
    order = {o: (o not in first, -len(keys), (group, o) not in usual) for o, keys in found.items()}
    return dict(sorted(found.items(), key=lambda i: order[i[0]]))


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


def _group(group: str) -> str:
    found = options(group)
    heirs = {n: o for n in found for o in found if f"\n  - {o}\n" in _text(group, n)}
    keys: dict[str, Key] = {}
    for key in (k for option in found.values() for k in option):
        keys.setdefault(key.name, key)
    out = _table("key", "default", "unit, meaning; source")
    for name, key in keys.items():
        values = {o: k.value for o, ks in found.items() for k in ks if k.name == name}
        among = len(found) - len({*heirs} - {*values})
        out += _row(f"`{name}`", _default(values, among), key.comment)
    for option in found:
        brings = companions(CONF / group / f"{option}.yaml")
        if brings:
            chosen = ", ".join(f"`{g}={o}`" for g, o in brings.items())
            rest = f" and the rest from {heirs[option]}" if option in heirs else ""
            out += f"\n`{group}={option}` brings {chosen}{rest}.\n"
    return out


def _text(group: str, option: str) -> str:
    return (CONF / group / f"{option}.yaml").read_text("utf-8")


def _env() -> str:
    """The meaning of the keys of an environment, then the values of each."""
    found = dict(sorted(options("env").items()))
    columns = [
        "id",
        "wrappers",
        "frame_stack",
        "reward_scale",
        "stop_value",
        "total_steps",
        "eval_every",
        "warmup_steps",
        "success",
    ]
    out = _table("key", "default", "unit, meaning; source")
    for key in found["cartpole"]:
        name = key.name.removeprefix("env.")
        per_env = name in (*columns, "note", "kwargs", "eval_kwargs")
        # The part behind the last semicolon of these comments is about cartpole alone.
        text = key.comment.rpartition("; ")[0] or key.comment if per_env else key.comment
        out += _row(f"`{key.name}`", "see below" if per_env else f"`{key.value}`", text)
    out += "\n" + _table("env", *columns, "needs")
    for option, keys in found.items():
        values = {k.name.removeprefix("env."): k.value for k in keys}
        module = option in installed.PRESETS and installed.module_of(option)
        out += _row(f"`{option}`", *(f"`{values[c]}`" for c in columns), installed.extra_of(module))
    out += "\n" + _table("argument", "env", "default", "unit, meaning; source")
    for option, keys in found.items():
        for key in keys:
            if re.match(r"env\.(eval_)?kwargs\.", key.name):
                out += _row(f"`{key.name}`", f"`{option}`", f"`{key.value}`", key.comment)
    return out


def _presets() -> str:
    found = {f"{g}={o}": keys for g in ("experiment", "debug") for o, keys in options(g).items()}
    chosen = {c: companions(CONF / "{}/{}.yaml".format(*c.split("="))) for c in found}
    out = _table("key", *(f"`{c}`" for c in found))
    for group in dict.fromkeys(g for brings in chosen.values() for g in brings):
        out += _row(f"`{group}=`", *(_cell(chosen[c].get(group)) for c in found))
    order = dict.fromkeys(k.name for keys in found.values() for k in keys if k.value)
    for name in sorted(order, key=lambda n: n.split(".")[0]):
        values = ({k.name: k.value for k in keys}.get(name) for keys in found.values())
        out += _row(f"`{name}`", *map(_cell, values))
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


def reference() -> str:
    """The generated section."""
    out = "### Root and `run`\n\n" + _table("key", "default", "unit, meaning; source")
    for key in file_keys(CONF / "config.yaml", "").values():
        if key.value:
            out += _row(f"`{key.name}`", f"`{key.value}`", key.comment)
    for command in COMMAND_CONFIGS:
        out += f"\n### `{command}`\n\n" + _table("key", "default", "unit, meaning; source")
        for key in file_keys(CONF / f"{command}.yaml", "").values():
            if key.value:
                out += _row(f"`{key.name}`", f"`{key.value}`", key.comment)
    out += f"\n### Tasks of `bench`\n\n{_tasks()}"
    for group in GROUPS:
        out += f"\n### `{group}`\n\n{_env() if group == 'env' else _group(group)}"
    out += "\n### `hydra.launcher`\n\n" + _table("key", "default", "unit, meaning; source")
    for path in sorted((CONF / "hydra/launcher").glob("*.yaml")):
        for key in file_keys(path, "hydra.launcher").values():
            out += _row(f"`{key.name}`", f"`{key.value}` ({path.stem})", key.comment)
    out += "\n### `sweep`\n\n" + _table("preset", "what it runs")
    for path in sorted((CONF / "sweep").glob("*.yaml")):
        out += _row(f"`sweep={path.stem}`", first_comment(path))
    return f"{out}\n### Presets: `experiment` and `debug`\n\n{_presets()}"


def split() -> tuple[str, str, str]:
    """conf/README.md before, inside and after the generated section."""
    before, _, rest = README.read_text("utf-8").partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


if __name__ == "__main__":
    before, _, after = split()
    README.write_text(f"{before}{BEGIN}{reference()}{END}{after}", "utf-8")
