"""Base class of BC and IQL: a policy network trained on a dataset's actions, checkpointing.

Subclasses define the networks and the loss.
"""

import time
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.acting.stochastic import PolicyNetActor
from rlrun.nets.memory import memory_parameters
from rlrun.nets.policy_net import PolicyNet
from rlrun.optim.adam import Adam
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.schedule import make_rates
from rlrun.schema import BCConfig, IQLConfig, MemoryConfig, TorsoConfig
from rlrun.types import Loss, Sample, Segment, Spec, Update, generator

C = TypeVar("C", BCConfig, IQLConfig)
Nets = TypeVar("Nets", bound=nn.Module)


class Imitation(ABC, Generic[C, Nets]):
    """``nets``, all that learns, of which ``net`` is the policy."""

    net: PolicyNet

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
        self.config: C = config
        self.window, self.device, self.compute = config.window, device, compute
        self.nets: Nets = self.make_nets(torso, memory, spec, seed).to(device)
        memory_lr = config.memory_lr if isinstance(config, BCConfig) else None
        self.adam = Adam(
            self.nets.parameters(), eps=config.adam_eps, grad_clip=config.grad_clip,
            apart=() if memory_lr is None else memory_parameters(self.nets),
        )  # fmt: skip
        self.rates_at = make_rates(config.lr, memory_lr, total_steps=total_steps)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}

    @abstractmethod
    def make_nets(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> Nets:
        """The networks, initialised from ``seed``."""

    @abstractmethod
    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """The loss of a batch of windows with importance weights [B], and priorities."""

    def actor(self, num_envs: int) -> PolicyNetActor:
        """An actor that samples, or takes the mode when greedy."""
        return PolicyNetActor(self.net, self.generator, num_envs=num_envs)

    def update(self, sample: Sample) -> Update:
        """One gradient step on ``loss``: backward, clipping of the norm, Adam."""
        out, began = self.loss(*sample.to(self.device)), time.perf_counter()
        grads = torch.autograd.grad(out.loss, self.adam.parameters)
        backward, rates = time.perf_counter(), self.rates_at(sample.env_steps)
        norm = self.adam.step(grads, *rates)
        self.update_target()
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        stepped = {"train/grad_norm": norm, "train/lr": norm.new_full((), rates[0])}
        return Update(out.priority, out.metrics | stepped)

    def update_target(self) -> None:
        """Update target networks, where a subclass has them."""

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.loss(*sample.to(self.device)).priority

    def weights(self) -> dict[str, Tensor]:
        """The policy's parameters, detached, not copied."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        self.generator.bit_generator.state = state["generator"]
