"""Actor, critics and their gradient steps: the part that DDPG, TD3, SAC and CQL on SAC share."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.continuous_actor import make_actor_and_critics
from rlrun.optim.noise import SeededNoise
from rlrun.optim.target import OnlineTarget
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Spec


class ActorCriticsLoss(NamedTuple):
    """Losses of a batch of windows, before their gradients are taken."""

    loss: Tensor  # 0-d, detached: the critics'
    priority: Tensor  # [B]
    metrics: dict[str, Tensor]  # 0-d each
    q: Tensor  # [C, ...] action values, with gradient
    q_grad: Tensor  # d loss / d q
    actor: Tensor | None  # 0-d; None in updates without an actor step
    multipliers: dict[str, Tensor]  # 0-d each: losses of the coefficients stepped in this update


class ActorCritics:
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
        self.pi = OnlineTarget(actor.to(device), config)
        self.q = OnlineTarget(values.to(device), config)
        self.lr_at, self.actor_lr_at = lr_at, actor_lr_at
        self.noise = SeededNoise(seed, device)
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        names = ("train/actor_loss", "train/actor_grad_norm", *logged)
        self.last = {name: torch.zeros((), device=device) for name in names}

    def actor_due(self) -> bool:
        """True where the next update steps the actor."""
        return (self.q.updates + 1) % self.config.actor_every == 0

    def step(self, out: ActorCriticsLoss, env_steps: int) -> dict[str, Tensor]:
        """One step of the critics and, where ``out`` has its loss, of the actor; the metrics.

        Both gradients are taken before either step; targets stay (``OnlineTarget.update_target``).
        """
        began = time.perf_counter()
        critic_grads = self.q.grads(out.q, out.q_grad)
        actor_grads = None if out.actor is None else self.pi.grads(out.actor)
        self.seconds["backward"] += time.perf_counter() - began
        return self.apply_gradients(critic_grads, actor_grads, out.metrics, env_steps)

    def apply_gradients(
        self,
        critic_grads: list[Tensor],
        actor_grads: list[Tensor] | None,
        metrics: dict[str, Tensor],
        env_steps: int,
    ) -> dict[str, Tensor]:
        """Step the critics and, unless ``actor_grads`` is None, the actor; return all metrics."""
        began, lr = time.perf_counter(), self.lr_at(env_steps)
        norm = self.q.adam.step(critic_grads, lr)
        self.q.updates += 1
        if actor_grads is not None:
            actor_norm = self.pi.adam.step(actor_grads, self.actor_lr_at(env_steps))
            self.pi.updates += 1
            self.last = {n: metrics.get(n, actor_norm) for n in self.last}
        self.pi.net.learned.fill_(1.0)
        self.seconds["optimiser"] += time.perf_counter() - began
        stepped = {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}
        return metrics | stepped | self.last

    def weights(self) -> dict[str, Tensor]:
        """The actor's parameters, detached, not copied."""
        return self.pi.weights()

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
