"""Single runs: validated, given a directory of their own, started."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli.error_report import SweepStopped, report_job_error
from rlrun.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.config import Composer
    from rlrun.schema import Config

_STOPS = (75, Interrupted.exit_code, 143)  # signals: a sweep in one process ends after them


def run_single(composer: "Composer", overrides: Sequence[str]) -> int:
    """The exit code of one run."""
    from rlrun.config import check, check_precision, read_composed
    from rlrun.config.checks.unread_keys import check_typed_keys
    from rlrun.config.directories import absolute, claim, require_new, require_writable
    from rlrun.config.hydra_keys import check_values
    from rlrun.config.logging_check import check_logging
    from rlrun.config.presets import name_by_preset, read_presets

    cfg = composer.compose(overrides)
    if (preset := cfg.hydra.runtime.choices.get("sweep")) is not None:
        wrong = "is for a sweep, this is a single run; sweep=null is allowed"
        raise ConfigError(f"sweep = {preset}: {wrong}; type rlrun -m", key="sweep")
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


def _unresolved(overrides: Any) -> list[str]:
    """The overrides with their interpolations, which may hide secrets, left as they are."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(overrides, resolve=False)
    return [str(value) for value in values] if isinstance(values, list) else []


def write_texts(run_dir: Path, raw_yaml: str, overrides: Sequence[str]) -> None:
    """Write config.yaml and overrides.yaml; a sweep has written those of its jobs already."""
    from omegaconf import OmegaConf

    from rlrun.rundir.durable import replace_file
    from rlrun.rundir.texts import CONFIG

    typed = OmegaConf.to_yaml(OmegaConf.create(list(overrides)))
    for name, text in ((CONFIG, raw_yaml), ("overrides.yaml", typed)):
        path, content = run_dir / name, text.encode("utf-8", "surrogateescape")
        if not path.is_file() or path.read_bytes() != content:
            replace_file(path, content)


def run_job(cfg: "DictConfig", config: "Config | None" = None) -> int:
    """One run, in the directory Hydra was given; returns its exit code.

    ``config``: ``cfg`` as it was read; None: read from ``cfg`` (a launcher composes its jobs anew).
    """
    from hydra.core.hydra_config import HydraConfig

    from rlrun.config import read_composed, to_yaml

    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    try:
        config, raw_yaml = config or read_composed(cfg), to_yaml(cfg)
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        overrides = _unresolved(hydra.overrides.task)
        write_texts(run_dir, raw_yaml, overrides)
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
