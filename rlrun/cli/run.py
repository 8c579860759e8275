"""Single runs and sweeps: validated, given a directory of their own, started."""

import logging
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli.error_report import SweepStopped, report_job_error
from rlrun.errors import ConfigError, Interrupted, RlrunError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.config import Composer
    from rlrun.schema import Config

_STOPS = (75, Interrupted.exit_code, 143)  # signals: a sweep does not go on after them
_LONGEST_NAME = 255  # bytes in one part of a path


def _quote(value: object) -> str:
    """The value as Hydra's quoted string, interpolations taken literally."""
    text = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
    return "'" + text.replace("${", "\\${") + "'"


def run_single(composer: "Composer", overrides: Sequence[str]) -> int:
    """The exit code of one run."""
    from rlrun.config import check, check_precision, read_composed
    from rlrun.config.checks.unread_keys import check_typed_keys
    from rlrun.config.directories import absolute, claim, require_new, require_writable
    from rlrun.config.hydra_keys import check_values
    from rlrun.config.logging_check import check_logging
    from rlrun.config.presets import name_by_preset, read_presets

    cfg = composer.compose(overrides)
    config = read_presets(composer, cfg, overrides)
    if composer.foreign:
        check_values(config, overrides)
    given = config.run.dir is not None
    path = absolute("run.dir", Path(config.run.dir or composer.directory(cfg, "hydra.run.dir")))
    if given:
        require_new(path)
    require_writable(path)
    check(name_by_preset(config, cfg))
    check_typed_keys(config, overrides)
    check_precision(config)
    check_logging(cfg, path, overrides)
    run_dir = claim(path, exact=given)
    composer.set_directory(cfg, run_dir)
    if run_dir != path:  # another run has that name, which the config may speak of
        config = read_composed(cfg)
    return int(composer.run(partial(run_job, config=config), cfg))


def run_sweep(composer: "Composer", overrides: Sequence[str]) -> int:
    """0 when every job of the sweep ended well, else 1."""
    from rlrun.config.directories import absolute, claim

    cfg = composer.compose(overrides, sweep=True)
    jobs = composer.jobs(cfg)
    names = [_validate_job(composer, cfg, job, num) for num, job in enumerate(jobs)]
    _require_different(names)
    path = absolute("hydra.sweep.dir", composer.directory(cfg, "hydra.sweep.dir"))
    path = claim(path, exact=False)
    extra = [f"hydra.sweep.dir={_quote(path)}"]
    if any(len(part.encode()) > _LONGEST_NAME for name in names for part in name.split("/")):
        extra.append("hydra.sweep.subdir=${hydra.job.num}")
    codes = composer.sweep(run_sweep_job, [*overrides, *extra])
    failed = [f"#{i} (exit {code})" for i, code in enumerate(codes) if code]
    if failed:
        what = f"{len(failed)} of {len(codes)} jobs failed: {', '.join(failed)}"
        print(f"rlrun: {what}", file=sys.stderr)
    return 1 if failed else 0


def _require_different(names: Sequence[str]) -> None:
    """Raise ConfigError when two jobs of a sweep would share a directory."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        wrong = "is the directory of more than one job; a name of its own for each is allowed"
        fix = "put ${hydra.job.num} into it"
        raise ConfigError(f"hydra.sweep.subdir = {twice}: {wrong}; {fix}")


def _validate_job(composer: "Composer", cfg: "DictConfig", job: Sequence[str], num: int) -> str:
    """The directory name of a job that is valid; raises ConfigError for one that is not."""
    from rlrun.config import check, check_precision
    from rlrun.config.directories import check_inside
    from rlrun.config.hydra_keys import check_values, unresolved
    from rlrun.config.logging_check import check_logging
    from rlrun.config.presets import name_by_preset, read_presets

    try:
        composed = composer.compose_job(cfg, job, num)
        config = read_presets(composer, composed, job)
        if config.run.dir is not None:
            wrong = "names the directory of a single run; null is allowed in a sweep"
            raise ConfigError(f"run.dir = {config.run.dir}: {wrong}; use hydra.sweep.dir=PATH")
        if composer.foreign:
            check_values(config, [*unresolved(cfg.hydra.overrides.task), *job])
        check(name_by_preset(config, composed))
        check_precision(config)
        name = str(composer.directory(composed, "hydra.sweep.subdir"))
        check_inside("hydra.sweep.subdir", name)
        check_logging(composed, Path(name), [*unresolved(cfg.hydra.overrides.hydra), *job])
    except RlrunError as e:
        e.args = (f"{e} (sweep job {num}: {' '.join(job)}; no job was started)",)
        raise
    return name


def run_job(cfg: "DictConfig", config: "Config | None" = None) -> int:
    """One run, in the directory Hydra was given; returns its exit code.

    ``config``: ``cfg`` as it was read; None: read from ``cfg`` (a launcher composes its jobs anew).
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from rlrun.config import read_composed, to_yaml
    from rlrun.config.hydra_keys import unresolved

    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    try:
        config, raw_yaml = config or read_composed(cfg), to_yaml(cfg)
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        overrides = unresolved(hydra.overrides.task)
        (run_dir / "config.yaml").write_text(raw_yaml, encoding="utf-8")
        text = OmegaConf.to_yaml(OmegaConf.create(overrides))
        (run_dir / "overrides.yaml").write_text(text, encoding="utf-8")
        from rlrun.run.train import run

        return run(config, run_dir, raw_yaml=raw_yaml, overrides=overrides)
    except Exception as e:
        return report_job_error(e, run_dir)
    finally:
        _close_log(run_dir)


def _close_log(run_dir: Path) -> None:
    """Close the run's log: later records of this process are not of the run."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        directory = isinstance(handler, logging.FileHandler) and Path(handler.baseFilename).parent
        if directory == run_dir:
            root.removeHandler(handler)
            with suppress(OSError):  # a full disk
                handler.close()


def run_sweep_job(cfg: "DictConfig") -> int:
    """Run one job of a sweep: an error ends this job, a signal the sweep."""
    code = run_job(cfg)
    if code in _STOPS:
        raise SweepStopped(code)
    return code
