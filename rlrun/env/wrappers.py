"""Wrappers of a single environment (``env.wrappers``), the first entry innermost.

Observations and rewards pass through the list from first to last, actions from last to first.
Gymnasium's implementations are used if they exist. No wrapper keeps statistics, which would differ
between columns, be missing in evaluation and be lost on resume.
"""

import copy
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers

from rlrun.env.contract import ContractViolation, ResetResult
from rlrun.errors import ConfigError, ResourceError
from rlrun.functional.masks import MASK
from rlrun.schema import WrapperConfig
from rlrun.spaces import is_image, space_parts


class ActionMaskObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Observations {observation, action_mask}. Dict observations keep their keys and get one more.

    The mask is int8 [A], 1 for allowed actions. Both ``reset`` and ``step`` of the wrapped
    environment must return it in ``info``.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap ``env``. Raises: ValueError unless its actions are Discrete."""
        super().__init__(env)
        action, obs = env.action_space, env.observation_space
        if not isinstance(action, spaces.Discrete):
            raise ValueError(f"a mask needs Discrete actions, the environment has {action}")
        self.num_actions = int(action.n)
        self.dict_obs = isinstance(obs, spaces.Dict)
        parts = dict(obs.spaces) if isinstance(obs, spaces.Dict) else {"observation": obs}
        self.observation_space = spaces.Dict({**parts, MASK: spaces.MultiBinary(self.num_actions)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK not in info:
            raise ContractViolation(f"info has no {MASK}; reset and step must both return it")
        mask = np.asarray(info[MASK])
        if mask.shape != (self.num_actions,) or mask.dtype.kind not in "biuf":
            raise ContractViolation(
                f"info[{MASK!r}] is {mask.dtype} {mask.shape}; allowed are {self.num_actions} "
                "numbers, 1 where an action is allowed"
            )
        mask = (mask != 0).astype(np.int8)
        return {**(obs if self.dict_obs else {"observation": obs}), MASK: mask}


AnyEnv = gym.Env[Any, Any]


def wrap(env: AnyEnv, configs: Sequence[WrapperConfig]) -> AnyEnv:
    """Return ``env`` wrapped by ``configs``, the first one innermost.

    Raises:
        ConfigError: a wrapper does not support the spaces; the message names its index.
    """
    for i, config in enumerate(configs):
        arguments = [value for key, value in asdict(config).items() if key != "name"]
        where = f"env.wrappers[{i}] = {config.name}"
        try:
            with warnings.catch_warnings():  # Gymnasium's warnings about the bounds of spaces
                warnings.filterwarnings("ignore", module=r"gymnasium\.")
                env = WRAPPERS[config.name][0](env, *arguments)
        except ImportError as e:
            text = f"it needs the package {e.name}; install it: pip install {e.name}"
            raise ResourceError(f"{where}: {text}") from e
        except gym.error.DependencyNotInstalled as e:
            text = "it needs the package OpenCV; install it: pip install 'rlrun[images]'"
            raise ResourceError(f"{where}: {text}") from e
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as e:
            texts = str(env.observation_space), str(env.action_space)
            obs, action = (textwrap.shorten(text, 90, placeholder=" ...") for text in texts)
            raise ConfigError(
                f"{where}: {' '.join(str(e).split())}; observations before it are {obs}, "
                f"actions {action}; move or remove it"
            ) from e
    return env


_HELD, _STICKING = ("max_and_skip", "repeat_action"), ("sticky_action",)
_REPEATING = {  # package of Atari games -> argument, default, value that does nothing, wrappers
    "ale_py": (("frameskip", 4, 1, _HELD), ("repeat_action_probability", 0.25, 0, _STICKING)),
    "rlrun": (("frame_skip", 4, 1, _HELD), ("sticky", 0.25, 0, _STICKING)),
}


def require_one_skip(
    env_id: str, env: AnyEnv, kwargs: Mapping[str, Any], configs: Sequence[WrapperConfig]
) -> None:
    """Raise if wrappers hold or repeat actions of an Atari game that does so itself.

    ``kwargs``: the game's arguments, including those of its registration.
    """
    module = type(env.unwrapped).__module__
    if not module.startswith(("ale_py.", "rlrun.env.atari")):
        return
    names, fixes, texts = list[str](), list[str](), list[str]()
    for key, default, off, again in _REPEATING[module.partition(".")[0]]:
        value = kwargs.get(key, default)
        same = [c.name for c in configs if c.name in again and getattr(c, "steps", 2) > 1]
        if same and value != off:
            names += same
            texts.append(f"{key} = {value:g}")
            fixes.append(f"env.kwargs.{key}={off}")
    if names:
        raise ConfigError(
            f"env.wrappers = {', '.join(names)}: {env_id} itself repeats actions "
            f"({', '.join(texts)}), the wrapper again; one of the two is allowed; set "
            f"{' '.join(fixes)}, or remove it"
        )


def _entries(space: gym.Space[Any], keys: Sequence[str]) -> dict[Any, gym.Space[Any]]:
    """Return key or position -> space of the parts of a Dict or Tuple that ``keys`` name."""
    known = {str(key): (key, part) for key, part in space_parts(space) or ()}
    for key in keys:
        if key not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has no parts"
            raise ValueError(f"{key} is not a part of the observation; {allowed}")
    return dict(known[key] for key in keys)


def _pick_obs(env: AnyEnv, key: str) -> AnyEnv:
    ((entry, part),) = _entries(env.observation_space, (key,)).items()
    return wrappers.TransformObservation(env, lambda obs: obs[entry], part)


def _filter_obs(env: AnyEnv, keys: tuple[str, ...]) -> AnyEnv:
    return wrappers.FilterObservation(env, [*_entries(env.observation_space, keys)])


def _encode_mission(env: AnyEnv) -> AnyEnv:
    from minigrid.wrappers import DictObservationSpaceWrapper

    words: AnyEnv = DictObservationSpaceWrapper(env)  # returns a list, its space is an array

    def as_array(obs: dict[str, Any]) -> dict[str, Any]:
        return {**obs, "mission": np.asarray(obs["mission"], np.int64)}

    return wrappers.TransformObservation(words, as_array, words.observation_space)


def _mask_obs(env: AnyEnv, keep: tuple[int, ...]) -> AnyEnv:
    space, positions = env.observation_space, list(keep)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError("it needs a Box of one dimension")
    if max(positions) >= space.shape[0]:
        raise ValueError(f"keep = {positions}: allowed are positions 0 to {space.shape[0] - 1}")
    bounds = space.low[positions], space.high[positions]
    kept = spaces.Box(*bounds, dtype=space.dtype.type)
    return wrappers.TransformObservation(env, lambda obs: obs[positions], kept)


class MaxAndSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action for ``steps`` steps and returns the maximum over their last two images.

    If the episode ends early, these are its last images. Gymnasium's wrapper then returns images of
    an earlier row, sometimes of the previous episode. Source: Mnih et al. 2015, Methods.
    """

    def __init__(self, env: AnyEnv, steps: int) -> None:
        """Raises: ValueError unless observations are arrays."""
        super().__init__(env)
        if env.observation_space.shape is None:
            raise ValueError("it needs observations that are one array")
        self._skip_steps = steps

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total = 0.0
        before: Any = None
        for number in range(self._skip_steps):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated or number == self._skip_steps - 1:
                break
            before = np.array(obs)  # the environment may write into its array
        image = obs if before is None else np.maximum(before, obs)
        return image, total, terminated, truncated, info


class RandomObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Observations ``change(rng, obs)``, with a generator of its own."""

    def __init__(self, env: AnyEnv, salt: int, change: Callable[..., Any]) -> None:
        super().__init__(env)
        self._salt, self._change = salt, change
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        if seed is not None:
            self._rng = np.random.default_rng((self._salt, seed))
        return super().reset(seed=seed, options=options)

    def observation(self, obs: Any) -> Any:
        return self._change(self._rng, obs)


def _flicker_obs(env: AnyEnv, probability: float) -> AnyEnv:
    if not isinstance(env.observation_space, spaces.Box):
        raise ValueError("it needs a Box observation")
    return RandomObservation(
        env, 1, lambda rng, obs: np.zeros_like(obs) if rng.random() < probability else obs
    )


def _noise_obs(env: AnyEnv, std: float) -> AnyEnv:
    space = env.observation_space
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ValueError("it needs a Box observation of floats")

    def change(rng: np.random.Generator, obs: np.ndarray) -> np.ndarray:
        return (obs + std * rng.standard_normal(obs.shape)).astype(obs.dtype)

    noisy = RandomObservation(env, 2, change)
    noisy.observation_space = spaces.Box(-np.inf, np.inf, space.shape, space.dtype.type)
    return noisy


def _time_obs(env: AnyEnv) -> AnyEnv:
    space = env.observation_space
    flat = not isinstance(space, spaces.Dict) and not is_image(space)
    return wrappers.TimeAwareObservation(env, flatten=flat, normalize_time=True)


class DelayedObservation(wrappers.DelayObservation[Any, Any]):
    """Gymnasium's, with the present action mask."""

    def observation(self, observation: Any) -> Any:
        # An environment may write the next observation into its array.
        delayed = super().observation(copy.deepcopy(observation))
        if isinstance(observation, Mapping) and MASK in observation:
            return {**delayed, MASK: observation[MASK]}
        return delayed


def _rescale_action(env: AnyEnv, low: float, high: float) -> AnyEnv:
    space: Any = env.action_space
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(space, spaces.Box) and not np.isfinite(space.high - space.low).all():
            raise ValueError(f"it needs actions whose width is finite in {space.dtype}")
    return wrappers.RescaleAction(env, np.float32(low), np.float32(high))


Factory = Callable[..., AnyEnv]
WRAPPERS: dict[str, tuple[Factory, str]] = {
    "pick_obs": (_pick_obs, "only the entry `key` of a Dict or Tuple observation"),
    "filter_obs": (_filter_obs, "the entries `keys` of a Dict or Tuple observation"),
    "encode_mission": (_encode_mission, "MiniGrid's mission as indices of words (minigrid)"),
    "mask_obs": (_mask_obs, "only the positions `keep` of an observation vector"),
    "mask_from_info": (ActionMaskObservation, 'info["action_mask"] as an entry of the observation'),
    "flatten_obs": (wrappers.FlattenObservation, "any observation as one vector, a mask with it"),
    "rescale_obs": (
        lambda env, low, high: wrappers.RescaleObservation(env, np.float32(low), np.float32(high)),
        "a bounded Box observation mapped to [`low`, `high`]",
    ),
    "cast_obs": (wrappers.DtypeObservation, "the observation in `dtype`"),
    "grayscale_obs": (wrappers.GrayscaleObservation, "an RGB image as luminance"),
    "resize_obs": (
        lambda env, height, width: wrappers.ResizeObservation(env, (height, width)),
        "an image of `height` x `width` pixels (OpenCV)",
    ),
    "max_and_skip": (
        MaxAndSkip,
        "each action `steps` times, maximum over the last two images; Mnih et al. 2015",
    ),
    "time_obs": (
        _time_obs,
        "the share of the episode's steps that is over, appended, or as `time` of a Dict",
    ),
    "delay_obs": (
        DelayedObservation,
        "the observation of `steps` steps ago, zeros in the first `steps` steps, a mask at once",
    ),
    "flicker_obs": (_flicker_obs, "all zeros with `probability`; Hausknecht & Stone 2015"),
    "noise_obs": (_noise_obs, "normal noise of standard deviation `std` on every number"),
    "rescale_action": (
        _rescale_action,
        "actions within [`low`, `high`] instead of their own bounds",
    ),
    "discretize_action": (
        wrappers.DiscretizeAction,
        "a Box of actions as one Discrete, `bins` per dimension",
    ),
    "sticky_action": (
        wrappers.StickyAction,
        "the last action instead of the new one with `probability`; Machado et al. 2018",
    ),
    "repeat_action": (wrappers.RepeatAction, "each action `steps` times, rewards added up"),
    "clip_reward": (
        wrappers.ClipReward,
        "rewards within [`low`, `high`], scores too (policy.reward_clip leaves scores as they are)",
    ),
}
"""name -> (factory of the wrapper, one-line description)."""
