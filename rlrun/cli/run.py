"""A line of overrides, and the single run that it starts: validated, given a directory, run.

``new_run`` and ``resume_run`` raise errors; ``rlrun.api`` calls them as well.
"""

import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override

from rlrun.cli import importing_torch
from rlrun.cli.error_report import SweepStopped, exit_code, job_error, line_of
from rlrun.config import Composer, load, read_checked, read_composed, to_yaml
from rlrun.config.checks import check_typed_keys
from rlrun.config.config_errors import config_error
from rlrun.config.directories import absolute, claim
from rlrun.config.hydra_keys import check_logging, typed_overrides
from rlrun.errors import ConfigError, Interrupted, RlrunError
from rlrun.run.branch import checkpoint_at, later_steps
from rlrun.run.files import CONFIG, closed_log, replace_file
from rlrun.run.loading import begin_loading_torch
from rlrun.schema import Config
from rlrun.schema.override import Override, read_overrides, split_node
from rlrun.schema.ranges import format_value
from rlrun.trust import note_typed_env
from rlrun.version import begin_git_state, end_git_state


@dataclass(frozen=True)
class Line:
    """A typed line, read once: the overrides of a run, or of every run of a sweep.

    ``own_process``: False in a user's process.
    """

    composer: Composer
    overrides: list[Override]  # as Hydra composes them
    sweep_dir: str | None = None  # of sweep.dir=PATH
    seeds: tuple[Override, ...] = ()  # seeds=auto and seeds.KEY=VALUE
    quiet: bool = False
    own_process: bool = True

    @property
    def asks_for_sweep(self) -> bool:
        """True if Hydra's own overrides ask for a sweep."""
        if "hydra.mode" not in " ".join(self.overrides):
            return False
        cfg = self.composer.compose(self.overrides, sweep=True)
        return str(cfg.hydra.mode) == "RunMode.MULTIRUN"


def read_line(
    composer: Composer, overrides: Sequence[str], *, quiet: bool, own_process: bool = True
) -> Line:
    """Return the line of these overrides. Raises: ConfigError."""
    sweep, rest = split_node(read_overrides(overrides), "sweep.dir")
    seeds, rest = split_node(rest, "seeds")
    rest = [*open_resources(composer.rewrite(rest)), *silent(quiet)]
    text = sweep[-1].value if sweep else "null"
    path = text.strip("'\"")
    if path == "" or ("," in path and path == text):
        wrong = f"is {'several paths' if path else 'no path'}"
        allowed = "one is allowed, quoted if it holds a comma, that of a sweep adds jobs to it"
        raise config_error("sweep.dir", path, wrong, allowed, "give sweep.dir=PATH")
    sweep_dir = None if text == "null" else path
    return Line(composer, rest, sweep_dir, tuple(seeds), quiet, own_process)


def silent(quiet: bool) -> list[Override]:
    """Return the overrides for which -q stands."""
    return read_overrides(["logger.progress=off"] if quiet else [])


def open_resources(overrides: Sequence[Override]) -> list[Override]:
    """Put ``++`` before the custom resources of ``hydra/launcher=ray``, whose names are free."""
    free = "hydra.launcher.resources"
    return [Override(f"++{o}") if o.startswith(free) else o for o in overrides]


def new_run(line: Line) -> tuple[Path, Callable[[], int]]:
    """Return the directory, made for it, of the run that a line asks for, and what runs it.

    The run is checked. The function returns the exit code.

    Raises: RlrunError.
    """
    if line.seeds:
        typed, wrong = line.seeds[0], "only a sweep adds seeds (rlrun -m)"
        allowed = "settings to compare are needed"
        raise config_error(typed.name, typed.value, wrong, allowed, "add -m")
    if line.sweep_dir is not None:
        fix = f"add -m, or use run.dir={line.sweep_dir}"
        wrong = "only a sweep has it (rlrun -m)"
        raise ConfigError(f"sweep.dir = {line.sweep_dir}: {wrong}; {fix}")
    composer, overrides = line.composer, line.overrides
    if line.own_process:
        begin_loading_torch()
    cfg = composer.compose(overrides)
    if (preset := cfg.hydra.runtime.choices.get("sweep")) is not None:
        wrong = "is for a sweep, this is a single run; none is allowed"
        raise ConfigError(f"sweep = {preset}: {wrong}; type rlrun -m, or leave it out", key="sweep")
    config = read_checked(composer, cfg, overrides)
    check_typed_keys([config], overrides)
    is_set = config.run.dir is not None
    path = absolute("run.dir", Path(config.run.dir or composer.directory(cfg, "hydra.run.dir")))
    check_logging(cfg, path, overrides)
    run_dir = claim(path, exact=is_set)
    with flag_override(cfg.hydra, "readonly", False):
        cfg.hydra.run.dir, cfg.hydra.mode = str(run_dir), RunMode.RUN
    if run_dir != path:  # another run has that name, which the config may speak of
        config = read_composed(cfg)
    job = partial(start_job, config=config, own_process=line.own_process)
    return run_dir, partial(composer.run, job, cfg)


def write_texts(run_dir: Path, raw_yaml: str, overrides: Sequence[str]) -> None:
    """Write config.yaml and overrides.yaml, unless a sweep has written those of its job."""
    typed = OmegaConf.to_yaml(OmegaConf.create([*map(str, overrides)]))
    for name, text in ((CONFIG, raw_yaml), ("overrides.yaml", typed)):
        path, content = run_dir / name, text.encode("utf-8", "surrogateescape")
        if not path.is_file() or path.read_bytes() != content:
            replace_file(path, content)


def start_job(
    cfg: DictConfig,
    config: Config | None = None,
    *,
    own_process: bool = True,
    checked: bool = False,
) -> int | Exception:
    """Run in Hydra's directory. Return the exit code, or the error that ended the run.

    The log of the run contains the error. A raised error is one that Hydra prints. ``config``:
    ``cfg`` as already read; None: read it from ``cfg`` (a launcher composes its jobs again).
    ``own_process``: as for ``Line``. ``checked``: its environment was checked when the sweep
    began.
    """
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    with closed_log(run_dir, own_process=own_process):
        try:
            config, raw_yaml = config or read_composed(cfg), to_yaml(cfg)
            note_typed_env(config.env.id)
            hydra: Any = HydraConfig.instance().cfg
            write_texts(run_dir, raw_yaml, typed_overrides(hydra))
            return _start(config, run_dir, raw_yaml, own_process=own_process)
        except BrokenPipeError as e:
            return e
        except Exception as e:
            if checked and isinstance(e, ConfigError) and isinstance(e.__cause__, ImportError):
                e = e.__cause__  # a package has vanished
            error = job_error(e, run_dir)
            logging.getLogger("rlrun").info("exit %d: %s", error.exit_code, line_of(error))
            return error


def _start(
    config: Config,
    run_dir: Path,
    raw_yaml: str,
    resumed: Sequence[Override] | None = None,
    step: int | None = None,
    *,
    own_process: bool,
) -> int:
    """Begin what other processes do, import torch, and run. Return the exit code."""
    begin_git_state()
    if own_process:
        logging.raiseExceptions = False  # a log on a full disk prints no traceback of every record
    try:
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        with importing_torch() if own_process else nullcontext():
            from rlrun.run.start import Launch, start

        return start(Launch(config, run_dir, raw_yaml, resumed, step, own_process))
    finally:
        end_git_state()


def run_job(cfg: DictConfig, *, in_turn: bool = False) -> int:
    """Run ``start_job`` for a job of a sweep, print the run's error, and return its exit code.

    ``in_turn``: in the process of the sweep, which a signal ends.

    Raises: SweepStopped.
    """
    ended = start_job(cfg, checked=True)
    code = exit_code(ended) if isinstance(ended, Exception) else ended
    if in_turn and code in (75, Interrupted.exit_code, 143):  # signals
        raise SweepStopped(code)
    return code


def resume_run(
    run_dir: Path,
    step: int | None,
    overrides: Sequence[Override],
    *,
    discard: bool = False,
    own_process: bool = True,
) -> int:
    """Continue a run, from the checkpoint of an env step if one is given. Return 0.

    ``discard``: delete the checkpoints after ``step``, if there are any. ``own_process``: as for
    ``Line``.

    Raises: RlrunError, BrokenPipeError.
    """
    config, raw_yaml = load(run_dir, overrides)
    if step is not None:
        later = later_steps(run_dir, checkpoint_at(run_dir, step))
        if later and not discard:
            shown = ", ".join(map(str, later))
            raise ConfigError(
                f"{run_dir}@{step}: going back deletes what is later, the checkpoints of env steps "
                f"{shown} and their records; --discard allows it (from Python discard=True); add "
                f"it, or keep them: rlrun fork {shlex.quote(f'{run_dir}@{step}')} run.dir=NEW"
            )
    path = run_dir.absolute()
    return resume_loaded(path, config, raw_yaml, overrides, step=step, own_process=own_process)


def resume_loaded(
    run_dir: Path,
    config: Config,
    raw_yaml: str,
    overrides: Sequence[Override],
    *,
    step: int | None = None,
    own_process: bool = True,
    origin: Path | None = None,
) -> int:
    """Run ``resume_run`` with the result of ``rlrun.config.load``.

    ``origin``: the run of the checkpoint, if ``run_dir`` is a fork.
    """
    try:
        return _start(config, run_dir, raw_yaml, overrides, step, own_process=own_process)
    except BrokenPipeError:
        raise
    except Exception as e:
        error = _misfit(job_error(e, run_dir), origin or run_dir, overrides)
        raise error from error.__cause__


_SHAPED_BY = {  # parts of a checkpoint, and the groups of the keys that shape them
    "networks": ("policy", "torso", "memory", "env", "agents", "bonus"),
    "environments": ("collector", "env", "agents", "pipeline", "memory", "policy", "torso"),
    "replay": ("buffer", "learner", "policy", "memory", "env", "collector", "agents", "torso"),
}


def _misfit(error: RlrunError, origin: Path, overrides: Sequence[Override]) -> RlrunError:
    """Return the error of a checkpoint that does not fit a typed key, else ``error``."""
    part = getattr(error, "part", None)
    if part is None:
        return error
    saved_config, typed = OmegaConf.create(load(origin)[1]), {}
    for override in overrides:
        key, value = override.key, override.value
        if key.partition(".")[0] in _SHAPED_BY[part]:
            saved = format_value(OmegaConf.select(saved_config, key))
            if saved.replace(" ", "") != value.replace(" ", ""):
                typed[key] = (value, f"{key}={saved}")
    if not typed:
        return error
    values, saved = (", ".join(texts) for texts in zip(*typed.values(), strict=True))
    return ConfigError(
        f"{', '.join(typed)} = {values}: does not fit the {part} that the checkpoint holds, of "
        f"{saved}; keys that change no shape are allowed; leave it out, or start a new run with it",
        key=next(iter(typed)),
    )
