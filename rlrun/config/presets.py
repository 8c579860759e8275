"""Errors that name the chosen policy preset and experiment. Torch-free."""

from collections.abc import Sequence
from dataclasses import replace

from omegaconf import DictConfig

from rlrun.config.compose import Composer, read_composed
from rlrun.config.config_errors import UnknownKey
from rlrun.config.hydra_errors import override_key
from rlrun.errors import ConfigError
from rlrun.schema import Config


def read_presets(composer: Composer, cfg: DictConfig, overrides: Sequence[str]) -> Config:
    """Read the dataclasses of the composed ``cfg``.

    Raises: ConfigError, which names the experiment that set an unknown key.
    """
    try:
        return read_composed(cfg)
    except UnknownKey as e:
        experiment = cfg.hydra.runtime.choices.get("experiment")
        group, key = str(e.key).partition(".")[0], str(e.key)
        typed = {override_key(text): text for text in overrides if text[:1] not in "+~"}
        if key in typed or group not in typed or group == key:
            raise
        if experiment is None or not composer.gives(f"experiment/{experiment}", key):
            raise
        raise ConfigError(
            f"experiment = {experiment}: it sets {key}, which {typed[group]} does not have; "
            f"allowed is its own {group}; leave {typed[group]} or the experiment out",
            key="experiment",
        ) from e


def name_by_preset(config: Config, cfg: DictConfig) -> Config:
    """The config for checks, with the preset's name for its policy: rainbow, not dqn."""
    preset = cfg.hydra.runtime.choices.get("policy") or config.policy.name
    return replace(config, policy=replace(config.policy, name=preset))
