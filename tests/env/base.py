"""What the environments of tests share. Torch-free: worker processes import it."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space


class Env(gym.Env[Any, Any]):
    """Counts its steps in ``t``; an episode starts with ``begin``, then shows ``_obs``."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self._obs(), self._info()

    def begin(self) -> None:
        """Draw what an episode starts with."""

    def _obs(self) -> Any:
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        return {}


class Vector(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments of the two spaces, which reset in the step after the last."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, obs: gym.Space[Any], action: gym.Space[Any]) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = obs, action
        self.observation_space = batch_space(obs, num_envs)
        self.action_space = batch_space(action, num_envs)


def sync_vector(
    num_envs: int, make: Any, mode: str, declared: str = "NEXT_STEP", **kwargs: Any
) -> SyncVectorEnv:
    """A vector of ``make()`` that resets in ``mode`` and says ``declared``."""
    raw = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])
    raw.metadata = {**raw.metadata, "autoreset_mode": AutoresetMode[declared]}
    return raw
