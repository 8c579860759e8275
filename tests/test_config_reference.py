"""conf/README.md lists the keys of the yaml files.

``python -m tests.test_config_reference`` writes its generated section anew.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tests import installed

CONF = Path(__file__).parents[1] / "conf"
README = CONF / "README.md"
BEGIN, END = "<!-- config:begin -->\n", "<!-- config:end -->\n"

GROUPS = (  # as a reader wants them
    *("policy", "torso", "memory", "buffer", "explore", "bonus"),
    *("collector", "learner", "env", "agents", "logger", "pipeline", "transport"),
)
PRESETS = ("experiment", "debug")


@dataclass(frozen=True)
class Key:
    """One line of a yaml."""

    name: str  # full, e.g. policy.lr.start
    default: str  # as written; empty: a mapping, its keys follow
    comment: str


def option_keys(path: Path, prefix: str) -> list[Key]:
    """The keys of a yaml in its order, without its defaults list and the hydra node."""
    keys: list[Key] = []
    parents: list[tuple[int, str]] = []  # (indentation, name)
    for line in path.read_text("utf-8").split("\nhydra:")[0].splitlines():
        code, _, comment = line.partition("  # ")
        found = re.fullmatch(r"( *)(\w+):(?: +(.*\S))? *", code)
        if not found or line.startswith("#") or found[2] == "defaults":
            continue
        indent, name, value = len(found[1]), found[2], found[3] or ""
        parents = [p for p in parents if p[0] < indent]
        full = ".".join([*([prefix] if prefix else []), *(p[1] for p in parents), name])
        parents.append((indent, name))
        keys.append(Key(full, value, comment.strip()))
    return keys


def companions(path: Path) -> dict[str, str]:
    """{group: option} that a yaml chooses besides itself."""
    found = re.findall(r"- override /(\w+)(?:@\S+)?: (\w+)", path.read_text("utf-8"))
    return dict(found)


def with_bases(path: Path, prefix: str) -> list[Key]:
    """The keys of a yaml and those of the base yamls that it starts from."""
    bases = re.findall(r"- (base/\w+)@_here_\n", path.read_text("utf-8"))
    paths = [path, *(path.parent / f"{base}.yaml" for base in bases)]
    return [key for p in paths for key in option_keys(p, prefix)]


def options(group: str) -> dict[str, list[Key]]:
    """option -> keys, the one with the most keys first."""
    paths = sorted((CONF / group).glob("*.yaml"))
    prefix = "" if group in PRESETS else group
    found = {p.stem: with_bases(p, prefix) for p in paths}
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
        values = {o: k.default for o, ks in found.items() for k in ks if k.name == name}
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
    """What the keys of an environment mean, then the values of each."""
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
        out += _row(f"`{key.name}`", "see below" if per_env else f"`{key.default}`", text)
    out += "\n" + _table("env", *columns, "needs")
    for option, keys in found.items():
        values = {k.name.removeprefix("env."): k.default for k in keys}
        module = option in installed.PRESETS and installed.module_of(option)
        out += _row(f"`{option}`", *(f"`{values[c]}`" for c in columns), installed.extra_of(module))
    out += "\n" + _table("argument", "env", "default", "unit, meaning; source")
    for option, keys in found.items():
        for key in keys:
            if re.match(r"env\.(eval_)?kwargs\.", key.name):
                out += _row(f"`{key.name}`", f"`{option}`", f"`{key.default}`", key.comment)
    return out


def _presets() -> str:
    found = {f"{g}={o}": keys for g in PRESETS for o, keys in options(g).items()}
    chosen = {c: companions(CONF / "{}/{}.yaml".format(*c.split("="))) for c in found}
    out = _table("key", *(f"`{c}`" for c in found))
    for group in dict.fromkeys(g for brings in chosen.values() for g in brings):
        out += _row(f"`{group}=`", *(_cell(chosen[c].get(group)) for c in found))
    order = dict.fromkeys(k.name for keys in found.values() for k in keys if k.default)
    for name in sorted(order, key=lambda n: n.split(".")[0]):
        values = ({k.name: k.default for k in keys}.get(name) for keys in found.values())
        out += _row(f"`{name}`", *map(_cell, values))
    return out


def _cell(value: str | None) -> str:
    return "" if value is None else f"`{value}`"


def reference() -> str:
    """The generated section."""
    out = "### Root and `run`\n\n" + _table("key", "default", "unit, meaning; source")
    for key in option_keys(CONF / "config.yaml", ""):
        if key.default:
            out += _row(f"`{key.name}`", f"`{key.default}`", key.comment)
    for group in GROUPS:
        out += f"\n### `{group}`\n\n{_env() if group == 'env' else _group(group)}"
    return f"{out}\n### Presets: `experiment` and `debug`\n\n{_presets()}"


def _split() -> tuple[str, str, str]:
    before, _, rest = README.read_text("utf-8").partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def rewrite() -> None:
    """Writes the generated section anew."""
    before, _, after = _split()
    README.write_text(f"{before}{BEGIN}{reference()}{END}{after}", "utf-8")


def test_config_reference_is_the_one_of_conf() -> None:
    assert _split()[1] == reference(), "run: python -m tests.test_config_reference"


def test_config_reference_has_every_key_of_every_yaml() -> None:
    """Counted by OmegaConf, not by the parser above."""
    text = _split()[1]
    for path in sorted(CONF.rglob("*.yaml")):
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert isinstance(values, dict)
        group = path.relative_to(CONF).parts[0]
        prefix = "" if group in (*PRESETS, path.name) else f"{group}."
        values = {k: v for k, v in values.items() if k not in ("defaults", "hydra")}
        for key in _leaves(values, prefix):
            assert f"| `{key}` |" in text, f"{path}: {key}"


def _leaves(values: dict[Any, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


if __name__ == "__main__":
    rewrite()
