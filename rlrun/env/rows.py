"""NEXT_STEP rows from a Gymnasium vector environment.

Vector environments with SAME_STEP or DISABLED autoreset cannot be converted to NEXT_STEP rows: some
columns would have to be reset while the others take a step. ``make_env`` falls back to ``sync``
for them or raises.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.agents import AgentColumns
from rlrun.env.contract import (
    FLOAT32_MAX,
    KEPT,
    ActionValidator,
    BatchValidator,
    as_number,
    close_error,
    contract_error,
    exception_text,
    info_number_violation,
    info_violation,
    is_ctrl_c,
)
from rlrun.env.diagnostic.vector import LockstepVectorEnv
from rlrun.env.process_settings import (
    SettingsKept,
    StepSettingsKept,
    changes_nothing,
)
from rlrun.env.render import FPS, Draw, draw
from rlrun.env.state import Probe, Unsupported, capture, restore, same_tree
from rlrun.errors import ConfigError, EnvError, NumericError
from rlrun.functional.masks import mask_path
from rlrun.tree import tree_map

_logger = logging.getLogger(__name__)

mask_warned: set[str] = set()  # ids of which it was said in this run that no action was allowed
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
    restarted: np.ndarray | None = None
    """[E] bool: the action was not taken and the open episode is lost; ``obs`` opens another one,
    with reward 0 and both flags False. None: none (env.on_worker_failure)."""
    without_action: int = 0  # environments in an open episode whose mask allows no action


class Env:
    """Rows of a NEXT_STEP vector environment. Base class of the sync and async ones."""

    def __init__(
        self,
        raw: AnyVectorEnv,
        *,
        env_id: str,
        keep_info: tuple[str, ...],
        twin: Callable[[], AnyVectorEnv] | None = None,
    ) -> None:
        """``twin``: makes another vector environment like ``raw``, whose state is saved."""
        self.num_envs = raw.num_envs
        self.obs_space: gym.Space[Any] = raw.single_observation_space
        self.action_space: gym.Space[Any] = raw.single_action_space
        self._raw = raw
        self._id = env_id
        self._keep_info = keep_info
        self._step_settings: Any = nullcontext() if changes_nothing(raw) else StepSettingsKept()
        # Policies number actions from 0, the space from its ``start``.
        self._action_start = np.asarray(getattr(raw.single_action_space, "start", 0))
        self._shift_actions = bool(self._action_start.any())
        self._steps = 0
        self._done = np.zeros(self.num_envs, np.bool_)
        self.inexact: str | None = None  # why the state cannot be restored bit for bit
        self.cut = np.zeros(self.num_envs, np.bool_)  # columns that ``load_state_dict`` reset
        self.restarts = 0  # of environments whose process failed
        self.restarted: np.ndarray | None = None  # [E] bool: in the last step
        self._seed = 0
        self._first_obs: Any = None  # of a reset that replaces the next step
        self.picture: Draw | None = None  # draws environment 0 (``make_env(render=True)``)
        self.fps = FPS  # at which it wants to be shown
        self._twin, self._probe = twin, None if twin is None else Probe(lambda: self._raw, twin)
        self._recording = twin is not None
        self._mask = mask_path(self.obs_space)
        foreign = not isinstance(raw, LockstepVectorEnv)
        self._validate = BatchValidator(self.obs_space, self.num_envs, env_id, bounds=foreign)
        self._validate_action = ActionValidator(self.action_space, self.num_envs)

    def reset(self, *, seed: int) -> Any:
        """Return the first observations [E, ...]; environment i gets seed + i.

        A native vector environment may derive its seeds differently.

        Raises:
            EnvError: the environment violated its contract.
        """
        self._steps, self._seed, self._first_obs = 0, seed, None
        self._done = np.zeros(self.num_envs, np.bool_)
        with SettingsKept():
            obs = self._reset(seed)
        if self._mask is not None:
            self._count_without_action(obs)
        return obs

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
        if self._first_obs is not None:
            return self._open_episodes()
        with self._step_settings:
            obs, reward, terminated, truncated, info = self._advance(action)
        if self._recording:
            row = obs, reward, terminated, truncated
            self._recording = self._probe is not None and self._probe.record(action, *row)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        first, self._done = self._done, terminated | truncated
        reward = np.asarray(reward, np.float32)
        numbers = self._kept(info) if self._keep_info else {}
        if self.restarted is None:
            step = Step(obs, reward, terminated, truncated & ~terminated, first, numbers)
        else:
            step = self._restarted_row(obs, reward, terminated, truncated, first, numbers)
        if self._mask is not None and (count := self._count_without_action(obs)):
            step = replace(step, without_action=count)
        return step

    def _count_without_action(self, obs: Any) -> int:
        """Return how many open episodes allow no action; warn of the first."""
        mask = obs
        for key in self._mask or ():
            mask = mask[key]
        none = ~(np.asarray(mask) != 0).any(-1)
        if none.ndim > 1:  # of each agent
            none = (none & (np.asarray(obs["alive"]) != 0)).any(1)
        none &= ~self._done
        count = int(np.count_nonzero(none))
        if count and self._id not in mask_warned:
            mask_warned.add(self._id)
            message = (
                "its action_mask allows no action in an open episode; all are taken for allowed "
                "there, and collect/without_action counts them; end the episode, or allow an "
                "action that does nothing"
            )
            _logger.warning("%s", self._error(int(none.argmax()), message))
        return count

    def _restarted_row(self, obs: Any, reward: Any, *rest: Any) -> Step:
        """Return the row of a step in which environments were restarted."""
        lost = self.restarted
        assert lost is not None
        terminated, truncated, first, numbers = rest
        terminated, truncated = terminated & ~lost, truncated & ~lost
        self._done = terminated | truncated
        reward = np.where(lost, np.float32(0), reward)
        truncated &= ~terminated
        return Step(obs, reward, terminated, truncated, first | lost, numbers, lost)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Block in which other episodes are played here; the next step opens episodes of its own.

        Those depend on the seed and the number of steps before the block.
        """
        seed, steps = self._seed, self._steps
        yield
        self._seed, self._steps = seed, steps
        with SettingsKept():
            self._cut_all()
        self._done |= self.cut

    def _open_episodes(self) -> Step:
        """Return the row of a reset of all environments that was done before."""
        obs, self._first_obs = self._first_obs, None
        none = np.zeros(self.num_envs, np.bool_)
        first, self._done = np.ones(self.num_envs, np.bool_), none.copy()
        numbers = {key: np.zeros(self.num_envs, np.float32) for key in self._keep_info}
        return Step(obs, np.zeros(self.num_envs, np.float32), none, none.copy(), first, numbers)

    def render(self) -> np.ndarray:
        """Return a picture of environment 0 after its last row, uint8 [H, W, 3].

        Raises: ConfigError: it cannot be drawn.
        """
        assert self.picture is not None, "made without render=True"
        with SettingsKept():
            return draw(self._id, self.picture)

    def close(self) -> None:
        """Release the resources of the environments. Raises: EnvError: they raised."""
        failing = sys.exc_info()[0] is not None  # that error is the one to report
        try:
            with SettingsKept():
                self._raw.close()
        except BaseException as e:
            if is_ctrl_c(e):
                raise
            if failing:
                return
            if isinstance(e, EnvError):
                raise
            raise close_error(self._id, "the vector environment", e) from e

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step; ``inexact`` tells whether it is all of it."""
        with SettingsKept():
            raw = self._raw_state()
        return {
            "seed": self._seed,
            "steps": self._steps,
            "done": self._done.copy(),
            "first_obs": None if self._first_obs is None else tree_map(np.array, self._first_obs),
            "raw": raw,
        }

    def load_state_dict(
        self, state: dict[str, Any] | None, *, entropy: tuple[int, ...] = ()
    ) -> list[str]:
        """Continue from ``state``; return why columns (then in ``cut``) do not.

        The next step of a cut column opens a new episode. None: all columns are cut; ``entropy`` is
        then mixed into the seed, so that no restart repeats the episodes of another.

        Raises:
            EnvError: the environment violated its contract.
        """
        reasons = ["the checkpoint holds no state of the environments"]
        self.cut = np.zeros(self.num_envs, np.bool_)
        with SettingsKept():
            if state is not None:
                self._seed, self._steps = int(state["seed"]), int(state["steps"])
                self._done, self._first_obs = np.array(state["done"], np.bool_), state["first_obs"]
                reasons = self._load_raw(state["raw"])
            else:
                self._seed = _mixed((self._seed, *entropy)) if entropy else self._seed
                self._cut_all()
        self._done |= self.cut
        return reasons

    def _raw_state(self) -> dict[str, Any]:
        """Return the state of the vector environment, or ``reason``: why there is none."""
        if self._twin is None:
            self.inexact = self._no_state()
        elif self.inexact is None:
            try:
                state = capture(self._raw)
                if self._probe is not None:
                    probe, self._probe, self._recording = self._probe, None, False
                    self.inexact = probe.violation()
                if self.inexact is None:
                    return {"state": state}
            except Unsupported as e:
                self.inexact = f"{e}; env.backend=sync may save it"
        return {"reason": self.inexact}

    def _no_state(self) -> str:
        return "it has no state that could be saved"

    def _load_raw(self, state: dict[str, Any]) -> list[str]:
        self._probe, self._recording = None, False
        try:
            if (reason := state.get("reason")) is None:
                self._raw.reset(seed=self._seed)
                restore(self._raw, state["state"])
                if same_tree(capture(self._raw), state["state"]):
                    return []
                reason = "its restored state is not the one that was saved"
        except Unsupported as e:
            reason = str(e)
        self.inexact = reason
        self._cut_all()
        return [reason]

    def _cut_all(self) -> None:
        """Reset all environments, with other episodes than at the run's start."""
        self.cut[:] = True
        seed = _mixed((self._seed, self._steps + 1))
        self._first_obs = tree_map(np.array, self._reset(seed))

    def _reset(self, seed: int) -> Any:
        try:
            obs, _ = self._raw.reset(seed=seed)
        except BaseException as e:
            if is_ctrl_c(e):
                raise
            raise self._vector_error(exception_text(e, "reset")) from e
        self._validate.obs(obs, 0)
        return obs

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = self._raw.step(action)
        except BaseException as e:
            if is_ctrl_c(e):
                raise
            raise self._vector_error(exception_text(e, "step")) from e
        self._validate.obs(obs, self._steps)
        self._validate.reward(reward, self._steps)
        self._validate.flags(terminated, truncated, self._steps)
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

    def _kept(self, info: Any) -> dict[str, np.ndarray]:
        """Return info[key] as float32 [E] for each of ``keep_info``, zero where it is absent."""
        if (message := info_violation(info)) is not None:
            raise self._vector_error(f"{message}; fix the environment")
        return {key: self._info_column(info, key) for key in self._keep_info}

    def _info_column(self, info: dict[str, Any], key: str) -> np.ndarray:
        """Return info[key] of a native vector environment."""
        column = np.zeros(self.num_envs, np.float32)
        values = info.get(key)
        if values is None:
            return column
        present = np.asarray(info.get(f"_{key}", True))
        numeric = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
        if numeric and values.shape == column.shape and (np.abs(values) <= FLOAT32_MAX).all():
            return np.where(present, values, column).astype(np.float32)
        values = list(values) if isinstance(values, list | tuple) or np.ndim(values) else []
        if len(values) != self.num_envs:
            raise self._vector_error(f"info[{key!r}] has no value for each environment")
        for i in np.flatnonzero(np.broadcast_to(present, column.shape)):
            if (message := info_number_violation(key, values[i])) is not None:
                raise self._error(int(i), message)
            column[i] = as_number(values[i])
        return column


def checked_numbers(
    info: dict[str, Any], keys: tuple[str, ...], num_envs: int
) -> dict[str, np.ndarray]:
    """Return the columns [E] of what ``checked.CheckedEnv`` has kept of the infos."""
    numbers = info.get(KEPT, np.zeros((num_envs, len(keys)), np.float32))
    return {key: numbers[:, i] for i, key in enumerate(keys)}


def _mixed(words: tuple[int, ...]) -> int:
    """Return a seed, 0 <= seed < 2^31, made of ``words``."""
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


class SyncEnv(Env):
    """Rows of a SyncVectorEnv, whose environments check themselves (``checked.CheckedEnv``)."""

    @property
    def _sync(self) -> Any:
        """The SyncVectorEnv of ``CheckedEnv``, inside the columns of agents too."""
        return self._raw.joint if isinstance(self._raw, AgentColumns) else self._raw

    def _kept(self, info: Any) -> dict[str, np.ndarray]:
        return checked_numbers(info, self._keep_info, self.num_envs)

    def _reset(self, seed: int) -> Any:
        return self._raw.reset(seed=seed)[0]

    def _advance(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._raw.step(action)

    def _raw_state(self) -> dict[str, Any]:
        states = [env.state_dict() for env in self._sync.envs]
        state = {"environments": states, "autoreset": self._sync._autoreset_envs.copy()}
        if isinstance(self._raw, AgentColumns):
            state["agents"] = self._raw.state_dict()
        self.inexact = self.inexact or next((s["reason"] for s in states if "reason" in s), None)
        return state

    def _load_raw(self, state: dict[str, Any]) -> list[str]:
        sync, columns = self._sync, self.num_envs // self._sync.num_envs
        reasons = [
            env.load_state_dict(s) for env, s in zip(sync.envs, state["environments"], strict=True)
        ]
        lost = np.array([reason is not None for reason in reasons])
        sync._autoreset_envs = np.array(state["autoreset"], np.bool_) | lost
        if isinstance(self._raw, AgentColumns):
            self._raw.load_state_dict(state["agents"], lost)
        self.cut = np.repeat(lost, columns)
        return list(dict.fromkeys(r for r in reasons if r is not None))


class RowsVectorEnv(VectorEnv[Any, Any, Any]):
    """``rlrun.env.Env`` as a ``gymnasium.vector.VectorEnv`` with NEXT_STEP autoreset.

    The step after a ``terminated`` or ``truncated`` one ignores the action and returns the first
    observation of the next episode, with reward 0. Arrays are the caller's. ``info`` holds what
    the rows keep (env.success).
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, rows: Env) -> None:
        self.rows, self.num_envs = rows, rows.num_envs
        self.single_observation_space, self.single_action_space = rows.obs_space, rows.action_space
        self.observation_space: gym.Space[Any] = batch_space(rows.obs_space, rows.num_envs)
        self.action_space: gym.Space[Any] = batch_space(rows.action_space, rows.num_envs)
        self._start = np.asarray(getattr(rows.action_space, "start", 0))

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return first observations [n, ...]; environment i gets ``seed`` + i. Raises: ConfigError.

        None: a seed of the operating system's entropy.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError(
                f"seed = {seed}: is no seed; an integer >= 0, that of the first environment, or "
                "None is allowed; e.g. seed=0"
            )
        return tree_map(np.array, self.rows.reset(seed=int(seed))), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return observations, rewards, terminated, truncated [n, ...] and the kept info."""
        action = np.asarray(actions)
        step = self.rows.step(action - self._start if self._start.any() else action)
        info: dict[str, Any] = {key: np.array(x) for key, x in step.info.items()}
        flags = np.array(step.terminated), np.array(step.truncated)
        return tree_map(np.array, step.obs), np.array(step.reward), *flags, info

    def render(self) -> Any:
        """Return a picture of environment 0, uint8 [height, width, 3].

        Raises: ConfigError: it cannot be drawn.
        """
        if self.rows.picture is None:
            raise ConfigError(
                "env.render: the environment was made without pictures; those of "
                "agent.env(n, render=True) can be drawn; make it so"
            )
        return self.rows.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self.rows.close()
