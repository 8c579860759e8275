"""Base class of DDPG, TD3, SAC and CQL on SAC: networks, steps, checkpointing.

Subclasses define the loss.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from rlrun.acting.box import BoxActor
from rlrun.optim.actor_and_critics import ActorCritics, ActorCriticsLoss
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.optim.lagrange import LagrangeMultiplier
from rlrun.schedule import make_schedule
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Update, generator

C = TypeVar("C", bound=ControlConfig)


class OffPolicyControl(ABC, Generic[C]):
    """An actor and critics that learn from windows of rows (DDPG, TD3, SAC, CQL on SAC)."""

    outputs: ClassVar[int]  # numbers of the actor per action dimension
    critics: ClassVar[int]
    logged: ClassVar[tuple[str, ...]] = ()  # metrics of the actor's steps, besides its loss

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
        self.window, self.memory = config.window, memory
        self.recurrent, self.total_steps = memory.name != "none", total_steps
        self.nets = ActorCritics(
            config, torso, memory, spec=spec, seed=seed, device=device,
            lr_at=make_schedule(config.lr, total_steps=total_steps),
            actor_lr_at=make_schedule(config.actor_lr, total_steps=total_steps),
            outputs=self.outputs, critics=self.critics, logged=self.logged,
        )  # fmt: skip
        self.pi, self.q, self.bounds = self.nets.pi, self.nets.q, self.nets.bounds
        self.generator, self.seconds = generator(seed, "explore"), self.nets.seconds
        self.multipliers: dict[str, LagrangeMultiplier] = {}
        self.set_up()

    @abstractmethod
    def set_up(self) -> None:
        """Set up the parts of a subclass beyond actor and critics."""

    @abstractmethod
    def actor(self, num_envs: int) -> BoxActor:
        """An exploring actor; uniform actions before the first update."""

    @abstractmethod
    def update(self, sample: Sample) -> Update:
        """One learning step, targets included."""

    def autograd_update(self, sample: Sample) -> Update:
        """One step by autograd of all losses of ``loss``; targets are not updated."""
        out = self.loss(*sample.to(self.device))
        metrics = self.nets.step(out, sample.env_steps)
        for name, loss in out.multipliers.items():
            self.multipliers[name].step(loss, self.nets.lr_at(sample.env_steps))
        return Update(out.priority, metrics)

    def loss(self, segment: Segment, weight: Tensor) -> ActorCriticsLoss:
        """Losses, priorities and metrics of a batch of windows."""
        with self.compute.autocast(self.device):
            return self._loss(segment, weight)

    @abstractmethod
    def _loss(self, segment: Segment, weight: Tensor) -> ActorCriticsLoss:
        """``loss``, within the autocast context."""

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.loss(*sample.to(self.device)).priority

    def weights(self) -> dict[str, Tensor]:
        """The actor's parameters, detached, not copied."""
        return self.nets.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.nets.load(weights)

    def state_dict(self) -> dict[str, Any]:
        own = {"generator": self.generator.bit_generator.state}
        multipliers = {name: x.state_dict() for name, x in self.multipliers.items()}
        return self.nets.state_dict() | own | multipliers

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nets.load_state_dict(state)
        self.generator.bit_generator.state = state["generator"]
        for name, multiplier in self.multipliers.items():
            multiplier.load_state_dict(state[name])
