"""The texts of ``rlrun --help`` and ``rlrun list``; needs neither Hydra nor torch for the first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import fill

from rlrun.cli.yaml_keys import first_comment, option_keys, yamls
from rlrun.errors import ConfigError

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
TOPICS = {  # topic -> (README of a room, its section)
    "commands": ("cli", "Commands"),
    "determinism": ("run", "Determinism"),
    "ending": ("run", "Ending"),
    "exit codes": ("cli", "Exit codes"),
    "exploration": ("policy", "Exploration"),
    "files": ("run", "Files"),
    "health": ("reports", "Run health"),
    "environment checks": ("env", "Environment checks"),
    "metrics": ("log", "Metrics"),
    "overrides": ("config", "Overrides"),
    "python": ("api", "From Python"),
    "report": ("reports", "Reports"),
    "resume": ("run", "Resuming"),
    "search": ("sweeps", "Search"),
    "seeds until decided": ("sweeps", "Seeds until decided"),
    "statistics": ("reports", "Statistics"),
    "sweep": ("sweeps", "Sweeps"),
    "trust": ("config", "Code that a config names"),
    "videos": ("video", "Watching an agent"),
    "windows": ("buffer", "Windows"),
    "wrappers": ("env", "Wrappers"),
    "yaml files": ("config", "Your own yaml files"),
}
_LISTED = {  # other words for a group
    "policies": "policy",
    "envs": "env",
    "environment": "env",
    "environments": "env",
    "experiments": "experiment",
    "wrapper": "wrappers",
}
_SPACES = 38  # characters of the widest column
_HELP = """\
rlrun {version}: recurrent reinforcement learning, configured by Hydra

usage: rlrun [GROUP=OPTION] [KEY=VALUE] ...       one run; without a word: r2d2 on cartpole
       rlrun -m KEY=A,B,C ...                     a sweep, one run for every combination
       rlrun -m KEY=A,B,C ... seeds=auto          adds seeds until the comparison is decided
       rlrun search 'KEY=interval(LOW,HIGH)' ...  the best setting, its score on fresh seeds
       rlrun eval RUN_DIR [--episodes N]          scores the weights of a run
       rlrun play RUN_DIR [--video out.mp4]       shows its episodes, in a window or a file
       rlrun resume RUN_DIR[@STEP] [KEY=VALUE]    goes on with an interrupted run
       rlrun fork RUN_DIR[@STEP] run.dir=NEW ...  starts a run from a checkpoint of another
       rlrun report DIR ... [--out report/]       scores, intervals, curves of runs and sweeps
       rlrun compare A B                          which of two settings is better, if any is
       rlrun probe env=NAME [--budget STEPS]      does this task need memory?
       rlrun bench memory [--quick] [KEY=VALUE]   algorithms and cells on memory tasks, a table
       rlrun verify RUN_DIR                       checks its files; what could be resumed
       rlrun diff RUN_DIR[@STEP] RUN_DIR[@STEP]   where two runs first differ
       rlrun export RUN_DIR DATA_DIR              writes its replay as a dataset (buffer.load)
       rlrun export policy RUN_DIR --onnx FILE    writes its greedy policy for use without torch
       rlrun tensorboard [DIR ...] [--port N]     charts of runs in a browser, on this machine
       rlrun tensorboard-rebuild RUN_DIR          writes its event files anew from its records
       rlrun codec bench RUN_DIR|FILE ...         what coders make of its weights and rows
       rlrun doctor RUN_DIR                       what looks wrong with a run; which key to try
       rlrun doctor env=NAME [env.KEY=VALUE]      what can be checked of an environment
       rlrun doctor                               what a bug report needs
       rlrun list [GROUP [WORD ...]]              what there is, a line each
       rlrun help KEY|GROUP|TOPIC                 default, range, unit and source of a key; topics:
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
    lines = []
    for group, what in GROUPS.items():
        options = ", ".join(yamls(group, config_dir))
        text = f"  {group:<11}{what}: {options}"
        lines.append(fill(text, 100, subsequent_indent=" " * 13) + "\n")
    topics = fill(", ".join(TOPICS), 100, initial_indent=" " * 50, subsequent_indent=" " * 50)
    return _HELP.format(version=version, topics=topics, groups="".join(lines))


def _environment(name: str, path: Path, config_dir: str | None) -> tuple[str, str]:
    """(spaces or what to install, note and wrappers) of an environment's yaml."""
    import yaml
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from rlrun.config import Composer
    from rlrun.config.reader import read_dataclass, read_yaml
    from rlrun.env.adapter import env_summary
    from rlrun.errors import RlrunError
    from rlrun.schema import EnvConfig
    from rlrun.trust import require_trusted_env

    try:
        cfg = OmegaConf.create(read_yaml(path))
    except (yaml.YAMLError, RlrunError, OSError) as e:
        return "", f"(cannot be read: {' '.join(str(e).split())})"
    if not isinstance(cfg, DictConfig):
        return "", first_comment(path)
    note = " ".join(str(cfg.get("note") or first_comment(path)).split())
    try:
        if "defaults" in cfg:
            cfg = Composer(config_dir=config_dir).compose([f"env={name}"]).env
        if OmegaConf.is_missing(cfg, "id"):
            return "any -> any", note
        config = read_dataclass(EnvConfig, OmegaConf.to_container(cfg, resolve=True), "env")
        require_trusted_env(config.id)
        spaces = env_summary(config)
    except (RlrunError, OmegaConfBaseException) as e:
        return "", f"{note} (cannot be made: {' '.join(str(e).split())})"
    names = ", ".join(wrapper.name for wrapper in config.wrappers)
    return spaces, f"{note}; wrappers: {names}" if names else note


def _environments(config_dir: str | None, found: Mapping[str, Path] | None = None) -> Iterator[str]:
    """A line for each environment: name, observation -> action space, note, wrappers."""
    found = yamls("env", config_dir) if found is None else found
    rows = {name: _environment(name, path, config_dir) for name, path in found.items()}
    name_width = max(map(len, rows)) + 2
    width = min(max(len(spaces) for spaces, _ in rows.values()), _SPACES)
    for name, (spaces, note) in rows.items():
        yield f"  {name:<{name_width}}{spaces:<{width}}  {note}"


def _wrappers() -> Iterator[str]:
    """A line for each wrapper: name, arguments, effect."""
    from rlrun.env.wrappers import WRAPPERS
    from rlrun.schema import WRAPPER_CONFIGS

    for name, (_, what) in WRAPPERS.items():
        arguments = [f.name for f in fields(WRAPPER_CONFIGS[name])][1:]
        yield f"  {' '.join([name, *arguments]):<26}{what}"


def list_lines(config_dir: str | None = None) -> Iterator[str]:
    """The lines of ``rlrun list``."""
    yield "policies (policy=NAME)"
    for name, path in yamls("policy", config_dir).items():
        yield f"  {name:<24}{first_comment(path)}"
    yield "\nenvironments (env=NAME): what a row observes -> what is done"
    yield from _environments(config_dir)
    yield "\nwrappers (env.wrappers=[...], the first one next to the environment)"
    yield from _wrappers()
    yield "\nexperiments (experiment=NAME)"
    for name, path in yamls("experiment", config_dir).items():
        yield f"  {name:<24}{first_comment(path)}"
    yield ""


def group_lines(
    group: str, words: Sequence[str] = (), config_dir: str | None = None
) -> Iterator[str]:
    """The lines of ``rlrun list GROUP WORD…``: options whose name or text has every word.

    Case does not matter. Only the environments that are shown are made.

    Raises: ConfigError for an unknown group, and when no option has the words.
    """
    name = _LISTED.get(group, group)
    if name == "wrappers":
        lines = [line for line in _wrappers() if _has(line, words)]
    elif name in GROUPS:
        found = {o: p for o, p in yamls(name, config_dir).items() if _has(_text(name, o, p), words)}
        width = max([23, *map(len, found)]) + 1
        lines = [f"  {option:<{width}}{first_comment(path)}" for option, path in found.items()]
        if name == "env" and found:
            lines = list(_environments(config_dir, found))
    else:
        raise ConfigError(_unknown_group(group))
    if not lines:
        wrong = f"no option has {' and '.join(words)} in its name or text"
        raise ConfigError(f"rlrun list {group}: {wrong}; see all of them: rlrun list {group}")
    yield from lines


def _text(group: str, option: str, path: Path) -> str:
    """Name and text of an option; of an environment without making it."""
    if group != "env":
        return f"{option} {first_comment(path)}"
    keys = option_keys(group, option, str(path.parents[1]))
    shown = (keys[k].value for k in ("env.note", "env.id", "env.wrappers") if k in keys)
    return " ".join([option, first_comment(path), *shown])


def _has(text: str, words: Sequence[str]) -> bool:
    return all(word.casefold() in text.casefold() for word in words)


def _unknown_group(group: str) -> str:
    from rlrun.schema.spelling import nearest

    names = [*GROUPS, "wrappers"]
    close = nearest(group, names, 1)
    fix = (
        f"rlrun list {close[0]}"
        if close
        else f"a word is looked for in one: rlrun list env {group}"
    )
    return f"rlrun list {group}: unknown group; groups are {', '.join(names)}; {fix}"
