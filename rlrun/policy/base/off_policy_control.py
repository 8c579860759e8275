"""Base class of DDPG, TD3, SAC and CQL on SAC: networks, gradient steps, targets, checkpointing.

Subclasses define the losses.
"""

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from rlrun.acting.box import BoxActor
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.actor_and_critics import Batch, make_actor_and_critics
from rlrun.nets.memory import memory_parameters
from rlrun.optim.adam import Adam
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.policy.base.network_health import UnitActivity, relative_distance
from rlrun.schedule import make_rates
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Update, UpdateKernel, generator, torch_seed

C = TypeVar("C", bound=ControlConfig)
Multipliers = dict[str, Tensor]  # adapted coefficient -> its loss, or its gradient


class ControlLoss(NamedTuple):
    """Losses of a batch of windows, 0-d with their graphs; priorities and metrics, detached."""

    critic: Tensor
    actor: Tensor | None  # None in updates without an actor step
    multipliers: Multipliers
    priority: Tensor  # [B] >= 0
    metrics: dict[str, Tensor]  # 0-d each


class OffPolicyControl(ABC, Generic[C]):
    """Actor ``pi`` and critics ``q`` with target networks, which learn from windows of rows."""

    outputs: ClassVar[int]  # numbers of the actor per action dimension
    critics: ClassVar[int]
    logged: ClassVar[tuple[str, ...]] = ()  # metrics of the actor's steps, besides its loss
    kernel: UpdateKernel | None = None  # replaces torch_update, unless learner.backend=torch

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
        self.recurrent, self.total_steps = memory.name != "none", total_steps
        self.bounds = ActionBounds(spec.action).to(device)
        pi, q = make_actor_and_critics(
            config, torso, memory, spec,
            actions=self.bounds.size, outputs=self.outputs, critics=self.critics, seed=seed,
        )  # fmt: skip
        self.pi, self.q = pi.to(device), q.to(device)
        self.pi_target = copy.deepcopy(self.pi).requires_grad_(False)
        self.q_target = copy.deepcopy(self.q).requires_grad_(False)
        self.pi_params: list[Tensor] = list(self.pi.parameters())
        self.pi_target_params: list[Tensor] = list(self.pi_target.parameters())
        self.q_params: list[Tensor] = list(self.q.parameters())
        self.q_target_params: list[Tensor] = list(self.q_target.parameters())
        self.pi_adam, self.q_adam = (
            Adam(
                net.parameters(), eps=config.adam_eps, grad_clip=config.grad_clip,
                apart=() if config.memory_lr is None else memory_parameters(net),
            )
            for net in (self.pi, self.q)
        )  # fmt: skip
        self.rates_at, self.actor_rates_at = (
            make_rates(lr, config.memory_lr, total_steps=total_steps)
            for lr in (config.lr, config.actor_lr)
        )
        self.target_lag: Tensor | None = None  # of the critics, before the last hard copy
        self.updates, self.seconds = 0, {"backward": 0.0, "optimiser": 0.0}
        self.multipliers: dict[str, tuple[Tensor, Adam]] = {}
        self.noise_seed, self.noise_generator = torch_seed(seed, "noise"), torch.Generator(device)
        self.generator = generator(seed, "explore")
        names = ("train/actor_loss", "train/actor_grad_norm", *self.logged)
        self.last = {name: torch.zeros((), device=device) for name in names}
        self.set_up()

    @abstractmethod
    def set_up(self) -> None:
        """Set up the parts of a subclass beyond actor and critics."""

    @abstractmethod
    def actor(self, num_envs: int) -> BoxActor:
        """An exploring actor; uniform actions before the first update."""

    @abstractmethod
    def loss(self, batch: Batch) -> ControlLoss:
        """The losses of a batch of windows."""

    @abstractmethod
    def finish_update(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        """Update the targets after the gradient steps of an update; return further metrics."""

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """One learning step on ``sample``; priorities are those of ``loss``."""
        return self.torch_update(sample) if self.kernel is None else self.kernel.update(sample)

    def torch_update(self, sample: Sample) -> Update:
        """``update`` by autograd of ``loss``; all gradients are taken before the first step."""
        out = self.losses(*sample.to(self.device))
        began = time.perf_counter()
        q_grads = torch.autograd.grad(out.critic, self.q_params)
        pi_grads = None if out.actor is None else torch.autograd.grad(out.actor, self.pi_params)
        log_grads = {
            name: torch.autograd.grad(loss, self.multipliers[name][0])[0]
            for name, loss in out.multipliers.items()
        }
        self.seconds["backward"] += time.perf_counter() - began
        metrics = self.apply_gradients(q_grads, pi_grads, log_grads, sample.env_steps, out.metrics)
        return Update(out.priority, metrics)

    def losses(self, segment: Segment, weight: Tensor) -> ControlLoss:
        """``loss`` of windows with importance weights [B], in the precision of the config."""
        batch = Batch(segment, weight, self.bounds, self.config, recurrent=self.recurrent)
        bf16 = self.compute.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            return self.loss(batch)

    def apply_gradients(
        self,
        q_grads: Sequence[Tensor],
        pi_grads: Sequence[Tensor] | None,
        log_grads: Multipliers,
        env_steps: int,
        metrics: dict[str, Tensor],
    ) -> dict[str, Tensor]:
        """Step critics, actor (unless None) and multipliers, then the targets; all metrics."""
        began, rates = time.perf_counter(), self.rates_at(env_steps)
        norm = self.q_adam.step(q_grads, *rates)
        if pi_grads is not None:
            pi_norm = self.pi_adam.step(pi_grads, *self.actor_rates_at(env_steps))
            now = metrics | {"train/actor_grad_norm": pi_norm}
            self.last = {name: now[name] for name in self.last}
        for name, grad in log_grads.items():
            self.multipliers[name][1].step([grad], rates[0])
        self.updates += 1
        self.pi.learned.fill_(1.0)  # ends uniformly random actions
        self.seconds["optimiser"] += time.perf_counter() - began
        stepped = {"train/grad_norm": norm, "train/lr": norm.new_full((), rates[0])}
        further = self.finish_update(env_steps, actor_stepped=pi_grads is not None)
        return metrics | stepped | self.last | further

    def actor_due(self) -> bool:
        """True where the next update steps the actor."""
        return (self.updates + 1) % self.config.actor_every == 0

    @torch.no_grad()
    def update_target(self, target: list[Tensor], online: list[Tensor], since: int = 1) -> None:
        """A soft step, or a hard copy where ``updates`` passed a multiple of target_update_every.

        ``since``: the number of updates since the last call.
        """
        every, tau = self.config.target_update_every, self.config.target_tau
        if tau is not None:
            torch._foreach_lerp_(target, online, tau)
        elif every is not None and self.updates // every > (self.updates - since) // every:
            self.target_lag = relative_distance(target, online)
            torch._foreach_copy_(target, online)

    @torch.no_grad()
    def network_health(self, windows: Segment) -> dict[str, Tensor]:
        """Metrics of actor and critics on the valid learned rows of ``windows``, and of the
        critics' distance to the targets.

        Where the targets are copied, the distance is that before the last copy.
        """
        lag, weight = self.target_lag, torch.ones(windows.valid.shape[1], device=self.device)
        if lag is None:
            lag = relative_distance(self.q_target_params, self.q_params)
        batch = Batch(windows, weight, self.bounds, self.config, recurrent=self.recurrent)
        actor_state = batch.warm_state(self.pi.encoder, batch.state)
        critic_state = batch.warm_state(self.q.encoder)
        with UnitActivity(self.pi, self.q, positions=batch.valid) as units:
            self.pi(batch.encode_from(self.pi.encoder, actor_state))
            self.q(batch.encode_from(self.q.encoder, critic_state), batch.action)
        dead, found = units.dead(), {"train/target_lag": lag}
        return found if dead is None else found | {"train/dead_units": dead}

    def noise(self, number: int, *shape: int, uniform: bool = False) -> Tensor:
        """Standard normal (or uniform in [0, 1)) float32 [*shape], by seed and ``number`` alone.

        A loss is then a function of batch and weights, and no generator state has to be saved.
        """
        own = self.noise_generator.manual_seed((self.noise_seed + number) % 2**63)
        sample = torch.rand if uniform else torch.randn
        return sample(shape, generator=own, device=self.device)

    def add_multiplier(self, name: str, start: float) -> Tensor:
        """The logarithm, 0-d, of a coefficient >= 0 that a loss adjusts, with its own Adam."""
        log = torch.tensor(math.log(start) if start > 0 else -math.inf, device=self.device)
        adam = Adam([log.requires_grad_()], eps=self.config.adam_eps, grad_clip=None)
        self.multipliers[name] = log, adam
        return log

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.losses(*sample.to(self.device)).priority

    # -- weights and checkpoints -----------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The actor's parameters, detached, not copied."""
        return dict(self.pi.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.pi.load_state_dict(weights)

    def parts(self) -> dict[str, dict[str, Any]]:
        """Networks and optimisers by their keys in checkpoints."""
        return {
            "actor": {"net": self.pi, "target": self.pi_target, "adam": self.pi_adam},
            "critics": {"net": self.q, "target": self.q_target, "adam": self.q_adam},
        } | {name: {"adam": adam} for name, (_, adam) in self.multipliers.items()}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            name: {key: dict(x.state_dict()) for key, x in part.items()}
            for name, part in self.parts().items()
        }
        state["critics"]["updates"] = self.updates
        state["actor"]["updates"] = self.updates // self.config.actor_every
        for name, (log, _) in self.multipliers.items():
            state[name]["log"] = log.detach()
        explore = self.generator.bit_generator.state
        own = {"noise": self.noise_seed, "target_lag": self.target_lag, "generator": explore}
        return state | {"last": dict(self.last)} | own

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            for key, x in part.items():
                x.load_state_dict(state[name][key])
        for name, (log, _) in self.multipliers.items():
            log.copy_(state[name]["log"])
        self.updates, self.noise_seed = int(state["critics"]["updates"]), int(state["noise"])
        self.last = {name: x.to(self.device) for name, x in state["last"].items()}
        self.target_lag = state.get("target_lag")  # earlier versions did not measure it
        self.generator.bit_generator.state = state["generator"]
