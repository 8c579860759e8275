"""Base class of DQN, R2D2, CQL and QMIX: target network, gradient step, checkpointing.

Subclasses define the loss.
"""

import copy
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.nets.forward_noise import NO_NOISE, NoiseGenerator, UpdateForwardNoise
from rlrun.nets.memory import memory_parameters
from rlrun.optim.adam import Adam, Rate
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.optim.graph import CudaGraph
from rlrun.policy.base.network_health import relative_distance
from rlrun.schedule import make_rates
from rlrun.schema import MemoryConfig, SequenceConfig, TorsoConfig, ValueConfig
from rlrun.types import Loss, Sample, Segment, Spec, Update, UpdateKernel, generator

C = TypeVar("C", bound=ValueConfig)
Net = TypeVar("Net", bound=nn.Module)


class ValueBasedPolicy(ABC, Generic[C, Net]):
    """A Q-network ``net``, and ``target``, a delayed copy by hard or soft updates."""

    kernel: UpdateKernel | None = None  # replaces torch_update, unless learner.backend=torch
    noise_generator: NoiseGenerator | None = None  # of noisy layers and quantile levels

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
        assert config.window is not None, "it learns from windows"
        self.config, self.window, self.device, self.compute = config, config.window, device, compute
        self.net: Net = self.make_net(torso, memory, spec, seed).to(device)
        self.target: Net = copy.deepcopy(self.net).requires_grad_(False)
        compute.prepare(self.net, self.target)
        self.params: list[Tensor] = list(self.net.parameters())
        self.target_params: list[Tensor] = list(self.target.parameters())
        memory_lr = config.memory_lr if isinstance(config, SequenceConfig) else None
        self.adam = Adam(
            self.params, eps=config.adam_eps, grad_clip=config.grad_clip,
            apart=() if memory_lr is None else memory_parameters(self.net),
        )  # fmt: skip
        self.rates_at = make_rates(config.lr, memory_lr, total_steps=total_steps)
        self.updates = 0
        self.target_lag: Tensor | None = None  # before the last hard copy
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        graphed = compute.graph and device.type == "cuda"
        self.graph = CudaGraph(self.gradient_step, device) if graphed else None
        self.set_up(spec, seed)

    @abstractmethod
    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> Net:
        """The Q-network, initialised from ``seed``."""

    def set_up(self, spec: Spec, seed: int) -> None:
        """Set up the parts of a subclass beyond its network."""

    @abstractmethod
    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Loss of a batch of windows with importance weights [B]; priorities from |delta|."""

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """One learning step on ``sample``; priorities are those of ``loss``."""
        return self.torch_update(sample) if self.kernel is None else self.kernel.update(sample)

    def torch_update(self, sample: Sample) -> Update:
        """``update`` by autograd of ``loss``."""
        segment, weight = sample.to(self.device)
        rates = self.rates_at(sample.env_steps)
        step = self.gradient_step if self.graph is None else self.graph.step
        priority, metrics = step(segment, weight, *rates)
        self.updates += 1
        self.update_target()
        metrics = metrics | {"train/lr": weight.new_full((), rates[0])}
        return Update(priority, metrics | self.noise_metrics())

    def gradient_step(
        self, segment: Segment, weight: Tensor, *rates: Rate
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Backward pass of ``loss``, clipping and a step of Adam; priorities and metrics."""
        out = self.loss(segment, weight)
        began = time.perf_counter()
        grads = torch.autograd.grad(out.loss, self.params)
        backward = time.perf_counter()
        norm = self.adam.step(grads, *rates)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return out.priority, out.metrics | {"train/grad_norm": norm}

    @torch.no_grad()
    def update_target(self) -> None:
        """A soft step of the target network, or a hard copy every ``target_update_every``."""
        every, tau = self.config.target_update_every, self.config.target_tau
        if tau is not None:
            torch._foreach_lerp_(self.target_params, self.params, tau)
        elif every is not None and self.updates % every == 0:
            self.target_lag = relative_distance(self.target_params, self.params)
            torch._foreach_copy_(self.target_params, self.params)

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.loss(*sample.to(self.device)).priority

    @torch.no_grad()
    def inspect(self, sample: Sample) -> Loss:
        """The loss of ``sample`` with |delta| and Q of every learned row, without learning."""
        return self.loss(*sample.to(self.device))

    @torch.no_grad()
    def network_health(self, windows: Segment) -> dict[str, Tensor]:
        """Metrics of the online network on ``windows`` and of its distance to the target.

        Where the target is copied, the distance is that before the last copy.
        """
        lag = self.target_lag
        if lag is None:
            lag = relative_distance(self.target_params, self.params)
        found = {"train/target_lag": lag}
        if self.compute.compile:  # compiled layers do not call the hooks
            return found
        dead = self.dead_units(windows)
        return found if dead is None else found | {"train/dead_units": dead}

    @abstractmethod
    def dead_units(self, windows: Segment) -> Tensor | None:
        """Share of the online network's hidden units that are dead, 0-d; see ``UnitActivity``.

        Over the positions of ``windows`` after the burn-in that are ``readable``.
        """

    def noise(self, *lead: int) -> UpdateForwardNoise:
        """Noise of this update's forward passes; quantile levels are [*lead, N]."""
        if self.noise_generator is None:
            return NO_NOISE
        return self.noise_generator(self.updates, *lead)

    def autocast(self) -> AbstractContextManager[object]:
        """The context networks are applied in: bf16 rounds the factors of products to bfloat16.

        Weights, sums, losses and the optimiser stay float32. Outputs are cast back by the caller.
        """
        if self.compute.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def noise_metrics(self) -> dict[str, Tensor]:
        return {} if self.noise_generator is None else self.noise_generator.metrics()

    # -- weights and checkpoints -----------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The online network's parameters, detached, not copied."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        own = {} if self.noise_generator is None else {"noise_generator": self.noise_generator.key}
        return own | {
            "net": self.weights(),
            "target": dict(self.target.state_dict()),
            "adam": self.adam.state_dict(),
            "updates": self.updates,
            "target_lag": self.target_lag,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.target.load_state_dict(state["target"])
        self.adam.load_state_dict(state["adam"])
        self.updates = int(state["updates"])
        self.target_lag = state.get("target_lag")  # earlier versions did not measure it
        self.generator.bit_generator.state = state["generator"]
        if self.noise_generator is not None:
            self.noise_generator.key = state["noise_generator"]
