"""A trained policy that acts, with its recurrent state, previous action and reward, and frames.

It acts as in ``rlrun eval``: with the policy's actor and the run's weights.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rlrun.blas import one_thread
from rlrun.config import load
from rlrun.env import make_env, make_one_env
from rlrun.env.contract import structure_violation
from rlrun.env.framestack import FrameStack, make_frame_stack
from rlrun.env.rows import RowsVectorEnv
from rlrun.errors import ConfigError, NumericError
from rlrun.functional.rows import shape_reward
from rlrun.policy.actor import NetActor
from rlrun.policy.compute import flushed
from rlrun.policy.dqn import ValueActor
from rlrun.policy.greedy import as_tree
from rlrun.policy.qmix import TeamActor
from rlrun.policy.scripted import RandomActor, ScriptedActor
from rlrun.policy.separate import SeparateActor
from rlrun.run import checkpoint, history
from rlrun.run.build import make_policy, prepare_process
from rlrun.run.files import CARD_WEIGHTS, is_card
from rlrun.run.manifest import CHECKPOINTS
from rlrun.run.plan import Plan, make_plan
from rlrun.spaces import leaf_name, leaf_of, leaf_spaces, value_range
from rlrun.types import Actor, Policy, Tree, no_actions

_LONGEST = 200  # characters of a value in a message
_FIX = "pass what the environment returned"


def read_obs(space: gym.Space[Any], obs: Any) -> tuple[Tree, int]:
    """Return observations as arrays [n, *O] in the dtypes of ``space``, and n.

    A single observation with the shape of the space becomes a batch of one, and n is 0. Numbers are
    cast if that keeps their kind: float64 to float32, integers to floats, never floats to integers.

    Raises: ConfigError.
    """
    if (wrong := structure_violation(space, obs, "obs")) is not None:
        raise ConfigError(f"{wrong}; {_FIX}")
    counts: set[int] = set()
    leaves = [
        _read_array(part, leaf_of(obs, path), leaf_name(path, "obs"), counts)
        for path, part in leaf_spaces(space)
    ]
    if len(counts) > 1:
        shown = ", ".join("one" if n == 0 else str(n) for n in sorted(counts))
        raise ConfigError(
            f"obs: its parts have {shown} environments; the same number in all parts is "
            "allowed; stack every part, or none"
        )
    return as_tree(space, iter(leaves)), counts.pop()


def _read_array(space: gym.Space[Any], obs: Any, path: str, counts: set[int]) -> np.ndarray:
    shape, dtype = space.shape, space.dtype
    assert shape is not None
    assert dtype is not None
    batch = ", ".join(["n", *map(str, shape)])
    allowed = f"{dtype} {list(shape)}, or [{batch}] of n environments"
    try:
        x = np.asarray(obs)
    except ValueError:  # lists of different lengths
        _refuse(path, "no array", allowed)
    single = x.shape == shape
    if x.dtype.kind not in "biuf" or not (single or (x.ndim and x.shape[1:] == shape)):
        _refuse(path, f"{x.dtype} {list(x.shape)}", allowed)
    if isinstance(obs, int | list | tuple) and x.dtype.kind == "i" and dtype.kind == "u":
        fits = not x.size or (x.min() >= 0 and x.max() <= np.iinfo(dtype).max)  # Python's integers
    else:
        fits = bool(np.can_cast(x.dtype, dtype, "same_kind"))
    if not fits:
        _refuse(path, f"{x.dtype} {list(x.shape)}", allowed)
    if dtype.kind == "f" and not np.isfinite(x).all():
        _refuse(path, "not finite", "finite numbers")
    low, high = value_range(space)
    if not isinstance(space, spaces.Box) and ((x < low) | (x > high)).any():
        _refuse(path, f"{x.tolist()}", f"an integer within [{low}, {high}]")
    counts.add(0 if single else len(x))
    return x.astype(dtype, copy=False)[None] if single else x.astype(dtype, copy=False)


def read_column(name: str, x: Any, n: int, dtype: type) -> np.ndarray:
    """Return flags or numbers, one per environment, as ``dtype`` [n].

    A scalar is allowed if n is 1.

    Raises: ConfigError.
    """
    array, flags = np.asarray(x), dtype is np.bool_
    fits = array.shape == (n,) or (n == 1 and array.shape == ())
    fits = fits and array.dtype.kind in ("b" if flags else "biuf")
    finite = fits and np.isfinite(array).all()
    if not finite:
        actual = "nan or infinite" if fits else f"{array.dtype} {list(array.shape)}"
        _refuse(name, actual, f"{'bool' if flags else 'finite numbers'} [{n}]")
    return array.astype(dtype).reshape(n)


def _refuse(path: str, actual: str, allowed: str) -> NoReturn:
    shown = actual if len(actual) <= _LONGEST else f"{actual[:_LONGEST]} ..."
    raise ConfigError(f"{path}: is {shown}; {allowed} is allowed; {_FIX}")


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A run's plan, its policy with saved weights, and the env steps of these weights."""

    plan: Plan
    policy: Policy
    env_steps: int


def load_trained(
    run_dir: Path, *, weights: str = "final", device: str | None = None
) -> TrainedPolicy:
    """Return the policy of ``run_dir`` with its weights.

    ``weights``: final, best, or the env step of a version that checkpoint.history keeps. ``device``
    None: that of the run.

    Raises: ConfigError if it is not a run directory. CheckpointError if the weights are missing,
    damaged or do not fit the config. NumericError if they are not finite. ResourceError if the
    device is missing.
    """
    config, _ = load(run_dir, [f"device={device}"] if device else [], replay=False)
    plan = make_plan(config)
    prepare_process(plan)
    directory = run_dir / CHECKPOINTS
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    if is_card(run_dir):
        if weights != "final":
            wrong = "an exported agent has one version of its weights"
            raise ConfigError(f"--weights = {weights}: {wrong}; final is allowed; leave it out")
        tensors, meta = checkpoint.load_weights(run_dir / CARD_WEIGHTS)
    elif weights.isdecimal():
        tensors, meta = history.load(directory / history.DIRECTORY, int(weights))
    else:
        name = {"final": "last", "best": "best"}[weights]
        tensors, meta = checkpoint.load_weights(directory / f"{name}.safetensors")
    if bad := next((n for n, x in tensors.items() if not bool(torch.isfinite(x).all())), None):
        raise NumericError(
            f"--weights = {weights}: {bad} of {directory} holds NaN or infinity; rlrun saves "
            "finite weights only; use another version, or train again"
        )
    policy = make_policy(plan)
    with checkpoint.fitting(directory):
        policy.load(tensors)
        return TrainedPolicy(plan, policy, int(meta["env_steps"]))


@dataclass(frozen=True, slots=True)
class _Row:
    """The inputs of one step for n environments."""

    obs: Tree  # [n, ...] single frames
    first: np.ndarray  # [n]
    reward: np.ndarray  # [n]
    single: bool  # the caller's observation has no axis of environments


class Agent:
    """Acts with the weights of a run, for n environments that step together.

    ``run_dir``, ``env_steps``: the run, and the env steps of its weights. ``observation_space``,
    ``action_space``: of one environment, or of one agent if agents have columns of their own
    (``columns`` per environment). Frames are stacked inside. ``eval_seed``: the seed of ``rlrun
    eval``, which training never uses.
    """

    def __init__(self, trained: TrainedPolicy, run_dir: Path) -> None:
        plan = trained.plan
        self.run_dir, self.env_steps, self._policy = run_dir, trained.env_steps, trained.policy
        self._config = plan.config
        self.observation_space, self.action_space = plan.row_spec.obs, plan.row_spec.action
        self.columns = plan.columns_per_env
        self.eval_seed = plan.env_seeds.final
        # Policies number actions from 0, the space from its ``start``.
        self._start = np.asarray(getattr(self.action_space, "start", 0))
        self._warned = False
        self._n = 0  # environments of the last reset
        self._actor = self._policy.actor(self.columns)
        self._reader: ValueActor | None = None  # for q_values: without noise
        self._stack: FrameStack | None

    def __repr__(self) -> str:
        name, env = self._config.policy.name, self._config.env.id
        return f"Agent({name} on {env}, {self.env_steps} env steps, {str(self.run_dir)!r})"

    def reset(self, n: int = 1, *, seed: int | None = None) -> None:
        """Begin new episodes in ``n`` environments with zero recurrent state.

        If every agent has its own column, ``n`` counts columns, ``columns`` per environment.
        ``seed``: of exploration; None: the generator continues.

        Raises: ConfigError.
        """
        _require_count(n, self.columns, "reset")
        if seed is not None:
            self._policy.generator = np.random.default_rng(seed)
        if seed is not None or n != self._n:
            self._actor = self._policy.actor(n)
        self._actor.refresh()
        self._n, self._opened, self._reader = n, False, None
        self._state = self._actor.initial_state()
        self._action = no_actions(self.action_space, n)
        self._stack = make_frame_stack(self._config.env.frame_stack, self.observation_space, n)

    def act(
        self, obs: Any, reward: Any = None, first: Any = None, *, explore: bool | float = False
    ) -> Any:
        """Return the actions of the next step and advance the recurrent state.

        ``obs``: a batch [n, ...], or one observation (n = 1), whose action has no environment axis
        either. The first call resets with ``reset(n)`` if that was not called.
        ``reward`` [n]: rewards of the last step, for networks that read them
        (``policy.prev_inputs``). If missing, these get 0 and a warning is issued.
        ``first`` [n] bool: the observation opens an episode, and everything before it is forgotten.
        None: only observations right after ``reset`` do.
        ``explore``: False is greedy, as in evaluations. True samples a stochastic policy (ppo, sac)
        or adds the noise of a deterministic one (td3). A number is the probability of a random
        action, for policies of action values.

        Raises: ConfigError.
        """
        row = self._read(obs, reward, first)
        epsilon = self._epsilon(explore)
        stacked = row.obs if self._stack is None else self._stack.push(row.obs, row.first)
        inputs = stacked, row.first, self._action, row.reward, self._state
        with one_thread(), flushed():
            out = self._actor.act(*inputs, explore=epsilon)
        self._action, self._state, self._opened = out.action, out.state, True
        action = np.array(out.action)
        if self._start.any():
            action = action + self._start
        return action[0] if row.single else action

    def q_values(self, obs: Any, reward: Any = None, first: Any = None) -> np.ndarray:
        """Return Q of every action, [n, A], or [A] for one observation. The state does not advance.

        Call it before ``act`` with the same arguments. Q is the return that the policy learns, with
        value rescaling undone: of scaled and clipped rewards (``policy.reward_scale``,
        ``policy.reward_clip``), which PQN normalises (``policy.normalize_reward``).

        Raises: ConfigError, also for policies without a Q of every action.
        """
        config = self._config.policy
        if not isinstance(self._actor, ValueActor):
            raise ConfigError(
                f"agent.q_values: policy={config.name} (agents={self._config.agents.name}) has "
                "no Q of every action; policies of action values (dqn, r2d2, cql, pqn) have; use "
                "agent.act"
            )
        row = self._read(obs, reward, first)
        if self._reader is None:
            reader = self._policy.actor(self._n)
            assert isinstance(reader, ValueActor)
            reader.perturb(None)
            self._reader = reader
        actor, obs = self._reader, row.obs
        if self._stack is not None:
            before = self._stack.state_dict()
            obs = self._stack.push(row.obs, row.first)
        shaped = shape_reward(row.reward, actor.scale, actor.clip)
        with one_thread(), flushed():
            q, _ = actor.step(obs, row.first, self._action, shaped, self._state)
        if self._stack is not None:
            self._stack.load_state_dict(before)
        q = actor.q_values(torch.from_numpy(np.array(q))).numpy()
        return q[0] if row.single else q

    def env(self, n: int | None = None, *, render: bool = False) -> Any:
        """Return the environment of the run's evaluations with its wrappers. The caller closes it.

        ``n`` None: one environment, a ``gymnasium.Env``. Otherwise a ``gymnasium.vector.VectorEnv``
        of n environments with NEXT_STEP autoreset, whose rows are columns if every agent has one.
        ``render``: ``env.render()`` returns a picture of the (first) environment, uint8 [height,
        width, 3]. A worker process that fails (env.backend=async) is not restarted.

        Raises: ConfigError.
        """
        env, agents = self._config.env, self._config.agents
        if n is not None:
            _require_count(n, 1, "env")
            keep = (env.success,) if env.success else ()
            options: dict[str, Any] = {"evaluate": True, "agents": agents, "render": render}
            # Gymnasium's rows cannot report a restart.
            env = replace(env, on_worker_failure="stop")
            return RowsVectorEnv(make_env(env, num_envs=n, keep_info=keep, **options))
        if self.columns > 1:
            raise ConfigError(
                f"agent.env(): agents={agents.name} has {self.columns} columns for each "
                "environment; a vector environment is allowed; use agent.env(1)"
            )
        return make_one_env(env, evaluate=True, render=render)

    def _read(self, obs: Any, reward: Any, first: Any) -> _Row:
        tree, count = read_obs(self.observation_space, obs)
        n = count or 1
        if not self._n:
            self.reset(n)
        if n != self._n:
            raise ConfigError(
                f"obs: has {n} environments; {self._n}, the number of agent.reset, is allowed; "
                f"call agent.reset({n})"
            )
        flags = read_column("first", np.zeros(n, bool) if first is None else first, n, np.bool_)
        if not self._opened:
            flags = np.ones(n, bool)
        if reward is None and not flags.all() and not self._warned and reads_reward(self._actor):
            self._warned = True
            name, fix = self._config.policy.name, "pass reward=, the one that env.step returned"
            text = "reads the reward of the last step, but none was given: 0 is used"
            warnings.warn(f"agent.act: policy={name} {text}; {fix}", stacklevel=3)
        rewards = np.zeros(n) if reward is None else reward
        return _Row(tree, flags, read_column("reward", rewards, n, np.float32), count == 0)

    def _epsilon(self, explore: bool | float) -> np.ndarray | None:
        """Return the probability of a random action in every environment; None: greedy."""
        name, number = self._config.policy.name, not isinstance(explore, bool | np.bool_)
        if not number and not explore:
            return None
        takes = takes_probability(self._actor)
        if number and not 0 <= explore <= 1:
            wrong = "is not a probability; True, False or a number within [0, 1] is allowed; "
            wrong += "e.g. explore=0.05"
        elif takes and not number:
            wrong = f"policy={name} does not sample; the probability of a random action is "
            wrong += "allowed; e.g. explore=0.05"
        elif number and not takes:
            wrong = f"policy={name} explores by its own samples, not by a probability of random "
            wrong += "actions; True and False are allowed; use explore=True"
        else:  # 0: the policy's own sample, without uniform actions
            return np.full(self._n, explore if number else 0, np.float32)
        raise ConfigError(f"explore = {explore}: {wrong}")


def _require_count(n: object, unit: int, method: str) -> None:
    """Raise ConfigError unless ``n`` is a positive multiple of ``unit``."""
    if type(n) is not int or n < 1 or n % unit:
        allowed = "an integer >= 1" if unit == 1 else f"a multiple of {unit}"
        wrong = "is not a number of environments"
        raise ConfigError(f"n = {n}: {wrong}; {allowed} is allowed; e.g. agent.{method}({unit})")


def reads_reward(actor: Actor) -> bool:
    """Return whether the network of an actor reads the previous reward. A user's own actor may."""
    match actor:
        case SeparateActor():
            return any(map(reads_reward, actor.actors))
        case NetActor():
            return actor.previous is not None
        case RandomActor() | ScriptedActor():
            return False
    return True


def takes_probability(actor: Actor) -> bool:
    """Return whether exploration is a probability of random actions."""
    if isinstance(actor, SeparateActor):
        return any(map(takes_probability, actor.actors))
    return isinstance(actor, ValueActor | TeamActor)


def load_agent(run_dir: Path, *, weights: str = "final", device: str | None = None) -> Agent:
    """Return the agent of a run. Arguments and errors are those of ``load_trained``.

    The numbers of torch's and BLAS's threads stay unchanged.
    """
    threads = torch.get_num_threads()
    try:
        with one_thread(), flushed():
            return Agent(load_trained(run_dir, weights=weights, device=device), run_dir)
    finally:
        torch.set_num_threads(threads)
