"""Environments that are wrong in ways a run may not notice, for ``rlrun doctor env=``.

Each differs from ``Healthy`` in one thing, by the name that its id has. Torch-free.
"""

from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from tests.env.base import Env, sync_vector
from tests.env.masked import Masked


class Healthy(Env):
    """A walk from a random place; leaving [-3, 3] terminates, 12 steps truncate."""

    max_steps = 12

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def begin(self) -> None:
        self.place = float(self.np_random.uniform(-1, 1))

    def _obs(self) -> Any:
        return np.array([self.place, self.t / 2], np.float32)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.place += float(self.np_random.normal()) * 0.1 + 0.5 * (int(action) - 1)
        self.t += 1
        out = bool(abs(self.place) > 3)
        return self._obs(), self.place, out, self.t >= self.max_steps and not out, {}


class Spaces(Healthy):  # another dtype than declared, after a while
    def _obs(self) -> Any:
        return super()._obs().astype(np.float64 if self.t == 5 else np.float32)


class Bounds(Healthy):  # floats beyond the declared bounds
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-2, 2, (2,), np.float32)


class Precision(Healthy):  # seconds since 1970, which float32 counts in steps of 128
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def _obs(self) -> Any:
        return np.array([self.place, 1.7e9 + self.t])


class Actions(Healthy):  # an action of its space that it does not take
    def step(self, action: Any) -> Any:
        return [super().step(0), super().step(1)][int(action)]


class Reward(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.nan if self.t == 7 else reward, *rest


class Flags(Healthy):  # both at the limit
    def step(self, action: Any) -> Any:
        obs, reward, out, late, info = super().step(action)
        return obs, reward, out or late, out or late, info


class FlagText(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, _, late, info = super().step(action)
        return obs, reward, "no", late, info


class Limit(Healthy):  # the limit terminates
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.t >= self.max_steps, False, info


class Registered(Limit):  # as above, with a limit known to Gymnasium
    max_steps = 9


class Selfreset(Healthy):  # resets itself in step; its steps draw nothing
    def step(self, action: Any) -> Any:
        self.place += 0.5 * (int(action) - 1)
        self.t += 1
        late = self.t >= 6
        if late:
            return self.reset()[0], 0.0, False, True, {}
        return self._obs(), self.place, False, False, {}


class Samestart(Selfreset):  # likewise, from one place, with random steps
    def begin(self) -> None:
        self.place = 0.0

    def step(self, action: Any) -> Any:
        self.np_random.normal()
        return super().step(action)


class Noisyreset(Healthy):  # likewise, from random places with random steps
    def step(self, action: Any) -> Any:
        obs, reward, out, late, info = super().step(action)
        return self.reset()[0] if out or late else obs, reward, out, late, info


class Clock(Healthy):  # random numbers that no seed reaches
    def step(self, action: Any) -> Any:
        self.place += float(np.random.default_rng().normal()) * 1e-3
        return super().step(action)


class Shared(Healthy):  # copies that share what they count
    total: ClassVar[int] = 0

    def step(self, action: Any) -> Any:
        Shared.total += 1
        self.place += 1e-3 * (Shared.total % 7)
        return super().step(action)


class Hidden(Healthy):  # state outside of its attributes
    places: ClassVar[dict[int, float]] = {}

    def begin(self) -> None:
        super().begin()
        self.places[id(self)] = 0.0

    def step(self, action: Any) -> Any:
        self.places[id(self)] += 0.01
        self.place += self.places[id(self)]
        return super().step(action)


class Stuck(Masked):  # forbids everything at times
    def _draw(self, *, ended: bool) -> None:
        super()._draw(ended=ended or self.t == 3)

    def step(self, action: Any) -> Any:
        if not self.mask.any():
            self.mask[:] = 1
        return super().step(action)


class Quiet(Healthy):
    """No reward, and actions have no effect."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(1)
        return obs, 0.0, *rest


class Sometimes(Quiet):
    """Other observations than ``Quiet``: of ``late`` seeds of three in last rows, else in all."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.late, self.seed = late, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = self.seed if seed is None else seed
        return super().reset(seed=seed)

    def _obs(self) -> Any:
        return super()._obs() + np.float32(self.t >= self.max_steps * (self.seed % 3 < self.late))


class RewardedReset(SyncVectorEnv):
    """The row of a reset has a reward."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__([Healthy] * num_envs)

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, reward + 1.0, *rest


SICK = {  # class -> (the check that finds it, what its text names)
    Spaces: ("spaces", "float64"),
    Bounds: ("spaces", "[-2, 2]"),
    Precision: ("precision", "float32"),
    Actions: ("spaces", "IndexError"),
    Reward: ("reward", "nan"),
    Flags: ("flags", "both True"),
    FlagText: ("flags", "terminated 'no'"),
    Limit: ("time limit", "12 max_steps"),
    Registered: ("time limit", "9 registered"),
    Selfreset: ("final observation", "reset()"),
    Samestart: ("final observation", "first next episode"),
    Noisyreset: ("final observation", "after reset"),
    Clock: ("determinism", "self.np_random"),
    Shared: ("determinism", "share"),
    Hidden: ("state", "rows"),
    Stuck: ("action_mask", "step 3"),
}
VECTORS = {  # the single environment, the native vector of it
    "Next": (Healthy, partial(sync_vector, make=Healthy, mode="NEXT_STEP")),
    "Same": (Healthy, partial(sync_vector, make=Healthy, mode="SAME_STEP")),
    "Rewarded": (Healthy, RewardedReset),
    "Quiet": (Quiet, partial(sync_vector, make=Quiet, mode="SAME_STEP")),
    "Once": (Quiet, partial(sync_vector, make=partial(Sometimes, 1), mode="NEXT_STEP")),
    "Twice": (Quiet, partial(sync_vector, make=partial(Sometimes, 2), mode="NEXT_STEP")),
    "Limited": (Quiet, partial(sync_vector, make=lambda: TimeLimit(Quiet(), 7), mode="SAME_STEP")),
}
for _class in (Healthy, *SICK):
    gym.register(
        f"sick/{_class.__name__}-v0",
        entry_point=f"tests.env.sick:{_class.__name__}",
        max_episode_steps=9 if _class is Registered else None,
        disable_env_checker=True,
    )
for _name, (_single, _entry) in VECTORS.items():
    gym.register(
        f"sick/{_name}-v0",
        entry_point=f"tests.env.sick:{_single.__name__}",
        max_episode_steps=7 if _name == "Limited" else None,
        vector_entry_point=_entry,
        disable_env_checker=True,
    )
