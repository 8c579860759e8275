"""Tab completion: subcommands, their options, paths, groups, options and keys. Needs no Hydra.

The shell asks ``rlrun -sc query=bash`` with the line so far in COMP_LINE and COMP_POINT, and gets a
candidate a line. Yaml files are scanned as text (``yaml_keys``): an answer takes 0.1 s of CPU time.
"""

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path

from rlrun.cli import yaml_keys
from rlrun.cli.list import GROUPS, TOPICS
from rlrun.errors import RlrunError

Commands = Mapping[str, Callable[[list[str]], int]]

SCRIPT = """\
_rlrun_complete() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        COMP_WORD="${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[0]}" -sc query=bash 2> /dev/null))
}
complete -o nospace -F _rlrun_complete rlrun
"""
_SHELLS = {"bash": SCRIPT, "zsh": f"autoload -Uz bashcompinit && bashcompinit\n{SCRIPT}"}
_UNINSTALL = "complete -r rlrun; unset -f _rlrun_complete\n"
_WITH_KEYS = (
    "search",
    "resume",
    "fork",
    "doctor",
    "bench",
    "probe",
)  # subcommands that take KEY=VALUE
_WITH_FILES = ("codec",)  # files too are among their arguments
_FILE_FLAGS = ("--video", "--plot", "--onnx", "--out")
_ONLY_FIRST = (
    "search",
    "doctor",
    "help",
    "list",
    "bench",
    "probe",
)  # no path among their arguments
_FLAGS = ("--cfg", "--config-dir", "--help", "--multirun", "--quiet", "--trust", "--version")
_SPECIAL = re.compile(r"([\s'\"\\$&|;<>()*?\[\]!`])")  # characters a shell reads


def shell_script(shell: str) -> str | None:
    """Return what ``eval "$(rlrun -sc install=SHELL)"`` runs; None for a shell of Hydra's."""
    return _SHELLS.get(shell)


def answer(argv: Sequence[str], commands: Commands) -> str | None:
    """Return what ``rlrun -sc WORD`` prints; None: it is none of ours, but Hydra's."""
    if len(argv) != 2 or argv[0] not in ("-sc", "--shell-completion", "--shell_completion"):
        return None
    action, _, shell = argv[1].partition("=")
    if action == "install":
        return shell_script(shell)
    if action == "uninstall" and shell in _SHELLS:
        return _UNINSTALL
    if action != "query" or "COMP_LINE" not in os.environ:
        return None
    line = os.environ["COMP_LINE"]
    line = line[: int(os.environ.get("COMP_POINT") or len(line))]
    with suppress(RlrunError, OSError):
        found = candidates(line, commands)
        if shell == "fish":
            return "".join(f"{text.rstrip()}\n" for text in found)
        return "".join(f"{text}\n" for text in relative(found, line, os.environ.get("COMP_WORD")))
    return ""


def relative(found: Iterable[str], line: str, word: str | None) -> list[str]:
    """Return candidates without what stands before the shell's own word, which ends at = or :."""
    current = split(line)[1]
    word = "" if word in ("=", ":") else word
    if word is None or not current.endswith(word):
        return list(found)
    return [text[len(current) - len(word) :] for text in found]


def split(line: str) -> tuple[list[str], str]:
    """Return (words before the current one, the current one); backslashes are left in it."""
    words = re.findall(r"(?:\\.|'[^']*'|\"[^\"]*\"|[^\s\\'\"])+|['\"][^'\"]*$", line)
    if not line or (line[-1].isspace() and not line.endswith("\\ ")):
        return words, ""
    return words[:-1], words[-1] if words else ""


def candidates(line: str, commands: Commands) -> list[str]:
    """Return what the last word of ``line`` may become; one that is whole ends with a space."""
    before, current = split(line)
    words = before[1:]
    if not words:
        first = [f"{name} " for name in (*commands, "help")]
        return _matching([*first, *_overrides(current, words)], current)
    command = words[0] if words[0] in (*commands, "help") else None
    if words[-1] in ("--config-dir", "-cd") or words[-1] in _FILE_FLAGS:
        return list(paths(current, files=words[-1] in _FILE_FLAGS))
    if words[-1] == "--weights":
        return _matching(["best ", "final "], current)
    if current.startswith("-"):
        flags = _FLAGS if command is None else _flags_of(commands.get(command))
        return _matching([f"{flag} " for flag in flags], current)
    if command is None:
        return _matching(_overrides(current, words), current)
    return list(_arguments(command, words, current))


def _arguments(command: str, words: Sequence[str], current: str) -> Iterator[str]:
    """Yield the arguments of a subcommand."""
    if command == "list" and len(words) == 1:
        yield from _matching([f"{name} " for name in (*GROUPS, "wrappers")], current)
    if command == "help" and len(words) == 1:
        names = [*TOPICS, *commands_of_help(current)]
        yield from _matching([f"{name} " for name in names if " " not in name], current)
    if command == "codec" and len(words) == 1:
        yield from _matching(["bench "], current)
        return
    if command == "export" and len(words) == 1:
        yield from _matching(["policy "], current)
    if command in _WITH_KEYS and (len(words) > 1 or command in _ONLY_FIRST):
        yield from _matching(_overrides(current, words), current)
    if command not in _ONLY_FIRST:
        yield from paths(current, files=command in _WITH_FILES)


def commands_of_help(current: str) -> list[str]:
    """Return groups and keys, as of the options that a plain run has."""
    return [*GROUPS, *(text.partition("=")[0].rstrip(".") for text in _overrides(current, ()))]


def _flags_of(command: Callable[[list[str]], int] | None) -> list[str]:
    """Return the options that the help of a subcommand names."""
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit, RlrunError):
        if command is not None:
            command(["--help"])
    found = {*re.findall(r"(?<![\w-])--\w[\w-]*", out.getvalue())}
    return [*sorted(found - {"--help"}), "--help"]


def _matching(found: Iterable[str], current: str) -> list[str]:
    return [text for text in found if text.startswith(current)]


# -- keys ------------------------------------------------------------------------------------------


def _overrides(current: str, words: Sequence[str]) -> list[str]:
    """Return groups and keys that begin with ``current``, up to the next dot; options of a group.

    Keys are those of the options that ``words`` choose; a key has the value it has without one.
    """
    before = (word for flag, word in pairwise(words) if flag in ("--config-dir", "-cd"))
    config_dir = next(before, None)
    group, equals, value = current.partition("=")
    if equals and group in GROUPS:
        return [_listed(group, value, name) for name in yaml_keys.yamls(group, config_dir)]
    keys = _keys(words, config_dir)
    if equals:
        default = keys.get(group, "")
        values = ["true", "false"] if default in ("true", "false") else [default]
        return [f"{group}={text} " for text in values if text and not _SPECIAL.search(text)]
    found = {f"{name}=": None for name in GROUPS}
    for name, default in keys.items():
        rest = name[len(current) :] if name.startswith(current) else None
        if rest is not None and "." in rest:
            found[f"{current}{rest.partition('.')[0]}."] = None
        elif rest is not None:
            found[f"{name}." if default is None else f"{name}="] = None
    return [*found]


def _listed(group: str, value: str, name: str) -> str:
    """Return ``group=name``, or the same after the options of a sweep before (policy=dqn,…)."""
    earlier, comma, _ = value.rpartition(",")
    return f"{group}={earlier}{comma}{name} "


def _keys(words: Sequence[str], config_dir: str | None) -> dict[str, str | None]:
    """Return full key -> value as written, None: a mapping; of what ``words`` choose."""
    chosen = dict(w.partition("=")[::2] for w in words if w.partition("=")[0] in GROUPS)
    options = yaml_keys.chosen()
    policy = yaml_keys.yamls("policy", config_dir).get(chosen.get("policy", ""))
    if policy is not None:
        options |= yaml_keys.companions(policy)
    found = dict(yaml_keys.file_keys(yaml_keys.shipped() / "config.yaml", ""))
    for group, option in (options | chosen).items():
        if group in GROUPS and option in yaml_keys.yamls(group, config_dir):
            found |= yaml_keys.option_keys(group, option, config_dir)
    return {name: key.value or None for name, key in found.items()}


# -- paths -----------------------------------------------------------------------------------------


def paths(current: str, *, files: bool = False) -> Iterator[str]:
    """Yield directories that begin with ``current``; a run directory is whole."""
    typed = re.sub(r"\\(.)", r"\1", current)
    above, _, start = typed.rpartition("/")
    root = Path(os.path.expanduser(f"{above}/" if above or typed.startswith("/") else "."))
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return
    prefix = typed[: len(typed) - len(start)]
    for entry in entries:
        hidden = entry.name.startswith(".") and not start.startswith(".")
        if hidden or not entry.name.startswith(start):
            continue
        name = _SPECIAL.sub(r"\\\1", f"{prefix}{entry.name}")
        if entry.is_dir():
            whole = os.path.isfile(os.path.join(entry.path, "config.yaml"))
            yield f"{name} " if whole else f"{name}/"
        elif files:
            yield f"{name} "
