"""Uniformly random actions, a baseline."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.functional.explore import uniform_actions
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.policy.compute import DEFAULT_COMPUTE, Compute
from rlrun.schema import MemoryConfig, RandomConfig, TorsoConfig
from rlrun.types import Act, Sample, Spec, Tree, Update, Window, generator


class Random:
    """Samples from the action space; does not learn."""

    config_class = RandomConfig  # a subclass inherits its keys
    window: Window | None = None

    def __init__(
        self,
        config: RandomConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.space, self.masked = spec.action, has_mask(spec.obs)
        self.seed, self.generator = seed, generator(seed, "explore")
        self.seconds: dict[str, float] = {}

    def actor(self, num_envs: int) -> "RandomActor":
        """An actor of uniform actions."""
        return RandomActor(self.space, self.generator, self.seed, masked=self.masked)

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


class RandomActor:
    """Uniform actions; ``masked``: uniform over the allowed ones."""

    def __init__(
        self, space: gym.Space[Any], explore: np.random.Generator, seed: int, *, masked: bool
    ) -> None:
        self.space, self.explore, self.seed, self.masked = space, explore, seed, masked
        self.extras: dict[str, np.ndarray] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reset the generator of evaluations; there are no weights."""
        self.evaluate = generator(self.seed, "evaluate")

    def initial_state(self) -> Tree:
        return ()

    def act(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        """Actions; ``explore`` None (evaluation) uses a generator of its own."""
        rng = self.evaluate if explore is None else self.explore
        if self.masked:
            mask = allowed_actions(obs)
            return Act(np.where(mask, rng.random(mask.shape), -1.0).argmax(-1), {}, ())
        return Act(uniform_actions(self.space, len(first), rng), {}, ())
