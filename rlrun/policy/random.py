"""Uniformly random actions: the floor every learning curve starts from."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.schema import RandomConfig
from rlrun.types import Act, Sample, Spec, Tree, Update, Window, generator


class Random:
    """Draws from the action space; does not learn."""

    window: Window | None = None

    def __init__(self, config: RandomConfig, *, spec: Spec, seed: int) -> None:
        assert isinstance(spec.action, gym.spaces.Discrete), "checked in rlrun.config"
        self.actions = int(spec.action.n)
        self.generator = generator(seed, "explore")

    def initial_state(self, batch: int) -> Tree:
        return ()

    def act(
        self,
        obs: Tree,
        first: Tensor,
        prev_action: Tensor,
        prev_reward: Tensor,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        """Uniform actions, whatever ``explore`` says."""
        drawn = self.generator.integers(self.actions, size=len(first))
        return Act(torch.from_numpy(drawn), {}, ())

    def update(self, sample: Sample) -> Update:
        raise AssertionError("policy=random does not learn")

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("policy=random does not learn")

    def weights(self) -> dict[str, Tensor]:
        return {}

    def load(self, weights: dict[str, Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
