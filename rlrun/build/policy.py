"""Policies by name, how they compute, and the bonus on their rewards."""

from importlib import import_module
from typing import Any

import torch

from rlrun.build.plan import Plan
from rlrun.config.checks.backend import Backend
from rlrun.optim.compute import Compute, keep_freed_memory
from rlrun.pipeline.bonus import RND
from rlrun.schema import RNDConfig
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
    "pqn": "rlrun.policy.pqn:PQN",
    "bc": "rlrun.policy.bc:BC",
    "cql": "rlrun.policy.cql:CQL",
    "cql_sac": "rlrun.policy.cql_sac:CQLSAC",
    "iql": "rlrun.policy.iql:IQL",
}

KERNELS = {  # of exactly the class of that name
    "r2d2": "rlrun.kernels.r2d2:R2D2Kernel",
    "dqn": "rlrun.kernels.dqn:DQNKernel",
    "sac": "rlrun.kernels.sac_td3:SACKernel",
    "td3": "rlrun.kernels.sac_td3:TD3Kernel",
    "ddpg": "rlrun.kernels.sac_td3:TD3Kernel",
    "ppo": "rlrun.kernels.ppo:PPOKernel",
    "a2c": "rlrun.kernels.rollout:A2CKernel",
    "impala": "rlrun.kernels.rollout:IMPALAKernel",
    "pqn": "rlrun.kernels.pqn:PQNKernel",
}


def policy_class(name: str) -> type[Any]:
    """The class of a name in ``POLICIES``, or ``mypkg.mod:Class`` of a trusted package."""
    if name not in POLICIES:
        return trusted_class("policy.name", name)
    return _named(POLICIES[name])


def make_policy(plan: Plan) -> Policy:
    """The policy named by ``config.policy.name``; its module is imported only now."""
    config, cls = plan.config, policy_class(plan.config.policy.name)

    def make(spec: Spec, seed: int) -> Policy:
        policy: Policy = cls(
            config.policy,
            config.torso,
            config.memory,
            spec=spec,
            seed=seed,
            total_steps=plan.horizon,
            device=torch.device(config.device),
            compute=make_compute(plan),
        )
        return with_kernel(policy, plan)

    if config.agents.name == "separate":
        from rlrun.policy.separate import Separate

        return Separate(make, spec=plan.policy_spec, seed=config.seed)
    return make(plan.policy_spec, config.seed)


def with_kernel(policy: Any, plan: Plan) -> Policy:
    """``policy`` with its numpy kernel where ``plan.backend`` wants one.

    A kernel computes the loss of one class: a subclass, whose loss may be another, has none.
    """
    name = plan.config.policy.name
    if plan.backend.name == "numpy" and name in KERNELS and type(policy) is policy_class(name):
        from rlrun.kernels.parity import CheckedKernel

        policy.kernel = CheckedKernel(policy, _named(KERNELS[name])(policy))
    learner: Policy = policy
    return learner


def backend_used(policy: Policy, plan: Plan) -> Backend:
    """The backend that computed the updates of a run, with its reason."""
    policies = getattr(policy, "policies", [policy])
    if plan.backend.name == "torch" or all(getattr(p, "kernel", None) for p in policies):
        return plan.backend
    return Backend("torch", "the numpy kernel does not compute this loss")


def _named(name: str) -> type[Any]:
    """The class of "module:Class"."""
    module, attribute = name.split(":")
    cls: type[Any] = getattr(import_module(module), attribute)
    return cls


def make_bonus(plan: Plan) -> RND | None:
    """The bonus on rewards that ``config.bonus`` names; None: there is none."""
    config = plan.config
    if not isinstance(config.bonus, RNDConfig):
        return None
    return RND(
        config.bonus,
        config.torso,
        space=plan.row_spec.obs,
        stacked=config.env.frame_stack > 1,
        columns=plan.columns,
        seed=config.seed,
        total_steps=plan.horizon,
        device=torch.device(config.device),
    )


def make_compute(plan: Plan) -> Compute:
    """Precision, threads and compilation of updates."""
    c = plan.config.learner
    return Compute(
        c.precision, target_thread=plan.target_thread, graph=c.cuda_graph, compile=c.compile
    )


def prepare_process(plan: Plan) -> None:
    """Set the number of threads of torch, and let malloc keep what updates free."""
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
