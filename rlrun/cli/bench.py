"""``rlrun bench memory``: algorithms and memory cells on memory tasks, one table. Torch-free."""

from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlrun.cli.job_runs import directory_of, run_jobs
from rlrun.config import Composer
from rlrun.config.compose import shipped_conf
from rlrun.config.config_errors import config_error, override_key
from rlrun.config.reader import read_dataclass, read_yaml
from rlrun.config.space import read_settings
from rlrun.errors import ConfigError
from rlrun.reports.document import csv_text, terminal_lines
from rlrun.reports.memory_bench import ABOUT, BenchSetting, bench_markdown, bench_table, raw_lines
from rlrun.reports.runs import RunData, read_run
from rlrun.run.files import replace_file
from rlrun.schema import BenchConfig, BenchTaskConfig
from rlrun.schema.spelling import nearest
from rlrun.sweeps.record import SweepRecord

PAGE, CSV, RAW = "bench.md", "bench.csv", "bench.jsonl"  # what is written into bench.dir
_OWN = ("seed", "run.total_steps", "run.eval_every", "run.stop_value", "run.dir", "sweep.dir")


def bench(args: Namespace) -> int:
    """Run what is missing in bench.dir and write the table; 0, or 1 when a run failed."""
    overrides, config_dir, quick, quiet = args.overrides, args.config_dir, args.quick, args.quiet
    flags = [*["--quick"] * quick, *["-q"] * quiet]
    flags += ["--config-dir", config_dir] if config_dir else []
    composer = Composer(config_dir=config_dir)
    own = [o for o in overrides if override_key(o).partition(".")[0] == "bench"]
    common = [o for o in overrides if o not in own]
    settings: BenchConfig = read_settings(composer, "bench", [])
    settings = read_settings(composer, "bench", [*settings.quick * quick, *own])
    _check_common(common)
    tasks = {name: _task(name) for name in settings.tasks}
    plan = [
        (name, algorithm, cell)
        for name in tasks for algorithm in settings.algorithms for cell in settings.cells
    ]  # fmt: skip
    shared = [o for o in common if override_key(o).startswith("hydra")]  # of the launcher
    first = int(composer.compose([o for o in common if override_key(o) == "seed"]).seed)
    seeds = range(first, first + settings.seeds)
    rest = [o for o in common if o not in shared and override_key(o) != "seed"]
    jobs = [  # keys of a policy are known beside its name only
        composer.rewrite([*_words(tasks[name], settings), f"policy={algorithm}", f"memory={cell}",
                          *rest, f"seed={seed}"])
        for name, algorithm, cell in plan for seed in seeds
    ]  # fmt: skip
    path = directory_of(settings.dir, "bench.dir")
    words = [o for o in own if override_key(o) != "bench.dir"]
    command = ["bench", "memory", *flags, *words, f"bench.dir={path}", *common]
    silent = ["logger.progress=off"] if quiet else []
    run_jobs(composer, [*shared, *silent], jobs, path, command, quiet=quiet)
    return _write(path, _settings(composer, path), quiet=quiet)


def _settings(composer: Composer, path: Path) -> list[BenchSetting]:
    """All settings that have runs in bench.dir, those of earlier commands too.

    Where they differ in more than task, policy and memory, the cell's name says in what.
    """
    tasks = {tuple(composer.rewrite(_task(name).overrides)): name for name in _known()}
    groups: dict[tuple[str, str, str, frozenset[str]], list[RunData]] = {}
    for job in SweepRecord.read(path).jobs:
        keys = [override_key(o) for o in job.overrides]
        at = keys.index("run.total_steps") if "run.total_steps" in keys else 0
        task = tasks.get(tuple(job.overrides[:at]))
        rest = dict(zip(keys[at:], job.overrides[at:], strict=True))
        if task is None or not rest.keys() >= {"policy", "memory", "seed"}:
            continue  # of another command
        policy, cell, _ = (rest.pop(k).partition("=")[2] for k in ("policy", "memory", "seed"))
        rest.pop("run.eval_every", None)  # it follows from the budget
        key = task, policy, cell, frozenset(rest.values())
        groups.setdefault(key, []).append(read_run(path / job.name))
    shared = frozenset.intersection(*(key[3] for key in groups)) if groups else frozenset[str]()
    budgets: dict[str, set[str]] = {}
    for task, *_, words in groups:
        budgets.setdefault(task, set()).update(filter(_is_budget, words))
    found = []
    for (task, algorithm, cell, words), runs in groups.items():
        own = (o for o in words - shared if not _is_budget(o) or len(budgets[task]) > 1)
        name = " ".join([cell, *sorted(own)])
        found.append(BenchSetting(task, algorithm, name, _task(task).random, runs))
    return found


def _is_budget(override: str) -> bool:
    return override_key(override) == "run.total_steps"


def _write(path: Path, found: Sequence[BenchSetting], *, quiet: bool) -> int:
    table = bench_table(found, {setting.task: _task(setting.task).published for setting in found})
    for name, text in ((PAGE, bench_markdown(table)), (CSV, csv_text(table)),
                       (RAW, raw_lines(found))):  # fmt: skip
        replace_file(path / name, text.encode())
    if not quiet:
        print("\n".join([*terminal_lines(table), "", ABOUT, f"table: {path / PAGE}"]), flush=True)
    return int(any(len(setting.scored) < len(setting.runs) for setting in found))


@cache
def _known() -> dict[str, Any]:
    """The tasks of conf/bench_tasks.yaml."""
    known = OmegaConf.to_container(OmegaConf.create(read_yaml(shipped_conf() / "bench_tasks.yaml")))
    assert isinstance(known, dict)
    return {str(name): task for name, task in known.items()}


def _task(name: str) -> BenchTaskConfig:
    """The task of that name in conf/bench_tasks.yaml. Raises: ConfigError."""
    known = _known()
    if name not in known:
        close = nearest(name, [*known], 1)
        fix = f"did you mean {close[0]}?" if close else "choose one"
        raise config_error("bench.tasks", name, "no such task", ", ".join(known), fix)
    task: BenchTaskConfig = read_dataclass(BenchTaskConfig, known[name], f"bench.tasks.{name}")
    return task


def _words(task: BenchTaskConfig, settings: BenchConfig) -> list[str]:
    """The overrides of every run of a task: a fixed budget, evaluated at equal distances."""
    steps = settings.steps or task.steps
    every = max(1, steps // settings.evaluations)
    budget = [f"run.total_steps={steps}", f"run.eval_every={every}", "run.stop_value=null"]
    return [*task.overrides, *budget]


def _check_common(common: Sequence[str]) -> None:
    """Raise ConfigError for keys that the benchmark itself sets, and for sweeps over values."""
    for text in common:
        key = override_key(text)
        if key in (*_OWN[1:], "policy", "memory", "env", "sweep"):
            allowed = "bench.algorithms, bench.cells, bench.tasks, bench.steps and bench.dir do"
            raise ConfigError(
                f"{key} = {text.partition('=')[2]}: the benchmark chooses it; {allowed}; use them",
                key=key,
            )
