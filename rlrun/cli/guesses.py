"""Advice for command lines with an unknown first word or flag."""

import argparse
import os
import re
import shlex
from collections.abc import Sequence

from rlrun.cli.commands import COMMANDS
from rlrun.cli.key_table import GROUPS, Table
from rlrun.errors import ConfigError

_TYPOGRAPHIC = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
_TYPOGRAPHIC |= dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
_TYPOGRAPHIC |= dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"')
_VERBS = {  # words of other tools: what rlrun has for them
    "a run needs no subcommand: rlrun policy=NAME env=NAME": "train run start fit learn launch",
    "rlrun eval RUN_DIR": "test evaluate score predict",
    "rlrun play RUN_DIR": "enjoy watch render show record video replay rollout",
    "rlrun report DIR, or rlrun tensorboard DIR": "plot graph figures curves charts table results",
    "rlrun tensorboard DIR": "board dashboard logs log monitor ui",
    "rlrun resume RUN_DIR": "load continue restart restore",
    "rlrun fork RUN_DIR run.dir=NEW": "clone branch copy",
    "rlrun search 'KEY=interval(LOW,HIGH)'": "tune optimize optimise hpo hyperopt optuna",
    "a sweep is a flag: rlrun -m KEY=A,B": "sweep multirun grid",
    "rlrun list": "ls options envs environments policies algorithms",
    "rlrun --version": "version",
    "rlrun KEY=VALUE --cfg job prints the whole config": "config cfg print conf dryrun",
    "rlrun doctor": "info check validate status diagnose",
    "rlrun help": "man usage docs explain",
}
VERB_OF = {verb: meant for meant, verbs in _VERBS.items() for verb in verbs.split()}
_FLAGS = {  # flags of other tools that name no key
    "verbose": "the log of a run is in its rlrun.log; set RLRUN_DEBUG=1 for tracebacks",
    "dry_run": "add --cfg job, which prints the whole config",
    "debug": "add debug=smoke, which takes a few hundred steps",
    "list": "type rlrun list",
    "config": "type --config-dir DIR and GROUP=NAME, see rlrun help yaml files",
}
_PLAIN = ("seed", "device", *GROUPS)  # keys without a group
_SHORT = {"-s": "seed", "-e": "env", "-n": "run.total_steps", "-d": "device"}


def refuse_typographic(argv: Sequence[str]) -> None:
    """Raise ConfigError for dashes and quotes of a word processor."""
    typed = (w for w in argv if any(w.startswith(c) or f"={c}" in w for c in _TYPOGRAPHIC))
    if (word := next(typed, None)) is None:
        return
    plain = "".join(_TYPOGRAPHIC.get(c, c) for c in word)
    if plain.startswith("-") and not plain.startswith("--") and len(plain) > 2:
        plain = f"-{plain}"
    key, _, value = plain.partition("=")
    fix = f"type {key}={value.strip(chr(39) + chr(34))}" if value else f"type {plain}"
    wrong = "holds a typographic dash or quote, as word processors and web pages write them"
    raise ConfigError(f"{word}: {wrong}; - and ' are allowed; {fix}")


def refuse_flags(argv: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raise ConfigError for an unknown flag, with the option that it stands for."""
    from rlrun.schema.spelling import nearest, synonyms  # completion does without the schema

    known = parser._option_string_actions
    for i, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        is_own = any(option.startswith(flag) for option in known) and flag not in _SHORT
        if not name or not (flag.startswith("--") or flag in _SHORT) or is_own:
            continue
        if not equals and i + 1 < len(argv) and argv[i + 1][0:1] not in ("-", ""):
            value = argv[i + 1] if "=" not in argv[i + 1] else ""
        key = _SHORT.get(flag) or next(iter(nearest(name, _PLAIN)), name)
        fix = _FLAGS.get(name) or f"write {key}={shlex.quote(value) if value else 'VALUE'}"
        if words := synonyms(name):
            fix += f" (here: {words[0]}, see rlrun help {words[0]})"
        wrong = "is not a flag of rlrun: options have no dashes"
        raise ConfigError(f"{flag}: {wrong}; KEY=VALUE is allowed, flags are in --help; {fix}")


def unknown_command(argv: Sequence[str]) -> ConfigError:
    """Return the error for a first word that is not a subcommand."""
    allowed = f"subcommands are {', '.join(name for name in COMMANDS if ' ' not in name)}"
    fix = what_was_meant(argv[0], argv[1:])
    return ConfigError(f"{argv[0]}: unknown subcommand; {allowed}; {fix}")


def what_was_meant(name: str, argv: Sequence[str]) -> str:
    """Return what to type instead of the unknown first word ``name``."""
    key, _, value = name.partition(":")
    rest = [word.lstrip("=") for word in argv if word not in (":", "=")]
    if name in VERB_OF and not (key in GROUPS and rest and "=" not in "".join(argv)):
        meant = VERB_OF[name]
        place = next((word for word in argv if word[0:1] not in ("-", "") and "=" not in word), "")
        return re.sub(r"\b(RUN_)?DIR\b", shlex.quote(place), meant) if place else meant
    if key in GROUPS or argv[:1] == ["="] or (argv[:1] and argv[0].startswith("=")):
        value = value or next(filter(None, rest), "VALUE")
        return f"an option has an equals sign and no spaces: {key}={value}"
    if name.endswith((".yaml", ".yml")):
        return "a yaml file of your own is chosen by --config-dir DIR and GROUP=NAME"
    if os.path.isdir(name):
        return f"of a directory: rlrun report, eval, play, resume or doctor {shlex.quote(name)}"
    options = Table().options
    if named := [f"{g}={name.lower()}" for g in GROUPS if name.lower() in options[g]]:
        return f"did you mean {' or '.join(named[:3])}?"
    group, dot, option = name.replace("/", ".").partition(".")
    if dot and group in GROUPS:
        known = option in options[group]
        return f"did you mean {group}={option}?" if known else f"did you mean {name}=VALUE?"
    from rlrun.schema.spelling import nearest

    close = nearest(name, COMMANDS, 1)
    example = "options are KEY=VALUE, e.g. env=cartpole"
    return f"did you mean rlrun {close[0]}?" if close else example
