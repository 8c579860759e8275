"""Base class of DQN, R2D2, CQL and QMIX: target network, optimiser step, checkpointing.

Subclasses define the loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rlrun.functional.value import QLoss
from rlrun.nets.forward_noise import NoiseGenerator
from rlrun.optim.autograd import GradientSource
from rlrun.optim.compute import Compute
from rlrun.optim.target import Net, ScheduledOnlineTarget
from rlrun.schedule import make_schedule
from rlrun.schema import ValueConfig
from rlrun.types import Sample, Segment, Update, generator

C = TypeVar("C", bound=ValueConfig)


class ValueBasedPolicy(ABC, Generic[C, Net]):
    """A Q-network and the target network its updates bootstrap from."""

    step: Callable[[Sample], Update]  # one gradient step, set by the subclass
    noise_generator: NoiseGenerator | None = None  # random numbers of updates, where they need some

    def __init__(
        self,
        config: C,
        net: Net,
        *,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute,
        source: GradientSource | None = None,
    ) -> None:
        """``net`` is on ``device``. ``source`` computes its gradients; None: autograd does."""
        self.config, self.device, self.compute = config, device, compute
        lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.online_target = ScheduledOnlineTarget(net, config, lr_at, source)
        self.net, self.target = net, self.online_target.target
        self.generator, self.seconds = generator(seed, "explore"), self.online_target.seconds

    def update(self, sample: Sample) -> Update:
        """One gradient step on ``sample``; priorities are those of ``loss``."""
        update = self.step(sample)
        if self.noise_generator is None:
            return update
        return replace(update, metrics=update.metrics | self.noise_generator.metrics())

    @abstractmethod
    def loss(self, segment: Segment, weight: Tensor) -> QLoss:
        """Loss, priorities (|delta|, mixed over a window) and metrics of a batch of windows."""

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.loss(*sample.to(self.device)).priority

    def weights(self) -> dict[str, Tensor]:
        """The online network's parameters, detached, not copied."""
        return self.online_target.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        own = {} if self.noise_generator is None else {"draws": self.noise_generator.key}
        return (
            self.online_target.state_dict()
            | {"generator": self.generator.bit_generator.state}
            | own
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.online_target.load_state_dict(state)
        if self.noise_generator is not None:
            self.noise_generator.key = state["draws"]
        self.generator.bit_generator.state = state["generator"]
