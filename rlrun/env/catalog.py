"""Look-up of environment ids, and construction of single and native vector environments."""

import copy
import difflib
import importlib.util
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rlrun.env.contract import exception_text, missing_text, pass_ctrl_c
from rlrun.env.diagnostic.vector import SingleFromVector
from rlrun.errors import ConfigError, EnvError, ResourceError, RlrunError
from rlrun.schema import EnvConfig
from rlrun.schema.run import OBJECT
from rlrun.trust import ENVIRONMENTS, import_named

_ROBOTICS = ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "PointMaze_", "AntMaze_",
             "FrankaKitchen", "MaMuJoCo")  # fmt: skip
# Packages that register environments on import: prefixes of ids, module, what pip installs.
_PACKAGES = (
    (("ALE/", "rlrun/Atari-"), "ale_py", "'rlrun[atari]'"),
    (("MiniGrid-", "BabyAI-"), "minigrid", "'rlrun[minigrid]'"),
    (("popgym-",), "popgym", "'rlrun[popgym]'"),
    (("MinAtar/",), "minatar.gym", "'rlrun[minatar]'"),
    (_ROBOTICS, "gymnasium_robotics", "'gymnasium-robotics'"),
)
_ATARI = (  # games with separate ids before ALE/...-v5
    "Adventure|AirRaid|Alien|Amidar|Assault|Asterix|Asteroids|Atlantis|BankHeist|BattleZone|"
    "BeamRider|Berzerk|Bowling|Boxing|Breakout|Carnival|Centipede|ChopperCommand|CrazyClimber|"
    "Defender|DemonAttack|DoubleDunk|ElevatorAction|Enduro|FishingDerby|Freeway|Frostbite|Gopher|"
    "Gravitar|Hero|IceHockey|Jamesbond|JourneyEscape|Kangaroo|Krull|KungFuMaster|"
    "MontezumaRevenge|MsPacman|NameThisGame|Phoenix|Pitfall|Pong|Pooyan|PrivateEye|Qbert|"
    "Riverraid|RoadRunner|Robotank|Seaquest|Skiing|Solaris|SpaceInvaders|StarGunner|Tennis|"
    "TimePilot|Tutankham|UpNDown|Venture|VideoPinball|WizardOfWor|YarsRevenge|Zaxxon"
)
_OLD_ATARI = re.compile(rf"({_ATARI})(-ram)?(Deterministic|NoFrameskip)?-v[0-4]")
NATIVE = {  # ids that Gymnasium has only single -> rlrun's vector environment
    "Acrobot-v1": "rlrun.env.classic:Acrobot",
    "MountainCar-v0": "rlrun.env.classic:MountainCar",
    "MountainCarContinuous-v0": "rlrun.env.classic:MountainCarContinuous",
    "Pendulum-v1": "rlrun.env.classic:Pendulum",
}
_FAMILIES = {  # Gymnasium's environments: what pip installs
    "box2d": "'rlrun[box2d]'",
    "mujoco": "'rlrun[mujoco]'",
    "phys2d": "'gymnasium[jax]'",
    "tabular": "'gymnasium[jax]'",
}


class MissingPackageError(ResourceError):
    """The package of an environment is not installed. ``install`` is pip's name for it."""

    def __init__(self, env_id: str, reason: str, install: str) -> None:
        super().__init__(
            f"env.id = {env_id}: it needs a package that is not installed ({reason}); "
            f"install it: pip install {install}"
        )
        self.install = install


def require_in_every_process(env_id: str) -> None:
    """Raise ConfigError for an id that a script or notebook registered only in its own process."""
    if ":" in env_id or env_id not in gym.registry or _package_of(env_id) is not None:
        return
    plugins = entry_points(group="gymnasium.envs")  # imported by Gymnasium itself
    known = {*ENVIRONMENTS, *(plugin.module.partition(".")[0] for plugin in plugins)}
    if _package_with(gym.registry[env_id]) not in known:
        raise ConfigError(
            f"env.id = {env_id}: only this process has it, but every job of a sweep is a new "
            "one; an id with the module that registers it is allowed; move the class and its "
            f"gym.register into a file, mymodule.py, and set env.id=mymodule:{env_id}",
            key="env.id",
        )


def _package_with(spec: EnvSpec) -> str:
    """Return the package or module that holds the class of ``spec``."""
    entry: Any = spec.entry_point or spec.vector_entry_point
    where = entry if isinstance(entry, str) else str(getattr(entry, "__module__", ""))
    return where.partition(":")[0].partition(".")[0]


def own_environment(name: str = "ID", module: str = "MODULE", entry: str = "...") -> str:
    """Return in words how an environment of one's own is registered and chosen."""
    return (
        f"for your own, {module} calls gymnasium.register(id={name!r}, entry_point={entry}), then "
        f"env=gym env.id={module}:{name} (rlrun help environments)"
    )


def choice_of(name: str) -> str:
    """Return in words how an environment is chosen by what may be its id."""
    module, colon, env_id = name.rpartition(":")
    if colon:
        return own_environment(env_id, module)
    if name in gym.registry or _package_of(name) is not None:
        return f"any Gymnasium id: env=gym env.id={name}"
    return own_environment(name)


def atari_game(name: str) -> str | None:
    """Return the game that ``name`` means (pong, Pong-v0, ALE/Pong-v5), or None."""
    word = re.sub(r"(-ram)?(Deterministic|NoFrameskip)?-v\d$", "", name.removeprefix("ALE/"))
    word = re.sub(r"[-_ ]", "", word).lower()
    return next((game for game in _ATARI.split("|") if game.lower() == word), None)


def find_spec(env_id: str) -> EnvSpec:
    """Return Gymnasium's registry entry of ``env_id``. ``module:id`` imports the module first.

    Raises:
        ConfigError: there is none; the message names the closest ids or the package to install.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(env_id, module)
    elif (package := _package_of(name)) is not None:
        _, module, install = package
        if importlib.util.find_spec(module) is None:
            text = f"it comes with the package {module}"
            raise MissingPackageError(env_id, text, install)
        _import(env_id, module)
    if name in gym.registry:
        spec = gym.registry[name]
        gymnasiums = str(spec.entry_point).startswith("gymnasium.envs.classic_control")
        if gymnasiums and spec.vector_entry_point is None and name in NATIVE:
            spec = copy.copy(spec)  # the registry stays Gymnasium's
            spec.vector_entry_point = NATIVE[name]
        return spec
    if (game := _OLD_ATARI.fullmatch(name)) is not None:
        settings = f"env=gym env.id=ALE/{game[1]}-v5"
        use = f"env=atari env.game={game[1]} torso=nature_cnn, or {settings} for Gymnasium's frames"
        if game[2]:
            use = f"{settings} env.kwargs.obs_type=ram"
        raise ConfigError(
            f"env.id = {env_id}: no such environment; settings of Atari games are keys, not part "
            f"of ids; use {use} (pip install 'rlrun[atari]')"
        )
    if name.startswith(OBJECT):
        wrong = "a script passed it to rlrun.train, and this process does not have it"
        fix = "the same environment is needed; rlrun.resume(RUN_DIR, env=...) takes it"
        raise ConfigError(f"env.id = {env_id}: {wrong}; {fix}")
    if module:
        raise _unregistered(env_id, module, name)
    similar = ", ".join(closest_ids(name, gym.registry))
    raise ConfigError(
        f"env.id = {env_id}: no such environment; closest: {similar}; see `rlrun list`; "
        f"{own_environment(name or 'ID')}"
    )


def _unregistered(env_id: str, module: str, name: str) -> ConfigError:
    """Return the error for a module that was imported and did not register ``name``."""
    package = module.partition(".")[0]
    ids = [spec.id for spec in gym.registry.values() if _package_with(spec) == package]
    if ids:
        has = f"module {module} registers {', '.join(closest_ids(name, ids))}"
        fix = f"set env.id={module}:{closest_ids(name, ids)[0]}"
    else:
        has = f"module {module} registers none"
        entry = f"'{module}:{name}'" if name.isidentifier() else "..."
        fix = own_environment(name, module, entry)
    return ConfigError(f"env.id = {env_id}: no such environment; {has}; {fix}")


def _package_of(name: str) -> tuple[tuple[str, ...], str, str] | None:
    """Return the entry of _PACKAGES that registers ``name``; None: Gymnasium knows it."""
    if name in gym.registry and not name.startswith("rlrun/"):
        return None
    return next((package for package in _PACKAGES if name.startswith(package[0])), None)


def import_module(env_id: str, module: str) -> Any:
    """Import a user's module.

    Raises: ImportError; ConfigError if the import raises anything else.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # pygame prints to stdout otherwise
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_named(module)
    except ImportError:
        raise
    except BaseException as e:  # a user's module may raise anything
        pass_ctrl_c(e)
        text = f"{type(e).__name__}: {' '.join(str(e).split())}".removesuffix(": ")
        raise ConfigError(
            f"env.id = {env_id}: importing {module} raised {text}; a module that can be imported "
            "is allowed; correct it, or choose another"
        ) from e


def _import(env_id: str, module: str) -> None:
    try:
        imported = import_module(env_id, module)
        if module == "minatar.gym" and "MinAtar/Breakout-v1" not in gym.registry:
            imported.register_envs()  # importing it does not
    except ImportError as e:
        raise ConfigError(
            f"env.id = {env_id}: module {module} cannot be imported ({e}); a module that registers "
            "the id is allowed, installed or in the working directory; fix the name, or install "
            "what it needs"
        ) from e


def closest_ids(name: str, ids: Iterable[str]) -> list[str]:
    """Return the three ``ids`` most similar to ``name``, with or without namespace and version."""
    wanted = name.lower()

    def similarity(env_id: str) -> float:
        full = env_id.lower()
        short = full.rpartition("/")[2]
        forms = (full, short, short.rpartition("-v")[0])
        return max(difflib.SequenceMatcher(None, wanted, form).ratio() for form in forms)

    return sorted(ids, key=lambda env_id: (-similarity(env_id), env_id))[:3]


def _pip_requirement(spec: EnvSpec) -> str | None:
    """Return the pip requirement of ``spec``, or None if it is not Gymnasium's own."""
    entry = spec.entry_point if isinstance(spec.entry_point, str) else ""
    family = entry.removeprefix("gymnasium.envs.").partition(".")[0]
    return _FAMILIES.get(family) if entry.startswith("gymnasium.envs.") else None


@contextmanager
def construction_errors(
    env_id: str,
    kwargs: dict[str, Any],
    name: str,
    missing: Callable[[Exception], RlrunError],
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError),
) -> Iterator[None]:
    """Convert errors in the construction of an environment to ConfigError.

    ``name``: the callable that takes ``kwargs`` and raises ``refusals`` if they are wrong.
    ``missing``: makes the error for a missing package. Gymnasium's warnings about registration and
    DeprecationWarnings of packages are ignored: one package crashes when they are raised.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"gymnasium\.")
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    except (ImportError, gym.error.DependencyNotInstalled) as e:
        raise missing(e) from e
    except (ConfigError, ResourceError):
        raise
    except Exception as e:
        text = first_line(e.__cause__ or e)
        if isinstance(e, refusals) and (kwargs or "argument" in text):
            raise ConfigError(
                f"env.kwargs = {kwargs}: {name} does not accept them ({text}); allowed are its "
                "arguments; change env.kwargs"
            ) from e
        text = f"it cannot be made ({type(e).__name__}: {first_line(e)})"
        raise ConfigError(f"env.id = {env_id}: {text}; choose another or repair it") from e
    except BaseException as e:
        pass_ctrl_c(e)
        text = f"it cannot be made: {exception_text(e, '__init__')}"
        raise EnvError(f"env.id = {env_id}: {text}") from e


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


def _missing_package(spec: EnvSpec, error: Exception) -> RlrunError:
    if (install := _pip_requirement(spec)) is not None:
        return MissingPackageError(spec.id, missing_text(error), install)
    named = (spec.namespace, spec.name)
    same = [x for x in gym.registry.values() if (x.namespace, x.name) == named]
    newest = max(same, key=lambda x: x.version or 0, default=spec)
    use = f"use env.id={newest.id}, or " if (newest.version or 0) > (spec.version or 0) else ""
    text = f"it cannot be imported ({error}); {use}install what it requires"
    return ConfigError(f"env.id = {spec.id}: {text}")


def env_arguments(config: EnvConfig, *, evaluate: bool = False) -> dict[str, Any]:
    """Return an environment's arguments, updated by ``eval_kwargs`` in evaluations."""
    kwargs = {**config.kwargs, **(config.eval_kwargs if evaluate else {})}
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    return kwargs


def make_single(spec: EnvSpec, kwargs: dict[str, Any], index: int) -> gym.Env[Any, Any]:
    """Return environment number ``index`` of a sync or async vector.

    Raises:
        ConfigError: it cannot be made.
    """
    missing = partial(_missing_package, spec)
    with construction_errors(spec.id, kwargs, spec.id, missing):
        if spec.entry_point is None:
            raise ConfigError(
                f"env.id = {spec.id}: it exists only as a native vector environment; single ones "
                "are needed for wrappers, pictures, env.backend=sync and async; leave these out"
            )
        if _pip_requirement(spec) == _FAMILIES["mujoco"]:
            with suppress(ImportError):  # its warnings: the run's log, not a file in this directory
                import mujoco

                log = logging.getLogger("rlrun.env").info
                mujoco.set_mju_user_warning(lambda text: log("MuJoCo: %s", " ".join(text.split())))
        env: gym.Env[Any, Any] = gym.make(spec, disable_env_checker=True, **kwargs)
    if isinstance(env.unwrapped, SingleFromVector):
        env.unwrapped.set_index(index)
    return env


def make_native(spec: EnvSpec, kwargs: dict[str, Any], num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Return the native vector environment of ``spec``, which must have one.

    ale-py clips rewards by default; rewards are raw here and clipped by the policy.

    Raises:
        ConfigError: it cannot be made.
    """
    if spec.id.startswith("ALE/"):
        kwargs = {"reward_clipping": False, **kwargs}
    missing = partial(_missing_package, spec)
    limit = kwargs.get("max_episode_steps", 1)
    with construction_errors(spec.id, kwargs, spec.id, missing):
        if type(limit) is not int or limit < 1:  # gymnasium.make checks it, make_vec does not
            raise ValueError(f"max_episode_steps must be an integer > 0, not {limit!r}")
        return gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)
