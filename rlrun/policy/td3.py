"""TD3: a deterministic actor that moves less often, twin critics, smoothed target actions.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", ICML. With
a memory (policy=rtd3) actor and critics each unroll their own over the window: the actor's starts
from the stored state, the critics' from zero, and burn-in warms both up.
"""

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.functional.continuous import bootstrapped, critic_loss, row_mean, smoothed_action
from rlrun.functional.reduce import masked_mean
from rlrun.functional.value import mixed_priority
from rlrun.nets.bounds import Bounds
from rlrun.nets.box_acting import BoxActor, noisy
from rlrun.nets.compute import PLAIN, Compute
from rlrun.nets.control import Noise, Trained, make_control
from rlrun.nets.encoder import look
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, TD3Config, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Update, Window, generator


class TD3Loss(NamedTuple):
    """What a batch of windows says; the gradients are still to be taken."""

    loss: Tensor  # 0-d, detached: the critics'
    priority: Tensor  # [B]
    metrics: dict[str, Tensor]  # 0-d each
    q: Tensor  # [2, L, B] what the critics' gradient flows into
    slope: Tensor  # d loss / d q
    actor: Tensor | None  # 0-d; None in updates that leave the actor and the targets as they are


class TD3:
    """Acts with Gaussian noise on a deterministic action; learns from windows of rows."""

    def __init__(
        self,
        config: TD3Config,
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
            config, torso, memory, spec, actions=size, outputs=1, critics=2, seed=seed
        )
        self.actor_net, self.critics = actor.to(device), critics.to(device)
        self.pi, self.q = Trained(self.actor_net, config), Trained(self.critics, config)
        self.lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.actor_lr_at = make_schedule(config.actor_lr, total_steps=total_steps)
        self.noise_at = make_schedule(config.noise, total_steps=total_steps)
        self.actor_net.noise.fill_(self.noise_at(0))
        self.noise = Noise(seed, device)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        names = ("train/actor_loss", "train/actor_grad_norm")
        self.last = {name: torch.zeros((), device=device) for name in names}  # of the actor

    def actor(self, num_envs: int) -> BoxActor:
        """Deterministic actions with noise; uniform ones before the first update."""
        return BoxActor(
            self.actor_net, self.config, self.bounds, noisy, self.generator, num_envs=num_envs
        )

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """One step of the critics; every ``actor_every`` also of the actor and all targets."""
        out = self.loss(sample.segment.to(self.device), sample.weight.to(self.device))
        began, lr = time.perf_counter(), self.lr_at(sample.env_steps)
        of_critics = self.q.gradient(out.q, out.slope)
        of_actor = None if out.actor is None else self.pi.gradient(out.actor)
        backward = time.perf_counter()
        norm = self.q.step(of_critics, lr)
        if of_actor is not None:
            moved = self.pi.step(of_actor, self.actor_lr_at(sample.env_steps))
            self.last = {n: out.metrics.get(n, moved) for n in self.last}
            for side in (self.q, self.pi):
                side.follow(self.q.updates, self.config.actor_every)
        self.actor_net.learned.fill_(1.0)
        self.actor_net.noise.fill_(self.noise_at(sample.env_steps))
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        stepped = {"train/grad_norm": norm, "train/lr": torch.tensor(lr, device=self.device)}
        stepped["train/noise"] = self.actor_net.noise.clone()
        return Update(out.priority, out.metrics | stepped | self.last)

    def loss(self, segment: Segment, weight: Tensor) -> TD3Loss:
        """Losses, priorities and metrics of a batch of windows."""
        with self.compute.autocast(self.device):
            return self._loss(segment, weight)

    def _loss(self, segment: Segment, weight: Tensor) -> TD3Loss:
        c, (bs, learned) = self.config, (self.window.burnin, self.window.learned)
        view, n, taken = look(segment, self.bounds, self.window, c, memory=self.recurrent)
        valid = segment.valid[bs : bs + learned]
        state = segment.state if c.state_init == "stored" else None
        with torch.no_grad():
            lagging, behind = self.q.target, self.pi.target
            action = behind(view.ahead(behind.encoder, state)).tanh()
            noise = self.noise(self.q.updates, *action.shape)
            action = smoothed_action(action, noise, sigma=c.smoothing, clip=c.smoothing_clip)
            value = lagging(view.ahead(lagging.encoder, None), action).amin(0)
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
        }
        actor = None
        if (self.q.updates + 1) % c.actor_every == 0:
            chosen = self.actor_net(view.now(self.actor_net.encoder, state)).tanh()
            first = self.critics(features.detach(), chosen, 1, fixed=True)[0]
            actor = row_mean(-first, valid, weight)
            metrics["train/actor_loss"] = actor.detach()
        priority = mixed_priority(out.td, valid, c.eta)
        return TD3Loss(out.loss, priority, metrics, q, out.slope, actor)

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
            "last": dict(self.last),
            "noise": self.noise.base,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pi.load_state_dict(state["actor"])
        self.q.load_state_dict(state["critics"])
        self.last = {name: x.to(self.device) for name, x in state["last"].items()}
        self.noise.base = int(state["noise"])
        self.generator.bit_generator.state = state["generator"]
