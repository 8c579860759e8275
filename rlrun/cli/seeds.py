"""``rlrun -m … seeds=auto``: seeds are added to the settings of a sweep until they are decided."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rlrun.cli.run import Line
from rlrun.cli.sweep import is_local, run_jobs, scores_of, sweep_directory, validate_job
from rlrun.config import Composer
from rlrun.config.config_errors import config_error
from rlrun.config.directories import claim
from rlrun.config.space import read_settings
from rlrun.errors import ConfigError, printable, storage_errors
from rlrun.reports.bounds import known_bounds
from rlrun.reports.runs import SEEDS, flatten
from rlrun.run.files import read_file, replace_file
from rlrun.schema import Config
from rlrun.schema.override import Override
from rlrun.schema.studies import SeedsConfig
from rlrun.sweeps import seeds


class _Failed(Exception):
    """Raised when jobs failed, which the sweep has reported."""


def _read_seeds(composer: Composer, typed: Sequence[Override]) -> SeedsConfig:
    """Return the settings of seeds=auto. Raises: ConfigError, also if it was not typed."""
    chosen = [o.value for o in typed if o.key == "seeds"]
    if not chosen:
        allowed, fix = "it is read with seeds=auto", "add seeds=auto or leave it out"
        raise config_error(typed[0].name, typed[0].value, "it would change nothing", allowed, fix)
    if chosen != ["auto"]:
        fix = "type seed=range(10) for ten seeds"
        raise config_error("seeds", chosen[-1], "unknown option", "auto is allowed", fix)
    keys = [o for o in typed if o.key != "seeds"]
    settings: SeedsConfig = read_settings(composer, "seeds", keys)
    return settings


def run_auto(line: Line) -> int:
    """Run the sweep until it is decided. Return 0, or 1 if a job failed."""
    composer, quiet = line.composer, line.quiet
    settings = _read_seeds(composer, line.seeds)
    cfg = composer.compose(line.overrides, sweep=True)
    if not is_local(cfg):
        key, fix = "hydra/launcher", "leave hydra/launcher out"
        wrong = "seeds=auto adds jobs to its sweep, which hydra/launcher=local alone does"
        raise ConfigError(f"{key}: {wrong}; {fix}", key=key)
    for override in composer.parse(line.overrides):
        if override.key == "seed" and override.parsed.is_sweep_override():
            wrong, allowed = "seeds=auto chooses the seeds", "seed=FIRST is allowed with seeds=auto"
            raise config_error("seed", override.value, wrong, allowed, "give one")
    arms, configs = list[list[Override]](), list[Config]()
    for i, job in enumerate(composer.jobs(cfg)):
        arm = [o for o in job if o.key != "seed"]
        config = validate_job(composer, cfg, [*arm, f"seed={cfg.seed}"], i).config
        if config not in configs:  # 1e-3 and 0.001 are one setting
            arms.append(arm)
            configs.append(config)
    planned = seeds.plan_seeds(_name(arms, configs), settings, int(cfg.seed))
    path = sweep_directory(line, cfg)
    if line.sweep_dir is None:
        path = claim(path, exact=False, key="sweep.dir")
    else:
        _check_before(path, planned)
    line = replace(line, sweep_dir=str(path))
    typed = [f"seeds.{key}={value}" for key, value in asdict(settings).items()]
    command = ["-m", *line.overrides, "seeds=auto", *typed, f"sweep.dir={path}"]

    def run(places: Sequence[seeds.Place]) -> list[float]:
        wanted = [[*arms[index], f"seed={seed}"] for index, seed in places]
        runs = run_jobs(line, wanted, command, begin=begin)
        if any(run.status != "done" for run in runs):
            raise _Failed
        return scores_of(runs, settings.objective)

    def begin(sweep: Path) -> None:
        if not (sweep / SEEDS).exists():
            _write(sweep, planned)

    def look(result: seeds.SeedsResult) -> None:
        _write(path, result)
        if not quiet:
            print(result.decision.why, flush=True)

    try:
        result = seeds.run_until_decided(planned, run, look)
    except _Failed:
        return 1
    if not quiet:
        print("\n".join(result.lines()), flush=True)
    return 0


def _check_before(path: Path, planned: seeds.SeedsResult) -> None:
    """Raise ConfigError if seeds=auto was begun in a directory with another plan."""
    file = path / SEEDS
    if not file.exists():
        return
    try:
        stored = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError) as e:
        wrong, allowed = "cannot be read", "the plan that seeds=auto wrote is needed"
        text = f"{wrong} ({type(e).__name__}); {allowed}; choose a new directory"
        raise ConfigError(f"{printable(str(file))}: {text}", key="sweep.dir") from e
    seeds.check_plan(stored, planned, str(path))


def _write(path: Path, result: seeds.SeedsResult) -> None:
    """Replace seeds.json. Raises: StorageError."""
    fix = "free space or fix the permissions, then repeat the command"
    with storage_errors(f"{path / SEEDS}:", f"the directory of a sweep must be writable; {fix}"):
        replace_file(path / SEEDS, json.dumps(result.to_dict(), indent=1).encode() + b"\n")


def _name(arms: Sequence[Sequence[str]], configs: Sequence[Config]) -> list[seeds.Setting]:
    """Return the settings, named by the overrides in which they differ."""
    common = set(arms[0]).intersection(*arms) if arms else set()
    settings = []
    for arm, env in zip(arms, (config.env for config in configs), strict=True):
        # A text that is equal for equal environments, however policies see them.
        parts = (env.id, env.kwargs, env.eval_kwargs, list(env.wrappers), env.max_episode_steps)
        task = " ".join(str(part) for part in parts if part)
        bounds = known_bounds(dict(flatten({"env": asdict(env)})))
        name = " ".join(o for o in arm if o not in common)
        settings.append(seeds.Setting(name or "the setting", task, bounds))
    return settings
