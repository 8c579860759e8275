"""Policies of a command line's words with and without their kernel, and samples for both."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from rlrun.buffer.rollout import Rollout
from rlrun.functional.rows import RAW_REWARD, readable
from rlrun.run.build import make_pipeline, make_policy
from rlrun.run.plan import make_plan
from rlrun.types import Sample, tree_leaves, tree_map
from tests.compose import config
from tests.env import boxes
from tests.log.records import OpenedLog

assert boxes  # registers its environments
DISCRETE = ("env=counter",)
BOX = ("env=gym", "env.id=test/Levers-v0", "env.kwargs={length: 4}")
CONTROL = ("sac", "td3", "ddpg")
ON_BOX = (*CONTROL, "rsac", "rtd3")
ON_POLICY = ("ppo", "a2c", "impala", "pqn")
NAMES = ("dqn", "r2d2", *CONTROL, *ON_POLICY)  # with a kernel
SMALL = ("debug=smoke", "learner.learning_starts=0", "learner.batch_size=16", "torso=mlp",
         "torso.hidden=[7,6]", "logger.progress=off", "logger.tensorboard=false")  # fmt: skip
OWN = {
    "r2d2": (
        "memory.hidden=5",
        "policy.learn_unroll_len=7",
        "policy.burnin_step=3",
        "policy.nstep=3",
    )
}
OWN |= dict.fromkeys(ON_POLICY, ("collector.n_sample=64",)) | dict.fromkeys(
    CONTROL, ("policy.nstep=3",)
)
OWN["pqn"] += ("torso.layer_norm=true",)
OWN["ppo"] += ("policy.epochs=2",)


def line(name: str, *words: str) -> tuple[str, ...]:
    """The words of a small ``policy=name`` in an environment that it can act in."""
    env = BOX if name in ON_BOX else DISCRETE
    return (f"policy={name}", *env, *SMALL, *OWN.get(name, ()), *words)


def policy_of(words: tuple[str, ...], *, space: gym.Space[Any] | None = None, text: bool = False):
    """The policy of ``rlrun *words``; ``text``: without its kernel. ``space``: of observations."""
    c = config(*words, *(["learner.backend=torch"] if text else []))
    plan = make_plan(c)
    if space is not None:
        plan = make_plan(c, (space, plan.policy_spec.action, 1))
    return make_policy(plan)


@cache
def collected(words: tuple[str, ...], count: int) -> tuple[Sample, ...]:
    """What ``rlrun *words`` learns from in its first updates: windows, or rollouts."""
    c, samples = config(*words), []
    with (
        tempfile.TemporaryDirectory() as top,
        OpenedLog(c.logger, Path(top), total_steps=400, title="") as log,
    ):
        pipeline = make_pipeline(make_plan(c), Path(top), log)
        collector, buffer = pipeline.parts.source.collector, pipeline.parts.buffer
        while len(samples) < count:
            buffer.add(collector.collect())
            if isinstance(buffer, Rollout):
                sample = buffer.take(0)
                samples.append(replace(sample, segment=sample.segment.map(torch.clone)))
            elif len(buffer) >= 128:
                samples.append(buffer.sample(16, 0))
        pipeline.close()
    return tuple(samples)


def samples_of(words: tuple[str, ...], count: int, space: Any = None) -> list[Sample]:
    """``collected`` samples with NaN in what must not be read, random weights, and env steps.

    ``space``: what observations are drawn from instead of the environment's.
    """
    found, g, name = [], torch.Generator().manual_seed(0), words[0].removeprefix("policy=")
    for i, sample in enumerate(collected(words, count)):
        s = sample.segment
        obs = s.obs if space is None else drawn(space, *s.first.shape, seed=i)
        obs = tree_map(torch.clone, obs)
        valid = s.valid.clone()
        if i % 2 and name in ("dqn", *CONTROL):
            valid[0, :3] = False
        elif i % 2 and name == "r2d2":  # nothing but filler before the learned rows
            valid[: config(*words).policy.window.burnin, :3] = False
        unread = ~readable(valid, s.terminated)
        for x in tree_leaves(obs):
            x[unread] = torch.nan if x.is_floating_point() else 99
        extras = dict(s.extras)
        if i == 2 and "prev_reward" in extras:  # learning from another reward than acting saw
            extras[RAW_REWARD] = s.reward + 1
        reward = torch.where(valid, s.reward, torch.nan)
        weight = torch.rand(sample.weight.shape, generator=g)
        segment = replace(s, obs=obs, valid=valid, reward=reward, extras=extras)
        found.append(replace(sample, segment=segment, weight=weight, env_steps=50 * i))
    return found


def drawn(space: gym.Space[Any], steps: int, columns: int, *, seed: int) -> Any:
    """Observations [steps, columns, ...] of a space, as a replay hands them out."""
    batch = gym.vector.utils.batch_space(space, steps * columns)
    batch.seed(seed)
    return tree_map(
        lambda x: torch.from_numpy(x).reshape(steps, columns, *x.shape[1:]), batch.sample()
    )


def perturb(policy: Any, scale: float = 1.0, noise: float = 0.1) -> None:
    """Scale the weights and add noise; target networks stay, and so differ from the online ones."""
    g, weights = torch.Generator().manual_seed(1), {}
    for name, x in policy.weights().items():
        change = noise * torch.randn(x.shape, generator=g)
        weights[name] = scale * x + change if x.is_floating_point() and x.ndim else x
    policy.load(weights)
