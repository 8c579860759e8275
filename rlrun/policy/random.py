"""Policies that do not learn: their base class, and uniformly random actions, a baseline."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.explore import uniform_actions
from rlrun.functional.masks import allowed_or_none
from rlrun.policy.compute import DEFAULT_COMPUTE, Compute
from rlrun.schema import MemoryConfig, PolicyConfig, RandomConfig, TorsoConfig
from rlrun.types import Act, Actor, Sample, Spec, Tree, Update, Window, generator

C = TypeVar("C", bound=PolicyConfig)


class Unlearned(ABC, Generic[C]):
    """A policy without parameters; its state is that of its generator."""

    window: Window | None = None

    def __init__(
        self,
        config: C,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.config, self.spec = config, spec
        self.seed, self.generator = seed, generator(seed, "explore")
        self.seconds: dict[str, float] = {}

    @abstractmethod
    def actor(self, num_envs: int) -> Actor:
        """An actor for ``num_envs`` environments."""

    def update(self, sample: Sample) -> Update:
        raise AssertionError(f"policy={self.config.name} does not learn")

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError(f"policy={self.config.name} does not learn")

    def weights(self) -> dict[str, Tensor]:
        return {}

    def load(self, weights: dict[str, Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]


class UnlearnedActor(ABC):
    """An actor without weights; evaluations (``explore`` None) have a generator of their own."""

    def __init__(self, explore: np.random.Generator, seed: int) -> None:
        self.explore, self.seed = explore, seed
        self.extras: dict[str, np.ndarray] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reset the generator of evaluations."""
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
        rng = self.evaluate if explore is None else self.explore
        action, state = self.choose(obs, first, state, rng)
        return Act(action, {}, state)

    @abstractmethod
    def choose(
        self, obs: Tree, first: np.ndarray, state: Tree, rng: np.random.Generator
    ) -> tuple[np.ndarray, Tree]:
        """Return actions [E, *A] and the next state."""


class Random(Unlearned[RandomConfig]):
    """Samples from the action space, or from the actions that a mask allows."""

    config_class = RandomConfig  # a subclass inherits its keys

    def actor(self, num_envs: int) -> "RandomActor":
        """An actor of uniform actions."""
        return RandomActor(self.spec, self.generator, self.seed)


class RandomActor(UnlearnedActor):
    """Uniform actions."""

    def __init__(self, spec: Spec, explore: np.random.Generator, seed: int) -> None:
        super().__init__(explore, seed)
        self.space = spec.action

    def choose(
        self, obs: Tree, first: np.ndarray, state: Tree, rng: np.random.Generator
    ) -> tuple[np.ndarray, Tree]:
        mask = allowed_or_none(obs)
        if mask is not None:
            return np.where(mask, rng.random(mask.shape), -1.0).argmax(-1), ()
        return uniform_actions(self.space, len(first), rng), ()
