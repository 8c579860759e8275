"""Base classes of learning policies: networks, gradient step, target networks, timing, state.

A policy adds its networks in ``build`` and defines ``loss``. ``LearningPolicy`` is the base of all,
``WindowLearner`` of those that learn from windows, ``TargetLearner`` of those whose networks all
have target networks.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlrun.functional.schedule import Schedule, make_schedule
from rlrun.nets.acting import seeded
from rlrun.nets.memory import memory_parameters
from rlrun.policy.actor import NetActor
from rlrun.policy.compute import DEFAULT_COMPUTE, Compute, CudaGraph
from rlrun.policy.health import relative_distance
from rlrun.policy.optim import IGNORE_OVERFLOW, Adam, FlatParameters, Rate
from rlrun.schema import (
    ActionValueConfig,
    BCConfig,
    ControlConfig,
    IQLConfig,
    MemoryConfig,
    OnPolicyConfig,
    PQNConfig,
    ScheduleConfig,
    SequenceConfig,
    TorsoConfig,
    ValueConfig,
)
from rlrun.types import Actor, Loss, Sample, Segment, Spec, Update, Window, generator, returned

Rates = dict[str, tuple[float, ...]]  # part -> learning rates of the part and of its memories


_Learning = ActionValueConfig | ControlConfig | BCConfig | IQLConfig | OnPolicyConfig
_WITH_MEMORY = (SequenceConfig, ControlConfig, BCConfig, OnPolicyConfig, PQNConfig)
C = TypeVar("C", bound=_Learning)
T = TypeVar("T", bound=ValueConfig | ControlConfig)


LossMetrics = tuple[Tensor, dict[str, Tensor]]  # a loss and its metrics, 0-d each
Metrics = dict[str, Tensor | float]  # 0-d each; numbers if they come from a kernel
FlatStep = Callable[..., float]  # (*learning rates) -> the norm of the gradients before clipping


class Losses(NamedTuple):
    """Losses of a batch, 0-d with their graphs, and detached priorities and metrics."""

    losses: dict[str, Tensor]  # part -> the loss that trains it
    priority: Tensor | None  # [B] >= 0
    metrics: dict[str, Tensor]  # 0-d each


class Gradients(NamedTuple):
    """Gradients of ``Losses``, from autograd or a kernel."""

    # Of each part, or the step that applies those which a kernel wrote to its flat array.
    grads: dict[str, Sequence[Tensor] | FlatStep]
    priority: Tensor | None  # [B] >= 0
    metrics: Mapping[str, Tensor | float]


class GradientKernel(Protocol):
    """A faster ``gradients`` of one class of policies, equal up to rounding.

    It reads parameters and settings of a policy and writes its flat gradients, nothing else.
    """

    def gradients(self, sample: Sample) -> Gradients:
        """Return gradients, priorities, and metrics as numbers."""


def step_metrics(norm: Tensor | float, lr: float) -> Metrics:
    """Return the metrics of a gradient step, tensors if the norm is one."""
    rate = norm.new_full((), lr) if isinstance(norm, Tensor) else lr
    return {"train/grad_norm": norm, "train/lr": rate}


class Part:
    """A network with its optimiser, and a target network that copies it or a part of it."""

    def __init__(
        self,
        net: nn.Module,
        adam: Adam,
        lr_at: Schedule,
        memory_lr_at: Schedule | None = None,
        follows: nn.Module | None = None,
    ) -> None:
        """``memory_lr_at``: learning rate of its memories if it is not ``lr_at``."""
        self.net, self.adam, self.params = net, adam, adam.parameters
        self.lr_at, self.memory_lr_at = lr_at, memory_lr_at
        self.target, self.followed, self.target_params = None, list[Tensor](), list[Tensor]()
        if follows is not None:
            self.target = copy.deepcopy(follows).requires_grad_(False)
            for part in self.target.modules():
                if isinstance(part, nn.RNNBase):  # a copy's weights are apart
                    part.flatten_parameters()
            self.followed = list(follows.parameters())
            self.target_params = list(self.target.parameters())
        # Those of a soft step: the same memory, without gradients.
        self.moved = [p.detach() for p in self.target_params]
        self.sources = [p.detach() for p in self.followed]
        self.flat_target: Tensor | None = None

    def flatten(self) -> tuple[FlatParameters, Tensor]:
        """Move the parameters of ``net``, and of a target that copies it, into one array each.

        Returns: the arrays of ``net``, and that of the target, empty if there is none.
        """
        flat = self.adam.flatten()
        if self.flat_target is None:
            self.flat_target = torch.empty(0)
            if self.target is not None and len(self.followed) == len(self.params):
                self.flat_target = FlatParameters(self.target_params).values
                self.moved, self.sources = [self.flat_target], [flat.values]
        return flat, self.flat_target

    def soft_step(self, tau: float) -> None:
        """Move the target network by ``tau`` towards what it follows."""
        torch._foreach_lerp_(self.moved, self.sources, tau)

    def state_dict(self) -> dict[str, Any]:
        target = {} if self.target is None else {"target": dict(self.target.state_dict())}
        return {"net": dict(self.net.state_dict()), "adam": self.adam.state_dict()} | target

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        if self.target is not None:
            self.target.load_state_dict(state["target"])


class LearningPolicy(ABC, Generic[C]):
    """A policy that learns. ``net`` is the acting network; its weights are the policy's."""

    actor_class: ClassVar[type[NetActor]]  # of the actions that the policy selects
    main: ClassVar[str] = "net"  # the part whose grad_norm, lr and target_lag are logged
    net: nn.Module
    kernel: Any = None  # None: autograd (learner.backend=torch)
    # Compares the kernel with autograd before the first update.
    check: Callable[[Sample], None] | None = None

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
        self.config, self.window, self.device, self.compute = config, config.window, device, compute
        self.autocast = compute.autocast(device)  # makes the context of networks
        self.loss_scale = compute.loss_scale(device)
        self.spec, self.seed, self.total_steps = spec, seed, total_steps
        self.parts: dict[str, Part] = {}
        self.updates, self.seconds = 0, {"backward": 0.0, "optimiser": 0.0}
        self.target_lag: Tensor | None = None  # distance of the main part before the last hard copy
        self.generator = generator(seed, "explore")
        with seeded(seed):
            self.build(torso, memory)

    @abstractmethod
    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        """Make the networks (initialised from torch's seeded generator) and add them."""

    def add(
        self,
        name: str,
        net: nn.Module,
        *,
        follows: nn.Module | None = None,
        lr: ScheduleConfig | None = None,
        optimiser: Callable[..., Adam] = Adam,
    ) -> Part:
        """Add a part. ``net`` and ``follows``, which its target copies, are on the device.

        ``lr``: its learning rate; None: ``policy.lr``.
        """
        c, total = self.config, self.total_steps
        memory_lr = c.memory_lr if isinstance(c, _WITH_MEMORY) else None
        apart = () if memory_lr is None else memory_parameters(net)
        adam = optimiser(
            net.parameters(), eps=c.adam_eps, max_grad_norm=c.max_grad_norm, apart=apart
        )
        lr_at = make_schedule(c.lr if lr is None else lr, total_steps=total)
        memory_lr_at = None if memory_lr is None else make_schedule(memory_lr, total_steps=total)
        part = self.parts[name] = Part(net, adam, lr_at, memory_lr_at, follows)
        self.compute.prepare(net, *(() if part.target is None else (part.target,)))
        return part

    def actor(self, num_envs: int) -> Actor:
        """Return an actor for ``num_envs`` environments."""
        make: Callable[..., Actor] = self.actor_class
        return make(self.net, self.config, self.generator, num_envs=num_envs)

    # -- learning --------------------------------------------------------------------------------

    @IGNORE_OVERFLOW
    def update(self, sample: Sample) -> Update:
        """Learn from ``sample`` and return the priorities of ``loss``."""
        if self.check is not None:
            check, self.check = self.check, None
            check(sample)
        return self.learn(sample)

    @abstractmethod
    def learn(self, sample: Sample) -> Update:
        """Update by the kernel if there is one, else by autograd."""

    def rates(self, env_steps: int) -> Rates:
        """Return the learning rates of every part."""
        rates: Rates = {}
        for name, part in self.parts.items():
            rates[name] = (part.lr_at(env_steps),)
            if part.memory_lr_at is not None:
                rates[name] += (part.memory_lr_at(env_steps),)
        return rates

    def autograd(self, out: Losses) -> Gradients:
        """Return the gradients of all losses, computed before the first step."""
        began, scale = time.perf_counter(), self.loss_scale
        grads: dict[str, Sequence[Tensor] | FlatStep] = {}
        for name, loss in out.losses.items():
            loss = loss if scale == 1 else loss * scale
            loss_grads = torch.autograd.grad(loss, self.parts[name].params, materialize_grads=True)
            loss_grads = loss_grads if scale == 1 else torch._foreach_div(loss_grads, scale)
            grads[name] = [g.contiguous() for g in loss_grads]  # the optimiser's layout
        self.seconds["backward"] += time.perf_counter() - began
        return Gradients(grads, out.priority, out.metrics)

    def step(self, gradients: Gradients, rates: Mapping[str, Sequence[Rate]]) -> Metrics:
        """Clip and apply the gradients. Return the norm of each part's before clipping, 0-d."""
        began, norms = time.perf_counter(), Metrics()
        for name, grads in gradients.grads.items():
            if callable(grads):
                norms[name] = grads(*rates[name])
            else:
                norms[name] = self.parts[name].adam.step(grads, *rates[name])
        self.seconds["optimiser"] += time.perf_counter() - began
        return norms

    # -- weights and checkpoints -----------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters of the acting network, detached, not copied."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()} | {
            "updates": self.updates,
            "target_lag": self.target_lag,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.updates, self.target_lag = int(state["updates"]), state["target_lag"]
        self.generator.bit_generator.state = state["generator"]


class WindowLearner(LearningPolicy[C]):
    """A policy that makes one gradient step per batch of windows."""

    window: Window  # every config with a replay has one
    kernel: GradientKernel | None = None

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return the loss and priorities of a batch of windows with importance weights [B].

        A policy with several losses defines ``losses`` instead.
        """
        raise NotImplementedError

    def losses(self, segment: Segment, weight: Tensor) -> Losses:
        """Return the losses by the part that each one trains."""
        out: Loss = returned(self.loss(segment, weight), Loss, "loss()")
        return Losses({self.main: out.loss}, out.priority, out.metrics)

    def learn(self, sample: Sample) -> Update:
        rates, norms = self.rates(sample.env_steps), Metrics()
        if self.graph is not None:
            priority, graphed = self.graph.step(*sample.to(self.device), *rates[self.main])
            out, norms[self.main] = Gradients({}, priority, graphed), graphed["train/grad_norm"]
        else:
            out = self.gradients(sample)
            norms = self.step(out, rates)
        self.updates += 1
        metrics = {**out.metrics, **step_metrics(norms[self.main], rates[self.main][0])}
        metrics |= self.finish_update(norms, metrics, sample.env_steps)
        return Update(out.priority, metrics)

    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of ``losses``, by the kernel if there is one."""
        if self.kernel is None:
            return self.autograd(self.losses(*sample.to(self.device)))
        began = time.perf_counter()
        out = self.kernel.gradients(sample)
        self.seconds["backward"] += time.perf_counter() - began
        return out

    def finish_update(self, norms: Metrics, metrics: Metrics, env_steps: int) -> Metrics:
        """Update target networks after the parts in ``norms`` were stepped. Return more metrics."""
        return {}

    @cached_property
    def graph(self) -> CudaGraph | None:
        """Return ``gradient_step`` as a CUDA graph; None: kernels are launched one by one."""
        graphed = self.compute.graph and self.device.type == "cuda"
        return CudaGraph(self.gradient_step, self.device) if graphed else None

    def gradient_step(
        self, segment: Segment, weight: Tensor, *rates: Rate
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Step the main part. Return priorities and metrics."""
        out = self.autograd(self.losses(segment, weight))
        norms = self.step(out, {self.main: rates})
        metrics: Any = {**out.metrics, "train/grad_norm": norms[self.main]}
        assert out.priority is not None
        return out.priority, metrics

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """Return the priorities [B] of ``update``, up to rounding. Learns nothing."""
        priority = self.losses(*sample.to(self.device)).priority
        assert priority is not None
        return priority


class TargetLearner(WindowLearner[T]):
    """A policy with target networks, updated by hard copies or soft steps."""

    def update_targets(self, *names: str, since: int = 1) -> None:
        """Make a soft step, or a hard copy if ``updates`` passed a multiple of target_update_every.

        ``since``: the number of updates since the last call.
        """
        every, tau = self.config.target_update_every, self.config.target_tau
        if tau is not None:
            for name in names:
                self.parts[name].soft_step(tau)
        elif every is None or self.updates // every > (self.updates - since) // every:
            target = [p for name in names for p in self.parts[name].target_params]
            online = [p for name in names for p in self.parts[name].followed]
            self.target_lag = relative_distance(target, online)
            with torch.no_grad():
                torch._foreach_copy_(target, online)

    @torch.no_grad()
    def network_health(self, windows: Segment) -> dict[str, Tensor]:
        """Return metrics of the networks on ``windows``, and the main one's distance to its target.

        With hard copies, the distance is the one before the last copy.
        """
        lag, part = self.target_lag, self.parts[self.main]
        if lag is None and part.target is not None:
            lag = relative_distance(part.target_params, part.followed)
        health = {} if lag is None else {"train/target_lag": lag}
        if self.compute.compile:  # compiled layers do not call the hooks
            return health
        dead = self.dead_units(windows)
        return health if dead is None else health | {"train/dead_units": dead}

    @abstractmethod
    def dead_units(self, windows: Segment) -> Tensor | None:
        """Return the share of dead hidden units, 0-d; see ``UnitActivity``.

        Measured over the positions of ``windows`` after the burn-in that networks may read.
        """
