"""Python's logging, as the command line of Hydra changes it, tried before anything is written."""

import logging.config
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from rlrun.config.config_errors import config_error
from rlrun.config.hydra_keys import is_hydra_override
from rlrun.config.hydra_state import resolve_hydra_from
from rlrun.errors import ConfigError

_NODES = ("hydra_logging", "job_logging")


def check_logging(cfg: DictConfig, run_dir: Path, overrides: Sequence[str]) -> None:
    """Raise ConfigError unless Python takes the logging that ``overrides`` ask for.

    ``run_dir``: where its files are to be. No file is opened, and no directory made.
    """
    typed = [text for text in overrides if is_hydra_override(text)]
    for name in _NODES:
        if any(name in text for text in typed):
            _check(cfg, name, run_dir)


def _check(cfg: DictConfig, name: str, run_dir: Path) -> None:
    try:
        settings = _resolved(cfg, name, run_dir)
        if settings is None or settings["root"] is None:  # none, as hydra/job_logging=none
            return
        for handler in (settings.get("handlers") or {}).values():
            if "filename" in handler:
                _check_file(name, Path(handler["filename"]), run_dir)
                handler["delay"] = True  # the file is opened with the first message
        logging.config.dictConfig(settings)
    except ConfigError:
        raise
    except Exception as e:  # whatever a formatter or handler raises
        text = " ".join(f"{e} {e.__cause__ or ''}".split())
        allowed = "logging as Python's logging.config has it is allowed"
        raise config_error(
            f"hydra.{name}", "(command line)", text, allowed, "correct hydra.* on the line"
        ) from e


def _resolved(cfg: DictConfig, name: str, run_dir: Path) -> Any:
    runtime = cfg.hydra.runtime
    with read_write(runtime), open_dict(runtime):
        runtime.output_dir = str(run_dir)
        try:
            resolve_hydra_from(cfg)
            return OmegaConf.to_container(cfg.hydra[name], resolve=True)
        finally:
            runtime.output_dir = "???"  # as composed


def _check_file(name: str, path: Path, run_dir: Path) -> None:
    """Raise ConfigError for a log in a directory that there is not, other than the run's."""
    if path.absolute().parent != run_dir.absolute() and not path.absolute().parent.is_dir():
        key, allowed = f"hydra.{name}", "a file of the run directory or an existing one is allowed"
        raise config_error(key, path, "its directory does not exist", allowed, "make it first")
