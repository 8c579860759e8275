"""Base classes of the diagnostic environments, whose rules are written once for E columns.

``LockstepVectorEnv`` is the native vector environment (NEXT_STEP rows). ``SingleFromVector``
derives the environment of ``gymnasium.make`` from it, so that sync, async and native backends run
the same code. Column i has its own generator, seeded ``seed + i`` as in Gymnasium's SyncVectorEnv,
so all three backends return the same numbers. Pictures are squares and bars drawn with numpy.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.contract import ResetResult, VectorResult
from rlrun.spaces import Tree, leaf_of, leaf_spaces, tree_map, value_range

SQUARE, GAP, ROW = 24, 2, 16  # pixels of a square and between two; squares of a line
WHITE, GREY, DARK = (255, 255, 255), (224, 224, 224), (64, 64, 64)
BLUE, GREEN, RED = (31, 119, 180), (44, 160, 44), (214, 39, 40)
NO_LIMIT = np.iinfo(np.int64).max
SINGLE_METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}
NEXT_STEP_METADATA: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
Color = tuple[int, int, int]
Spaces = tuple[gym.Space[Any], gym.Space[Any]]  # of observations and of actions


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a task: its default, what is allowed in words, and whether a value is."""

    default: Any
    allowed: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the argument ``name`` may have this value."""
        if not self.holds(value):
            raise ValueError(f"{name} = {value}: must be {self.allowed}")


def _real(value: Any, kinds: Any, low: float, high: float) -> bool:
    number = isinstance(value, kinds) and not isinstance(value, bool)
    return number and math.isfinite(value) and low <= value <= high


def integer(default: int | None, low: int, high: int = NO_LIMIT, *, optional: bool = False) -> Any:
    """Declare an integer within [low, high]; ``optional``: or None."""
    allowed = f"an integer >= {low}" if high == NO_LIMIT else f"an integer within [{low}, {high}]"
    return Parameter(
        default, allowed, lambda x: _real(x, int, low, high) or (optional and x is None)
    )


def integers(default: tuple[int, ...], low: int) -> Any:
    """Declare a list of at least one integer >= low."""
    allowed = f"a list of at least one integer >= {low}"
    return Parameter(
        default, allowed, lambda x: len(x) > 0 and all(_real(i, int, low, NO_LIMIT) for i in x)
    )


def number(default: float, low: float = -math.inf, high: float = math.inf) -> Any:
    """Declare a finite number within [low, high]."""
    span = f" within [{low}, {high}]" if high < math.inf else f" >= {low}"
    allowed = f"a finite number{span if low > -math.inf else ''}"
    return Parameter(default, allowed, lambda x: _real(x, int | float, low, high))


def choice(*options: Any) -> Any:
    """Declare one of ``options``, the first of which is the default."""
    return Parameter(
        options[0],
        f"one of {', '.join(map(str, options))}",
        lambda x: any(x == option and type(x) is type(option) for option in options),
    )


def flag(default: bool) -> Any:
    """Declare True or False."""
    return choice(default, not default)


def text(default: str) -> Any:
    """Declare a text; whoever reads it checks it."""
    return Parameter(default, "a text", lambda x: isinstance(x, str))


def checked_arguments(
    kind: type, arguments: dict[str, Any], extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of the arguments that ``kind`` and its base classes declare, or ``extra``.

    Raises: TypeError for an argument that is not declared, ValueError for a wrong value.
    """
    declared = {n: p for c in reversed(kind.__mro__) for n, p in vars(c).items()} | (extra or {})
    declared = {name: p for name, p in declared.items() if isinstance(p, Parameter)}
    if unknown := sorted(set(arguments) - set(declared)):
        raise TypeError(f"__init__() got an unexpected keyword argument {unknown[0]!r}")
    values = {name: arguments.get(name, p.default) for name, p in declared.items()}
    for name, value in values.items():
        declared[name].check(name, value)
    return values


def require_int(name: str, value: Any, low: int, high: int = NO_LIMIT) -> None:
    """Raise ValueError unless the argument ``name`` is an integer within [low, high]."""
    integer(0, low, high).check(name, value)


class LockstepVectorEnv(VectorEnv[Any, Any, Any]):
    """E columns of one environment. Subclasses define ``_setup``, ``_advance`` and ``_observe``.

    A subclass declares its arguments as class attributes, ``length: int = integer(10, 1)``, and
    finds their values under the same names. One that defines ``_full_state`` has the argument
    ``full_state``, which replaces the observation by that vector; actions, rewards and random
    numbers stay the same.

    ``index`` [E] is the environment number of a column, ``episode`` [E] counts its episodes from 0,
    and ``t`` [E] the steps of the current one. The episode count continues over autoresets and over
    ``reset()`` without a seed; ``reset(seed=...)`` restarts it at 0. A step in a column whose
    episode has ended ignores the action and starts the next episode.
    """

    metadata = NEXT_STEP_METADATA
    full_state: bool = False
    success: Any = None  # [E] bool: the last step was one; of tasks that know
    render_fps = 5  # of single environments

    def __init__(
        self, num_envs: int = 1, *, max_episode_steps: int | None = None, **arguments: Any
    ) -> None:
        """Raises: TypeError for an argument that is not declared, ValueError for a wrong value."""
        self.num_envs = num_envs
        shows = type(self)._full_state is not LockstepVectorEnv._full_state
        extra = {"full_state": flag(False)} if shows else {}
        for name, value in checked_arguments(type(self), arguments, extra).items():
            setattr(self, name, value)
        self.columns = np.arange(num_envs)
        self.index = np.arange(num_envs)
        self.episode = np.full(num_envs, -1)
        self.t = np.zeros(num_envs, np.int64)
        self.limit = np.full(num_envs, NO_LIMIT)  # steps after which an episode is truncated
        self.rngs: list[np.random.Generator] = []
        self._max_episode_steps = NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._done = np.zeros(num_envs, np.bool_)
        self.single_observation_space, self.single_action_space = self._setup()
        if self.full_state:
            size = self._full_state().shape[1]
            self.single_observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _setup(self) -> Spaces:
        """Allocate the state of all columns. Return the spaces of one observation and action."""
        raise NotImplementedError

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        """Sample the initial state of a new episode of column ``i``; may set ``limit``."""

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return reward [E] float32 and terminated [E] of the step from ``t`` to ``t + 1``.

        Called for all columns; its effect on columns whose episode has ended is discarded.
        """
        raise NotImplementedError

    def _observe(self) -> Tree:
        """Return a new observation [E, ...] at ``t``: an array or a tree of arrays."""
        raise NotImplementedError

    def _full_state(self) -> np.ndarray:
        """Return what an optimal policy without memory needs at ``t``, float32 [E, N]."""
        raise NotImplementedError

    def _observation(self) -> Tree:
        return self._full_state() if self.full_state else self._observe()

    def _info(self, done: np.ndarray) -> dict[str, Any]:
        """Return Gymnasium's vector info of the last step: the ``success`` of ended episodes."""
        if self.success is None or not done.any():
            return {}
        return {"is_success": self.success, "_is_success": done}

    def picture(self, column: int) -> np.ndarray:
        """Return a picture of a column after its last step, uint8 [H, W, 3]: its observation."""
        obs = tree_map(lambda x: x[column], self._observation())
        share = float(self.t[column] / max(self.limit[column], 1))
        return observation_picture(obs, self.single_observation_space, share)

    def _start_episodes(self, columns: np.ndarray) -> None:
        self.episode[columns] += 1
        self.t[columns] = 0
        for i in columns:
            self._begin(i, self.rngs[i])
        self.limit[columns] = np.minimum(self.limit[columns], self._max_episode_steps)

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        if seed is not None or not self.rngs:
            seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
            self.rngs = [seeding.np_random(s)[0] for s in seeds]
            self.episode[:] = -1
        self._done = np.zeros(self.num_envs, np.bool_)
        self._start_episodes(self.columns)
        return self._observation(), {}

    def step(self, actions: np.ndarray) -> VectorResult:
        if not self.rngs:
            raise gym.error.ResetNeeded("call reset() before step()")
        reward, terminated = self._advance(actions)
        self.t += 1
        truncated = self.t >= self.limit
        if self._done.any():
            columns = np.flatnonzero(self._done)
            reward[columns] = 0
            terminated[columns] = truncated[columns] = False
            self._start_episodes(columns)
        self._done = terminated | truncated
        return self._observation(), reward, terminated, truncated, self._info(self._done)


def canvas(rows: int, columns: int) -> np.ndarray:
    """Return a white picture, uint8 [H, W, 3], with room for squares and even sides."""
    step = SQUARE + GAP
    return np.full((rows * step + GAP, columns * step + GAP, 3), 255, np.uint8)


def fill(image: np.ndarray, row: int, column: int, color: Color, *, inset: int = 0) -> None:
    """Fill a square; ``inset``: pixels that are left at each of its sides."""
    step = SQUARE + GAP
    top, left = GAP + row * step + inset, GAP + column * step + inset
    size = SQUARE - 2 * inset
    image[top : top + size, left : left + size] = color


def observation_picture(obs: Tree, space: gym.Space[Any], share: float) -> np.ndarray:
    """Return an observation as squares, from white (lowest value) to blue (highest).

    Each part of a Dict or Tuple begins a line. The last line shows ``share``, the episode's part
    that is over.
    """
    parts = [_scaled(leaf_of(obs, path), part) for path, part in leaf_spaces(space)]
    lines = [part[i : i + ROW] for part in parts for i in range(0, len(part), ROW)]
    image = canvas(len(lines) + 1, max(map(len, lines)))
    white, blue = np.array(WHITE), np.array(BLUE)
    for row, line in enumerate(lines):
        for column, value in enumerate(line):
            fill(image, row, column, GREY)
            red, green, shade = (white + (blue - white) * value).astype(int)
            fill(image, row, column, (red, green, shade), inset=1)
    width = image.shape[1] - 2 * GAP
    image[-SQUARE // 2 : -GAP, GAP : GAP + width] = GREY
    image[-SQUARE // 2 : -GAP, GAP : GAP + round(share * width)] = DARK
    return image


def _scaled(x: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Return the numbers of a part as shares of their range, [K] in [0, 1]; Discrete as one-hot."""
    if isinstance(space, spaces.Discrete):
        symbols: np.ndarray = np.arange(space.n) == int(x) - space.start
        return symbols.astype(np.float64)
    flat = np.asarray(x, np.float64).ravel()
    low, high = (np.ravel(x) for x in value_range(space))
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    share: np.ndarray = np.clip((flat - low) / np.maximum(high - low, 1e-9), 0, 1)
    return share


class SingleFromVector(gym.Env[Any, Any]):
    """The single environment of a vector environment of one column, for ``gymnasium.make``."""

    metadata = SINGLE_METADATA

    def __init__(self, vector: Any, render_mode: str | None = None) -> None:
        self._vector = vector
        if render_mode is not None:  # else it is part of no saved state
            self.render_mode = render_mode
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space
        for name in ("compute_reward", "compute_terminated"):  # of goal environments
            if hasattr(vector, name):
                setattr(self, name, getattr(vector, name))

    def set_index(self, index: int) -> None:
        """Act as environment number ``index`` of a vector."""
        if isinstance(self._vector, LockstepVectorEnv):
            self._vector.index = np.array([index])

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        super().reset(seed=seed)
        obs, _ = self._vector.reset(seed=seed)
        return self._own(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._vector.step(np.asarray(action)[None])
        values = {key: info[key][0] for key in info if f"_{key}" in info and info[f"_{key}"][0]}
        return self._own(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), values

    def render(self) -> np.ndarray | None:
        """Return a picture, uint8 [H, W, 3]; None without ``render_mode``."""
        if self.render_mode is None:
            return None
        image: np.ndarray = self._vector.picture(0)
        return image

    @staticmethod
    def _own(obs: Tree) -> Tree:
        return tree_map(lambda x: x[0], obs)


def make_tasks(num_envs: int, *, task: str, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    """Return the vector environment of ``task``: module:class without its "VectorEnv"."""
    module, _, name = task.partition(":")
    made = getattr(importlib.import_module(f"rlrun.env.diagnostic.{module}"), f"{name}VectorEnv")
    environment: VectorEnv[Any, Any, Any] = made(num_envs, **arguments)
    return environment


class SingleTask(SingleFromVector):
    """The single environment of a task; arguments as ``make_tasks``."""

    def __init__(self, *, task: str, render_mode: str | None = None, **arguments: Any) -> None:
        vector: Any = make_tasks(1, task=task, **arguments)
        super().__init__(vector, render_mode)
        self.metadata = SINGLE_METADATA | {"render_fps": vector.render_fps}
