"""Checks of an observed action mask. Torch-free."""

from typing import Any

from rlrun.config.config_errors import config_error
from rlrun.schema import Config


def check_mask(config: Config, obs: Any, action: Any) -> None:
    """Raise ConfigError when ``obs`` has a mask that is none of ``action``."""
    from rlrun.functional.masks import MASK, has_mask  # slow to import

    if not config.policy.masks or not has_mask(obs):
        return
    kind, rename = type(action).__name__, "rename the key or correct the mask"
    if kind != "Discrete":
        wrong = f"it observes an {MASK}, its actions are {kind}"
        raise config_error(
            "env.id", config.env.id, wrong, "a mask of Discrete actions is allowed", rename
        )
    found, wanted = obs[MASK].shape, (int(action.n),)
    if found != wanted:
        wrong = f"its observation's {MASK} is of shape {list(found or ())}"
        allowed = f"one number per action, {list(wanted)}, is allowed"
        raise config_error("env.id", config.env.id, wrong, allowed, rename)
    if config.env.frame_stack > 1:
        wrong = f"masks are not stacked, {config.env.id} observes an {MASK}"
        raise config_error(
            "env.frame_stack", config.env.frame_stack, wrong, "1 is allowed", "set it to 1"
        )
