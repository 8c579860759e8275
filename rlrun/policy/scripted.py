"""Policies that do not learn, random and scripted: for checking environments, baselines and data.

A script is a function of the observation and the number of steps since the episode began.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.errors import EnvError
from rlrun.functional.explore import action_table, outside, sine, uniform_actions
from rlrun.functional.masks import allowed_or_none
from rlrun.policy.compute import DEFAULT_COMPUTE, Compute
from rlrun.schema import MemoryConfig, PolicyConfig, RandomConfig, ScriptedConfig, TorsoConfig
from rlrun.trust import trusted_function
from rlrun.types import Act, Actor, ActRow, Sample, Spec, Tree, Update, Window, generator, tree_map

C = TypeVar("C", bound=PolicyConfig)


class Unlearned(ABC, Generic[C]):
    """A policy without parameters. Its state is that of its generator."""

    window: Window | None = None

    def __init__(
        self,
        config: C,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.config, self.spec = config, spec
        self.seed, self.generator = seed, generator(seed, "explore")
        self.seconds: dict[str, float] = {}

    @abstractmethod
    def actor(self, num_envs: int) -> Actor:
        """Return an actor for ``num_envs`` environments."""

    def update(self, sample: Sample) -> Update:
        raise AssertionError(f"policy={self.config.name} does not learn")

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError(f"policy={self.config.name} does not learn")

    def weights(self) -> dict[str, Tensor]:
        return {}

    def load(self, weights: dict[str, Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]


class UnlearnedActor(ABC):
    """An actor without weights. Evaluations (``explore`` None) use a separate generator."""

    def __init__(self, explore: np.random.Generator, seed: int) -> None:
        self.explore, self.seed = explore, seed
        self.extras: dict[str, np.ndarray] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reset the generator of evaluations."""
        self.evaluate = generator(self.seed, "evaluate")

    def initial_state(self) -> Tree:
        return ()

    def act(self, *row: *ActRow, explore: np.ndarray | None) -> Act:
        obs, first, _, _, state = row
        rng = self.evaluate if explore is None else self.explore
        action, state = self.choose(obs, first, state, rng)
        return Act(action, {}, state)

    @abstractmethod
    def choose(
        self, obs: Tree, first: np.ndarray, state: Tree, rng: np.random.Generator
    ) -> tuple[np.ndarray, Tree]:
        """Return actions [E, *A] and the next state."""


class Random(Unlearned[RandomConfig]):
    """Samples uniformly from the action space, or from the actions that a mask allows."""

    config_class = RandomConfig  # subclasses inherit its keys

    def actor(self, num_envs: int) -> "RandomActor":
        """Return an actor of uniform actions."""
        return RandomActor(self.spec, self.generator, self.seed)


class RandomActor(UnlearnedActor):
    """Selects uniform actions."""

    def __init__(self, spec: Spec, explore: np.random.Generator, seed: int) -> None:
        super().__init__(explore, seed)
        self.space = spec.action

    def choose(
        self, obs: Tree, first: np.ndarray, state: Tree, rng: np.random.Generator
    ) -> tuple[np.ndarray, Tree]:
        mask = allowed_or_none(obs)
        if mask is not None:
            return np.where(mask, rng.random(mask.shape), -1.0).argmax(-1), ()
        return uniform_actions(self.space, len(first), rng), ()


Script = Callable[[Tree, np.ndarray, np.random.Generator], np.ndarray]
"""(observations [E, ...], steps since the episodes began [E], generator) -> actions [E, *A]"""


class Scripted(Unlearned[ScriptedConfig]):
    """Acts by the script that ``policy.script`` names."""

    config_class = ScriptedConfig  # subclasses inherit its keys

    def actor(self, num_envs: int) -> "ScriptedActor":
        """Return an actor of the script for ``num_envs`` environments."""
        script = make_script(self.config, self.spec.action)
        return ScriptedActor(script, self.generator, self.seed, num_envs)


class ScriptedActor(UnlearnedActor):
    """Acts by a script. The state [E, 1] is the number of steps of each open episode."""

    def __init__(
        self, script: Script, explore: np.random.Generator, seed: int, num_envs: int
    ) -> None:
        super().__init__(explore, seed)
        self.script, self.num_envs = script, num_envs

    def initial_state(self) -> Tree:
        return np.zeros((self.num_envs, 1), np.int64)

    def choose(
        self, obs: Tree, first: np.ndarray, state: Tree, rng: np.random.Generator
    ) -> tuple[np.ndarray, Tree]:
        steps = np.where(first, 0, state[:, 0])
        return self.script(obs, steps, rng), (steps + 1)[:, None]


def make_script(config: ScriptedConfig, space: gym.Space[Any]) -> Script:
    if config.script == "function":
        assert config.function is not None  # checked by ScriptedConfig
        return user_script(config.function, space)
    if config.script == "sine":
        wave = {"period": config.period, "amplitude": config.amplitude, "phase": config.phase}
        return lambda obs, steps, rng: sine(space, steps, **wave)
    table, hold = action_table(config.choices, space), config.hold
    if config.script == "uniform":
        return lambda obs, steps, rng: table[rng.integers(len(table), size=len(steps))]
    return lambda obs, steps, rng: table[steps // hold % len(table)]  # constant: one choice


def user_script(name: str, space: gym.Space[Any]) -> Script:
    """Return ``name``(observations, steps) as a script whose actions are checked at every call.

    Raises: EnvError if it raises, or returns no actions of ``space``.
    """
    function, shape = trusted_function("policy.function", name), space.shape or ()

    def script(obs: Tree, steps: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        try:
            action = np.asarray(function(tree_map(_read_only, obs), _read_only(steps)))
        except Exception as e:  # a user's function may raise anything
            text = f"raised {type(e).__name__}: {' '.join(str(e).split())}"
            raise _script_error(name, text, space) from e
        if action.shape != (len(steps), *shape) or action.dtype.kind not in "biuf":
            raise _script_error(name, f"returned {action.dtype} {list(action.shape)}", space)
        bad = outside(action, space)
        if bad.any():
            raise _script_error(
                name, f"returned {action[bad][0].tolist()}, which is not an action", space
            )
        return action.astype(space.dtype)

    return script


def _read_only(x: np.ndarray) -> np.ndarray:
    """Return a read-only view, because the array belongs to the collected rows."""
    view = x.view()
    view.flags.writeable = False
    return view


def _script_error(name: str, text: str, space: gym.Space[Any]) -> EnvError:
    return EnvError(
        f"policy.function = {name}: {text}; a function of observations [E, ...] and steps [E] that "
        f"returns an action of {space} for each of E environments is allowed; correct it"
    )
