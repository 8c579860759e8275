"""Single runs: validated, given a directory of their own, started, resumed.

``start_run`` and ``resume_run`` raise errors; ``rlrun.api`` calls them too.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli.error_report import SweepStopped, job_error, log_error, report_job_error
from rlrun.cli.run_log import close_log, run_log
from rlrun.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.config import Composer
    from rlrun.schema import Config

_STOPS = (75, Interrupted.exit_code, 143)  # signals: a sweep in one process ends after them


def start_run(
    composer: "Composer", overrides: Sequence[str], *, own_process: bool = True
) -> tuple[Path, int]:
    """Run in a new directory; return it and the exit code.

    ``own_process``: False when the process is not the run's own, but that of a user's script.

    Raises: RlrunError.
    """
    from rlrun.config import check, check_precision, read_composed
    from rlrun.config.checks.unread_keys import check_typed_keys
    from rlrun.config.directories import absolute, claim, require_new, require_writable
    from rlrun.config.hydra_keys import check_addresses, check_values
    from rlrun.config.logging_check import check_logging
    from rlrun.config.presets import name_by_preset, read_presets

    cfg = composer.compose(overrides)
    if (preset := cfg.hydra.runtime.choices.get("sweep")) is not None:
        wrong = "is for a sweep, this is a single run; sweep=null is allowed"
        raise ConfigError(f"sweep = {preset}: {wrong}; type rlrun -m", key="sweep")
    config = read_presets(composer, cfg, overrides)
    check_addresses(config, overrides)
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
    job = partial(start_job, config=config, own_process=own_process)
    ended: int | Exception = composer.run(job, cfg)
    if isinstance(ended, Exception):
        raise ended
    return run_dir, ended


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


def start_job(
    cfg: "DictConfig", config: "Config | None" = None, *, own_process: bool = True
) -> int | Exception:
    """One run, in the directory Hydra was given; return its exit code, or the error it ended in.

    An error that is raised is one that Hydra prints. ``config``: ``cfg`` as it was read; None: read
    from ``cfg`` (a launcher composes its jobs anew). ``own_process``: as for ``start_run``.
    """
    from hydra.core.hydra_config import HydraConfig

    run_dir = Path(HydraConfig.get().runtime.output_dir)
    try:
        with nullcontext() if own_process else run_log(run_dir):
            return _start_job(cfg, config, run_dir, own_process=own_process)
    except Exception as e:
        return e
    finally:
        close_log(run_dir)


def _start_job(
    cfg: "DictConfig", config: "Config | None", run_dir: Path, *, own_process: bool
) -> int:
    """``start_job`` that raises RlrunError, which the log of the run has, or BrokenPipeError."""
    from hydra.core.hydra_config import HydraConfig

    from rlrun.config import read_composed, to_yaml

    try:
        config, raw_yaml = config or read_composed(cfg), to_yaml(cfg)
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        overrides = _unresolved(HydraConfig.get().overrides.task)
        write_texts(run_dir, raw_yaml, overrides)
        from rlrun.run.train import run

        given: dict[str, Any] = {"raw_yaml": raw_yaml, "overrides": overrides}
        return run(config, run_dir, **given, own_process=own_process)
    except BrokenPipeError:
        raise
    except Exception as e:
        error = job_error(e, run_dir)
        log_error(error)
        raise error from error.__cause__


def run_job(cfg: "DictConfig", config: "Config | None" = None) -> int:
    """``start_job`` that prints the error of the run; return its exit code."""
    ended = start_job(cfg, config)
    return report_job_error(ended, None) if isinstance(ended, Exception) else ended


def resume_run(
    run_dir: Path, step: int | None, overrides: list[str], *, own_process: bool = True
) -> int:
    """Go on with a run, from the checkpoint of an env step where one is given; return 0.

    ``own_process``: as for ``start_run``.

    Raises: RlrunError, BrokenPipeError.
    """
    from rlrun.config import load
    from rlrun.rundir.branch import checkpoint_at

    config, raw_yaml = load(run_dir, overrides)
    if step is not None:
        checkpoint_at(run_dir, step)
    given: dict[str, Any] = {"step": step, "own_process": own_process}
    return resume_loaded(run_dir.absolute(), config, raw_yaml, overrides, **given)


def resume_loaded(
    run_dir: Path,
    config: "Config",
    raw_yaml: str,
    overrides: list[str],
    *,
    step: int | None = None,
    own_process: bool = True,
) -> int:
    """``resume_run`` with what ``rlrun.config.load`` returned."""
    try:
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        from rlrun.run.train import resume

        given: dict[str, Any] = {"raw_yaml": raw_yaml, "overrides": overrides, "step": step}
        return resume(run_dir, config, **given, own_process=own_process)
    except BrokenPipeError:
        raise
    except Exception as e:
        error = job_error(e, run_dir)
        raise error from error.__cause__


def run_sweep_job(cfg: "DictConfig") -> int:
    """Run one job of a sweep: an error ends this job, a signal the sweep."""
    code = run_job(cfg)
    if code in _STOPS:
        raise SweepStopped(code)
    return code
