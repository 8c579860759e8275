"""Trained policies from Python."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.api.calls import call, directory_of, errors_of_cli
from rlrun.errors import ConfigError

if TYPE_CHECKING:
    from rlrun.run.agent import Agent


@errors_of_cli
def load(
    run_dir: str | os.PathLike[str],
    weights: str | int = "final",
    *,
    device: str | None = None,
    trust: Sequence[str] = (),
) -> "Agent":
    """Return the agent of a run: its policy with trained weights.

    ``run_dir``: a run directory or a ``Run``. ``weights``: ``final``, ``best`` (those of the best
    evaluation) or the env step of a version that ``checkpoint.history`` kept. ``device``: None:
    that of the run. ``trust``: packages whose code the run's config may name.

    Raises:
        ConfigError: it is no run directory. CheckpointError: it has no such weights, or they are
            damaged. ResourceError: the device is missing.
    """
    path, name = directory_of(run_dir), str(weights)
    with call(trust):
        if name not in ("final", "best") and not (name.isascii() and name.isdecimal()):
            raise ConfigError(
                f"weights = {name[:60]}: unknown; final, best and a number of env steps are "
                'allowed; e.g. weights="best"'
            )
        from rlrun.config import load as load_config

        overrides = [f"device={device}"] if device else []
        load_config(path, overrides, replay=False)  # before torch is imported
        from rlrun.run.agent import load_agent

        return load_agent(path, weights=name, device=device)
