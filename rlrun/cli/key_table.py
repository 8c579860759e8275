"""The table of all keys, options and help topics: ``keys.json``, made from schema, yaml, READMEs.

``python -m tests.key_reference`` writes it. ``rlrun help``, ``rlrun list`` and Tab completion only
read it, and parse only the yaml files of ``--config-dir``.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.errors import ConfigError

_MOST_BYTES = 2**20  # of a yaml file
FILE = os.path.join(os.path.dirname(__file__), "keys.json")
BASES = "_base"  # the folder of yaml files that several options start from; no group
PRESETS = ("experiment", "debug", "sweep")  # groups whose options hold keys of other groups
GROUPS = {
    "policy": "what learns",
    "env": "what it learns in",
    "agents": "how several agents of an environment are shown",
    "experiment": "a whole setting, e.g. of a paper",
    "torso": "first layers",
    "memory": "recurrent layer",
    "buffer": "replay",
    "explore": "exploration",
    "bonus": "reward for novelty",
    "collector": "how rows are collected",
    "learner": "how often and on how much it learns",
    "logger": "records and progress display",
    "pipeline": "how collecting and learning are arranged",
    "transport": "how weights and rows travel between them",
    "sweep": "settings to compare, with -m",
    "debug": "short runs",
}
COMMAND_NODES = {  # nodes of yaml files of their own -> the command that reads them
    "search": "rlrun search",
    "bench": "rlrun bench memory",
    "probe": "rlrun probe",
    "seeds": "sweeps (-m) with seeds=auto",
}


class Key(NamedTuple):
    """A key as a yaml file has it."""

    value: str  # as written; empty: a mapping, whose keys follow
    comment: str  # unit and meaning; source

    @property
    def meaning(self) -> str:
        """The comment without the source, which follows the last semicolon."""
        return self.comment.rpartition("; ")[0] or self.comment

    @property
    def source(self) -> str:
        """Paper, table or library; "ours": measured or chosen here."""
        meaning, _, source = self.comment.rpartition("; ")
        return source if meaning else ""


class Option(NamedTuple):
    """A yaml file of a group."""

    about: str  # its first comment line
    chooses: dict[str, str]  # group -> option that it chooses besides itself
    parents: list[str]  # options of its group that it starts from, and /_base/NAME
    keys: dict[str, Key]  # full name -> key, in the order of the file


class Table:
    """The content of ``keys.json`` and the options of ``config_dir``, which add but never replace.

    options   group -> name -> Option; _base holds the bases of several options
    root      the keys of config.yaml and of the yaml files of commands
    chosen    group -> option of a run without arguments
    facts     key -> what the schema says of it: allowed, read_when, default_of, conditions
    renamed   former key -> key
    about     group, node of config.yaml or of a command -> what it is for
    topics    topic -> text, the title of its section first
    metrics   name -> meaning
    wrappers  name -> (name and arguments, effect)

    Raises: ConfigError if ``config_dir`` is not a directory.
    """

    def __init__(self, config_dir: str | None = None) -> None:
        with open(FILE, encoding="utf-8") as file:
            data = json.load(file)
        self.root = _keys(data["root"])
        nodes = {n: key.comment for n, key in self.root.items() if "." not in n and not key.value}
        self.about = GROUPS | nodes
        self.chosen: dict[str, str] = data["chosen"]
        self.facts: dict[str, dict[str, Any]] = data["facts"]
        self.renamed: dict[str, str] = data["renamed"]
        self.topics: dict[str, str] = data["topics"]
        self.metrics: dict[str, str] = data["metrics"]
        self.wrappers: dict[str, tuple[str, str]] = data["wrappers"]
        self.options: dict[str, dict[str, Option]] = {
            group: {n: Option(**{**o, "keys": _keys(o["keys"])}) for n, o in options.items()}
            for group, options in data["options"].items()
        }
        if config_dir and not os.path.isdir(config_dir):
            wrong = "no such directory; a directory is allowed; name it"
            raise ConfigError(f"--config-dir = {config_dir[:200]}: {wrong}")
        for group in GROUPS if config_dir else ():
            for path in sorted(Path(str(config_dir), group).glob("*.yaml")):
                prefix = "" if group in PRESETS else group
                self.options[group].setdefault(path.stem, read_option(path, prefix))

    def keys_of(self, group: str, option: str) -> dict[str, Key]:
        """Return full name -> key of an option: its own, then those of its bases, its group."""
        keys = self._chosen_keys(group, option)
        _add(keys, self._base_keys(group, group))
        return keys

    def _chosen_keys(self, group: str, *options: str) -> dict[str, Key]:
        """Return the keys of the last option, a base of those before it, and of its bases."""
        keys = dict(self.options[group][options[-1]].keys)
        for parent in self.options[group][options[-1]].parents:
            if parent in self.options[group] and parent not in options:  # no circle
                _add(keys, self._chosen_keys(group, *options, parent))
            else:
                _add(keys, self._base_keys(group, parent.removeprefix(f"/{BASES}/")))
        return keys

    def _base_keys(self, group: str, name: str) -> dict[str, Key]:
        """Return the keys of a base as keys of ``group``, none if there is no such base."""
        base = self.options[BASES].get(name)
        return {f"{group}.{key}": value for key, value in base.keys.items()} if base else {}


def _add(keys: dict[str, Key], inherited: Mapping[str, Key]) -> None:
    """Add the inherited keys, except those of a mapping that ``keys`` replaces by a number."""
    for name, key in inherited.items():
        outer = keys.get(name.rpartition(".")[0])
        if name not in keys and (outer is None or outer.value[:1] in ("", "{")):
            keys[name] = key


def _keys(values: Mapping[str, Iterable[str]]) -> dict[str, Key]:
    return {name: Key(*parts) for name, parts in values.items()}


def read_option(path: Path, prefix: str) -> Option:
    """Return the option in a yaml file, with keys below ``prefix``, or (cannot be read: why)."""
    import yaml  # slow

    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"no file of at most {_MOST_BYTES} bytes")
        text = path.read_text("utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        comments = [line.strip("# ") for line in text.splitlines() if line.startswith("#")]
        about = next((c for c in comments if c and not c.startswith("@package")), "")
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        keys = dict(_walk(pairs, f"{prefix}." if prefix else "", text, set()))
        return Option(about, *_defaults(pairs), keys)
    except (AttributeError, OSError, RecursionError, TypeError, ValueError, yaml.YAMLError) as e:
        return Option(f"(cannot be read: {' '.join(str(e).split())})", {}, [], {})


def _defaults(pairs: Sequence[Any]) -> tuple[dict[str, str], list[str]]:
    """Return ({group: option}, [its bases]) from the defaults list of a yaml."""
    chooses, parents = {}, []
    for entry in (entry for key, node in pairs if key.value == "defaults" for entry in node.value):
        if isinstance(entry.value, str):  # dqn, /_base/value_based@_here_
            parents.append(entry.value.partition("@")[0])
            continue
        for group, option in entry.value:  # override /memory@_global_.memory: none
            name = group.value.removeprefix("override ").partition("@")[0]
            chooses[name.lstrip("/")] = option.value
    return chooses, [name for name in parents if name != "_self_"]


def _walk(
    pairs: Sequence[Any], prefix: str, text: str, seen: set[int]
) -> Iterator[tuple[str, Key]]:
    """Yield (full name, key) of the nodes of a mapping and its block mappings, each once."""
    for key, node in pairs:
        if id(node) in seen or key.value in ("hydra", "defaults"):
            continue
        seen.add(id(node))
        is_mapping = node.id == "mapping" and not node.flow_style
        end = (key if is_mapping else node).end_mark.index
        value = "" if is_mapping else text[node.start_mark.index : end].strip()
        line = text[end : max(text.find("\n", end), end)]
        yield f"{prefix}{key.value}", Key(value, line.partition("#")[2].strip())
        if is_mapping:
            yield from _walk(node.value, f"{prefix}{key.value}.", text, seen)
