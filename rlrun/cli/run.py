"""Single runs and sweeps: validated first, then given a directory of their own, then started."""

import logging
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli.report import Stopped, report_job_error
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


def single(composer: "Composer", overrides: Sequence[str]) -> int:
    """The exit code of one run."""
    from rlrun.config import check, check_precision, read_composed
    from rlrun.config.checks.idle import check_typed
    from rlrun.config.chosen import by_preset, read_chosen
    from rlrun.config.directories import claim, require_new, require_writable

    cfg = composer.compose(overrides)
    config = read_chosen(composer, cfg, overrides)
    given = config.run.dir is not None
    path = Path(config.run.dir or composer.directory(cfg, "hydra.run.dir")).expanduser().absolute()
    if given:
        require_new(path)
    require_writable(path)
    check(by_preset(config, cfg))
    check_typed(config, overrides)
    check_precision(config)
    run_dir = claim(path, exact=given)
    composer.set_directory(cfg, run_dir)
    if run_dir != path:  # another run has that name, which the config may speak of
        config = read_composed(cfg)
    return int(composer.run(partial(job, config=config), cfg))


def sweep(composer: "Composer", overrides: Sequence[str]) -> int:
    """0 when every job of the sweep ended well, else 1."""
    from rlrun.config.directories import claim

    cfg = composer.compose(overrides, sweep=True)
    jobs = composer.jobs(cfg)
    names = [_validate_job(composer, cfg, job, num) for num, job in enumerate(jobs)]
    path = claim(composer.directory(cfg, "hydra.sweep.dir").absolute(), exact=False)
    extra = [f"hydra.sweep.dir={_quote(path)}"]
    if any(len(part.encode()) > _LONGEST_NAME for name in names for part in name.split("/")):
        extra.append("hydra.sweep.subdir=${hydra.job.num}")
    codes = composer.sweep(sweep_job, [*overrides, *extra])
    failed = [f"#{i} (exit {code})" for i, code in enumerate(codes) if code]
    if failed:
        what = f"{len(failed)} of {len(codes)} jobs failed: {', '.join(failed)}"
        print(f"rlrun: {what}", file=sys.stderr)
    return 1 if failed else 0


def _validate_job(composer: "Composer", cfg: "DictConfig", job: Sequence[str], num: int) -> str:
    """The directory name of a job that is valid; raises ConfigError for one that is not."""
    from rlrun.config import check, check_precision
    from rlrun.config.chosen import by_preset, read_chosen

    try:
        composed = composer.compose_job(cfg, job, num)
        config = read_chosen(composer, composed, job)
        if config.run.dir is not None:
            wrong = "names the directory of a single run; null is allowed in a sweep"
            raise ConfigError(f"run.dir = {config.run.dir}: {wrong}; use hydra.sweep.dir=PATH")
        check(by_preset(config, composed))
        check_precision(config)
    except RlrunError as e:
        e.args = (f"{e} (sweep job {num}: {' '.join(job)}; no job was started)",)
        raise
    return str(composer.directory(composed, "hydra.sweep.subdir"))


def _as_typed(overrides: Any) -> list[str]:
    """The overrides with their interpolations, which may hide secrets, left as they are."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(overrides, resolve=False)
    return [str(value) for value in values] if isinstance(values, list) else []


def job(cfg: "DictConfig", config: "Config | None" = None) -> int:
    """One run, in the directory Hydra was given; returns its exit code.

    ``config``: ``cfg`` as it was read; None: it is read here (a launcher composes its jobs anew).
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from rlrun.config import read_composed, to_yaml

    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    try:
        config, raw_yaml = config or read_composed(cfg), to_yaml(cfg)
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        overrides = _as_typed(hydra.overrides.task)
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
    """The run's log ends with the run: what its process does afterwards belongs elsewhere."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        here = isinstance(handler, logging.FileHandler) and Path(handler.baseFilename).parent
        if here == run_dir:
            root.removeHandler(handler)
            handler.close()


def sweep_job(cfg: "DictConfig") -> int:
    """One run of a sweep: its errors leave the other jobs alone, a signal ends the sweep."""
    code = job(cfg)
    if code in _STOPS:
        raise Stopped(code)
    return code
