"""Keys of the yaml files as they are written: names, values, comments. Needs no yaml parser."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rlrun.errors import ConfigError

PRESETS = ("experiment", "debug", "sweep")  # groups whose options hold keys of other groups


class Key(NamedTuple):
    """One line of a yaml."""

    name: str  # full, e.g. policy.lr.start
    value: str  # as written; empty: a mapping, its keys follow
    comment: str  # unit and meaning; source

    @property
    def meaning(self) -> str:
        """The comment without the source, which stands after the last semicolon."""
        return self.comment.rpartition("; ")[0] or self.comment

    @property
    def source(self) -> str:
        """Paper, table or library; "ours": measured or chosen here."""
        meaning, _, source = self.comment.rpartition("; ")
        return source if meaning else ""


def shipped() -> Path:
    """The directory of the yaml files: inside the package, or beside it in a bare checkout."""
    spec = find_spec("rlrun.conf")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    return Path(__file__).resolve().parents[2] / "conf"


def yamls(group: str, config_dir: str | None = None) -> dict[str, Path]:
    """option -> file, the user's directory after the shipped one (it can add, not replace)."""
    found: dict[str, Path] = {}
    if config_dir and not Path(config_dir).is_dir():
        wrong = "no such directory; a directory is allowed; name it"
        raise ConfigError(f"--config-dir = {config_dir[:200]}: {wrong}")
    for root in (shipped(), *([Path(config_dir)] if config_dir else [])):
        for path in sorted((root / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


def first_comment(path: Path) -> str:
    """The first comment line of a yaml, without ``@package``."""
    for line in _text(path).splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
        if line and not line.startswith("#"):
            break
    return ""


def file_keys(path: Path, prefix: str) -> dict[str, Key]:
    """name -> key of one yaml in its order, without its defaults list and the hydra node."""
    found: dict[str, Key] = {}
    parents: list[tuple[int, str]] = []  # (indentation, name)
    for line in _text(path).split("\nhydra:")[0].splitlines():
        code, _, comment = line.partition("  # ")
        match = re.fullmatch(r"( *)(\w+):(?: +(.*\S))? *", code)
        if not match or line.startswith("#") or match[2] == "defaults":
            continue
        indent, name, value = len(match[1]), match[2], match[3] or ""
        parents = [p for p in parents if p[0] < indent]
        full = ".".join([*([prefix] if prefix else []), *(p[1] for p in parents), name])
        parents.append((indent, name))
        found[full] = Key(full, value, comment.strip())
    return found


def companions(path: Path) -> dict[str, str]:
    """{group: option} that a yaml chooses besides itself."""
    return dict(re.findall(r"- override /(\w+)(?:@\S+)?: (\w+)", _text(path)))


def bases(path: Path) -> list[Path]:
    """The base yamls, which are no options, that a yaml starts from."""
    found = re.findall(r"- /(_base/\w+)@_here_\n", _text(path))
    return [shipped() / f"{name}.yaml" for name in found]


def with_bases(path: Path, prefix: str) -> dict[str, Key]:
    """name -> key of a yaml, then of the bases it starts from."""
    found = file_keys(path, prefix)
    for base in bases(path):
        found |= {n: k for n, k in file_keys(base, prefix).items() if n not in found}
    return found


def parents(path: Path) -> list[str]:
    """The options of its group that a yaml starts from."""
    inline = re.search(r"^defaults: \[(.*)\]", _text(path), re.M)
    lines = re.findall(r"^  - (\w+)\n", _text(path), re.M)
    names = re.findall(r"\w+", inline[1]) if inline else lines
    return [name for name in names if name != "_self_"]


def option_keys(group: str, option: str, config_dir: str | None = None) -> dict[str, Key]:
    """name -> key of an option, its own first, then those of what it starts from."""
    files_of = yamls(group, config_dir)
    prefix = "" if group in PRESETS else group
    found = with_bases(files_of[option], prefix)
    for parent in parents(files_of[option]):
        inherited = option_keys(group, parent, config_dir) if parent in files_of else {}
        found |= {n: k for n, k in inherited.items() if n not in found and not _replaced(n, found)}
    return found


def _replaced(name: str, by: Mapping[str, Key]) -> bool:
    """True if ``name`` is in a mapping that ``by`` replaces with one value."""
    outer = name.rpartition(".")[0]
    return outer in by and by[outer].value != ""


def root_keys() -> dict[str, Key]:
    """name -> key of config.yaml (seed, device, run, ...), then of the commands' own yaml files."""
    from rlrun.schema import COMMAND_CONFIGS  # slow to import

    names = ("config", *COMMAND_CONFIGS)
    return {n: k for name in names for n, k in file_keys(shipped() / f"{name}.yaml", "").items()}


def chosen() -> dict[str, str]:
    """{group: option} of a run without arguments."""
    path = shipped() / "config.yaml"
    usual = dict(re.findall(r"^  - (\w+): (\w+)$", _text(path), re.M))
    policy = yamls("policy")[usual["policy"]]
    return {g: o for g, o in (usual | companions(policy)).items() if o != "null"}
