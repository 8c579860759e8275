"""Limits of yaml files, checked before they are read: a small file makes no large config."""

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError

MAX_BYTES = 2**18
MAX_NODES = 10_000  # keys and values, those of aliases included
MAX_DEPTH = 32
MAX_FILES = 2_000  # below --config-dir, yaml or not
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def yaml_files(directory: Path) -> Iterator[Path]:
    """Yield the yaml files below ``directory``. Raises: ConfigError when it holds too much."""
    seen = 0
    for parent, directories, names in os.walk(directory):
        seen += len(directories) + len(names)
        if seen > MAX_FILES:
            wrong, allowed = "holds more than yaml files", f"at most {MAX_FILES} files"
            raise config_error("--config-dir", directory, wrong, allowed, "name a smaller one")
        yield from (Path(parent, name) for name in names if name.endswith(".yaml"))


def read_yaml(path: Path) -> str:
    """Return the text of a yaml file. Raises: ConfigError when it is too large, deep or no text."""
    try:
        if not path.is_file():  # a device, a pipe: reading may never end
            raise _refused(path, "is no regular file", "a file is allowed")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _refused(path, f"has {size} bytes", f"{MAX_BYTES} are allowed")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no UTF-8"
        raise _refused(path, f"cannot be read ({reason})", "text in UTF-8 is allowed") from e
    check_yaml(text, path)
    return text


def check_yaml(text: str, path: Path) -> None:
    """Raise ConfigError for yaml of too many nodes, too many levels, or that is none."""
    try:
        nodes, deepest = _measure(text)
    except yaml.YAMLError as e:
        wrong = f"is no yaml ({' '.join(str(e).split())})"
        raise _refused(path, wrong, "valid yaml is allowed") from e
    if nodes > MAX_NODES:
        raise _refused(path, f"has more than {MAX_NODES} values", f"{MAX_NODES} are allowed")
    if deepest > MAX_DEPTH:
        raise _refused(path, f"is nested deeper than {MAX_DEPTH}", f"{MAX_DEPTH} levels")


def _measure(text: str) -> tuple[int, int]:
    """Return (nodes, levels) with aliases expanded; stops counting above the limits."""
    sizes: dict[str, tuple[int, int]] = {}  # of anchors
    stack: list[tuple[str | None, int, int]] = []  # of open nodes: anchor, nodes before, levels
    nodes, deepest = 0, 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((event.anchor, nodes, deepest))
            nodes, deepest = nodes + 1, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, level = stack.pop()
            deepest += 1
            if anchor is not None:
                sizes[anchor] = (nodes - before, deepest)
            deepest = max(level, deepest)
        elif isinstance(event, yaml.AliasEvent):
            size, levels = sizes.get(event.anchor, (MAX_NODES + 1, 1))  # an alias within itself
            nodes, deepest = nodes + size, max(deepest, levels)
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor is not None:
                sizes[event.anchor] = (1, 0)
        if nodes > MAX_NODES or len(stack) > MAX_DEPTH:
            return nodes, max(deepest, len(stack))
    return nodes, deepest


def _refused(path: Path, wrong: str, allowed: str) -> ConfigError:
    return config_error(str(path), "(yaml)", wrong, allowed, "correct the file")
