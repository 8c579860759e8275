"""The texts of ``rlrun --help``, ``help WORD``, ``list`` and ``--cfg job``, from the key table.

Does not import torch. Only the list of environments, which makes them, imports numpy and Hydra.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rlrun.cli.commands import COMMANDS, parser_of
from rlrun.cli.key_table import COMMAND_NODES, GROUPS, PRESETS, Key, Table
from rlrun.errors import ConfigError
from rlrun.terminal import command, paragraph, table_lines, width

if TYPE_CHECKING:
    from argparse import Namespace

_TOPIC_OF = dict.fromkeys(
    ("environment", "environments of your own", "own environment", "custom environment",
     "custom env", "gymnasium", "register", "gymnasium.register", "gym.register"),
    "environments",
) | {"monitor": "metrics", "install": "extras", "pip": "extras"}  # fmt: skip
_OF_SWEEPS = ("sweep.", "hydra.launcher", "hydra/launcher")  # on the line, in no run's config
_NAMED = 6  # options in a line of defaults
_VALUES = 12  # lines of defaults
_BESIDE = 3  # keys before and after that are named
_COLUMN, _WIDE_COLUMN = 26, 44  # where texts begin beside a name, a command
_HELP = """\
rlrun {version}: recurrent reinforcement learning, configured by Hydra

usage:
{usage}

topics of rlrun help:
{topics}

groups:
{groups}

flags:
{flags}

examples:
  rlrun policy=r2d2 env=cartpole
  rlrun policy=r2d2 env=tmaze env.length=50 policy.learn_unroll_len=60 seed=1
  rlrun -m policy=r2d2,dqn env=cartpole_novel seed=0,1,2
  rlrun experiment=r2d2_paper env=cartpole --cfg job
  rlrun eval outputs/DATE/TIME_r2d2_cartpole_s0 --episodes 100
"""


_RUNS = (
    ("[GROUP=OPTION] [KEY=VALUE] ...", "one run; without a word: r2d2 on cartpole"),
    ("-m KEY=A,B,C ...", "a sweep, one run for every combination"),
    ("-m KEY=A,B,C ... seeds=auto", "adds seeds until the comparison is decided"),
)
_FLAGS = (
    ("-m, --multirun", "a sweep"),
    ("-q, --quiet", "warnings and errors only"),
    ("--config-dir DIR", "your own yaml files"),
    ("--trust PACKAGE", "a config may name its functions"),
    ("--cfg job", "the whole config, what each key means, and no run"),
    ("--version", "of rlrun and torch, and the commit"),
    ("--hydra-help", "further flags, of Hydra"),
    ("-sc install=bash", 'tab completion: eval "$(rlrun -sc install=bash)"'),
)


def help_text(version: str, table: Table) -> str:
    groups = (paragraph(f"  {group:<11}", f"{what}: {', '.join(table.options[group])}")
              for group, what in GROUPS.items())  # fmt: skip
    commands = ((f"{name} {words}".rstrip(), what)
                for name, command in COMMANDS.items() for words, what in command.usage)  # fmt: skip
    usage = (_beside(f"rlrun {words}", what, _WIDE_COLUMN) for words, what in (*_RUNS, *commands))
    flags = (_beside(flag, what) for flag, what in _FLAGS)
    return _HELP.format(
        version=version, usage="\n".join(usage), topics=paragraph("  ", ", ".join(table.topics)),
        groups="\n".join(groups), flags="\n".join(flags),
    )  # fmt: skip


def _beside(name: str, text: str, column: int = _COLUMN) -> str:
    """Return ``text`` in a column next to ``name``, or below it if the name is long."""
    label = f"  {name:<{column - 4}}  "
    if len(label) <= column:
        return paragraph(label, text)
    return f"  {name}\n{paragraph(' ' * column, text)}"


def explain(args: "Namespace") -> int:
    """Print the help, or with words that of the key, group, option, topic or subcommand."""
    from rlrun import __version__

    word, table = " ".join(args.words), Table(args.config_dir)
    if not word:
        print(help_text(__version__, table), end="")
    elif word in COMMANDS and word not in table.topics:
        print(parser_of(word).format_help(), end="")
    else:
        for line in list(help_lines(word, table)):  # an error comes alone
            print(line)
    return 0


def help_lines(word: str, table: Table) -> Iterator[str]:
    """Yield the lines on a key, a group, an option or a topic.

    Raises: ConfigError if ``word`` is none of them, with the nearest names.
    """
    reference, options = Reference(table), table.options
    group, _, option = word.partition("=")
    topic = word.lower().replace("_", " ")
    topic_of = {text.partition("\n")[0].lower(): name for name, text in table.topics.items()}
    topic = (topic_of | _TOPIC_OF).get(topic, topic)
    if group in table.about and not option and topic not in table.topics:
        yield from reference.group(group)
    elif group in GROUPS and option in options[group]:
        yield from reference.option(group, option)
    elif topic in table.topics or group.startswith(_OF_SWEEPS):
        yield from topic_lines(table.topics.get(topic, table.topics["sweep"]))
        if topic == "metrics":
            yield ""
            yield from table_lines([("key", "meaning"), *table.metrics.items()])
    elif meaning := table.metrics.get(word):
        yield paragraph(f"{word}: ", meaning)
    elif names := reference.named(group):
        if present := table.renamed.get(group):
            yield f"{group} is {present} now.\n"
        yield from _joined(reference.key(name) for name in names)
    elif chosen := [g for g in GROUPS if word.lower() in options[g]]:
        yield from _joined(reference.option(g, word.lower()) for g in chosen)
    else:
        raise reference.unknown(word)


def _joined(entries: "Iterator[Iterator[str]]") -> Iterator[str]:
    """Yield the lines of all entries, with an empty line between two."""
    yield "\n\n".join("\n".join(entry) for entry in entries)


class Reference:
    """Every key of a table, by name and option."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @cached_property
    def keys(self) -> dict[str, dict[str, Key]]:
        """Full name -> option -> key. The option of a run without arguments is first.

        The option of a key of config.yaml is "".
        """
        keys = {n: {"": key} for n, key in self.table.root.items() if n not in self.table.about}
        for group in (g for g in GROUPS if g not in PRESETS):
            chosen = self.table.chosen.get(group)
            for option in sorted(self.table.options[group], key=lambda o: o != chosen):
                for name, key in self.table.keys_of(group, option).items():
                    keys.setdefault(name, {})[option] = key
        return keys

    def named(self, word: str) -> list[str]:
        """Return the full names of the keys that ``word``, a full name or a last part, may mean."""
        word = self.table.renamed.get(word, word)
        if word in self.keys and word not in self.table.about:
            return [word]
        if word.startswith("env."):  # env.length is env.kwargs.length
            return [n for n in (f"env.kwargs.{word.removeprefix('env.')}",) if n in self.keys]
        return [n for n in self.keys if n.count(".") == 1 and n.rpartition(".")[2] == word]

    def unknown(self, word: str) -> ConfigError:
        """Return the error for a word without meaning."""
        from rlrun.cli.guesses import VERB_OF
        from rlrun.schema.spelling import nearest

        last = re.sub("[ -]", "_", word.rpartition(".")[2])
        lasts = {n.rpartition(".")[2]: n for n in reversed(self.keys)}
        options = [f"{g}={o}" for g in GROUPS for o in self.table.options[g]]
        close = (self.named(last) if last != word else []) or self._synonyms(last)
        verb = "" if close else VERB_OF.get(last.lower(), "")
        words = options if "=" in word else [*self.table.topics, *self.table.about]
        close = close or nearest(word, words)
        if "." in word or "/" in word:
            close = nearest(word, self.table.metrics if "/" in word else self.keys)
        close = close or [lasts[n] for n in nearest(last, lasts)]
        close = close or [
            name for name, options in self.keys.items()
            if any(word.lower() in key.meaning.lower() for key in options.values())
        ]  # fmt: skip
        fix = verb or f"did you mean {' or '.join(close[:3])}?"
        allowed = "a key, a group, GROUP=OPTION, a metric or a topic is allowed"
        if not close:
            fix = verb or "rlrun --help shows the groups"
            allowed += f"; topics: {', '.join(self.table.topics)}"
        return ConfigError(f"rlrun help {word}: nothing has that name; {allowed}; {fix}")

    def _synonyms(self, last: str) -> list[str]:
        from rlrun.schema.spelling import synonyms

        return [n for word in synonyms(last) for n in self.named(word)]

    def meant(self, word: str) -> str:
        """Return the likeliest full name for a word that may be one of another library."""
        names = self.named(word) or self._synonyms(word) or [word]
        rooms = [name.partition(".")[0] for name in names]
        return names[next((rooms.index(room) for room in ("run", "env") if room in rooms), 0)]

    def key(self, name: str) -> Iterator[str]:
        facts = self.table.facts.get(name, {})
        group = name.partition(".")[0] if "" not in self.keys[name] else ""
        yield from self._meanings_of(name, group)
        if "allowed" in facts:
            yield paragraph("  allowed  ", facts["allowed"])
        label = "  default  "
        lines = [*self._defaults(name, group)]
        for line in lines[:_VALUES]:
            yield paragraph(label, line)
            label = " " * len(label)
        if len(lines) > _VALUES:
            yield f"{label}{len(lines) - _VALUES} more: rlrun help {group}=OPTION"
        yield paragraph("  read by  ", self._readers(name, group))
        options = (
            (f"{g}={o}", opt.keys) for g in PRESETS for o, opt in self.table.options[g].items()
        )
        presets = [f"{option} ({keys[name].value})"
                   for option, keys in options if name in keys and keys[name].value]  # fmt: skip
        if presets:
            yield paragraph("  set by   ", ", ".join(presets))
        if related := self._related(name):
            yield paragraph("  see also ", ", ".join(related))

    def _meanings_of(self, name: str, group: str) -> Iterator[str]:
        """Yield the meaning of a key. Arguments of environments have one for each that has them."""
        by_meaning: dict[str, list[str]] = {}
        for option, key in self.keys[name].items():
            by_meaning.setdefault(key.meaning, []).append(option)
        if len(by_meaning) == 1 or group != "env":
            yield paragraph(f"{name}: ", next(iter(by_meaning)))
            return
        yield f"{name}:"
        for meaning, options in by_meaning.items():
            ellipsis = ", ..." if len(options) > _NAMED else ""
            yield paragraph("  ", f"{group}={', '.join(options[:_NAMED])}{ellipsis}: {meaning}")

    def _defaults(self, name: str, group: str) -> Iterator[str]:
        """Yield a line for every value and source: the value, options that have it, the source."""
        by_line: dict[tuple[str, str], list[str]] = {}
        for option, key in self.keys[name].items():
            value = key.value or self._parts(name, option)
            by_line.setdefault((value, key.source), []).append(option)
        for (value, source), options in by_line.items():
            named = ", ".join(options[:_NAMED])
            more = f" and {len(options) - _NAMED} more" if len(options) > _NAMED else ""
            whose = f"  {group}={named}{more}" if group and len(by_line) > 1 else ""
            source = re.sub(r"^ours \((.*)\)$", r"ours; \1", source)
            source = re.sub("^ours", "chosen by rlrun", source)
            yield f"{value}{whose}{f'  ({source})' if source else ''}"

    def _parts(self, name: str, option: str) -> str:
        """Return the values of a mapping that are not null."""
        parts = {n: keys.get(option) for n, keys in self.keys.items() if n.startswith(f"{name}.")}
        values = [f"{n.removeprefix(f'{name}.')}: {key.value}" for n, key in parts.items()
                  if key and key.value not in ("", "null")]  # fmt: skip
        return f"{{{', '.join(values)}}}"

    def _readers(self, name: str, group: str) -> str:
        """Return the runs that read a key."""
        facts, options = self.table.facts.get(name, {}), self.keys[name]
        if default_of := facts.get("default_of"):
            return f"{default_of}, whose default it is"
        scope = COMMAND_NODES.get(name.partition(".")[0], "every run")
        if group and len(options) < len(self.table.options[group]):
            scope = f"{group}={', '.join(sorted(options))}"
        if reader := facts.get("read_when"):
            return f"runs with {reader}" if scope == "every run" else f"{scope}, with {reader}"
        return scope

    def _related(self, name: str) -> list[str]:
        """Return keys that decide whether ``name`` is read, those it decides about, neighbours."""
        conditions = {n: facts.get("conditions", ()) for n, facts in self.table.facts.items()}
        related = [c for c in conditions.get(name, ()) if c in self.keys or c in self.table.about]
        related += [n for n, keys in conditions.items() if name in keys]
        parent, option = name.rpartition(".")[0], next(iter(self.keys[name]))
        group = name.partition(".")[0]
        near = self.table.keys_of(group, option) if option else self.table.root
        beside = [n for n in near if n.rpartition(".")[0] == parent]
        place = beside.index(name)
        related += beside[max(0, place - _BESIDE) : place + _BESIDE + 1]
        return [n for n in dict.fromkeys(related) if n not in (name, f"{parent}.name")]

    def group(self, group: str) -> Iterator[str]:
        """Yield the lines on a group: its options and its keys."""
        yield f"{group}: {self.table.about[group]}"
        options = self.table.options.get(group, {})
        width = max(map(len, options), default=0) + 2
        for name, option in options.items():
            yield paragraph(f"  {name:<{width}}", option.about)
        tops = [n for n in self.keys if n.startswith(f"{group}.") and n.count(".") == 1]
        if not options:
            yield from _key_lines({n: self.table.root[n] for n in tops if n in self.table.root})
        elif tops:
            yield ""
            lasts = (n.rpartition(".")[2] for n in tops)
            yield paragraph(f"keys, {group}.KEY: ", ", ".join(lasts))
        yield ""
        example = f"rlrun help {group}={next(iter(options))}, " if options else ""
        yield f"more: {example}rlrun help {(tops or ['policy.nstep'])[-1]}"

    def option(self, group: str, name: str) -> Iterator[str]:
        """Yield the lines on an option: the options that it chooses, and its keys."""
        option = self.table.options[group][name]
        yield paragraph(f"{group}={name}: ", option.about)
        if chosen := ", ".join(f"{g}={o}" for g, o in option.chooses.items()):
            yield paragraph("  chooses ", chosen)
        yield from _key_lines(self.table.keys_of(group, name))


def _key_lines(keys: Mapping[str, Key]) -> Iterator[str]:
    """Yield ``key = value`` and the comment of each key."""
    texts = {f"{name} = {key.value}": key for name, key in keys.items()}
    column = min(max(map(len, texts), default=0), 36) + 2
    for text, key in texts.items():
        gap = "  " * (len(text) >= column)
        yield paragraph(f"  {text:<{column}}{gap}", key.comment)


# Of a block of code: commands and what they print wrap, other code is left as it is.
_SHAPES: dict[str, Callable[[str, str], str]] = {"```sh": command, "```text": paragraph}


def topic_lines(text: str) -> Iterator[str]:
    """Yield the lines of a README section: prose and tables are wrapped, code is indented."""
    blocks = re.split(r"^(```.*?^```$|\|[^\n]*(?:\n\|[^\n]*)*)", text, flags=re.M | re.S)
    for number, block in enumerate(filter(None, (block.strip("\n") for block in blocks))):
        if number:
            yield ""
        if block.startswith("```"):
            kind, *lines, _ = block.splitlines()
            shape = _SHAPES.get(kind, str.__add__)
            yield from (shape("    ", line).rstrip() for line in lines)
        elif block.startswith("|"):
            head, _, *rows = block.splitlines()
            cells = (re.split(r"(?<!\\)\|", line)[1:-1] for line in (head, *rows))
            yield from table_lines([[x.replace("\\|", "|").strip() for x in row] for row in cells])
        else:
            yield from _prose(block)


def _prose(text: str) -> Iterator[str]:
    """Yield paragraphs and list items."""
    for number, block in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ""
        for part in re.split(r"\n(?=[*#] |\d+\. )", block):
            _, mark, rest = re.split(r"^([*#] |\d+\. |)", part, maxsplit=1)
            yield paragraph(mark, " ".join(rest.split()))


_COMMENTS = 34  # column of most comments


def annotated(text: str, table: Table, choices: Mapping[str, str | None]) -> str:
    """Return the yaml ``text`` of a config with a comment on every key in the table.

    ``choices``: group -> its option in the config. The text can be used as an option of the group
    experiment; its first lines say how.
    """
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines, meanings = text.rstrip().split("\n"), _meanings(table, choices)
    for name, number in _ends(root.value if isinstance(root, yaml.MappingNode) else []):
        if meaning := meanings.get(name):
            code = lines[number]
            column = max(_COMMENTS, len(code) + 2) if len(code) < _COMMENTS + 8 else _COMMENTS
            parts = wrap(meaning, max(width() - column - 2, 16), break_on_hyphens=False)
            starts = [f"{code:<{column}}"] if column > len(code) else [f"{code}\n{'':{column}}"]
            starts += [" " * column] * (len(parts) - 1)
            lines[number] = "\n".join(f"{s}# {part}" for s, part in zip(starts, parts, strict=True))
    chosen = (f"{g}={choices[g]}" for g, o in table.chosen.items() if choices.get(g, o) != o)
    used = " ".join(["rlrun --config-dir DIR experiment=NAME", *chosen])
    head = ("# @package _global_", "# Save as DIR/experiment/NAME.yaml, then type:")
    return "".join(f"{line}\n" for line in (*head, command("#   ", used), *lines))


def _meanings(table: Table, choices: Mapping[str, str | None]) -> dict[str, str]:
    """Return full name of a key or node -> its meaning, from the option that was chosen."""
    meanings = dict(table.about)
    for name, options in Reference(table).keys.items():
        chosen = options.get(choices.get(name.partition(".")[0]) or "")
        if chosen or ".kwargs." not in name:
            meanings[name] = (chosen or next(iter(options.values()))).meaning
    for group, option in choices.items():
        if option in table.options.get(group, {}):
            meanings[group] = f"{group}={option}: {table.options[group][option].about}"
    return meanings


def _ends(pairs: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield (full name, number of the line at whose end a comment may be) of a mapping's keys."""
    for key, node in pairs:
        name, is_nested = f"{prefix}{key.value}", node.id != "scalar" and not node.flow_style
        if getattr(node, "style", None) not in ("|", ">"):
            yield name, (key if is_nested else node).end_mark.line
        if node.id == "mapping":
            yield from _ends(node.value, f"{name}.")


_LISTED = {  # other words for a group
    **dict.fromkeys(("envs", "environment", "environments"), "env"),
    "policies": "policy", "experiments": "experiment", "wrapper": "wrappers",
}  # fmt: skip
_LISTS = {  # title -> group, of rlrun list
    "policies (policy=NAME)": "policy",
    "environments (env=NAME): what a row observes -> what is done": "env",
    "wrappers (env.wrappers=[...], the first one next to the environment)": "wrappers",
    "experiments (experiment=NAME)": "experiment",
}


def list_options(args: "Namespace") -> int:
    """Print a line per option, of one group or of the groups that a reader needs first."""
    table = Table(args.config_dir)
    if args.group is not None:
        lines = _group_lines(table, args.group, args.words)
    else:
        lines = [line for title, group in _LISTS.items()
                 for line in (title, *_lines(table, group, _texts(table, group)), "")]  # fmt: skip
    print("\n".join(lines))  # an error comes alone
    return 0


def _texts(table: Table, group: str) -> dict[str, str]:
    """Return name -> text of the options of a group. Wrappers are named with their arguments."""
    if group == "wrappers":
        return dict(table.wrappers.values())
    return {name: option.about for name, option in table.options[group].items()}


def _group_lines(table: Table, group: str, words: Sequence[str]) -> list[str]:
    """Return the lines of options whose name or text contains every word, in any case.

    Raises: ConfigError for an unknown group, or if no option has the words.
    """
    name = _LISTED.get(group, group)
    if name != "wrappers" and name not in GROUPS:
        raise _unknown_group(group)
    matches = {}
    for option, text in _texts(table, name).items():
        keys = table.keys_of(name, option) if name == "env" else {}
        values = (keys[k].value for k in ("env.note", "env.id", "env.wrappers") if k in keys)
        searched = " ".join([option, text, *values]).casefold()
        if all(word.casefold() in searched for word in words):
            matches[option] = text
    if not matches:
        wrong = f"no option has {' and '.join(words)} in its name or text"
        raise ConfigError(f"rlrun list {group}: {wrong}; see all of them: rlrun list {group}")
    return [*_lines(table, name, matches)]


def _lines(table: Table, group: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a line per option. Environments are made to show their spaces.

    Below are experiments in it and variants: environments that start from it, as their names do.
    """
    if group != "env":
        yield from (_beside(name, text) for name, text in texts.items())
        return
    parents = {name: table.options["env"][name].parents for name in texts}
    listed = {name: next((parent for parent in of if name.startswith(f"{parent}_")), None)
              for name, of in parents.items()}  # fmt: skip
    for name in texts:
        if listed[name] in texts:
            continue
        variants = [n.removeprefix(f"{name}_") for n, parent in listed.items() if parent == name]
        also = f"also {name}_NAME: {', '.join(variants)}" if variants else ""
        experiments = table.options["experiment"].items()
        tuned = ", ".join(e for e, option in experiments if option.chooses.get("env") == name)
        tuned = f"experiment={tuned}" if tuned else ""
        first, *rest = filter(None, (*_environment(name, table), tuned, also))
        yield "\n".join([_beside(name, first), *(_beside("", text) for text in rest)])


def _environment(name: str, table: Table) -> tuple[str, str]:
    """Return (spaces or what to install, note and wrappers) of an environment."""
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
    except (RlrunError, OmegaConfBaseException, RecursionError, YAMLError) as e:
        return "", f"{note} (cannot be made: {' '.join(str(e).split())})"
    if config.not_learned_by:
        note += f" (not learned by the defaults of {', '.join(config.not_learned_by)})"
    names = ", ".join(wrapper.name for wrapper in config.wrappers)
    return spaces, f"{note}; wrappers: {names}" if names else note


def _unknown_group(group: str) -> ConfigError:
    from rlrun.schema.spelling import nearest

    names = [*GROUPS, "wrappers"]
    fix = f"a word is looked for in one: rlrun list env {group}"
    if close := nearest(group, names, 1):
        fix = f"rlrun list {close[0]}"
    elif os.path.isdir(group):
        fix = f"rlrun report {shlex.quote(group)} lists the runs in it"
    wrong = f"unknown group; groups are {', '.join(names)}"
    return ConfigError(f"rlrun list {group}: {wrong}; {fix}")
