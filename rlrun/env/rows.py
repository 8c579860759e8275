"""NEXT_STEP rows: the row maker ``Env`` over copies of an environment or a native vector.

``workers.Copies`` steps copies one after the other, ``workers.Workers`` in separate processes, and
``NativeVector`` wraps a vector environment of Gymnasium. Vector environments with SAME_STEP or
DISABLED autoreset cannot be converted to NEXT_STEP rows: some columns would have to be reset while
the others take a step. For them ``make_env`` falls back to ``sync`` or raises.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env import contract
from rlrun.env.diagnostic.vector import LockstepVectorEnv
from rlrun.env.process_settings import SettingsKept, changes_nothing
from rlrun.env.state import Probe, Unsupported, capture, mixed_seed, restore_exactly
from rlrun.errors import ConfigError, EnvError, NumericError, ResourceError
from rlrun.functional.masks import mask_path
from rlrun.spaces import tree_map
from rlrun.video.files import install_pygame

_logger = logging.getLogger(__name__)
mask_warned: set[str] = set()  # ids for which this run has warned that no action is allowed
AnyVectorEnv = VectorEnv[Any, Any, Any]
Rows = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]
"""Observations [E, ...], reward, terminated, truncated [E], and ``KEPT`` numbers [E, K] if any."""
RGB = "rgb_array"
FPS = 30.0  # for environments that declare none
Draw = Callable[[], Any]
NotContinued = tuple[list[str], np.ndarray]
"""Why columns do not continue from a loaded state, and which ones [E] bool."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one step of E environments. The next step may overwrite its arrays.

    After a row with ``terminated`` or ``truncated``, whose ``obs`` is the episode's final
    observation, the next step ignores the action. It returns the first observation of the next
    episode with reward 0, both flags False and ``first`` True.
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


class RowSource(Protocol):
    """E environments that reset NEXT_STEP and validate their returns."""

    num_envs: int
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    resting: frozenset[int] = frozenset()
    """Environments that need not step before the next reset: their rows are not read."""
    inexact: str | None = None
    """Why the state cannot be restored bit for bit, or None."""
    restarts: int = 0
    """Number of environments whose process was restarted."""
    restarted: np.ndarray | None = None
    """[E] bool: restarted in the last step, without reward and flags; None: none."""

    def reset(self, seed: int) -> Any:
        """Return first observations [E, ...]; environment i gets seed + i."""

    def step(self, action: np.ndarray, number: int) -> Rows:
        """Return the next row. ``number`` counts steps since the reset, for messages."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step."""

    def load_state_dict(self, state: dict[str, Any], *, seed: int, steps: int) -> NotContinued:
        """Continue from ``state``."""

    def close(self) -> None:
        """Release the resources."""


class Env:
    """NEXT_STEP rows of E environments."""

    def __init__(self, source: RowSource, *, env_id: str, keep_info: tuple[str, ...]) -> None:
        self.num_envs = source.num_envs
        self.obs_space = source.single_observation_space
        self.action_space = source.single_action_space
        self._source, self._id, self._keep_info = source, env_id, keep_info
        quiet = changes_nothing(source)
        self._step_settings: Any = nullcontext() if quiet else SettingsKept()
        # Policies number actions from 0, the space from its ``start``.
        self._action_start = np.asarray(getattr(self.action_space, "start", 0))
        self._shift_actions = bool(self._action_start.any())
        self._steps = self._seed = 0
        self._done = np.zeros(self.num_envs, np.bool_)
        self.cut = np.zeros(self.num_envs, np.bool_)  # columns that ``load_state_dict`` reset
        self._first_obs: Any = None  # observation of a reset that replaces the next step
        self.picture: Draw | None = None  # draws environment 0 (``make_env(render=True)``)
        self.fps = FPS  # at which it wants to be shown
        self._mask = mask_path(self.obs_space)
        self._validate_action = contract.ActionValidator(self.action_space, self.num_envs)

    @property
    def inexact(self) -> str | None:
        """Why the state cannot be restored bit for bit, or None."""
        return self._source.inexact

    @property
    def restarts(self) -> int:
        """Number of environments whose process failed and was restarted."""
        return self._source.restarts

    @property
    def native(self) -> AnyVectorEnv | None:
        """The vector environment whose rows these are, or None."""
        return self._source.env if isinstance(self._source, NativeVector) else None

    @property
    def continues(self) -> bool:
        """Whether the next row comes from ``native`` as it is, not from an earlier reset."""
        return self._first_obs is None

    def rest(self, columns: np.ndarray) -> None:
        """Do not step ``columns`` [E], whose rows are not read, until the next reset.

        Only copies of an environment can rest. Their rows repeat the last one, with reward 0.
        """
        self._source.resting = frozenset(np.flatnonzero(columns).tolist())

    def stepped(self, rows: int, done: np.ndarray) -> None:
        """Count ``rows`` steps of ``native`` that were not made here.

        ``done`` [E]: whether the last one ended an episode.
        """
        self._steps += rows
        self._done = done.copy()
        if isinstance(self._source, NativeVector) and self._source.probe is not None:
            self._source.probe.recording = False  # the next steps are unknown

    def reset(self, *, seed: int) -> Any:
        """Return the first observations [E, ...]; environment i gets seed + i.

        A native vector environment may derive its seeds differently.

        Raises:
            EnvError: the environment violated its contract.
        """
        self._steps, self._seed, self._first_obs = 0, seed, None
        self._done = np.zeros(self.num_envs, np.bool_)
        with SettingsKept():
            obs = self._source.reset(seed)
        if self._mask is not None:
            self._count_without_action(obs)
        return obs

    def step(self, action: np.ndarray) -> Step:
        """Return the next row of every environment.

        ``action`` [E, *A] is in the action space (discrete actions counted from 0). It is passed on
        in the space's dtype and never clipped.

        Raises:
            EnvError: the environment violated its contract, or the action is not in its space.
            NumericError: the action is NaN or infinite.
        """
        self._steps += 1
        action, violation, index = self._validate_action(action)
        if violation is not None:
            raise self._action_error(action, violation, index)
        if self._shift_actions:
            action = action + self._action_start
        if self._first_obs is not None:  # of an earlier reset of all environments
            obs, self._first_obs = self._first_obs, None
            none = np.zeros(self.num_envs, np.bool_)
            first, self._done = np.ones(self.num_envs, np.bool_), none.copy()
            reward = np.zeros(self.num_envs, np.float32)
            return Step(obs, reward, none, none.copy(), first, self._numbers({}))
        with self._step_settings:
            obs, reward, terminated, truncated, info = self._source.step(action, self._steps)
        reward = np.asarray(reward, np.float32)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        first, lost = self._done, self._source.restarted
        first = first if lost is None else first | lost
        self._done = terminated | truncated
        numbers = self._numbers(info) if self._keep_info else {}
        step = Step(obs, reward, terminated, truncated & ~terminated, first, numbers, lost)
        if self._mask is not None and (count := self._count_without_action(obs)):
            step = replace(step, without_action=count)
        return step

    def _numbers(self, info: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns [E] of the numbers kept of the infos, zero if there are none."""
        numbers = info.get(contract.KEPT)
        if numbers is None:
            numbers = np.zeros((self.num_envs, len(self._keep_info)), np.float32)
        return {key: numbers[:, i] for i, key in enumerate(self._keep_info)}

    def _count_without_action(self, obs: Any) -> int:
        """Return how many open episodes allow no action. Warn at the first."""
        mask = obs
        for key in self._mask or ():
            mask = mask[key]
        none = ~(np.asarray(mask) != 0).any(-1)
        if none.ndim > 1:  # masks of each agent
            none = (none & (np.asarray(obs["alive"]) != 0)).any(1)
        none &= ~self._done
        count = int(np.count_nonzero(none))
        if count and self._id not in mask_warned:
            mask_warned.add(self._id)
            message = (
                "its action_mask allows no action in an open episode; all count as allowed "
                "there, and collect/without_action counts them; end the episode, or allow an "
                "action that does nothing"
            )
            _logger.warning("%s", self._error(int(none.argmax()), message))
        return count

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the environments to the block. The next step opens new episodes.

        The new episodes depend on the seed and on the number of steps before the block.
        """
        seed, steps = self._seed, self._steps
        yield
        self._seed, self._steps = seed, steps
        with SettingsKept():
            self._cut_all()
        self._done |= self.cut

    def render(self) -> np.ndarray:
        """Return a picture of environment 0 after its last row, uint8 [H, W, 3].

        Raises: ConfigError if it cannot be drawn.
        """
        assert self.picture is not None, "made without render=True"
        with SettingsKept():
            return draw(self._id, self.picture)

    def close(self) -> None:
        """Release the resources of the environments. Raises: EnvError if their close() raised."""
        failing = sys.exc_info()[0] is not None  # that error is the one to report
        try:
            with SettingsKept():
                self._source.close()
        except BaseException as e:
            contract.pass_ctrl_c(e)
            if failing:
                return
            if isinstance(e, EnvError):
                raise
            raise contract.close_error(self._id, "the vector environment", e) from e

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step. ``inexact`` says whether it is complete."""
        with SettingsKept():
            source = self._source.state_dict()
        return {
            "seed": self._seed,
            "steps": self._steps,
            "done": self._done.copy(),
            "first_obs": None if self._first_obs is None else tree_map(np.array, self._first_obs),
            "source": source,
        }

    def load_state_dict(
        self, state: dict[str, Any] | None, *, entropy: tuple[int, ...] = ()
    ) -> list[str]:
        """Continue from ``state``. Return why columns, those in ``cut``, do not continue.

        The next step of a cut column opens a new episode. ``state`` None: all columns are cut, and
        ``entropy`` is mixed into the seed so that restarts do not repeat each other's episodes.

        Raises:
            EnvError: the environment violated its contract.
        """
        with SettingsKept():
            if state is not None:
                self._seed, self._steps = int(state["seed"]), int(state["steps"])
                self._done, self._first_obs = np.array(state["done"], np.bool_), state["first_obs"]
                progress = {"seed": self._seed, "steps": self._steps}
                reasons, self.cut = self._source.load_state_dict(state["source"], **progress)
            else:
                reasons = ["the checkpoint holds no state of the environments"]
                self._seed = mixed_seed((self._seed, *entropy)) if entropy else self._seed
                self.cut = np.ones(self.num_envs, np.bool_)
            if self.cut.all():
                self._cut_all()
        self._done |= self.cut
        return reasons

    def _cut_all(self) -> None:
        """Reset all environments, with other episodes than at the run's start."""
        self.cut[:] = True
        seed = mixed_seed((self._seed, self._steps + 1))
        self._first_obs = tree_map(np.array, self._source.reset(seed))

    def _error(self, index: int | None, message: str) -> EnvError:
        """Return the error of environment ``index``, or of all."""
        which = range(self.num_envs) if index is None else [index]
        return contract.contract_error(self._id, which, self._steps, message)

    def _action_error(
        self, action: np.ndarray, violation: str, index: int | None
    ) -> EnvError | NumericError:
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            return NumericError(
                f"policy: {violation.partition(';')[0]} at step {self._steps} of {self._id}: it "
                "diverged; actions must be finite; lower policy.lr or set policy.max_grad_norm"
            )
        return self._error(index, violation)


class NativeVector(RowSource):
    """A vector environment of Gymnasium with NEXT_STEP autoreset, validated."""

    def __init__(
        self,
        env: AnyVectorEnv,
        *,
        env_id: str,
        keep_info: tuple[str, ...],
        resumable: bool = False,
        twin: Callable[[], AnyVectorEnv] | None = None,
    ) -> None:
        """``resumable``: its state is saved. ``twin``: makes another, to check that once."""
        self.env, self.num_envs = env, env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self._id, self._keep_info, self._steps = env_id, keep_info, 0
        self._savable = resumable
        tested = isinstance(env, LockstepVectorEnv)  # bounds and saved states of rlrun's own
        self._twin = None if tested else twin  # None once another one was compared
        self.probe: Probe | None = None
        self._validator = contract.ObservationValidator(
            self.single_observation_space, env_id,
            num_envs=self.num_envs, integers=not tested, floats=not tested,
        )  # fmt: skip

    def reset(self, seed: int) -> Any:
        self._steps = 0
        obs, _ = self._called(self.env.reset, seed=seed)
        if (fault := self._validator.fault(obs)) is not None:
            raise self._fault_error(fault)
        if self._twin is not None:
            with suppress(Unsupported):  # ``state_dict`` reports why
                self.probe = Probe(capture(self.env), self._twin)
        return obs

    def step(self, action: np.ndarray, number: int) -> Rows:
        self._steps = number
        row = self._called(self.env.step, action)
        obs, reward, terminated, truncated, info = row
        if (fault := contract.batch_fault(row[:4], self._validator, self.num_envs)) is not None:
            raise self._fault_error(fault)
        if self.probe is not None:
            self.probe.record(action, *row[:4])
        if not self._keep_info:
            return obs, reward, terminated, truncated, {}
        if (message := contract.info_violation(info)) is not None:
            raise self._error(f"{message}; fix the environment")
        numbers = np.stack([self._info_column(info, key) for key in self._keep_info], 1)
        return obs, reward, terminated, truncated, {contract.KEPT: numbers}

    def _called(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except BaseException as e:
            contract.pass_ctrl_c(e)
            if isinstance(e, EnvError):
                raise
            raise self._error(contract.exception_text(e, method.__name__)) from e

    def _fault_error(self, fault: contract.Fault) -> EnvError:
        """Return the error of a violation of the contract by one environment or all."""
        message, index = fault
        fix = "fix the environment" + (" or set env.backend=sync" if index is None else "")
        return self._error(f"{message}; {fix}", index)

    def _error(self, message: str, index: int | None = None) -> EnvError:
        which = range(self.num_envs) if index is None else [index]
        return contract.contract_error(self._id, which, self._steps, message)

    def _info_column(self, info: dict[str, Any], key: str) -> np.ndarray:
        """Return info[key] as float32 [E], zero where it is absent."""
        column = np.zeros(self.num_envs, np.float32)
        values = info.get(key)
        if values is None:
            return column
        present = np.asarray(info.get(f"_{key}", True))
        numeric = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
        if (
            numeric
            and values.shape == column.shape
            and (np.abs(values) <= contract.FLOAT32_MAX).all()
        ):
            return np.where(present, values, column).astype(np.float32)
        values = list(values) if isinstance(values, list | tuple) or np.ndim(values) else []
        if len(values) != self.num_envs:
            raise self._error(f"info[{key!r}] has no value for each environment")
        for i in np.flatnonzero(np.broadcast_to(present, column.shape)):
            if (message := contract.info_number_violation(key, values[i])) is not None:
                raise self._error(message, int(i))
            column[i] = contract.as_number(values[i])
        return column

    def state_dict(self) -> dict[str, Any]:
        if not self._savable:
            self.inexact = "it has no state that could be saved"
        elif self.inexact is None:
            try:
                state = capture(self.env)
                if self.probe is not None:
                    self.inexact = self.probe.violation()
                    self.probe = self._twin = None
                if self.inexact is None:
                    return {"state": state}
            except Unsupported as e:
                self.inexact = f"{e}; env.backend=sync may save it"
        return {"reason": self.inexact}

    def load_state_dict(self, state: dict[str, Any], *, seed: int, steps: int) -> NotContinued:
        self.probe, self._twin, self._steps = None, None, steps
        try:
            if (reason := state.get("reason")) is None:
                restore_exactly(self.env, state["state"], seed)
                return [], np.zeros(self.num_envs, np.bool_)
        except Unsupported as e:
            reason = str(e)
        self.inexact = reason
        return [reason], np.ones(self.num_envs, np.bool_)

    def close(self) -> None:
        self.env.close()


class RowsVectorEnv(VectorEnv[Any, Any, Any]):
    """``rlrun.env.Env`` as a ``gymnasium.vector.VectorEnv`` with NEXT_STEP autoreset.

    The step after a ``terminated`` or ``truncated`` one ignores the action and returns the first
    observation of the next episode, with reward 0. Returned arrays are not overwritten. ``info``
    holds the numbers kept in rows (env.success).
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, rows: Env) -> None:
        self.rows, self.num_envs = rows, rows.num_envs
        self.single_observation_space, self.single_action_space = rows.obs_space, rows.action_space
        self.observation_space: gym.Space[Any] = batch_space(rows.obs_space, rows.num_envs)
        self.action_space: gym.Space[Any] = batch_space(rows.action_space, rows.num_envs)
        self._start = np.asarray(getattr(rows.action_space, "start", 0))

    def reset(self, *, seed: Any = None, options: Any = None) -> contract.ResetResult:
        """Return first observations [n, ...]. Environment i gets ``seed`` + i; None: a random seed.

        Raises: ConfigError.
        """
        if seed is None:
            seed = mixed_seed()
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError(
                f"seed = {seed}: is not a seed; an integer >= 0, that of the first environment, or "
                "None is allowed; e.g. seed=0"
            )
        return tree_map(np.array, self.rows.reset(seed=int(seed))), {}

    def step(self, actions: Any) -> contract.VectorResult:
        """Return observations, rewards, terminated, truncated [n, ...] and the kept info."""
        action = np.asarray(actions)
        step = self.rows.step(action - self._start if self._start.any() else action)
        info: dict[str, Any] = {key: np.array(x) for key, x in step.info.items()}
        flags = np.array(step.terminated), np.array(step.truncated)
        return tree_map(np.array, step.obs), np.array(step.reward), *flags, info

    def render(self) -> Any:
        """Return a picture of environment 0, uint8 [height, width, 3].

        Raises: ConfigError if it cannot be drawn.
        """
        if self.rows.picture is None:
            raise ConfigError(
                "env.render: the environment was made without pictures; those of "
                "agent.env(n, render=True) can be drawn; make it so"
            )
        return self.rows.render()

    def close_extras(self, **kwargs: Any) -> None:
        self.rows.close()


# -- pictures --------------------------------------------------------------------------------------


def require_renderable(env_id: str, env: Any) -> None:
    """Raise ConfigError unless an environment, or what it wraps, renders arrays."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or []
    if RGB not in modes:
        raise ConfigError(
            f"env.id = {env_id}: it cannot be drawn (its render_modes are {list(modes)}); allowed "
            f"are environments that render {RGB}; add render() to it, or watch another"
        )


def frames_per_second(env: Any) -> float:
    """Return the frame rate that an environment declares."""
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(fps) if isinstance(fps, int | float) and 0 < fps < 1e4 else FPS


def draw(env_id: str, picture: Draw) -> np.ndarray:
    """Return a picture, uint8 [H, W, 3].

    Raises: ConfigError if it cannot be drawn, for example without a package or a display.
    """
    try:
        image = picture()
    except (ImportError, gym.error.DependencyNotInstalled) as e:
        install = install_pygame() or "pip install 'rlrun[video]'"
        raise ResourceError(
            f"env.id = {env_id}: its picture needs a package that is not installed "
            f"({contract.missing_text(e)}); install it: {install}"
        ) from e
    except BaseException as e:  # a driver may raise anything
        contract.pass_ctrl_c(e)
        text = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise ConfigError(
            f"env.id = {env_id}: it cannot be drawn ({text}); a working display driver is needed; "
            "without a screen MuJoCo takes MUJOCO_GL=egl or osmesa, pygame SDL_VIDEODRIVER=dummy"
        ) from e
    if isinstance(image, list) and image:  # the environment collects frames
        image = image[-1]
    fits = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
    if not fits or not image.size:
        actual = f"{type(image).__name__}"
        if isinstance(image, np.ndarray):
            actual = f"{image.dtype} {list(image.shape)}"
        raise ConfigError(
            f"env.id = {env_id}: render() returned {actual}; uint8 [H, W, 3] is allowed; correct it"
        )
    return np.ascontiguousarray(image[..., :3])
