"""The texts of ``rlrun --help``, ``rlrun help WORD`` and ``rlrun list``, from the key table.

Torch-free; all but the list of environments, which makes them, do without numpy and Hydra too.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from textwrap import fill
from typing import TYPE_CHECKING

from rlrun.cli.commands import COMMANDS, parser_of
from rlrun.cli.key_table import COMMAND_NODES, GROUPS, PRESETS, TOPICS, Key, Table
from rlrun.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

_NODES = {  # of conf/config.yaml and of commands
    "run": "length of a run, evaluations, checkpoints",
    "checkpoint": "what checkpoints keep besides",
    "eval": "how an evaluation ends",
    "watchdog": "what happens when nothing happens",
    "resume": "what `rlrun resume` may change",
    "search": "what `rlrun search` tries and how it chooses",
    "bench": "what `rlrun bench memory` runs",
    "probe": "what `rlrun probe` trains",
    "seeds": "how `seeds=auto` adds seeds until a comparison is decided",
}
_ABOUT = GROUPS | _NODES
_OF_SWEEPS = ("sweep.", "hydra.launcher", "hydra/launcher")  # on the line, in no run's config
_WIDTH = 100  # columns
_NAMED = 6  # options in a line of defaults
_VALUES = 12  # lines of defaults
_BESIDE = 3  # keys before and after that are named
_SPACES = 38  # characters of the widest column of environments
_HELP = """\
rlrun {version}: recurrent reinforcement learning, configured by Hydra

usage: rlrun [GROUP=OPTION] [KEY=VALUE] ...       one run; without a word: r2d2 on cartpole
       rlrun -m KEY=A,B,C ...                     a sweep, one run for every combination
       rlrun -m KEY=A,B,C ... seeds=auto          adds seeds until the comparison is decided
{commands}
{topics}

groups:
{groups}
flags: -m --multirun   -q --quiet   --config-dir DIR (your own yaml files)   --trust PACKAGE
       (a config may name its functions)   --cfg job (the whole config)   --version   --hydra-help
       tab completion: eval "$(rlrun -sc install=bash)"

examples:
  rlrun policy=r2d2 env=cartpole
  rlrun policy=r2d2 env=tmaze env.length=50 policy.learn_unroll_len=60 seed=1
  rlrun -m policy=r2d2,dqn env=cartpole_novel seed=0,1,2
  rlrun experiment=r2d2_paper env=cartpole --cfg job
  rlrun eval outputs/DATE/TIME_r2d2_cartpole_s0 --episodes 100
"""


def help_text(version: str, config_dir: str | None = None) -> str:
    """The short help."""
    table = Table(config_dir)
    groups = (
        fill(f"  {group:<11}{what}: {', '.join(table.options[group])}", _WIDTH,
             subsequent_indent=" " * 13) for group, what in GROUPS.items()
    )  # fmt: skip
    commands = (
        f"       {f'rlrun {name} {words}'.rstrip():<43}{what}"
        for name, command in COMMANDS.items() for words, what in command.usage
    )  # fmt: skip
    indent = " " * 50
    topics = fill(", ".join(TOPICS), _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return _HELP.format(
        version=version, commands="\n".join(commands), topics=topics, groups="\n".join(groups)
    )


def explain(args: "Namespace") -> int:
    """Print the help; with words, that of the key, group, option, topic or subcommand."""
    from rlrun import __version__

    word = " ".join(args.words)
    if not word:
        print(help_text(__version__, args.config_dir), end="")
    elif word in COMMANDS and word not in TOPICS:
        print(parser_of(word).format_help(), end="")
    else:
        for line in list(help_lines(word, args.config_dir)):  # an error comes alone
            print(line)
    return 0


def help_lines(word: str, config_dir: str | None = None) -> Iterator[str]:
    """The lines about a key, a group, an option or a topic.

    Raises: ConfigError when ``word`` is none of them, with the nearest.
    """
    reference = Reference(Table(config_dir))
    options = reference.table.options
    group, _, option = word.partition("=")
    topic = word.lower().replace("_", " ")
    if group in _ABOUT and not option and topic not in TOPICS:
        yield from reference.group(group)
    elif group in GROUPS and option in options[group]:
        yield from reference.option(group, option)
    elif topic in TOPICS or group.startswith(_OF_SWEEPS):
        yield reference.table.topics[topic if topic in TOPICS else "sweep"]
    elif found := reference.named(group):
        yield from _joined(reference.key(name) for name in found)
    elif chosen := [g for g in GROUPS if word.lower() in options[g]]:
        yield from _joined(reference.option(g, word.lower()) for g in chosen)
    else:
        raise reference.unknown(word)


def _joined(entries: "Iterator[Iterator[str]]") -> Iterator[str]:
    """The lines of all entries, an empty one between two."""
    yield "\n\n".join("\n".join(entry) for entry in entries)


class Reference:
    """Every key of a table, by name and option."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @cached_property
    def keys(self) -> dict[str, dict[str, Key]]:
        """Full name -> option -> key, first the option of a run without arguments; "" is the
        option of a key of config.yaml."""
        found = {n: {"": key} for n, key in self.table.root.items() if n not in _NODES}
        for group in (g for g in GROUPS if g not in PRESETS):
            chosen = self.table.chosen.get(group)
            for option in sorted(self.table.options[group], key=lambda o: o != chosen):
                for name, key in self.table.keys_of(group, option).items():
                    found.setdefault(name, {})[option] = key
        return found

    def named(self, word: str) -> list[str]:
        """The full names of the keys that ``word`` may mean: all of it, or the last part."""
        word = self.table.renamed.get(word, word)
        if word in self.keys and word not in _ABOUT:
            return [word]
        if word.startswith("env."):  # env.length is env.kwargs.length
            return [n for n in (f"env.kwargs.{word.removeprefix('env.')}",) if n in self.keys]
        return [n for n in self.keys if n.count(".") == 1 and n.rpartition(".")[2] == word]

    def unknown(self, word: str) -> ConfigError:
        """The error for a word that means nothing."""
        from rlrun.schema.spelling import SYNONYMS, nearest

        last = word.rpartition(".")[2]
        lasts = {n.rpartition(".")[2]: n for n in reversed(self.keys)}
        options = [f"{g}={o}" for g in GROUPS for o in self.table.options[g]]
        close = [n for other in SYNONYMS.get(last.lower(), "").split() for n in self.named(other)]
        close = close or nearest(word, options if "=" in word else [*TOPICS, *_ABOUT])
        if "." in word:
            close = nearest(word, self.keys)
        close = close or [lasts[n] for n in nearest(last, lasts)]
        guess = f"did you mean {' or '.join(close[:3])}?"
        fix = guess if close else "rlrun --help shows the groups"
        allowed = f"a key, a group, GROUP=OPTION, or a topic: {', '.join(TOPICS)}"
        return ConfigError(f"rlrun help {word}: nothing has that name; {allowed}; {fix}")

    # -- a key -------------------------------------------------------------------------------------

    def key(self, name: str) -> Iterator[str]:
        """The lines about one key."""
        facts = self.table.facts.get(name, {})
        group = name.partition(".")[0] if "" not in self.keys[name] else ""
        yield _wrapped(f"{name}: ", next(iter(self.keys[name].values())).meaning)
        if "allowed" in facts:
            yield _wrapped("  allowed  ", facts["allowed"])
        label = "  default  "
        lines = [*self._defaults(name, group)]
        for line in lines[:_VALUES]:
            yield _wrapped(label, line)
            label = " " * len(label)
        if len(lines) > _VALUES:
            yield f"{label}{len(lines) - _VALUES} more: rlrun help {group}=OPTION"
        yield _wrapped("  read by  ", self._readers(name, group))
        presets = [
            f"{g}={o} ({option.keys[name].value})"
            for g in PRESETS for o, option in self.table.options[g].items()
            if name in option.keys and option.keys[name].value
        ]  # fmt: skip
        if presets:
            yield _wrapped("  set by   ", ", ".join(presets))
        yield _wrapped("  see also ", ", ".join(self._related(name)))

    def _defaults(self, name: str, group: str) -> Iterator[str]:
        """A line for every value and source: the value, the options that have it, the source."""
        by_line: dict[tuple[str, str], list[str]] = {}
        for option, key in self.keys[name].items():
            value = key.value or self._parts(name, option)
            by_line.setdefault((value, key.source), []).append(option)
        for (value, source), options in by_line.items():
            named = ", ".join(options[:_NAMED])
            more = f" and {len(options) - _NAMED} more" if len(options) > _NAMED else ""
            whose = f"  {group}={named}{more}" if group and len(by_line) > 1 else ""
            yield f"{value}{whose}{f'  ({source})' if source else ''}"

    def _parts(self, name: str, option: str) -> str:
        """The values of a mapping that are not null."""
        parts = {n: keys.get(option) for n, keys in self.keys.items() if n.startswith(f"{name}.")}
        given = [f"{n.removeprefix(f'{name}.')}: {key.value}" for n, key in parts.items()
                 if key and key.value not in ("", "null")]  # fmt: skip
        return f"{{{', '.join(given)}}}"

    def _readers(self, name: str, group: str) -> str:
        """The runs that read a key."""
        facts, options = self.table.facts.get(name, {}), self.keys[name]
        if other := facts.get("default_of"):
            return f"{other}, whose default it is"
        scope = COMMAND_NODES.get(name.partition(".")[0], "every run")
        if group and len(options) < len(self.table.options[group]):
            scope = f"{group}={', '.join(sorted(options))}"
        if not (reader := facts.get("read_when")):
            return scope
        return f"runs with {reader}" if scope == "every run" else f"{scope}, with {reader}"

    def _related(self, name: str) -> list[str]:
        """Keys that decide whether ``name`` is read or that it decides about, then neighbours."""
        conditions = {n: facts.get("conditions", ()) for n, facts in self.table.facts.items()}
        found = [c for c in conditions.get(name, ()) if c in self.keys or c in _ABOUT]
        found += [n for n, keys in conditions.items() if name in keys]
        parent, option = name.rpartition(".")[0], next(iter(self.keys[name]))
        group = name.partition(".")[0]
        near = self.table.keys_of(group, option) if option else self.table.root
        beside = [n for n in near if n.rpartition(".")[0] == parent]
        place = beside.index(name)
        found += beside[max(0, place - _BESIDE) : place + _BESIDE + 1]
        return [n for n in dict.fromkeys(found) if n not in (name, f"{parent}.name")]

    # -- a group, an option ------------------------------------------------------------------------

    def group(self, group: str) -> Iterator[str]:
        """The lines about a group: its options and its keys."""
        yield f"{group}: {_ABOUT[group]}"
        options = self.table.options.get(group, {})
        width = max(map(len, options), default=0) + 2
        for name, option in options.items():
            yield _wrapped(f"  {name:<{width}}", option.about)
        tops = [n for n in self.keys if n.startswith(f"{group}.") and n.count(".") == 1]
        if not options:
            yield from _key_lines({n: self.table.root[n] for n in tops if n in self.table.root})
        elif tops:
            yield ""
            lasts = (n.rpartition(".")[2] for n in tops)
            yield _wrapped(f"keys, {group}.KEY: ", ", ".join(lasts))
        yield ""
        example = f"rlrun help {group}={next(iter(options))}, " if options else ""
        yield f"more: {example}rlrun help {(tops or ['policy.nstep'])[-1]}"

    def option(self, group: str, name: str) -> Iterator[str]:
        """The lines about an option: what it chooses besides, and its keys."""
        option = self.table.options[group][name]
        yield _wrapped(f"{group}={name}: ", option.about)
        if option.chooses:
            chosen = ", ".join(f"{g}={o}" for g, o in option.chooses.items())
            yield _wrapped("  chooses ", chosen)
        yield from _key_lines(self.table.keys_of(group, name))


def _key_lines(keys: Mapping[str, Key]) -> Iterator[str]:
    """``key = value`` and the comment of each key."""
    texts = {f"{name} = {key.value}": key for name, key in keys.items()}
    width = min(max(map(len, texts), default=0), 44) + 2
    for text, key in texts.items():
        yield _wrapped(f"  {text:<{width}}", key.comment)


def _wrapped(label: str, text: str) -> str:
    indent = " " * min(len(label), 48)
    return fill(label + text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


# -- rlrun list ------------------------------------------------------------------------------------

_LISTED = {  # other words for a group
    "policies": "policy",
    "envs": "env",
    "environment": "env",
    "environments": "env",
    "experiments": "experiment",
    "wrapper": "wrappers",
}


_LISTS = {  # title -> group, of rlrun list
    "policies (policy=NAME)": "policy",
    "environments (env=NAME): what a row observes -> what is done": "env",
    "wrappers (env.wrappers=[...], the first one next to the environment)": "wrappers",
    "experiments (experiment=NAME)": "experiment",
}


def list_options(args: "Namespace") -> int:
    """Print a line for each option, of one group or of those that a reader asks for first."""
    table = Table(args.config_dir)
    if args.group is not None:
        lines = _group_lines(table, args.group, args.words)
    else:
        lines = [line for title, group in _LISTS.items()
                 for line in (title, *_lines(table, group, _texts(table, group)), "")]  # fmt: skip
    print("\n".join(lines))  # an error comes alone
    return 0


def _texts(table: Table, group: str) -> dict[str, str]:
    """Name -> text of the options of a group; wrappers are named with their arguments."""
    if group == "wrappers":
        return dict(table.wrappers.values())
    return {name: option.about for name, option in table.options[group].items()}


def _group_lines(table: Table, group: str, words: Sequence[str]) -> list[str]:
    """The lines of options whose name or text has every word, in any case.

    Raises: ConfigError for an unknown group, and when no option has the words.
    """
    name = _LISTED.get(group, group)
    if name != "wrappers" and name not in GROUPS:
        raise _unknown_group(group)
    found = {
        option: text for option, text in _texts(table, name).items()
        if all(word.casefold() in _searched(table, name, option, text) for word in words)
    }  # fmt: skip
    if not found:
        wrong = f"no option has {' and '.join(words)} in its name or text"
        raise ConfigError(f"rlrun list {group}: {wrong}; see all of them: rlrun list {group}")
    return [*_lines(table, name, found)]


def _searched(table: Table, group: str, option: str, text: str) -> str:
    """The text that words are looked for in; of an environment its note, id and wrappers too."""
    keys = table.keys_of(group, option) if group == "env" else {}
    shown = (keys[k].value for k in ("env.note", "env.id", "env.wrappers") if k in keys)
    return " ".join([option, text, *shown]).casefold()


def _lines(table: Table, group: str, texts: Mapping[str, str]) -> Iterator[str]:
    """A line for each option; environments are made, to show their spaces."""
    if group == "env":
        rows = {name: _environment(name, table) for name in texts}
        width = min(max(len(spaces) for spaces, _ in rows.values()), _SPACES)
        first = max(map(len, rows)) + 2
        for name, (spaces, note) in rows.items():
            yield f"  {name:<{first}}{spaces:<{width}}  {note}"
        return
    first = 26 if group == "wrappers" else max([23, *map(len, texts)]) + 1
    for name, text in texts.items():
        yield f"  {name:<{first}}{text}"


def _environment(name: str, table: Table) -> tuple[str, str]:
    """(spaces or what to install, note and wrappers) of an environment."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from rlrun.config.reader import read_dataclass
    from rlrun.env.adapter import env_summary
    from rlrun.errors import RlrunError
    from rlrun.schema import EnvConfig
    from rlrun.trust import require_trusted_env

    note, keys = table.options["env"][name].about, table.keys_of("env", name)
    try:
        words = (f"{n.removeprefix('env.')}={key.value}" for n, key in keys.items() if key.value)
        cfg = OmegaConf.from_dotlist([*words][::-1])  # its own keys after those it starts from
        note = " ".join(str(cfg.get("note") or note).split())
        if not keys:
            return "", note
        if OmegaConf.is_missing(cfg, "id"):
            return "any -> any", note
        config = read_dataclass(EnvConfig, OmegaConf.to_container(cfg, resolve=True), "env")
        require_trusted_env(config.id)
        spaces = env_summary(config)
    except (RlrunError, OmegaConfBaseException, YAMLError) as e:
        return "", f"{note} (cannot be made: {' '.join(str(e).split())})"
    names = ", ".join(wrapper.name for wrapper in config.wrappers)
    return spaces, f"{note}; wrappers: {names}" if names else note


def _unknown_group(group: str) -> ConfigError:
    from rlrun.schema.spelling import nearest

    names = [*GROUPS, "wrappers"]
    close = nearest(group, names, 1)
    fix = f"a word is looked for in one: rlrun list env {group}"
    if close:
        fix = f"rlrun list {close[0]}"
    wrong = f"unknown group; groups are {', '.join(names)}"
    return ConfigError(f"rlrun list {group}: {wrong}; {fix}")
