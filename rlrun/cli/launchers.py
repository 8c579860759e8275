"""The launchers of sweeps: which are ours, what a command line or sweep.json says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.errors import ConfigError
from rlrun.schema.studies import MOST_WORKERS, RayLauncherConfig
from rlrun.sweeps.record import SweepRecord, resume_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlrun.schema import Config

WORKERS = "hydra.launcher.workers"
_LOCAL = "hydra_plugins.rlrun_launcher.LocalLauncher"
_RAY = "hydra_plugins.rlrun_launcher.RayLauncher"
_CHOICE = "hydra/launcher"
_RESOURCES = "hydra.launcher.resources"


def is_local(cfg: "DictConfig") -> bool:
    """True when the sweep runs in our own pool on this machine."""
    return str(cfg.hydra.launcher.get("_target_", "")) == _LOCAL


def is_ours(cfg: "DictConfig") -> bool:
    """True when the sweep runs in a pool of ours, on this machine or on Ray."""
    return is_local(cfg) or str(cfg.hydra.launcher.get("_target_", "")) == _RAY


def check_workers(value: object) -> int | None:
    """Return the value of hydra.launcher.workers. Raises: ConfigError."""
    if value is None or (type(value) is int and 1 <= value <= MOST_WORKERS):
        return value
    most = f"an integer within [1, {MOST_WORKERS}]"
    wrong = f"is no number of jobs; {most}, or null (as many as the cores hold)"
    raise ConfigError(f"{WORKERS} = {value}: {wrong}, is allowed; set {WORKERS}=2", key=WORKERS)


def read_ray(cfg: "DictConfig") -> RayLauncherConfig | None:
    """Return the keys of ``hydra/launcher=ray``, None for another launcher.

    Raises: ConfigError, ResourceError when Ray is not installed.
    """
    if str(cfg.hydra.launcher.get("_target_", "")) != _RAY:
        return None
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
    assert isinstance(values, dict)
    return _read(values)


def _read(values: Mapping[Any, Any]) -> RayLauncherConfig:
    from rlrun.config.config_errors import config_error
    from rlrun.config.ray import has_token, is_loopback, require_ray
    from rlrun.config.reader import read_dataclass

    require_ray("hydra/launcher", "ray")
    keys = {str(k): v for k, v in values.items() if k not in ("_target_", "workers")}
    ray: RayLauncherConfig = read_dataclass(RayLauncherConfig, keys, "hydra.launcher")
    if ray.address is None:
        return ray
    key, host = "hydra.launcher.address", ray.address.rpartition(":")[0].strip("[]")
    if ray.address != "auto" and (not host or "://" in ray.address):
        wrong = "is no host:port of a cluster's head"
        fix = "leave it out for a Ray of our own"
        raise config_error(key, ray.address, wrong, "host:port or auto is allowed", fix)
    if not is_loopback(ray.address) and not has_token():
        wrong = "anyone who reaches an open cluster can run code on it"
        allowed = "a cluster that asks for a token, or one on this machine, is allowed"
        fix = "start it with RAY_AUTH_MODE=token and set RAY_AUTH_MODE and RAY_AUTH_TOKEN here too"
        raise config_error(key, ray.address, wrong, allowed, fix)
    return ray


def open_resources(overrides: Sequence[str]) -> list[str]:
    """``++`` before the custom resources of ``hydra/launcher=ray``, whose names are free."""
    found = []
    for text in overrides:
        key = text.partition("=")[0]
        is_free = key == _RESOURCES or key.startswith(f"{_RESOURCES}.")
        found.append(f"++{text}" if is_free else text)
    return found


def check_devices(ray: RayLauncherConfig, configs: Sequence["Config"]) -> None:
    """Raise ConfigError for jobs on a GPU that reserve none: Ray would hide it from them."""
    device = next((c.device for c in configs if c.device != "cpu"), None)
    if device is not None and not ray.num_gpus:
        wrong = f"the networks are on device = {device}, a job would see no GPU"
        raise ConfigError(
            f"hydra.launcher.num_gpus = 0: {wrong}; 1 is allowed; set hydra.launcher.num_gpus=1",
            key="hydra.launcher.num_gpus",
        )


def split_launcher(
    overrides: Sequence[str], record: SweepRecord, sweep_dir: Path
) -> tuple[int | None, RayLauncherConfig | None, list[str]]:
    """Return what a resume says of the launcher, and the other overrides.

    That is the jobs at a time, None where they are not typed, and the keys of Ray, None for jobs
    of this machine. The launcher and its keys are those of the sweep unless others are typed. The
    address of a cluster must be typed: sweep.json may be a stranger's, and the head of a cluster
    can run code in the processes that connect to it.

    Raises: ConfigError, ResourceError when Ray is not installed.
    """
    from rlrun.config.config_errors import override_key

    typed = [o for o in overrides if override_key(o).startswith(("hydra.launcher.", _CHOICE))]
    own = [o for o in overrides if o not in typed]
    before, keys = record.ray, {override_key(o).removeprefix("hydra.launcher.") for o in typed}
    if not typed and before is None:
        return None, None, own
    cfg = _compose(typed, before)
    workers = check_workers(cfg.hydra.launcher.get("workers"))
    ray = read_ray(cfg)
    if ray is None or before is None:
        return workers, ray, own
    kept = {name: value for name, value in asdict(before).items() if name not in keys}
    if kept.get("address") is not None:
        wrong = "the sweep ran on this cluster, which a file may not choose"
        fix = f"type {resume_line(sweep_dir, before)}"
        raise ConfigError(
            f"hydra.launcher.address = {before.address}: {wrong}; an address that you type is "
            f"allowed; {fix}",
            key="hydra.launcher.address",
        )
    return workers, _read({**asdict(replace(ray, **kept))}), own


def _compose(typed: Sequence[str], before: RayLauncherConfig | None) -> "DictConfig":
    """The config of a sweep by our launchers. Raises: ConfigError for another one."""
    from rlrun.config import Composer
    from rlrun.config.config_errors import override_key

    chosen = [] if before is None else [f"{_CHOICE}=ray"]
    if any(override_key(o) == _CHOICE for o in typed):
        chosen = []
    cfg = Composer().compose(open_resources([*chosen, *typed]), sweep=True)
    if not is_ours(cfg):
        wrong = "it cannot go on with a sweep; local and ray are allowed"
        raise ConfigError(f"{_CHOICE}: {wrong}; leave it out", key=_CHOICE)
    return cfg
