"""Runs from Python: start, resume, fork, verify and compare them."""

import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from rlrun.api.calls import (
    StrPath,
    call,
    check_words,
    directory_of,
    errors_of_cli,
    path_of,
    running_call,
)
from rlrun.api.run import Run
from rlrun.cli.run import new_run, read_line, resume_run, silent
from rlrun.cli.runs import difference, fork_run
from rlrun.config import Composer
from rlrun.errors import ConfigError
from rlrun.run.branch import split_step
from rlrun.run.manifest import Report
from rlrun.schema.override import Override, read_overrides
from rlrun.schema.run import OBJECT
from rlrun.sweeps.record import is_sweep

_OWN_LOGGING = ("hydra/hydra_logging", "hydra/job_logging")  # of the command line's process


@errors_of_cli
def train(
    *overrides: str,
    env: Any = None,
    quiet: bool = False,
    config_dir: StrPath | None = None,
    trust: Sequence[str] = (),
) -> Run:
    """Train to the end of a run, as ``rlrun KEY=VALUE ...`` does, and return the run.

    ``overrides``: those of the command line: ``rlrun.train("policy=r2d2", "env=cartpole")``.
    ``env``: instead of ``env=NAME`` a ``gymnasium.Env``, or a function that returns one. The run
    stays in this process, and its record says that it cannot be resumed exactly.
    ``quiet``: print nothing. ``config_dir``: a directory with your yaml files. ``trust``: packages
    whose code the config may name.

    The first Ctrl-C (or SIGTERM) saves the run and raises Interrupted, the second raises
    KeyboardInterrupt. Signals arrive in the main thread only.

    Raises:
        RlrunError: one of the classes of ``rlrun.errors``, with the line that the command line
            prints; nothing is printed.
    """
    words = check_words(overrides, "rlrun.train")
    if env is not None:
        words += as_overrides(env, words)
    with running_call(words, trust, quiet=quiet, config_dir=config_dir):
        if not any("_logging" in word or word.startswith("hydra.verbose") for word in words):
            words += read_overrides([f"{name}=none" for name in _OWN_LOGGING])
        line = read_line(Composer(config_dir=config_dir), words, quiet=quiet, own_process=False)
        if line.asks_for_sweep:
            wrong = "asks for a sweep; rlrun.train runs once"
            raise ConfigError(f"hydra.mode: {wrong}; leave it out, or use rlrun.sweep")
        directory, run = new_run(line)
        run()
    return Run(directory)


@errors_of_cli
def resume(
    run_dir: StrPath,
    *overrides: str,
    env: Any = None,
    quiet: bool = False,
    discard: bool = False,
    trust: Sequence[str] = (),
) -> Run:
    """Continue a run, as ``rlrun resume RUN_DIR KEY=VALUE ...`` does, and return it.

    ``run_dir``: a run directory or a ``Run``; ``DIR@ENV_STEP`` continues from the checkpoint of
    that env step. ``env``: as in ``train``, for a run that was started with one. ``discard``:
    delete the checkpoints and records after that env step. Other arguments, signals and errors are
    those of ``train``.
    """
    words = check_words(overrides, "rlrun.resume")
    text = path_of(run_dir)
    with running_call(["resume", text, *words, *discard * ["--discard"]], trust, quiet=quiet):
        path, step = split_step(text)
        if step is None and is_sweep(path):
            wrong = "is the directory of a sweep; that of a run is allowed"
            raise ConfigError(f"RUN_DIR = {path}: {wrong}; on a command line: rlrun resume {path}")
        if env is not None:
            register_again(env, Run(path).config["env"]["id"])
        all_words = [*words, *silent(quiet)]
        resume_run(path, step, all_words, discard=discard, own_process=False)
    return Run(path)


@errors_of_cli
def fork(
    run_dir: StrPath,
    *overrides: str,
    quiet: bool = False,
    trust: Sequence[str] = (),
) -> Run:
    """Start a new run from a checkpoint of another, as ``rlrun fork RUN_DIR run.dir=NEW ...``.

    ``run_dir``: ``DIR@ENV_STEP`` starts from the checkpoint of that env step. ``overrides`` must
    include run.dir=NEW. Other arguments are those of ``train``.
    """
    words, text = check_words(overrides, "rlrun.fork"), path_of(run_dir)
    with running_call(["fork", text, *words], trust, quiet=quiet):
        return Run(fork_run(text, words, quiet=quiet, own_process=False))


@errors_of_cli
def verify(run_dir: StrPath) -> list[str]:
    """Return a line per damaged part of a run directory, as ``rlrun verify RUN_DIR``.

    Raises: ConfigError if it is not a run directory.
    """
    return Report(directory_of(run_dir)).problems


@errors_of_cli
def diff(a: StrPath, b: StrPath) -> tuple[bool, list[str]]:
    """Return whether two runs are equal to the bit, and lines that say where they first differ.

    ``a``, ``b``: ``DIR@ENV_STEP`` compares the checkpoint of that env step and the records before
    it.

    Raises: ConfigError if one is not a run directory, CheckpointError if one is damaged.
    """
    with call():
        return difference(path_of(a), path_of(b))


# -- environments made by a script, as a replacement for ``env=NAME`` ----------------------------

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
    make, single = _maker(env)
    made = type(env.unwrapped) if single else env
    name = re.sub(r"\W", "", getattr(made, "__name__", type(made).__name__))
    env_id = f"{OBJECT}{name or 'Env'}-v{next(_numbers)}"
    _register(env_id, make)
    settings = ["env=gym", f"env.id={env_id}", "env.backend=sync"]
    alone = [key for key in ("env.instances", "collector.num_envs") if single and key not in keys]
    return read_overrides([*settings, *(f"{key}=1" for key in alone)])


def register_again(env: Any, env_id: str) -> None:
    """Register the environment of a run that was started with one. Raises: ConfigError."""
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
