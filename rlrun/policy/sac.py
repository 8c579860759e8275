"""Soft actor-critic: a squashed Gaussian actor, twin critics, a temperature that adapts.

Haarnoja et al. 2018a, "Soft Actor-Critic", ICML; 2018b, "Soft Actor-Critic Algorithms and
Applications" (the temperature). With a memory (policy=rsac) actor and critics each unroll their own
over the window: the actor's starts from the stored state, the critics' from zero, and burn-in warms
both up.
"""

from typing import Any

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
from rlrun.nets.bare_control import BareSAC, fits
from rlrun.nets.box_acting import BoxActor, sampled
from rlrun.nets.compute import PLAIN, Compute
from rlrun.nets.control_pair import ControlLoss, ControlPair, Multiplier
from rlrun.nets.encoder import look
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, SACConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Update, Window


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
        self.pair = ControlPair(
            config, torso, memory, spec=spec, seed=seed, device=device,
            lr_at=make_schedule(config.lr, total_steps=total_steps),
            actor_lr_at=make_schedule(config.actor_lr, total_steps=total_steps),
            outputs=2, critics=2, logged=("train/entropy",),
        )  # fmt: skip
        self.pi, self.q, self.bounds = self.pair.pi, self.pair.q, self.pair.bounds
        self.generator, self.seconds = self.pair.generator, self.pair.seconds
        wanted, size = config.target_entropy, self.bounds.size
        self.target_entropy = -float(size) if wanted is None else wanted  # Haarnoja et al. 2018b
        self.temperature = Multiplier(config.temperature, eps=config.adam_eps, device=device)
        plain = fits(self.pair, compute, memory)
        self.bare = BareSAC(self.pair, self.temperature, self.target_entropy) if plain else None

    def actor(self, num_envs: int) -> BoxActor:
        """Samples; uniform actions before the first update."""
        return self.pair.actor(sampled, num_envs)

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """One step of critics, actor and temperature, all three from the same weights."""
        update = self.recorded(sample) if self.bare is None else self.bare(sample)
        self.q.follow(self.q.updates, 1)
        return update

    def recorded(self, sample: Sample) -> Update:
        """The steps, by autograd; targets stay."""
        out = self.loss(*sample.to(self.device))
        metrics = self.pair.step(out, sample.env_steps)
        if out.temperature is not None:
            self.temperature.step(out.temperature, self.pair.lr_at(sample.env_steps))
        return Update(out.priority, metrics)

    def loss(self, segment: Segment, weight: Tensor) -> ControlLoss:
        """Losses, priorities and metrics of a batch of windows."""
        with self.compute.autocast(self.device):
            return self._loss(segment, weight)

    def _loss(self, segment: Segment, weight: Tensor) -> ControlLoss:
        c, (bs, learned) = self.config, (self.window.burnin, self.window.learned)
        view, n, taken = look(segment, self.bounds, self.window, c, memory=self.recurrent)
        valid = segment.valid[bs : bs + learned]
        state = segment.state if c.state_init == "stored" else None
        temperature = self.temperature.value()
        here, there = view.both(self.pi.net.encoder, state)
        with torch.no_grad():
            ahead, lagging = self.fresh(there, 1), self.q.target
            q_ahead = lagging(view.ahead(lagging.encoder, None), ahead.action)
            value = soft_value(q_ahead, ahead.log_prob, temperature)
            target = bootstrapped(n.reward, n.discount, value)
        features = view.now(self.q.net.encoder, None)
        q = self.q.net(features, taken)
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
        if self.pair.due():
            now = self.fresh(here, 0)
            chosen = self.q.net(features.detach(), now.action, fixed=True)
            actor = actor_loss(chosen, now.log_prob, temperature, valid, weight)
            if c.temperature_auto:
                heat = temperature_loss(
                    self.temperature.log, now.log_prob, self.target_entropy, valid, weight
                )
            metrics["train/actor_loss"] = actor.detach()
            metrics["train/entropy"] = masked_mean(-now.log_prob.detach(), valid)
        priority = mixed_priority(out.td, valid, c.eta)
        return ControlLoss(out.loss, priority, metrics, q, out.slope, actor, heat)

    def fresh(self, features: Tensor, which: int) -> Squashed:
        """Actions [L, B, A] that the present actor samples; ``which`` of an update's two draws."""
        mean, log_std = self.pi.net(features).chunk(2, -1)
        noise = self.pair.noise(2 * self.q.updates + which, *mean.shape)
        return squashed_gaussian(mean, log_std, noise)

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, without learning."""
        return self.loss(*sample.to(self.device)).priority

    # -- state -----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The actor's parameters, detached, not copied."""
        return self.pair.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.pair.load(weights)

    def state_dict(self) -> dict[str, Any]:
        return self.pair.state_dict() | {"temperature": self.temperature.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pair.load_state_dict(state)
        self.temperature.load_state_dict(state["temperature"])
