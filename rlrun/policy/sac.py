"""Soft actor-critic: a squashed Gaussian actor, twin critics, a temperature that adapts.

Haarnoja et al. 2018a, "Soft Actor-Critic", ICML; 2018b, "Soft Actor-Critic Algorithms and
Applications" (the temperature). With a memory (policy=rsac) actor and critics each unroll their own
over the window: the actor's starts from the stored state, the critics' from zero, and burn-in warms
both up.
"""

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.functional.continuous import (
    Squashed,
    actor_loss,
    bootstrapped,
    critic_loss,
    soft_value,
    squashed_gaussian,
    temperature_loss,
)
from rlrun.functional.reduce import masked_mean
from rlrun.functional.value import mixed_priority
from rlrun.nets.bounds import Bounds
from rlrun.nets.box_acting import BoxActor, sampled
from rlrun.nets.compute import PLAIN, Compute
from rlrun.nets.control import Noise, Trained, make_control
from rlrun.nets.encoder import look
from rlrun.nets.optimise import Adam
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, SACConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Update, Window, generator


class SACLoss(NamedTuple):
    """What a batch of windows says; the gradients are still to be taken."""

    loss: Tensor  # 0-d, detached: the critics'
    priority: Tensor  # [B]
    metrics: dict[str, Tensor]  # 0-d each
    q: Tensor  # [2, L, B] what the critics' gradient flows into
    slope: Tensor  # d loss / d q
    actor: Tensor | None  # 0-d; None in updates that leave the actor as it is
    temperature: Tensor | None  # 0-d; None then, and where the temperature is fixed


class SAC:
    """Acts by sampling tanh(Normal); learns from windows of rows."""

    def __init__(
        self,
        config: SACConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = PLAIN,
    ) -> None:
        self.config, self.device, self.compute = config, device, compute
        self.window, self.recurrent = Window(*config.window), memory.name != "none"
        self.bounds = Bounds(spec.action, device)
        size = self.bounds.size
        actor, critics = make_control(
            config, torso, memory, spec, actions=size, outputs=2, critics=2, seed=seed
        )
        self.actor_net, self.critics = actor.to(device), critics.to(device)
        self.pi, self.q = Trained(self.actor_net, config), Trained(self.critics, config)
        wanted = config.target_entropy
        self.target_entropy = -float(size) if wanted is None else wanted  # Haarnoja et al. 2018b
        start = math.log(config.temperature) if config.temperature > 0 else -math.inf
        self.log_temperature = torch.tensor(start, device=device, requires_grad=True)
        self.adam = Adam([self.log_temperature], eps=config.adam_eps, grad_clip=None)
        self.lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.actor_lr_at = make_schedule(config.actor_lr, total_steps=total_steps)
        self.noise = Noise(seed, device)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        names = ("train/actor_loss", "train/actor_grad_norm", "train/entropy")
        self.last = {name: torch.zeros((), device=device) for name in names}  # of the actor

    def actor(self, num_envs: int) -> BoxActor:
        """Samples; uniform actions before the first update."""
        return BoxActor(
            self.actor_net, self.config, self.bounds, sampled, self.generator, num_envs=num_envs
        )

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """One step of critics, actor and temperature, all three from the same weights."""
        out = self.loss(sample.segment.to(self.device), sample.weight.to(self.device))
        began, lr = time.perf_counter(), self.lr_at(sample.env_steps)
        of_critics = self.q.gradient(out.q, out.slope)
        of_actor = None if out.actor is None else self.pi.gradient(out.actor)
        backward = time.perf_counter()
        norm = self.q.step(of_critics, lr)
        if of_actor is not None:
            moved = self.pi.step(of_actor, self.actor_lr_at(sample.env_steps))
            self.last = {n: out.metrics.get(n, moved) for n in self.last}
        if out.temperature is not None:
            slope = torch.autograd.grad(out.temperature, [self.log_temperature])
            self.adam.step(list(slope), lr)
        self.q.follow(self.q.updates, 1)
        self.actor_net.learned.fill_(1.0)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        stepped = {"train/grad_norm": norm, "train/lr": torch.tensor(lr, device=self.device)}
        return Update(out.priority, out.metrics | stepped | self.last)

    def loss(self, segment: Segment, weight: Tensor) -> SACLoss:
        """Losses, priorities and metrics of a batch of windows."""
        with self.compute.autocast(self.device):
            return self._loss(segment, weight)

    def _loss(self, segment: Segment, weight: Tensor) -> SACLoss:
        c, (bs, learned) = self.config, (self.window.burnin, self.window.learned)
        view, n, taken = look(segment, self.bounds, self.window, c, memory=self.recurrent)
        valid = segment.valid[bs : bs + learned]
        state = segment.state if c.state_init == "stored" else None
        temperature = self.log_temperature.detach().exp()
        here, there = view.both(self.actor_net.encoder, state)
        with torch.no_grad():
            ahead, lagging = self.fresh(there, 1), self.q.target
            q_ahead = lagging(view.ahead(lagging.encoder, None), ahead.action)
            value = soft_value(q_ahead, ahead.log_prob, temperature)
            target = bootstrapped(n.reward, n.discount, value)
        features = view.now(self.critics.encoder, None)
        q = self.critics(features, taken)
        out = critic_loss(q, target, valid, weight, td_clip=c.td_clip)
        metrics = {
            "train/loss": out.loss,
            "train/td_abs": masked_mean(out.td, valid),
            "train/q_taken": masked_mean(q.detach().mean(0), valid),
            "train/target": masked_mean(target, valid),
            "train/valid_fraction": valid.float().mean(),
            "train/temperature": temperature,
        }
        actor = heat = None
        if (self.q.updates + 1) % c.actor_every == 0:
            now = self.fresh(here, 0)
            chosen = self.critics(features.detach(), now.action, fixed=True)
            actor = actor_loss(chosen, now.log_prob, temperature, valid, weight)
            if c.temperature_auto:
                heat = temperature_loss(
                    self.log_temperature, now.log_prob, self.target_entropy, valid, weight
                )
            metrics["train/actor_loss"] = actor.detach()
            metrics["train/entropy"] = masked_mean(-now.log_prob.detach(), valid)
        priority = mixed_priority(out.td, valid, c.eta)
        return SACLoss(out.loss, priority, metrics, q, out.slope, actor, heat)

    def fresh(self, features: Tensor, which: int) -> Squashed:
        """Actions [L, B, A] that the present actor samples; ``which`` of an update's two draws."""
        mean, log_std = self.actor_net(features).chunk(2, -1)
        noise = self.noise(2 * self.q.updates + which, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, without learning."""
        return self.loss(sample.segment.to(self.device), sample.weight.to(self.device)).priority

    # -- state -----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The actor's parameters, detached, not copied."""
        return dict(self.actor_net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.actor_net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "actor": self.pi.state_dict(),
            "critics": self.q.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "adam": self.adam.state_dict(),
            "last": dict(self.last),
            "noise": self.noise.base,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pi.load_state_dict(state["actor"])
        self.q.load_state_dict(state["critics"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        self.adam.load_state_dict(state["adam"])
        self.last = {name: x.to(self.device) for name, x in state["last"].items()}
        self.noise.base = int(state["noise"])
        self.generator.bit_generator.state = state["generator"]
