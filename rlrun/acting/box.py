"""Acting with bounded real actions: the actors of policy=sac, td3, ddpg and cql_sac."""

from abc import abstractmethod

import numpy as np

from rlrun.acting.actor import Chosen, NetActor
from rlrun.functional.continuous import LOG_STD_BOUNDS
from rlrun.functional.explore import uniform_actions
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.actor_and_critics import ActorNet
from rlrun.schema import ControlConfig
from rlrun.types import Tree


class BoxActor(NetActor):
    """Actions of an actor network in a bounded Box; uniform ones before the first update.

    Evaluations (``explore`` None) take tanh of the first A outputs: mode or mean before tanh.
    """

    def __init__(
        self,
        net: ActorNet,
        config: ControlConfig,
        bounds: ActionBounds,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        super().__init__(net, config, generator, num_envs=num_envs)
        self.net, self.bounds = net, bounds
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        self.learned, self.sigma = bool(self.net.learned), np.float32(self.net.noise.item())

    @abstractmethod
    def sample(self, outputs: np.ndarray) -> np.ndarray:
        """Return exploring actions [E, A] in [-1, 1] of the network's outputs [E, O]."""

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        if explore is None:
            return self.bounds.from_unit(np.tanh(outputs[:, : self.bounds.size])), {}
        space, count = self.bounds.space, len(outputs)
        if not self.learned:
            return uniform_actions(space, count, self.generator), {}
        action = self.bounds.from_unit(self.sample(outputs))
        if explore.any():
            coin = self.generator.random(count) < explore
            uniform = uniform_actions(space, count, self.generator)
            action = np.where(coin.reshape(-1, *[1] * self.bounds.dims), uniform, action)
        return action, {}


class SquashedGaussianActor(BoxActor):
    """tanh(mean + std N(0, 1)); outputs [E, 2 A] are means and log stds (SAC)."""

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(outputs, 2, -1)
        std = np.exp(np.clip(log_std, *LOG_STD_BOUNDS))
        noise = self.generator.standard_normal(mean.shape, np.float32)
        action: np.ndarray = np.tanh(mean + std * noise)
        return action


class GaussianNoiseActor(BoxActor):
    """clip(tanh(outputs) + sigma N(0, 1), -1, 1): exploration of a deterministic policy.

    Source: Fujimoto et al. 2018, section 6.1 (the original DDPG has correlated noise).
    """

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        action: np.ndarray = np.tanh(outputs)
        action += self.sigma * self.generator.standard_normal(action.shape, np.float32)
        return np.clip(action, -1, 1, out=action)
