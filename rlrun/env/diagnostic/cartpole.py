"""CartPole-v1 without velocities; the physics is Gymnasium's vector environment."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.diagnostic.vector import NEXT_STEP_METADATA, SINGLE_METADATA, SingleFromVector


class CartPoleNoVelVectorEnv(VectorEnv[Any, Any, Any]):
    """Observation float32 [2] = (cart position in m, pole angle in rad) of CartPole.

    The velocities have to be inferred from two observations. Reward 1 per step; terminated when
    the pole or the cart leaves its range, truncated after ``max_episode_steps`` (500 as
    registered, as CartPole-v1).
    """

    metadata = NEXT_STEP_METADATA
    _pictures: "CartPolePictures | None" = None

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int | None = None) -> None:
        limit = np.iinfo(np.int32).max if max_episode_steps is None else max_episode_steps
        self._cartpole = CartPoleVectorEnv(num_envs, max_episode_steps=limit)
        full = self._cartpole.single_observation_space
        assert isinstance(full, spaces.Box)
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(full.low[::2], full.high[::2])
        self.single_action_space = self._cartpole.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = self._cartpole.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self._cartpole.reset(seed=seed)
        return np.ascontiguousarray(obs[:, ::2]), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._cartpole.step(actions)
        return np.ascontiguousarray(obs[:, ::2]), reward, terminated, truncated, info

    def picture(self, column: int) -> np.ndarray:
        """Return Gymnasium's picture of a column, uint8 [H, W, 3]."""
        if self._pictures is None:
            self._pictures = CartPolePictures()
        return self._pictures.of(self._cartpole, column)


class CartPolePictures:
    """Gymnasium's pictures of the columns of its vector environment, which draws all of them."""

    def __init__(self) -> None:
        self.single = CartPoleEnv(render_mode="rgb_array")

    def of(self, raw: CartPoleVectorEnv, column: int) -> np.ndarray:
        """Return the picture of a column after its last step, uint8 [H, W, 3]."""
        assert raw.state is not None
        self.single.state = raw.state[:, column]
        image: Any = self.single.render()
        assert isinstance(image, np.ndarray)
        return image


class CartPoleNoVelEnv(SingleFromVector):
    vector = CartPoleNoVelVectorEnv
    metadata = SINGLE_METADATA | {"render_fps": 50}
