"""A composed job as text, to be run by another process without composing it again."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override

from rlrun.config.compose import Composer, to_yaml

_TEXTS = ("help", "hydra_help")  # of the hydra node, which no job reads


def pack(cfg: DictConfig) -> dict[str, Any]:
    """The composed config of a job, of JSON's types, interpolations unresolved."""
    hydra = OmegaConf.to_container(cfg.hydra, resolve=False, enum_to_str=True)
    assert isinstance(hydra, dict)
    for name in _TEXTS:
        hydra.pop(name, None)
    now = OmegaConf.get_cache(cfg).get("now", {})  # ${now:...} is the same time everywhere
    times = [[list(key), value] for key, value in now.items() if isinstance(key, tuple)]
    return {"config": to_yaml(cfg), "hydra": hydra, "now": times}


def place(packed: dict[str, Any], sweep_dir: Path, subdir: str | None) -> str:
    """The packed job as JSON, with the directory of its sweep; ``subdir``: another name in it."""
    packed["hydra"]["sweep"]["dir"] = str(sweep_dir)
    if subdir is not None:
        packed["hydra"]["sweep"]["subdir"] = subdir
    return json.dumps(packed)


def unpack(text: str) -> DictConfig:
    """The composed config that was packed."""
    packed = json.loads(text)
    setup_globals()
    cfg = OmegaConf.create(packed["config"])
    assert isinstance(cfg, DictConfig)
    node = OmegaConf.structured(HydraConf)
    OmegaConf.set_struct(node, False)  # its files have keys that its class has not
    cfg.hydra = OmegaConf.merge(node, packed["hydra"])
    OmegaConf.set_struct(cfg, True)
    cache: dict[str, Any] = defaultdict(dict)
    cache["now"] = {tuple(key): value for key, value in packed["now"]}
    OmegaConf.set_cache(cfg, cache)
    return cfg


def run_packed(task: TaskFunction, text: str) -> Any:
    """Run ``task`` as Hydra runs a job of a sweep: its directory, logging, callbacks."""
    cfg = unpack(text)
    HydraConfig.instance().set_config(cfg)
    context = HydraContext(config_loader=Composer().hydra.config_loader, callbacks=Callbacks(cfg))
    done = run_job(task, cfg, "hydra.sweep.dir", "hydra.sweep.subdir", context)
    return done.return_value


class Multirun:
    """Hydra's side of a sweep, around its jobs: multirun.yaml and callbacks."""

    def __init__(self, composer: Composer, cfg: DictConfig, sweep_dir: Path) -> None:
        self._name, self._cfg = composer.config_name, cfg
        with flag_override(cfg.hydra, "readonly", False):
            cfg.hydra.sweep.dir, cfg.hydra.mode = str(sweep_dir), RunMode.MULTIRUN
        if not (sweep_dir / "multirun.yaml").exists():
            OmegaConf.save(cfg, sweep_dir / "multirun.yaml")
        self._callbacks = Callbacks(cfg)
        self._callbacks.on_multirun_start(config=cfg, config_name=self._name)

    def end(self) -> None:
        self._callbacks.on_multirun_end(config=self._cfg, config_name=self._name)
