"""Everything the recordings import from rlrun: a renamed module or class changes this file only."""

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.cli.main import main
from rlrun.joint import JointSpace
from rlrun.types import Sample, Segment
from tests.compose import config


def policy_of(overrides: tuple[str, ...], obs: gym.Space[Any], action: gym.Space[Any]) -> Any:
    """The policy of ``rlrun *overrides`` in an environment with these spaces."""
    return make_policy(make_plan(config(*overrides), (obs, action, 1)))


def team_spaces() -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Observations and actions of two agents in joint rows."""
    state = gym.spaces.Box(0, 1, (8,), np.float32)
    joint = JointSpace(gym.spaces.Discrete(4), state, num_agents=2)
    return joint, gym.spaces.MultiDiscrete([2, 2])


def sample_of(rows: dict[str, Any], weight: np.ndarray, env_steps: int) -> Sample:
    """The sample for ``policy.update`` from numpy arrays; ``rows``: the fields of a segment."""
    columns = rows["reward"].shape[1]
    partial = rows.pop("partial", ())
    fields = {name: tensors(x) for name, x in rows.items()}
    segment = Segment(**fields, partial=partial)
    return Sample(segment, torch.from_numpy(weight), np.arange(columns), env_steps)


def tensors(tree: Any) -> Any:
    """The same dict or tuple of tensors that share the arrays' memory."""
    if isinstance(tree, dict):
        return {name: tensors(x) for name, x in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tensors(x) for x in tree)
    return torch.from_numpy(np.ascontiguousarray(tree))


def rlrun(line: list[str]) -> int:
    """The exit code of a command line, run in this process."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        return main(line)
    finally:
        for handler in [h for h in root.handlers if h not in before]:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step_*"))
