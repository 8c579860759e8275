"""Tab completion: subcommands, arguments, groups, options and keys, from the tables alone.

The shell calls ``rlrun -sc query=bash`` with the line so far in COMP_LINE and COMP_POINT, and gets
one candidate per line.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from rlrun.cli.commands import COMMANDS, CONFIG_DIR, Argument, split_command
from rlrun.cli.key_table import COMMAND_NODES, GROUPS, Table
from rlrun.errors import RlrunError

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
_FLAGS = ("--cfg", "--config-dir", "--help", "--multirun", "--quiet", "--trust", "--version")
_SPECIAL = re.compile(r"([\s'\"\\$&|;<>()*?\[\]!`])")  # characters a shell reads


def answer(argv: Sequence[str]) -> str | None:
    """Return the output of ``rlrun -sc WORD``, or None if Hydra must answer."""
    if len(argv) != 2:
        return None
    action, _, shell = argv[1].partition("=")
    if action == "install":
        return _SHELLS.get(shell)
    if action == "uninstall" and shell in _SHELLS:
        return _UNINSTALL
    if action != "query" or "COMP_LINE" not in os.environ:
        return None
    line = os.environ["COMP_LINE"]
    line = line[: int(os.environ.get("COMP_POINT") or len(line))]
    with suppress(RlrunError, OSError):
        texts = candidates(line)
        if shell == "fish":
            return "".join(f"{text.rstrip()}\n" for text in texts)
        return "".join(f"{text}\n" for text in relative(texts, line, os.environ.get("COMP_WORD")))
    return ""


def relative(completions: Iterable[str], line: str, word: str | None) -> list[str]:
    """Return candidates without the part before the shell's own word, which ends at = or :."""
    current = split(line)[1]
    word = "" if word in ("=", ":") else word
    if word is None or not current.endswith(word):
        return list(completions)
    return [text[len(current) - len(word) :] for text in completions]


def split(line: str) -> tuple[list[str], str]:
    """Return (words before the current one, the current one). Backslashes stay in it."""
    words = re.findall(r"(?:\\.|'[^']*'|\"[^\"]*\"|[^\s\\'\"])+|['\"][^'\"]*$", line)
    if not line or (line[-1].isspace() and not line.endswith("\\ ")):
        return words, ""
    return words[:-1], words[-1] if words else ""


def candidates(line: str) -> list[str]:
    """Return completions of the last word of ``line``. Complete ones end with a space."""
    before, current = split(line)
    name, words = split_command(before[1:])
    arguments = COMMANDS[name].arguments if name else (CONFIG_DIR,)
    of_flag = next((a for a in arguments if words and words[-1] in a.names), None)
    if of_flag is not None and "action" not in of_flag.options:
        completions = [*_values(of_flag, current, words)]
    elif current.startswith("-"):
        flag_names = (n for a in arguments for n in a.names if n.startswith("--"))
        completions = [f"{flag} " for flag in ((*flag_names, "--help") if name else _FLAGS)]
    elif name is None:
        commands = [f"{n} " for n in COMMANDS if " " not in n] if not words else []
        completions = [*commands, *_overrides(current, words)]
    else:
        positional = [a for a in arguments if a.names[0][0] != "-"]
        place = min(_positionals(arguments, words), len(positional) - 1)
        completions = [*_values(positional[place], current, words)]
        if not words:
            completions += [f"{n.partition(' ')[2]} " for n in COMMANDS if n.startswith(f"{name} ")]
    return [text for text in completions if text.startswith(current)]


def _positionals(arguments: Sequence[Argument], words: Sequence[str]) -> int:
    """Return the number of words that are neither a flag nor the value of one."""
    with_value = {n for a in arguments if "action" not in a.options for n in a.names}
    flags = [word.startswith("-") for word in words]
    values = [False, *(word in with_value for word in words[:-1])]
    return sum(not (flag or value) for flag, value in zip(flags, values, strict=False))


def _values(argument: Argument, current: str, words: Sequence[str]) -> Iterator[str]:
    """Yield possible values of an argument: its choices, else those that its metavar names."""
    kinds = str(argument.options.get("metavar", "")).split("|")
    yield from (f"{choice} " for choice in argument.options.get("choices", ()))
    yield from (f"{kind} " for kind in kinds if kind.islower())  # final|best|ENV_STEPS
    if "TOPIC" in kinds:
        yield from (f"{topic} " for topic in Table().topics if " " not in topic)
    if "GROUP" in kinds:
        yield from (f"{group} " for group in (*GROUPS, *(["wrappers"] if len(kinds) == 1 else [])))
    if "KEY" in kinds:
        keys = (text.partition("=")[0].rstrip(".") for text in _overrides(current, ()))
        yield from (f"{key} " for key in keys if key not in GROUPS)
    if "KEY=VALUE" in kinds:
        yield from _overrides(current, words)
    if any(kind.startswith(("FILE", "DIR", "RUN_DIR", "DATA_DIR")) for kind in kinds):
        yield from paths(current, files=any(kind.startswith("FILE") for kind in kinds))


def _overrides(current: str, words: Sequence[str]) -> list[str]:
    """Return groups and keys that begin with ``current``, up to the next dot; or options of a
    group.

    Keys are those of the options that ``words`` choose. A complete key is offered with its default.
    """
    before = (word for flag, word in pairwise(words) if flag in CONFIG_DIR.names)
    table = Table(next(before, None))
    group, equals, value = current.partition("=")
    if equals and group in GROUPS:
        earlier, comma, _ = value.rpartition(",")  # options of a sweep: policy=dqn,...
        return [f"{group}={earlier}{comma}{name} " for name in table.options[group]]
    keys = _keys(table, words, current)
    if equals:
        default = keys.get(group, "")
        values = ["true", "false"] if default in ("true", "false") else [default]
        return [f"{group}={text} " for text in values if text and not _SPECIAL.search(text)]
    completions = {f"{name}=": None for name in GROUPS}
    for name, default in keys.items():
        rest = name[len(current) :] if name.startswith(current) else None
        if rest is not None and "." in rest:
            completions[f"{current}{rest.partition('.')[0]}."] = None
        elif rest is not None:
            completions[f"{name}=" if default else f"{name}."] = None
    return [*completions]


def _keys(table: Table, words: Sequence[str], current: str) -> dict[str, str]:
    """Return full key -> value as written (empty: a mapping) for the options in ``words``."""
    typed = dict(w.partition("=")[::2] for w in words if w.partition("=")[0] in GROUPS)
    policy = table.options["policy"].get(typed.get("policy", ""))
    chosen = table.chosen | (policy.chooses if policy else {}) | typed
    node = current.partition(".")[0]  # keys of a command are offered once its name is typed
    keys = {
        name: key.value for name, key in table.root.items()
        if name.partition(".")[0] not in {*COMMAND_NODES} - {node}
    }  # fmt: skip
    for group, option in chosen.items():
        if option in table.options[group]:
            keys |= {name: key.value for name, key in table.keys_of(group, option).items()}
    return keys


def paths(current: str, *, files: bool = False) -> Iterator[str]:
    """Yield directories that begin with ``current``. A run directory is complete."""
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
