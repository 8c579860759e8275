"""Errors in the words of who typed: presets and experiments by their names. Torch-free."""

from collections.abc import Sequence
from dataclasses import replace

from omegaconf import DictConfig

from rlrun.config.compose import Composer, read_composed
from rlrun.config.messages import override_key
from rlrun.config.reader import UnknownKey
from rlrun.errors import ConfigError
from rlrun.schema import Config


def read_chosen(composer: Composer, cfg: DictConfig, overrides: Sequence[str]) -> Config:
    """The dataclasses of the composed ``cfg``.

    Raises: ConfigError, which names the experiment where that set a key that the rest lacks.
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


def by_preset(config: Config, cfg: DictConfig) -> Config:
    """The config for checks: its policy has the name of the chosen preset, rainbow, not dqn."""
    preset = cfg.hydra.runtime.choices.get("policy") or config.policy.name
    return replace(config, policy=replace(config.policy, name=preset))
