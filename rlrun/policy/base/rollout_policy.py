"""Base class of policies that learn from whole rollouts: gradient step and checkpointing.

Actor-critics (``OnPolicy``: A2C, PPO, IMPALA) and PQN. Subclasses define network, actor and update.
"""

import time
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.optim.adam import Adam
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, OnPolicyConfig, PQNConfig, TorsoConfig
from rlrun.types import Actor, Sample, Spec, Update, UpdateKernel, Window, generator

C = TypeVar("C", bound=OnPolicyConfig | PQNConfig)
Net = TypeVar("Net", bound=nn.Module)


class RolloutPolicy(ABC, Generic[C, Net]):
    """A policy that learns from every rollout once, then drops it."""

    window: Window | None = None  # no replay
    kernel: UpdateKernel | None = None  # replaces torch_update, unless learner.backend=torch
    optimiser: type[Adam] = Adam

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
        self.config, self.device, self.compute = config, device, compute
        self.seed, self.total_steps, self.spec = seed, total_steps, spec
        self.net: Net = self.make_net(torso, memory, spec, seed).to(device)
        parameters = self.net.parameters()
        self.adam = self.optimiser(parameters, eps=config.adam_eps, grad_clip=config.grad_clip)
        self.adam.flatten()  # small networks: one array is stepped, not a dozen
        self.lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        self.set_up()

    @abstractmethod
    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> Net:
        """The network, initialised from ``seed``."""

    def set_up(self) -> None:
        """Set up the parts of a subclass beyond the network."""

    @abstractmethod
    def actor(self, num_envs: int) -> Actor:
        """An actor for ``num_envs`` environments."""

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""
        return self.kernel.update(sample) if self.kernel is not None else self.torch_update(sample)

    @abstractmethod
    def torch_update(self, sample: Sample) -> Update:
        """``update`` by autograd."""

    def step(self, loss: Tensor, env_steps: int) -> dict[str, Tensor]:
        """One gradient step on ``loss`` (0-d): backward, clipping of the norm, Adam; metrics."""
        began = time.perf_counter()
        grads = torch.autograd.grad(loss, self.adam.parameters, materialize_grads=True)
        backward, lr = time.perf_counter(), self.lr_at(env_steps)
        norm = self.adam.step(grads, lr)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    # -- saving ----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.weights(),
            "adam": self.adam.state_dict(),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        self.generator.bit_generator.state = state["generator"]
