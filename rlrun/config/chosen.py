"""Errors in the words of who typed: policies by the presets they were chosen by. Torch-free."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from omegaconf import DictConfig, OmegaConf

from rlrun.config.compose import Composer
from rlrun.config.messages import HYDRA_ERRORS, override_key
from rlrun.errors import ConfigError


@contextmanager
def as_chosen(composer: Composer, cfg: DictConfig, overrides: Sequence[str]) -> Iterator[None]:
    """Within it a ConfigError about the composed ``cfg`` speaks of policy rainbow, not of the dqn
    that it is, and of the experiment where that brought a key which the rest does not have.
    """
    try:
        yield
    except ConfigError as e:
        with suppress(*HYDRA_ERRORS):  # a name that cannot be resolved may be what is wrong
            choices = OmegaConf.select(cfg, "hydra.runtime.choices") or {}
            text = _preset(str(e), str(OmegaConf.select(cfg, "policy.name")), choices.get("policy"))
            e.args = (_brought(text, composer, choices.get("experiment"), overrides),)
        raise


def _preset(text: str, name: str, preset: str | None) -> str:
    if preset is None or preset == name:
        return text
    text = re.sub(rf"^policy = {name}:", f"policy = {preset}:", text)
    return re.sub(rf"\bpolicy {name}\b", f"policy {preset}", text)


def _brought(
    text: str, composer: Composer, experiment: str | None, overrides: Sequence[str]
) -> str:
    """``text``, or what the experiment has to do with its unknown key."""
    found = re.match(r"(\w+)(\.\S+) = .*?: unknown key;", text)
    if found is None or experiment is None:
        return text
    group, key = found[1], found[1] + found[2]
    typed = {override_key(text): text for text in overrides if text[:1] not in "+~"}
    if key in typed or group not in typed or not composer.gives(f"experiment/{experiment}", key):
        return text
    return (
        f"experiment = {experiment}: it sets {key}, which {typed[group]} does not have; allowed is "
        f"its own {group}; leave {typed[group]} or the experiment out"
    )
