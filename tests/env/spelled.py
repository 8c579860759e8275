"""An environment that spells (environment, episode, t) in observations, and a ledger of its rows.

Every digit is a number that survives rounding, rescaling, small noise and a grey picture, so that
rows can be read behind every wrapper. Torch-free: worker processes import it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.env.base import sync_vector

LENGTHS = np.array([5, 1, 9, 3])  # env steps; episode e of environment i has the (i + e)-th
EPISODES, DIGITS = 4096, 5  # episodes are spelled modulo 4096
SEED = 16  # environment i is reset with SEED + i and is number i
READABLE = 4  # zeros, of flicker_obs or delay_obs, are no spelling


def spell(index: Any, episode: Any, t: Any) -> np.ndarray:
    """float32 [..., 5]: 8 + 16 x digits of index + 1, the episode (three) and t."""
    e = np.asarray(episode) % EPISODES
    digits = np.stack(np.broadcast_arrays(np.asarray(index) + 1, e // 256, e // 16 % 16, e % 16, t))
    return np.asarray(8 + 16 * np.moveaxis(digits, 0, -1), np.float32)


def read(x: np.ndarray) -> np.ndarray:
    """int64 [E, 3]: (environment, episode, t) of spellings [E, 5]; -1 where there is none."""
    digit = np.rint((np.asarray(x, np.float64) - 8) / 16).astype(np.int64)
    episode = digit[:, 1] * 256 + digit[:, 2] * 16 + digit[:, 3]
    table = np.stack((digit[:, 0] - 1, episode, digit[:, 4]), axis=1)
    return np.where((x[:, :1] > READABLE), table, -1)


class Spelled(gym.Env[Any, Any]):
    """``form``: vector, dict, image or mission (words); ends alternate as in ``Counter``."""

    def __init__(self, form: str = "vector", continuous: bool = False) -> None:
        box = spaces.Box(0, 255, (DIGITS,), np.float32)
        self.observation_space = {
            "vector": box,
            "dict": spaces.Dict({"observation": box, "other": spaces.Box(0, 1, (1,), np.float32)}),
            "image": spaces.Box(0, 255, (4, 2 * DIGITS, 3), np.uint8),
            "mission": spaces.Dict({"mission": spaces.Text(40)}),
        }[form]
        self.action_space: gym.Space[Any] = (
            spaces.Box(-2, 2, (1,), np.float32) if continuous else spaces.Discrete(3)
        )
        self.form, self.index, self.episode = form, 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.index, self.episode = (seed - SEED) % 8, -1
        self.episode, self.t = self.episode + 1, 0
        return self._obs()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        number = self.index + self.episode
        over = self.t >= LENGTHS[number % len(LENGTHS)]
        obs, info = self._obs()
        return obs, float(self.t), bool(over and number % 2 == 0), bool(over and number % 2), info

    def _obs(self) -> tuple[Any, dict[str, Any]]:
        digits = spell(self.index, self.episode, self.t)
        obs: Any = digits
        if self.form == "dict":
            obs = {"observation": digits, "other": np.zeros(1, np.float32)}
        elif self.form == "image":
            wide = np.repeat(digits.astype(np.uint8), 2)
            obs = np.broadcast_to(wide[None, :, None], (4, 2 * DIGITS, 3)).copy()
        elif self.form == "mission":
            obs = {"mission": " ".join(str(int(x)) for x in digits)}
        return obs, {"action_mask": np.array([1, 0, 1], np.int8)}


for _name, _mode, _declared in (
    ("next", "NEXT_STEP", "NEXT_STEP"),
    ("same", "SAME_STEP", "SAME_STEP"),
    ("disabled", "DISABLED", "DISABLED"),
    ("lying", "SAME_STEP", "NEXT_STEP"),
):
    gym.register(
        f"tests/Spelled-{_name}-v0",
        entry_point="tests.env.spelled:Spelled",
        vector_entry_point=partial(sync_vector, make=Spelled, mode=_mode, declared=_declared),
        max_episode_steps=50,
        disable_env_checker=True,
    )


# -- the ledger ------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What is wrong in the rows of E environments, which it reads one step at a time.

    ``stride``: env steps of a row (frame skip). ``delay``: rows by which observations are late.
    """

    num_envs: int
    stride: int = 1
    delay: int = 0
    rows: int = 0
    episodes: int = 0  # that ended
    unreadable: int = 0
    joined: int = 0  # pairs of rows of one episode by their flags that are not in succession
    missing: int = 0  # ends whose row is not the final observation
    repeated: int = 0  # final observations in other rows
    misplaced: int = 0  # first rows that are not the first one of the next episode
    _last: Any = None  # [E, 3]
    _done: Any = None
    _episode: Any = field(default=None)
    _t: Any = field(default=None)

    def faults(self) -> dict[str, int]:
        names = ("joined", "missing", "repeated", "misplaced")
        return {name: n for name in names if (n := getattr(self, name))}

    def reset(self, spelled: np.ndarray) -> None:
        zeros = np.zeros(self.num_envs, np.int64)
        self._episode, self._t, self._done = zeros, zeros.copy(), np.zeros(self.num_envs, bool)
        self._last = read(spelled)
        self.misplaced += int(self._differs(self._last).sum())

    def _differs(self, seen: np.ndarray) -> np.ndarray:
        """Whether readable rows are not those of ``_episode`` and ``_t``."""
        t = self._t - self.delay * self.stride
        columns = np.arange(self.num_envs)
        due = np.stack((columns, self._episode % EPISODES, t), axis=1)
        return ((seen != due) & (seen >= 0)).any(axis=1)

    def add(self, spelled: np.ndarray, first: np.ndarray, ended: np.ndarray) -> None:
        """Add a row of every environment: its spelling, and the flags that came with it."""
        seen = read(spelled)
        lengths = LENGTHS[(np.arange(self.num_envs) + self._episode) % len(LENGTHS)]
        self._episode = self._episode + first
        self._t = np.where(first, 0, np.minimum(self._t + self.stride, lengths))
        readable = (seen >= 0).all(axis=1)
        wrong = self._differs(seen)
        both = readable & (self._last >= 0).all(axis=1) & ~first
        step = seen[:, 2] - self._last[:, 2]
        follows = (seen[:, :2] == self._last[:, :2]).all(axis=1) & (step > 0)
        follows &= step <= self.stride
        lengths = LENGTHS[(np.arange(self.num_envs) + self._episode) % len(LENGTHS)]
        self.joined += int((both & ~follows).sum())
        self.misplaced += int((first & (wrong | ~self._done)).sum() + (self._done & ~first).sum())
        self.missing += int((ended & (wrong | (self._t != lengths))).sum())
        self.repeated += int((readable & ~ended & (self._t == lengths)).sum())
        self.rows += self.num_envs
        self.episodes += int(ended.sum())
        self.unreadable += int((~readable).sum())
        self._last, self._done = seen, ended


def certify(env: Any, view: Callable[[Any], np.ndarray], rows: int, **given: int) -> Ledger:
    """The ledger of ``rows`` rows of ``env``; ``view``: observations to spellings [E, 5]."""
    ledger = Ledger(env.num_envs, **given)
    rng = np.random.default_rng(0)
    space = env.action_space
    ledger.reset(view(env.reset(seed=SEED)))
    while ledger.rows < rows:
        if isinstance(space, spaces.Discrete):
            action: Any = rng.integers(space.n, size=env.num_envs)
        else:
            action = rng.uniform(space.low, space.high, (env.num_envs, *space.shape))
            action = action.astype(np.float32)
        s = env.step(action)
        ledger.add(view(s.obs), s.first, s.terminated | s.truncated)
    return ledger


# -- wrappers --------------------------------------------------------------------------------------


def image_view(obs: np.ndarray) -> np.ndarray:
    """Spellings [E, 5] of pictures [E, H, W] or [E, H, W, C]."""
    row = obs.reshape(*obs.shape[:3], -1).astype(np.float64).mean(axis=(1, 3))
    return row.reshape(len(row), DIGITS, -1).mean(axis=2)


VIEWS: dict[str, Callable[[Any], np.ndarray]] = {
    "vector": lambda obs: obs[:, :DIGITS],
    "key": lambda obs: obs["observation"],
    "image": image_view,
    "words": lambda obs: obs["mission"],
    "rescaled": lambda obs: (obs + 1) * 127.5,
    "counter": lambda obs: spell(*obs.astype(np.int64).T),
}


@dataclass(frozen=True)
class Wrapped:
    """A wrapper over a form of ``Spelled``, and how to read what comes out."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    form: str = "vector"
    view: str = "vector"
    continuous: bool = False
    stride: int = 1
    delay: int = 0


WRAPPED: Sequence[Wrapped] = (
    Wrapped("pick_obs", {"key": "observation"}, "dict"),
    Wrapped("filter_obs", {"keys": ("observation",)}, "dict", "key"),
    Wrapped("encode_mission", form="mission", view="words"),
    Wrapped("mask_obs", {"keep": (0, 1, 2, 3, 4)}),
    Wrapped("mask_from_info", view="key"),
    Wrapped("flatten_obs", form="dict"),
    Wrapped("rescale_obs", {"low": -1.0, "high": 1.0}, view="rescaled"),
    Wrapped("cast_obs", {"dtype": "float64"}),
    Wrapped("grayscale_obs", form="image", view="image"),
    Wrapped("resize_obs", {"height": 2, "width": DIGITS}, "image", "image"),
    Wrapped("max_and_skip", {"steps": 2}, "image", "image", stride=2),
    Wrapped("time_obs"),
    Wrapped("delay_obs", {"steps": 1}, delay=1),
    Wrapped("flicker_obs", {"probability": 0.3}),
    Wrapped("noise_obs", {"std": 0.5}),
    Wrapped("rescale_action", {"low": -1.0, "high": 1.0}, continuous=True),
    Wrapped("discretize_action", {"bins": 3}, continuous=True),
    Wrapped("sticky_action", {"probability": 0.3}),
    Wrapped("repeat_action", {"steps": 2}, stride=2),
    Wrapped("clip_reward", {"low": -1.0, "high": 1.0}),
)


# -- stand-ins for packages ------------------------------------------------------------------------


class SpelledPool:
    """A fake envpool pool: the step after an episode's end ignores its action and resets.

    ``fault``: ``same_step`` resets in the step that ends the episode, ``late`` reports the end one
    step late, with the reset (the transition from the final observation into the next episode).
    """

    fault: str | None = None

    def __init__(self, env_id: str, *, num_envs: int, **more: Any) -> None:
        self.index = np.arange(num_envs)
        self.episode = np.zeros(num_envs, np.int64)
        self.t, self.done = np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return spell(self.index, self.episode, self.t), {"elapsed_step": self.t.copy()}

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        opened = self.done
        self.t = np.where(opened, 0, self.t + 1)
        self.episode = self.episode + opened
        number = self.index + self.episode
        ended = self.t >= LENGTHS[number % len(LENGTHS)]
        self.done = ended
        flags = ended & (number % 2 == 0), ended & (number % 2 == 1)
        reward = np.where(opened, 7, self.t).astype(np.float32)
        if self.fault == "same_step":
            self.t, self.episode = np.where(ended, 0, self.t), self.episode + ended
            self.done = np.zeros_like(ended)
        if self.fault == "late":
            flags = opened & (number % 2 == 1), opened & (number % 2 == 0)
        obs = spell(self.index, self.episode, self.t)
        return obs, reward, *flags, {"elapsed_step": self.t.copy()}


def fake_envpool(fault: str | None = None) -> Any:
    """The package, with the id Spelled-v0."""
    pool = type("Pool", (SpelledPool,), {"fault": fault})
    spec = SimpleNamespace(
        observation_space=spaces.Box(0, 255, (DIGITS,), np.float32),
        action_space=spaces.Discrete(3),
        config=SimpleNamespace(max_num_players=1),
    )
    make_spec = lambda env_id, *, num_envs, **kwargs: spec  # noqa: E731
    return SimpleNamespace(
        list_all_envs=lambda: ["Spelled-v0"], make_spec=make_spec, make_gymnasium=pool
    )


class _Words(gym.ObservationWrapper[Any, Any, Any]):
    """MiniGrid's wrapper: the words of the mission as a list of numbers."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"mission": spaces.MultiDiscrete([256] * DIGITS)})

    def observation(self, obs: Any) -> Any:
        return {"mission": [int(word) for word in obs["mission"].split()]}


def stand_ins() -> dict[str, ModuleType]:
    """Stand-ins by name of module: MiniGrid's wrapper, and OpenCV where it is not installed."""
    minigrid, words = ModuleType("minigrid"), ModuleType("minigrid.wrappers")
    words.DictObservationSpaceWrapper = _Words  # type: ignore[attr-defined]
    found = {"minigrid": minigrid, "minigrid.wrappers": words}
    try:
        import cv2  # noqa: F401
    except ImportError:
        cv2_ = ModuleType("cv2")
        cv2_.INTER_AREA = 3  # type: ignore[attr-defined]
        cv2_.resize = lambda x, size, interpolation: x[  # type: ignore[attr-defined]
            :: x.shape[0] // size[1], :: x.shape[1] // size[0]
        ]
        found["cv2"] = cv2_
    return found
