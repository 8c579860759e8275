"""Environments made by a script, as a replacement for ``env=NAME``."""

import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from rlrun.errors import ConfigError
from rlrun.override import Override, read_overrides
from rlrun.schema.run import OBJECT

_numbers = itertools.count()


def as_overrides(env: Any, words: Sequence[Override]) -> list[Override]:
    """Register an environment under its own id. Return the overrides that name it.

    ``words``: the other overrides.

    Raises: ConfigError.
    """
    keys = {word.key: word for word in words}
    for key in ("env", "env.id", "env.backend"):
        if key in keys:
            wrong = "the argument env already sets the environment"
            raise ConfigError(f"{keys[key]}: {wrong}; one of both is allowed; leave it out")
    make, one = _maker(env)
    made = type(env.unwrapped) if one else env
    name = re.sub(r"\W", "", getattr(made, "__name__", type(made).__name__))
    env_id = f"{OBJECT}{name or 'Env'}-v{next(_numbers)}"
    _register(env_id, make)
    found = ["env=gym", f"env.id={env_id}", "env.backend=sync"]
    alone = [key for key in ("env.instances", "collector.num_envs") if one and key not in keys]
    return read_overrides([*found, *(f"{key}=1" for key in alone)])


def register_again(env: Any, env_id: str) -> None:
    """Register the environment of a run that was started with one.

    Raises: ConfigError.
    """
    if not env_id.startswith(OBJECT):
        wrong = f"the environment of this run is {env_id}, which needs no argument"
        raise ConfigError(f"env = {env!r:.60}: {wrong}; None is allowed; leave it out")
    _register(env_id, _maker(env)[0])


def _register(env_id: str, make: Callable[..., Any]) -> None:
    gym.registry.pop(env_id, None)
    gym.register(env_id, make, disable_env_checker=True, order_enforce=False)


def _maker(env: Any) -> tuple[Callable[..., Any], bool]:
    """Return (function that makes the environment, whether it is a single object).

    Raises: ConfigError.
    """
    if isinstance(env, gym.Env):
        return partial(_Lent, env, env.unwrapped.spec), True
    if callable(env) and not isinstance(env, gym.vector.VectorEnv):
        return env, False
    fix = "a vector environment is made by rlrun: collector.num_envs=N"
    if isinstance(env, str):
        fix = f'type a name as an override: rlrun.train("env={env:.60}", ...)'
    raise ConfigError(
        f"env = {env!r:.60}: is not an environment; a gymnasium.Env and a function that returns "
        f"one are allowed; {fix}"
    )


class _Lent(gym.Wrapper[Any, Any, Any, Any]):
    """The user's environment. Closing it leaves it open and unchanged."""

    def __init__(self, env: gym.Env[Any, Any], own_spec: Any, **arguments: Any) -> None:
        super().__init__(env)
        self.own_spec = own_spec

    def close(self) -> None:
        self.env.unwrapped.spec = self.own_spec  # Gymnasium noted the id that it was made by
