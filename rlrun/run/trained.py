"""The policy of a run, with weights that the run has saved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlrun.build.plan import Plan, make_plan
from rlrun.build.policy import make_policy, prepare_process
from rlrun.config import load
from rlrun.errors import NumericError
from rlrun.rundir import checkpoint, history
from rlrun.rundir.manifest import CHECKPOINTS
from rlrun.types import Policy


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A run's plan, its policy with saved weights, and the env steps these were trained for."""

    plan: Plan
    policy: Policy
    env_steps: int


def load_trained(
    run_dir: Path, *, weights: str = "final", device: str | None = None
) -> TrainedPolicy:
    """The policy of ``run_dir`` with its weights.

    ``weights``: final, best, or the env step of a version that checkpoint.history keeps.
    ``device``: None: that of the run.

    Raises: ConfigError when it is no run directory, CheckpointError when the weights are missing,
        damaged or do not fit the config, NumericError when they are not finite, ResourceError when
        the device is missing.
    """
    config, _ = load(run_dir, [f"device={device}"] if device else [], replay=False)
    plan = make_plan(config)
    prepare_process(plan)
    directory = run_dir / CHECKPOINTS
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    if weights.isdecimal():
        tensors, meta = history.load(directory / history.DIRECTORY, int(weights))
    else:
        name = {"final": "last", "best": "best"}[weights]
        tensors, meta = checkpoint.load_weights(directory / f"{name}.safetensors")
    if bad := next((n for n, x in tensors.items() if not bool(torch.isfinite(x).all())), None):
        raise NumericError(
            f"--weights = {weights}: {bad} of {directory} holds NaN or infinity; rlrun saves "
            "finite weights only; use another version, or train again"
        )
    policy = make_policy(plan)
    with checkpoint.fitting(directory):
        policy.load(tensors)
        return TrainedPolicy(plan, policy, int(meta["env_steps"]))
