"""Base class of the actors: a network's step, then a choice of actions."""

from abc import ABC, abstractmethod

import numpy as np

from rlrun.acting.step import ActingNet, Outputs, make_step
from rlrun.schema import ActionValueConfig, ControlConfig, OnPolicyConfig
from rlrun.types import Act, Tree

Chosen = tuple[np.ndarray, dict[str, np.ndarray]]  # actions [E, *A], extras [E, ...]


class NetActor(ABC):
    """Acts with a copy of a network's weights; subclasses choose actions of its outputs."""

    def __init__(
        self,
        net: ActingNet,
        config: ActionValueConfig | OnPolicyConfig | ControlConfig | None,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        """``config``: how rewards are shaped; None: for a network that reads none."""
        self.net_step, self.generator = make_step(net, num_envs), generator
        self.scale = 1.0 if config is None else config.reward_scale
        self.clip = None if config is None else config.reward_clip
        self.extras: dict[str, np.ndarray] = {}

    def refresh(self) -> None:
        self.net_step.refresh()

    def initial_state(self) -> Tree:
        return self.net_step.initial_state()

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
        outputs, state = self.evaluate(obs, first, prev_action, prev_reward, state, explore=explore)
        action, extras = self.choose(outputs, obs, explore)
        return Act(action, extras, state)

    def evaluate(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Outputs:
        """Return the outputs [E, K] that ``act`` chooses actions of, and the next state."""
        self.perturb(explore)
        reward = shape_reward(prev_reward, self.scale, self.clip)
        return self.step(obs, first, prev_action, reward, state)

    def perturb(self, explore: np.ndarray | None) -> None:
        """Draw the weight noise of the next step; most networks have none."""
        return

    def step(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> Outputs:
        """Return the network's outputs [E, K] and the next state; see ``NetStep``."""
        return self.net_step(obs, first, action, reward, state)

    @abstractmethod
    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        """Return actions [E, *A] and extras [E, ...] of outputs [E, K]."""


def shape_reward(reward: np.ndarray, scale: float, clip: float | None) -> np.ndarray:
    """Return scale * reward clipped to [-clip, clip], as ``functional.rows.shape_reward``."""
    scaled = reward if scale == 1 else reward * np.float32(scale)
    return scaled if clip is None else np.clip(scaled, -clip, clip)
