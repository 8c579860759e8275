"""Runs in this process, collectors, environments of given rows, and what disturbs them."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.env import make_env
from rlrun.env.rows import Env, Step
from rlrun.pipeline.collector import Collector
from rlrun.run import start
from rlrun.run.checkpoint import load_newest
from rlrun.run.manifest import list_checkpoints
from rlrun.schema import CollectorConfig, EnvConfig
from rlrun.types import Act, Chunk, Counters, Segment, Spec, tree_map
from tests.compose import config
from tests.log.records import read_records
from tests.policy.make import build

SMOKE = ("debug=smoke", "logger.progress=off", "logger.tensorboard=false")
TINY = ("torso.hidden=[8]", "learner.batch_size=4", "run.eval_episodes=1")
R2D2 = ("policy=r2d2", "env=cartpole", *TINY, "memory.hidden=4")

# -- runs ------------------------------------------------------------------------------------------


def go(run_dir: Path, *overrides: str) -> dict[str, Any]:
    """One in-process run; its run.json."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text("{}")
    c = config(*SMOKE, *overrides)
    assert start.start(start.Launch(c, run_dir, "seed: 0\n")) == 0
    return record_of(run_dir)


def resumed(run_dir: Path, *overrides: str) -> dict[str, Any]:
    """The run.json of a resumed run."""
    c = config(*SMOKE, *overrides)
    assert start.start(start.Launch(c, run_dir, "seed: 0\n", [])) == 0
    return record_of(run_dir)


def fails(kind: type[BaseException], run_dir: Path, *overrides: str) -> tuple[Any, dict[str, Any]]:
    """(the error, run.json) of a run, or of the next resume of it, that ends in ``kind``."""
    resumed = [] if (run_dir / "run.json").exists() else None
    run_dir.mkdir(exist_ok=True)
    launch = start.Launch(config(*SMOKE, *overrides), run_dir, "seed: 0\n", resumed)
    with pytest.raises(kind) as caught:
        start.start(launch)
    return caught.value, record_of(run_dir)


def record_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "run.json").read_text())


def state_of(run_dir: Path) -> dict[str, Any]:
    """The state of the newest checkpoint."""
    return load_newest(run_dir / "checkpoints")[0]


def saved(run_dir: Path) -> list[int]:
    """The env steps of the checkpoints."""
    return [int(path.name.split("_")[1]) for path in list_checkpoints(run_dir / "checkpoints")]


def shown(run_dir: Path, key: str, file: str = "metrics.jsonl") -> list[tuple[int, Any]]:
    """(env_steps, value) of every line that has ``key``."""
    lines = read_records(run_dir / file)
    return [(line["env_steps"], line[key]) for line in lines if key in line]


def on_steps(
    patch: pytest.MonkeyPatch,
    *,
    training: Callable[[int], None] = lambda n: None,
    evaluation: Callable[[int], float | None] = lambda n: None,
) -> None:
    """Call ``training`` and ``evaluation`` before the n-th row of the environments for it.

    Every second row of an episode of one step is its end. What ``evaluation`` returns is the
    reward of that row. Evaluations have seeds of their own.
    """
    reset, step = Env.reset, Env.step
    evaluates: dict[int, bool] = {}
    counts = Counter[bool]()

    def begun(self: Env, *, seed: int) -> Any:
        evaluates[id(self)] = seed >= 2**29
        return reset(self, seed=seed)

    def told(self: Env, action: np.ndarray) -> Step:
        own = evaluates[id(self)]
        counts[own] += 1
        reward = (evaluation if own else training)(counts[own])
        found = step(self, action)
        if not own or reward is None:
            return found
        return replace(found, reward=np.full_like(found.reward, reward))

    patch.setattr(Env, "reset", begun)
    patch.setattr(Env, "step", told)


STEPWISE = (  # one environment, episodes of one step; an evaluation is one step
    "policy=random", "env=bandit", "collector.num_envs=1", "collector.n_sample=1",
    "run.stop_return=null", "run.eval_every=8", "run.eval_episodes=1",
)  # fmt: skip


def evaluations(patch: pytest.MonkeyPatch, *returns: float) -> None:
    """Make successive evaluations of ``STEPWISE`` return ``returns``."""
    left = iter(returns)
    on_steps(patch, evaluation=lambda n: next(left))


# -- collectors ------------------------------------------------------------------------------------

LENGTHS = (5, 1, 9, 3)


def counter(lengths=LENGTHS, end="alternate") -> EnvConfig:
    c = deepcopy(config("env=counter").env)
    kwargs = {"lengths": list(lengths), "end": end, "random": False}
    return replace(c, kwargs=kwargs, eval_kwargs={}, max_episode_steps=None, success=None)


def collecting(**changes) -> CollectorConfig:
    fields = {
        "num_envs": 3, "n_sample": 10, "unit": "step", "tiling": "lossless", "learned_overlap": 0,
        "residual": None, "overlap": None, "keep_info": (),
    }  # fmt: skip
    return CollectorConfig(**(fields | changes))


def make(
    policy=None, env_config=None, cutter=None, epsilon=0.3, agents=None, env=None, explore=None,
    stack=None, **changes,
) -> Collector:  # fmt: skip
    c = collecting(**changes)
    env = env or make_env(env_config or counter(), num_envs=c.num_envs, agents=agents)
    policy = policy or build("r2d2", spec=Spec(env.obs_space, env.action_space))
    return Collector(
        c, env=env, policy=policy, counters=Counters(), seed=0, cutter=cutter, stack=stack,
        explore=explore or (lambda _: np.full(env.num_envs, epsilon)),
    )  # fmt: skip


def copied(chunk: Chunk) -> Segment:
    segment, names = chunk.segment(), Segment.__slots__
    return Segment(**{n: tree_map(torch.clone, getattr(segment, n)) for n in names})


def joined(chunks) -> Segment:
    """The rows of successive chunks as one segment."""

    def field(name, extra=0):
        parts = [tree_map(lambda x, c=c: x[: len(c.reward)], getattr(c, name)) for c in chunks]
        if extra:
            parts.append(tree_map(lambda x: x[-1:], getattr(chunks[-1], name)))
        return tree_map(lambda *x: torch.cat(x), *parts)

    plain = ("action", "reward", "terminated", "truncated", "valid", "states", "extras")
    return Segment(
        obs=field("obs", 1), first=field("first", 1), **{n: field(n) for n in plain},
        state=tree_map(lambda x: x[0], chunks[0].states),
    )  # fmt: skip


GO, DIES, OPENS, WAITS = (0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 1, 0)  # rows of ``Scripted``


class Scripted:
    """Environments whose rows are given: per step (terminated, truncated, first) of each.

    Observations and rewards of the n-th row are n in all environments; end rows pay nothing.
    """

    obs_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, *columns, info=False):
        self.rows, self.num_envs = list(zip(*columns, strict=True)), len(columns)
        self.t, self.info, self.inexact = 0, info, None
        self.cut = np.zeros(self.num_envs, bool)

    def reset(self, *, seed):
        return np.zeros((self.num_envs, 1), np.float32)

    def state_dict(self):
        return {"t": self.t}

    def load_state_dict(self, state, *, entropy=()):
        self.cut[:] = state is None
        self.t = 0 if state is None else state["t"]
        return ["reset"] if state is None else []

    def step(self, action):
        terminated, truncated, first = np.array(self.rows[self.t % len(self.rows)]).T.astype(bool)
        if self.cut.any():
            terminated, truncated = np.zeros((2, self.num_envs), bool)
            first, self.cut = self.cut, np.zeros(self.num_envs, bool)
        self.t += 1
        count = np.full(self.num_envs, self.t, np.float32)
        info = {"seen": 10 * count} if self.info else {}
        reward = np.where(first, 0, count).astype(np.float32)
        return Step(count[:, None], reward, terminated, truncated, first, info)


class Acting:
    """A policy and its actor that record their inputs; actions and states count the steps.

    ``actions``: how many there are; the count goes on from 0.
    """

    window, extras = None, {}

    def __init__(self, actions=1000):
        self.shown, self.explored, self.refreshed, self.actions = [], [], 0, actions

    def actor(self, num_envs):
        self.num_envs = num_envs
        return self

    def refresh(self):
        self.refreshed += 1

    def initial_state(self):
        return np.zeros(self.num_envs)

    def act(self, obs, first, prev_action, prev_reward, state, *, explore):
        inputs = (obs, first, prev_action, prev_reward, state)
        self.shown.append(tuple(np.array(x) for x in inputs))
        self.explored.append(explore)
        return Act(np.full(self.num_envs, len(self.shown) % self.actions), {}, state + 1)
