"""An actor, its critics, and what moves both: what DDPG, TD3, SAC and CQL on SAC have in common."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.continuous_actor import make_actor_and_critics
from rlrun.optim.noise import Noise
from rlrun.optim.target import Trained
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Spec


class ControlLoss(NamedTuple):
    """What a batch of windows says; the gradients are still to be taken."""

    loss: Tensor  # 0-d, detached: the critics'
    priority: Tensor  # [B]
    metrics: dict[str, Tensor]  # 0-d each
    q: Tensor  # [C, ...] what the critics' gradient flows into
    slope: Tensor  # d loss / d q
    actor: Tensor | None  # 0-d; None in updates that leave the actor as it is
    multipliers: dict[str, Tensor]  # 0-d each: of those that move in this update


class ControlPair:
    """Actor ``pi`` and critics ``q`` with their optimisers, targets, noise and schedules.

    ``lr_at``, ``actor_lr_at``: env_steps -> learning rate. ``outputs``: numbers of the actor per
    action dimension. ``logged``: metrics of the actor's steps, repeated by updates without one.
    """

    def __init__(
        self,
        config: ControlConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        device: torch.device,
        lr_at: Callable[[int], float],
        actor_lr_at: Callable[[int], float],
        outputs: int,
        critics: int,
        logged: tuple[str, ...] = (),
    ) -> None:
        self.config, self.device, self.bounds = config, device, ActionBounds(spec.action, device)
        actor, values = make_actor_and_critics(
            config, torso, memory, spec,
            actions=self.bounds.size, outputs=outputs, critics=critics, seed=seed,
        )  # fmt: skip
        self.pi, self.q = Trained(actor.to(device), config), Trained(values.to(device), config)
        self.lr_at, self.actor_lr_at = lr_at, actor_lr_at
        self.noise = Noise(seed, device)
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        names = ("train/actor_loss", "train/actor_grad_norm", *logged)
        self.last = {name: torch.zeros((), device=device) for name in names}

    def due(self) -> bool:
        """Whether the next update moves the actor."""
        return (self.q.updates + 1) % self.config.actor_every == 0

    def step(self, out: ControlLoss, env_steps: int) -> dict[str, Tensor]:
        """One step of the critics and, where ``out`` has a loss of it, of the actor; the metrics.

        Both gradients are taken before either moves; targets stay (``Trained.follow``).
        """
        began = time.perf_counter()
        of_critics = self.q.gradient(out.q, out.slope)
        of_actor = None if out.actor is None else self.pi.gradient(out.actor)
        self.seconds["backward"] += time.perf_counter() - began
        return self.move(of_critics, of_actor, out.metrics, env_steps)

    def move(
        self,
        of_critics: list[Tensor],
        of_actor: list[Tensor] | None,
        metrics: dict[str, Tensor],
        env_steps: int,
    ) -> dict[str, Tensor]:
        """One step along gradients, the actor's None where it stays; all metrics."""
        began, lr = time.perf_counter(), self.lr_at(env_steps)
        norm = self.q.step(of_critics, lr)
        if of_actor is not None:
            moved = self.pi.step(of_actor, self.actor_lr_at(env_steps))
            self.last = {n: metrics.get(n, moved) for n in self.last}
        self.pi.net.learned.fill_(1.0)
        self.seconds["optimiser"] += time.perf_counter() - began
        stepped = {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}
        return metrics | stepped | self.last

    def weights(self) -> dict[str, Tensor]:
        """The actor's parameters, detached, not copied."""
        return dict(self.pi.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.pi.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "actor": self.pi.state_dict(),
            "critics": self.q.state_dict(),
            "last": dict(self.last),
            "noise": self.noise.base,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pi.load_state_dict(state["actor"])
        self.q.load_state_dict(state["critics"])
        self.last = {name: x.to(self.device) for name, x in state["last"].items()}
        self.noise.base = int(state["noise"])
