"""The policy of a config, how it computes, and what is added to its rewards."""

import os
from importlib import import_module
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch

from rlrun.optim.compute import Compute
from rlrun.pipeline.bonus import RND
from rlrun.schema import Config, ControlConfig, RNDConfig
from rlrun.trust import trusted_class
from rlrun.types import Policy, Spec

POLICIES = {
    "r2d2": "rlrun.policy.r2d2:R2D2",
    "dqn": "rlrun.policy.dqn:DQN",
    "random": "rlrun.policy.random:Random",
    "qmix": "rlrun.policy.qmix:QMIX",
    "ddpg": "rlrun.policy.ddpg:DDPG",
    "td3": "rlrun.policy.td3:TD3",
    "sac": "rlrun.policy.sac:SAC",
    "scripted": "rlrun.policy.scripted:Scripted",
    "ppo": "rlrun.policy.ppo:PPO",
    "a2c": "rlrun.policy.a2c:A2C",
    "impala": "rlrun.policy.impala:IMPALA",
    "bc": "rlrun.policy.bc:BC",
    "cql": "rlrun.policy.cql:CQL",
    "cql_sac": "rlrun.policy.cql_sac:CQLSAC",
    "iql": "rlrun.policy.iql:IQL",
}


def policy_class(name: str) -> type[Any]:
    """The class of a name in ``POLICIES``, or ``mypkg.mod:Class`` of a trusted package."""
    if name not in POLICIES:
        return trusted_class("policy.name", name)
    module, attribute = POLICIES[name].split(":")
    cls: type[Any] = getattr(import_module(module), attribute)
    return cls


def make_policy(config: Config, spec: Spec) -> Policy:
    """The policy named by ``config.policy.name``; its module is imported only now."""
    cls = policy_class(config.policy.name)

    def make(spec: Spec, seed: int) -> Policy:
        policy: Policy = cls(
            config.policy,
            config.torso,
            config.memory,
            spec=spec,
            seed=seed,
            total_steps=config.run.total_steps,
            device=torch.device(config.device),
            compute=make_compute(config),
        )
        return policy

    if config.agents.name == "separate":
        from rlrun.policy.separate import Separate

        return Separate(make, spec=spec, seed=config.seed)
    return make(spec, config.seed)


def make_bonus(config: Config, space: gym.Space[Any], *, columns: int) -> RND | None:
    """What ``bonus`` says is added to rewards; ``space``: of single observations, unstacked.

    ``columns`` of rows: one per environment, or per agent where agents have their own.
    """
    if not isinstance(config.bonus, RNDConfig):
        return None
    return RND(
        config.bonus,
        config.torso,
        space=space,
        stacked=config.env.frame_stack > 1,
        columns=columns,
        seed=config.seed,
        total_steps=config.run.total_steps,
        device=torch.device(config.device),
    )


def make_compute(config: Config) -> Compute:
    """Precision, and whether an update gets a second thread: learner.target_thread, else a rule.

    Measured on 2 cores. Target network of windows, two torch threads: from 64 windows x 128 hidden
    units on it saves 8 to 20 % of an update. Actor of single rows: with 256 rows and layers of 256
    and 256 units 30 to 40 %, of 128 and 128 -25 to 15 %. Below it costs more than it saves.
    """
    c = config.learner
    if has_halves(config):
        large = c.batch_size * between_hidden(config) >= 2**24
        several = c.threads != 1 and free_cores(config) >= 2
    else:
        large = c.batch_size * config.memory.hidden >= 8192
        several = thread_count(config) >= 2
    rule = several and large and config.device == "cpu"
    wanted = rule if c.target_thread is None else c.target_thread
    return Compute(c.precision, target_thread=wanted, graph=c.cuda_graph, compile=c.compile)


def thread_count(config: Config) -> int:
    """What ``set_threads`` sets: several where the products of an update are worth sharing.

    Windows are from 64 x 64 units on. Single rows through plain layers much later: DQN with 256
    rows x 256 units took 3 to 5 ms an update with one thread, 8 to 17 with two (2 busy cores).
    """
    rows = config.memory.name == "none" and config.torso.name == "mlp"
    width = max(config.memory.hidden, *config.torso.hidden, 1)
    large = config.learner.batch_size * width >= (2**18 if rows else 4096)
    return config.learner.threads or (min(free_cores(config), 8) if large else 1)


def free_cores(config: Config) -> int:
    """Those that are left to the learner."""
    return max(1, (os.cpu_count() or 1) - (config.pipeline.name == "overlapped"))


def has_halves(config: Config) -> bool:
    """Whether updates fall into the critics' half and the actor's, see ``nets.bare_control``."""
    plain = config.memory.name == "none" and config.torso.name == "mlp"
    alone = config.agents.name != "separate"  # each agent has its part of the batch
    return plain and alone and config.policy.name in ("ddpg", "td3", "sac")


def between_hidden(config: Config) -> int:
    """Weights from each hidden layer to the next: the bulk of an update's products."""
    assert isinstance(config.policy, ControlConfig)
    sizes = (*config.torso.hidden, *config.policy.head_hidden)
    return sum(one * two for one, two in pairwise(sizes))
