"""NEXT_STEP rows out of a Gymnasium vector environment.

A lock-step vector API cannot be turned from SAME_STEP or DISABLED autoreset into NEXT_STEP rows:
it would have to show some columns their reset observation while the others take a step. So only
NEXT_STEP vector environments come here; ``make_env`` falls back to sync or says so.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlrun.env.contract import ActionCheck, BatchCheck, fault, raised
from rlrun.errors import ConfigError, EnvError

Raw = VectorEnv[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """What E environments answer. All arrays may be reused by the next step: copy what stays.

    After a row with ``terminated`` or ``truncated`` (its ``obs`` is the episode's final
    observation) the next step ignores the action and answers the first observation of the next
    episode with reward 0, both flags False, ``first`` True.
    """

    obs: Any  # tree of [E, *O] in native dtypes
    reward: np.ndarray  # [E] float32, raw
    terminated: np.ndarray  # [E] bool: no value after this step
    truncated: np.ndarray  # [E] bool: cut, and not terminated
    first: np.ndarray  # [E] bool: obs opens an episode
    info: dict[str, np.ndarray]  # the keys of keep_info, [E] float32, zero where absent


class Env:
    """A native vector environment (NEXT_STEP) as rows; sync and async ones derive from it."""

    def __init__(self, raw: Raw, *, env_id: str, keep_info: tuple[str, ...]) -> None:
        self.num_envs = raw.num_envs
        self.obs_space: gym.Space[Any] = raw.single_observation_space
        self.action_space: gym.Space[Any] = raw.single_action_space
        self._raw = raw
        self._id = env_id
        self._keep_info = keep_info
        # Policies count actions from 0, whatever the space's first action is called.
        self._start = np.asarray(getattr(raw.single_action_space, "start", 0))
        self._starts = bool(self._start.any())
        self._steps = 0
        self._done = np.zeros(self.num_envs, np.bool_)
        self._check = BatchCheck(self.obs_space, self.num_envs, env_id)
        self._check_action = ActionCheck(self.action_space, self.num_envs)

    def reset(self, *, seed: int) -> Any:
        """The observations [E, ...] that open the first episodes; environment i gets seed + i.

        A native vector environment may spread the seed in its own way.

        Raises:
            EnvError: the environment broke its contract.
        """
        self._steps = 0
        self._done = np.zeros(self.num_envs, np.bool_)
        return self._reset(seed)

    def step(self, action: np.ndarray) -> Step:
        """The next row of every environment; see ``Step``.

        ``action`` [E, *A] is a member of the action space (discrete ones counted from 0) and
        reaches the environment as it is, in the space's dtype: who acts keeps the bounds.

        Raises:
            EnvError: the environment broke its contract, or the action is not of its space.
        """
        self._steps += 1
        action, wrong, index = self._check_action(action)
        if wrong is not None:
            raise self._all_fault(wrong) if index is None else self._fault(index, wrong)
        if self._starts:
            action = action + self._start
        obs, reward, terminated, truncated, info = self._advance(action)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        first, self._done = self._done, terminated | truncated
        reward = np.asarray(reward, np.float32)
        kept = {key: self._column(info, key) for key in self._keep_info}
        return Step(obs, reward, terminated, truncated & ~terminated, first, kept)

    def close(self) -> None:
        """Give back what the environments hold."""
        self._raw.close()

    def _reset(self, seed: int) -> Any:
        try:
            obs, _ = self._raw.reset(seed=seed)
        except Exception as e:
            raise self._all_fault(raised(e, "reset")) from e
        self._check.obs(obs, 0)
        return obs

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = self._raw.step(action)
        except Exception as e:
            raise self._all_fault(raised(e, "step")) from e
        self._check.obs(obs, self._steps)
        self._check.reward(reward, self._steps)
        return obs, reward, terminated, truncated, info

    def _fault(self, index: int, what: str) -> EnvError:
        return fault(self._id, f"environment {index}", self._steps, what)

    def _all_fault(self, what: str) -> EnvError:
        return fault(self._id, f"environments 0 to {self.num_envs - 1}", self._steps, what)

    def _column(self, info: dict[str, Any], key: str) -> np.ndarray:
        """info[key] as float32 [E], zero where no environment gave it."""
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
