"""``rlrun bench memory`` and ``rlrun probe``: agents with and without memory, a sweep each.

Does not import torch. The runs are processes, in a directory that a later command of the same kind
can continue.
"""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun.cli.run import Line, silent
from rlrun.cli.sweep import run_jobs, scores_of
from rlrun.config import Composer
from rlrun.config.compose import read_presets, read_shipped
from rlrun.config.config_errors import config_error
from rlrun.config.directories import study_directory
from rlrun.config.reader import read_dataclass
from rlrun.config.space import read_settings
from rlrun.reports.bounds import return_bounds
from rlrun.reports.document import csv_text, markdown, terminal_lines
from rlrun.reports.memory_bench import (
    ABOUT,
    FULL,
    MEMORYLESS,
    RECURRENT,
    STACKED,
    BenchSetting,
    MemoryGap,
    bench_table,
    gap_table,
    raw_lines,
)
from rlrun.reports.runs import RunData, read_run
from rlrun.run.files import replace_file
from rlrun.schema import Config
from rlrun.schema.override import Override, keys_of, read_overrides, split_node
from rlrun.schema.spelling import nearest
from rlrun.schema.studies import BenchConfig, BenchTaskConfig, ProbeConfig
from rlrun.sweeps.record import SweepRecord, is_sweep
from rlrun.terminal import paragraph

_OWNERS = ("bench", "probe", "search")  # commands that begin such directories
_CHOSEN = (
    "policy", "memory", "run.total_steps", "run.stop_return", "run.dir", "sweep", "sweep.dir",
)  # fmt: skip


def _refuse_chosen(common: Sequence[Override], keys: Sequence[str], who: str, allowed: str) -> None:
    """Raise ConfigError for keys that the command itself sets."""
    if chosen := next((override for override in common if override.key in keys), None):
        wrong = f"{who} chooses it"
        raise config_error(chosen.key, chosen.value, wrong, allowed, "use them")


def _directory_of(typed: str | None, key: str) -> Path:
    """Return ``study_directory`` of bench.dir or probe.dir.

    Raises: ConfigError for the directory of another command.
    """
    path = study_directory(key, typed, is_sweep)
    commands = SweepRecord.read(path).commands[:1] if is_sweep(path) else []
    begun = [command[1] for command in commands if len(command) > 1]
    if begun and begun[0] in _OWNERS and begun[0] != key.partition(".")[0]:
        wrong = f"holds what rlrun {begun[0]} made"
        allowed = "a new directory, or one of the same command, is allowed"
        raise config_error(key, typed, wrong, allowed, "choose another")
    return path


def table_command(path: Path) -> str | None:
    """Return the command line that writes the table of a bench or probe in ``path``, or None.

    ``rlrun resume`` runs only the jobs.
    """
    commands = SweepRecord.read(path).commands
    words = commands[0][1:] if commands else []
    if not words or words[0] not in ("bench", "probe"):
        return None
    key = f"{words[0]}.dir="
    kept_words = [word for word in words if not word.startswith((key, "-q", "--quiet"))]
    return f"rlrun {shlex.join([*kept_words, f'{key}{path.absolute()}'])}"


def _flags(args: Namespace) -> list[str]:
    """Return the flags for continuing this command."""
    config_dir = ["--config-dir", args.config_dir] if args.config_dir else []
    return ["-q"] * args.quiet + config_dir


def _line(composer: Composer, overrides: Sequence[Override], path: Path, args: Namespace) -> Line:
    """Return the line of the sweep in ``path``, with overrides of all jobs."""
    return Line(composer, [*overrides, *silent(args.quiet)], str(path), quiet=args.quiet)


def bench(args: Namespace) -> int:
    """Run what is missing in bench.dir and write the table. Return 0, or 1 if a run failed."""
    composer = Composer(config_dir=args.config_dir)
    bench_keys, common = split_node(read_overrides(args.overrides), "bench")
    settings: BenchConfig = read_settings(composer, "bench", [])
    settings = read_settings(composer, "bench", [*settings.quick * args.quick, *bench_keys])
    allowed = "bench.algorithms, bench.cells, bench.tasks, bench.steps and bench.dir do"
    _refuse_chosen(common, (*_CHOSEN, "run.eval_every", "env"), "the benchmark", allowed)
    tasks = {name: _task(name) for name in settings.tasks}
    shared = [o for o in common if o.key.startswith("hydra")]  # of the launcher
    typed_seed, rest = split_node([o for o in common if o not in shared], "seed")
    first = int(composer.compose(typed_seed).seed)
    jobs = [  # keys of a policy are known beside its name only
        composer.rewrite([*_words(tasks[name], settings), f"policy={algorithm}", f"memory={cell}",
                          *rest, f"seed={seed}"])
        for name in tasks for algorithm in settings.algorithms for cell in settings.cells
        for seed in range(first, first + settings.seeds)
    ]  # fmt: skip
    path = _directory_of(settings.dir, "bench.dir")
    flags = ["--quick"] * args.quick + _flags(args)
    kept = [o for o in bench_keys if o.key != "bench.dir"]
    command = ["bench", "memory", *flags, *kept, f"bench.dir={path}", *common]
    run_jobs(_line(composer, shared, path, args), jobs, command)
    return _write_bench(path, _settings(composer, path), quiet=args.quiet)


def _settings(composer: Composer, path: Path) -> list[BenchSetting]:
    """Return all settings with runs in bench.dir, including those of earlier commands.

    If they differ in more than task, policy and memory, the cell's name contains the difference.
    """
    tasks = {tuple(composer.rewrite(_task(name).overrides)): name for name in _known()}
    groups: dict[tuple[str, str, str, frozenset[Override]], list[RunData]] = {}
    for job in SweepRecord.read(path).jobs:
        typed = read_overrides(job.overrides)
        at = next((i for i, o in enumerate(typed) if _is_budget(o)), 0)
        task = tasks.get(tuple(typed[:at]))
        rest = {o.key: o for o in typed[at:]}
        if task is None or not rest.keys() >= {"policy", "memory", "seed"}:
            continue  # of another command
        policy, cell, _ = (rest.pop(k).value for k in ("policy", "memory", "seed"))
        rest.pop("run.eval_every", None)  # it follows from the budget
        key = task, policy, cell, frozenset(rest.values())
        groups.setdefault(key, []).append(read_run(path / job.name))
    budgets: dict[str, set[Override]] = {}
    for task, *_, words in groups:
        budgets.setdefault(task, set()).update(filter(_is_budget, words))
    settings = []
    for (task, algorithm, cell, words), runs in groups.items():
        shared = frozenset.intersection(*(key[3] for key in groups))
        differences = (o for o in words - shared if not _is_budget(o) or len(budgets[task]) > 1)
        name = " ".join([cell, *sorted(differences)])
        settings.append(BenchSetting(task, algorithm, name, _task(task).random, runs))
    return settings


def _is_budget(override: Override) -> bool:
    return override.key == "run.total_steps"


def _write_bench(path: Path, settings: Sequence[BenchSetting], *, quiet: bool) -> int:
    table = bench_table(settings, {s.task: _task(s.task).published for s in settings})
    page = f"# rlrun bench memory\n\n{markdown(table)}\n{ABOUT}\n"
    files = {"bench.md": page, "bench.csv": csv_text(table), "bench.jsonl": raw_lines(settings)}
    for name, text in files.items():
        replace_file(path / name, text.encode())
    if not quiet:
        lines = [*terminal_lines(table), "", paragraph(ABOUT), f"table: {path / 'bench.md'}"]
        print("\n".join(lines), flush=True)
    return int(any(len(setting.scored) < len(setting.runs) for setting in settings))


@cache
def _known() -> dict[str, Any]:
    """Return the tasks of conf/bench_tasks.yaml."""
    tasks: Any = OmegaConf.to_container(read_shipped("bench_tasks"))
    return dict(tasks)


def _task(name: str) -> BenchTaskConfig:
    """Return the task of that name in conf/bench_tasks.yaml.

    Raises: ConfigError.
    """
    known = _known()
    if name not in known:
        close = nearest(name, [*known], 1)
        fix = f"did you mean {close[0]}?" if close else "choose one"
        raise config_error("bench.tasks", name, "no such task", ", ".join(known), fix)
    task: BenchTaskConfig = read_dataclass(BenchTaskConfig, known[name], f"bench.tasks.{name}")
    return task


def _words(task: BenchTaskConfig, settings: BenchConfig) -> list[str]:
    """Return the overrides of every run of a task: a fixed budget, evaluated at equal distances."""
    steps = settings.steps or task.steps
    every = max(1, steps // settings.evaluations)
    budget = [f"run.total_steps={steps}", f"run.eval_every={every}", "run.stop_return=null"]
    return [*task.overrides, *budget]


_MASK = "action_mask"  # entry of an observation that says which actions are allowed
_UNSTACKED = "No frame-stacked agent: stacked, the observation would lose its action mask."
_FULL_STATE = "full_state"  # argument of an environment that can show its state


def probe(args: Namespace) -> int:
    """Train the agents that are missing in probe.dir, and print what memory adds to the score.

    Raises: ConfigError before any run starts; RlrunError if one of them failed.
    """
    composer = Composer(config_dir=args.config_dir)
    probe_keys, common = split_node(read_overrides(args.overrides), "probe")
    probe_keys += read_overrides([] if args.budget is None else [f"probe.budget={args.budget}"])
    settings: ProbeConfig = read_settings(composer, "probe", probe_keys)
    allowed = "probe.budget, probe.seeds, probe.stack and probe.dir are allowed"
    _refuse_chosen(common, (*_CHOSEN, "seed", "env.frame_stack"), "the probe", allowed)
    words = composer.rewrite(common)
    typed = [*words, Override("policy=random")]  # composes with any environment
    config = read_presets(composer, composer.compose(typed), typed)
    budget = settings.budget or config.env.total_steps  # policy=random has no steps of its own
    agents = _agents(config, settings)
    run = [f"run.total_steps={budget}", f"run.eval_every={budget}", "run.stop_return=null",
           f"run.eval_episodes={settings.episodes}"]  # fmt: skip
    seeds = range(config.seed, config.seed + settings.seeds)
    jobs = [[*words, *run, *agent, f"seed={seed}"] for agent in agents.values() for seed in seeds]
    path = _directory_of(settings.dir, "probe.dir")
    _check_task(path, jobs[0])
    kept = [o for o in probe_keys if o.key != "probe.dir"]
    command = ["probe", *_flags(args), *common, *kept, f"probe.dir={path}"]
    runs = run_jobs(_line(composer, [], path, args), jobs, command)
    count = len(seeds)
    scores = {name: scores_of(runs[i * count : (i + 1) * count]) for i, name in enumerate(agents)}
    name = next((o.value for o in common if o.key == "env"), config.env.id)
    steps = max(int(run.evaluations.env_steps[-1]) for run in runs)  # whole collect calls
    environment = name if name != "gym" else config.env.id
    gap = MemoryGap(environment, steps, scores, return_bounds(runs))
    _write_probe(path, gap, quiet=args.quiet)
    return 0


def _agents(config: Config, settings: ProbeConfig) -> dict[str, list[str]]:
    """Return name -> overrides of every agent that the environment allows."""
    from gymnasium import spaces

    from rlrun.env import known_spaces

    obs, action, _ = known_spaces(replace(config.env, frame_stack=1), config.agents)
    real = isinstance(action, spaces.Box)
    base = read_overrides(settings.real if real else settings.discrete)
    memory = read_overrides(settings.real_memory if real else settings.discrete_memory)
    agents: dict[str, list[str]] = {MEMORYLESS: [*base]}
    if not (isinstance(obs, spaces.Dict) and _MASK in obs.spaces):
        boxed = isinstance(obs, spaces.Box) or config.env.wrappers  # only boxes are stacked
        flat = [] if boxed else ["env.wrappers=[{name:flatten_obs}]"]
        agents[STACKED] = [*base, *flat, f"env.frame_stack={settings.stack}"]
    agents[RECURRENT] = [*(o for o in base if o.key not in keys_of(memory)), *memory]
    if config.env.kwargs.get(_FULL_STATE) is False:
        agents[FULL] = [*base, f"env.kwargs.{_FULL_STATE}=true"]
    return agents


def _check_task(path: Path, memoryless: Sequence[str]) -> None:
    """Raise ConfigError if probe.dir holds runs of another task."""
    jobs = SweepRecord.read(path).jobs[:1] if is_sweep(path) else []  # that without a memory
    for words in (job.overrides for job in jobs):
        before, task = ({*split_node(read_overrides(x), "env")[0]} for x in (words, memoryless))
        if before != task:
            wrong = f"holds a probe of {' '.join(sorted(before))}"
            allowed = "a new directory, or one of the same task, is allowed"
            raise config_error("probe.dir", path, wrong, allowed, "choose another")


def _write_probe(path: Path, gap: MemoryGap, *, quiet: bool) -> None:
    table = gap_table(gap)
    text = gap.sentence if STACKED in gap.scores else f"{gap.sentence} {_UNSTACKED}"
    replace_file(path / "probe.md", f"# {gap.environment}\n\n{markdown(table)}\n{text}\n".encode())
    lines = [] if quiet else [*terminal_lines(table), ""]
    print("\n".join([*lines, paragraph(text)]), flush=True)
