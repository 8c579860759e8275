"""What A2C, PPO and IMPALA share: network, acting, saving, loading. Their maths are theirs."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rlrun.acting.on_policy import OnPolicyActor
from rlrun.nets.actor_critic import make_actor_critic
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.policy.base.rollout import Descender
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Sample, Spec, Update, Window, generator

C = TypeVar("C", bound=OnPolicyConfig)


class RolloutPolicy(ABC, Generic[C]):
    """Draws actions from its distribution and learns from whole rollouts."""

    window: Window | None = None  # it keeps no replay

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
        self.net, self.descender = net, Descender(net, config, lr_at, compute)
        self.generator, self.seconds = generator(seed, "explore"), self.descender.seconds
        self.begin()

    def begin(self) -> None:
        """Set up what the policy has beyond its network."""

    def actor(self, num_envs: int) -> OnPolicyActor:
        """Draws from the policy's distribution."""
        return OnPolicyActor(self.net, self.config, self.generator, num_envs=num_envs)

    @abstractmethod
    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return self.descender.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return self.descender.state_dict() | {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.descender.load_state_dict(state)
        self.generator.bit_generator.state = state["generator"]
