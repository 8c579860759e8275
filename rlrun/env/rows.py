"""NEXT_STEP rows from a Gymnasium vector environment.

Vector environments with SAME_STEP or DISABLED autoreset cannot be converted to NEXT_STEP rows: some
columns would have to be reset while the others take a step. ``make_env`` falls back to ``sync``
for them or raises.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlrun.env.contract import ActionValidator, BatchValidator, contract_error, exception_text
from rlrun.errors import ConfigError, EnvError, NumericError

AnyVectorEnv = VectorEnv[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one step of E environments. The next step may overwrite its arrays.

    After a row with ``terminated`` or ``truncated`` (its ``obs`` is the episode's final
    observation) the next step ignores the action and returns the first observation of the next
    episode with reward 0, both flags False, ``first`` True.
    """

    obs: Any  # tree of [E, *O] in native dtypes
    reward: np.ndarray  # [E] float32, raw
    terminated: np.ndarray  # [E] bool: no value after this step
    truncated: np.ndarray  # [E] bool: truncated and not terminated
    first: np.ndarray  # [E] bool: obs opens an episode
    info: dict[str, np.ndarray]  # the keys of keep_info, [E] float32, zero where absent


class Env:
    """Rows of a NEXT_STEP vector environment. Base class of the sync and async ones."""

    def __init__(self, raw: AnyVectorEnv, *, env_id: str, keep_info: tuple[str, ...]) -> None:
        self.num_envs = raw.num_envs
        self.obs_space: gym.Space[Any] = raw.single_observation_space
        self.action_space: gym.Space[Any] = raw.single_action_space
        self._raw = raw
        self._id = env_id
        self._keep_info = keep_info
        # Policies number actions from 0, the space from its ``start``.
        self._action_start = np.asarray(getattr(raw.single_action_space, "start", 0))
        self._shift_actions = bool(self._action_start.any())
        self._steps = 0
        self._done = np.zeros(self.num_envs, np.bool_)
        self._validate = BatchValidator(self.obs_space, self.num_envs, env_id)
        self._validate_action = ActionValidator(self.action_space, self.num_envs)

    def reset(self, *, seed: int) -> Any:
        """Return the first observations [E, ...]; environment i gets seed + i.

        A native vector environment may derive its seeds differently.

        Raises:
            EnvError: the environment violated its contract.
        """
        self._steps = 0
        self._done = np.zeros(self.num_envs, np.bool_)
        return self._reset(seed)

    def step(self, action: np.ndarray) -> Step:
        """Return the next row of every environment.

        ``action`` [E, *A] is a member of the action space (discrete actions counted from 0). It is
        passed on in the space's dtype and never clipped.

        Raises:
            EnvError: the environment violated its contract, or the action is not of its space.
            NumericError: the action is NaN or infinite.
        """
        self._steps += 1
        action, violation, index = self._validate_action(action)
        if violation is not None:
            raise self._action_error(action, violation, index)
        if self._shift_actions:
            action = action + self._action_start
        obs, reward, terminated, truncated, info = self._advance(action)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        first, self._done = self._done, terminated | truncated
        reward = np.asarray(reward, np.float32)
        numbers = {key: self._info_column(info, key) for key in self._keep_info}
        return Step(obs, reward, terminated, truncated & ~terminated, first, numbers)

    def close(self) -> None:
        """Release the resources of the environments."""
        self._raw.close()

    def _reset(self, seed: int) -> Any:
        try:
            obs, _ = self._raw.reset(seed=seed)
        except Exception as e:
            raise self._vector_error(exception_text(e, "reset")) from e
        self._validate.obs(obs, 0)
        return obs

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = self._raw.step(action)
        except Exception as e:
            raise self._vector_error(exception_text(e, "step")) from e
        self._validate.obs(obs, self._steps)
        self._validate.reward(reward, self._steps)
        return obs, reward, terminated, truncated, info

    def _error(self, index: int, message: str) -> EnvError:
        return contract_error(self._id, f"environment {index}", self._steps, message)

    def _vector_error(self, message: str) -> EnvError:
        return contract_error(
            self._id, f"environments 0 to {self.num_envs - 1}", self._steps, message
        )

    def _action_error(
        self, action: np.ndarray, violation: str, index: int | None
    ) -> EnvError | NumericError:
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            return NumericError(
                f"policy: {violation.partition(';')[0]} at step {self._steps} of {self._id}: the "
                "policy diverged; its actions must be finite; lower policy.lr or set "
                "policy.grad_clip"
            )
        return self._vector_error(violation) if index is None else self._error(index, violation)

    def _info_column(self, info: dict[str, Any], key: str) -> np.ndarray:
        """Return info[key] as float32 [E], zero for environments without it."""
        column = np.zeros(self.num_envs, np.float32)
        if key in info:
            present = info.get(f"_{key}", np.ones(self.num_envs, np.bool_))
            try:
                column[present] = np.asarray(info[key])[present]
            except (TypeError, ValueError, IndexError) as e:
                raise ConfigError(
                    f"collector.keep_info = {key}: info[{key!r}] of {self._id} is no number per "
                    "environment; only numbers can be kept; remove it"
                ) from e
        return column


class SyncEnv(Env):
    """Rows of a SyncVectorEnv, whose environments check themselves (``contract.Checked``)."""

    def _reset(self, seed: int) -> Any:
        return self._raw.reset(seed=seed)[0]

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._raw.step(action)
