"""Base class of A2C, PPO and IMPALA: network, acting, checkpointing. Subclasses define the loss."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rlrun.acting.stochastic import OnPolicyActor
from rlrun.nets.actor_critic import make_actor_critic
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.policy.base.rollout import ActorCriticLearner
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Sample, Spec, Update, Window, generator

C = TypeVar("C", bound=OnPolicyConfig)


class OnPolicy(ABC, Generic[C]):
    """A policy that samples its actions and learns from whole rollouts."""

    window: Window | None = None  # no replay

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
        self.config, self.device = config, device
        self.seed, self.total_steps = seed, total_steps
        net = make_actor_critic(config, torso, memory, spec, seed=seed).to(device)
        lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.net, self.learner = net, ActorCriticLearner(net, config, lr_at, compute)
        self.generator, self.seconds = generator(seed, "explore"), self.learner.seconds
        self.set_up()

    def set_up(self) -> None:
        """Set up the parts of a subclass beyond the network."""

    def actor(self, num_envs: int) -> OnPolicyActor:
        """An actor that samples from the policy's distribution."""
        return OnPolicyActor(self.net, self.config, self.generator, num_envs=num_envs)

    @abstractmethod
    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return self.learner.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict() | {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.generator.bit_generator.state = state["generator"]
