"""Base classes of policies for bounded real actions (DDPG, TD3, SAC, CQL on SAC), and their actors.

Subclasses define the losses.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.explore import uniform_actions
from rlrun.functional.policy import LOG_STD_BOUNDS
from rlrun.functional.rows import weighted_row_mean
from rlrun.functional.value import huber, mixed_priority, td_metrics
from rlrun.nets.actor_and_critics import ActorNet, Batch, Critics
from rlrun.policy.actor import Chosen, NetActor
from rlrun.policy.base import Losses, Metrics, Part, TargetLearner
from rlrun.policy.health import UnitActivity
from rlrun.policy.optim import Adam
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Segment, Tree, torch_seed

K = TypeVar("K", bound=ControlConfig)


class Coefficient(nn.Module):
    """A coefficient >= 0 adjusted by a loss. Its logarithm ``log`` [0-d] is the parameter."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start) if start > 0 else -math.inf))


class ControlLearner(TargetLearner[K], Generic[K]):
    """Actor ``pi`` and critics ``q`` with target networks, which learn from windows of rows."""

    main = "critics"
    outputs: ClassVar[int]  # the actor's outputs per action dimension
    critics: int
    critic_outputs = 1  # of every critic: its value, or quantiles of it
    logged: ClassVar[tuple[str, ...]] = ()  # metrics of the actor's steps in addition to its loss

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        c, (pi, q) = self.config, self.make_nets(torso, memory)
        self.net = self.pi = pi.to(self.device)
        self.q, self.recurrent = q.to(self.device), memory.name != "none"
        actor = self.add("actor", self.pi, follows=self.pi, lr=c.actor_lr)
        critics = self.add("critics", self.q, follows=self.q)
        assert self.pi.bounds is not None
        self.pi_target: Any = actor.target
        self.q_target: Any = critics.target
        self.bounds = self.pi.bounds
        self.noise_seed = torch_seed(self.seed, "noise")
        self.noise_generator = torch.Generator(self.device)
        names = ("train/actor_loss", "train/actor_grad_norm", *self.logged)
        self.last: Metrics = {name: torch.zeros((), device=self.device) for name in names}

    def make_nets(self, torso: TorsoConfig, memory: MemoryConfig) -> tuple[ActorNet, Critics]:
        shared = self.config, torso, memory, self.spec
        return ActorNet(*shared, self.outputs), Critics(*shared, self.critics, self.critic_outputs)

    def add_coefficient(self, name: str, start: float) -> Tensor:
        """Add a coefficient that a loss adjusts by Adam at ``policy.lr``. Return its logarithm,
        0-d.
        """
        net = Coefficient(start).to(self.device)
        adam = Adam(net.parameters(), eps=self.config.adam_eps, max_grad_norm=None)
        self.parts[name] = Part(net, adam, self.parts["critics"].lr_at)
        return net.log

    @abstractmethod
    def control_losses(self, batch: Batch) -> Losses:
        """Return the losses of critics, actor (if it is due) and coefficients, in this order."""

    def critic_losses(
        self, batch: Batch, q: Tensor, y: Tensor, penalty: Tensor | None = None
    ) -> Losses:
        """Return sum_c (y - Q_c(s, a))^2 / 2 + ``penalty`` [L, B], beyond td_clip its tangent (eq.
        5).

        Priorities are mean errors over the critics.
        """
        c, valid = self.config, batch.valid
        delta = torch.where(valid, y - q, 0.0)
        row_loss = huber(delta, c.td_clip).sum(0)
        row_loss = row_loss if penalty is None else row_loss + penalty
        loss, td = weighted_row_mean(row_loss, valid, batch.weight), delta.detach().abs().mean(0)
        metrics = td_metrics(loss, td, q.mean(0), y, valid)
        return Losses({"critics": loss}, mixed_priority(td, valid, c.priority_eta), metrics)

    @abstractmethod
    def update_all_targets(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        """Update the targets after the gradient steps of an update. Return more metrics."""

    # -- learning --------------------------------------------------------------------------------

    def losses(self, segment: Segment, weight: Tensor) -> Losses:
        with self.autocast():
            return self.control_losses(self.batch(segment, weight))

    def batch(self, segment: Segment, weight: Tensor) -> Batch:
        """Return windows with importance weights [B] in the form that losses read."""
        return Batch(segment, weight, self.pi, self.config, recurrent=self.recurrent)

    def actor_due(self) -> bool:
        """Whether the next update steps the actor."""
        return (self.updates + 1) % self.config.actor_every == 0

    def finish_update(self, norms: Metrics, metrics: Metrics, env_steps: int) -> Metrics:
        self.pi.learned.fill_(1.0)  # ends uniformly random actions
        if "actor" in norms:
            present = metrics | {"train/actor_grad_norm": norms["actor"]}
            self.last = {name: present[name] for name in self.last}
        return self.last | self.update_all_targets(env_steps, actor_stepped="actor" in norms)

    def dead_units(self, windows: Segment) -> Tensor | None:
        """Measured over the valid learned rows of ``windows``."""
        batch = self.batch(windows, torch.ones(windows.valid.shape[1], device=self.device))
        actor_state = batch.warm_state(self.pi.encoder, batch.state)
        critic_state = batch.warm_state(self.q.encoder)
        with UnitActivity(self.pi, self.q, positions=batch.valid) as units:
            self.pi(batch.encode_from(self.pi.encoder, actor_state))
            self.q(batch.encode_from(self.q.encoder, critic_state), batch.action)
        return units.dead()

    def noise(self, number: int, *shape: int, uniform: bool = False) -> Tensor:
        """Return standard normal (or uniform) float32 [*shape], by seed and ``number`` alone.

        A loss is then a function of batch and weights, and no generator state has to be saved.
        """
        generator = self.noise_generator.manual_seed((self.noise_seed + number) % 2**63)
        sample = torch.rand if uniform else torch.randn
        return sample(shape, generator=generator, device=self.device)

    # -- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        last = {name: torch.as_tensor(x) for name, x in self.last.items()}
        return super().state_dict() | {"noise_seed": self.noise_seed, "last": last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.noise_seed = int(state["noise_seed"])
        self.last = {name: x.to(self.device) for name, x in state["last"].items()}


# -- acting ----------------------------------------------------------------------------------------


class BoxActor(NetActor):
    """Selects actions of a bounded Box. They are uniform before the first update.

    Greedy actions (``explore`` None) are tanh of the first A outputs: mode or mean before tanh.
    """

    exported = True
    net: ActorNet

    def set_up(self) -> None:
        assert self.net.bounds is not None
        self.bounds = self.net.bounds

    def refresh(self) -> None:
        super().refresh()
        self.learned, self.sigma = bool(self.net.learned), np.float32(self.net.noise.item())

    @abstractmethod
    def sample(self, outputs: np.ndarray) -> np.ndarray:
        """Return exploring actions [E, A] in [-1, 1] for the network's outputs [E, O]."""

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        if explore is None:
            return self.bounds.from_unit(np.tanh(outputs[:, : self.bounds.size])), {}
        space, count = self.bounds.space, len(outputs)
        if not self.learned:
            return uniform_actions(space, count, self.generator), {}
        action = self.bounds.from_unit(self.sample(outputs))
        if explore.any():
            coin = self.generator.random(count) < explore
            uniform = uniform_actions(space, count, self.generator)
            action = np.where(coin.reshape(-1, *[1] * self.bounds.dims), uniform, action)
        return action, {}

    def greedy(self, outputs: Tensor, obs: Tree) -> dict[str, Tensor]:
        mean, size = outputs[:, : self.bounds.size], self.bounds.size
        choice = {"action": self.bounds.from_unit_tensor(mean.tanh()), "mean": mean}
        if outputs.shape[-1] > size:
            choice["log_std"] = outputs[:, size:].clamp(*LOG_STD_BOUNDS)
        return choice

    def read(self, outputs: np.ndarray, obs: Tree) -> tuple[str, np.ndarray]:
        mean = np.tanh(outputs[:, : self.bounds.size])
        return "mean", self.bounds.from_unit(mean)[0].ravel()


class SquashedGaussianActor(BoxActor):
    """tanh(mean + std N(0, 1)); outputs [E, 2 A] are means and log stds (SAC)."""

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(outputs, 2, -1)
        std = np.exp(np.clip(log_std, *LOG_STD_BOUNDS))
        noise = self.generator.standard_normal(mean.shape, np.float32)
        action: np.ndarray = np.tanh(mean + std * noise)
        return action


class GaussianNoiseActor(BoxActor):
    """clip(tanh(outputs) + sigma N(0, 1), -1, 1): exploration of a deterministic policy.

    Source: Fujimoto et al. 2018, section 6.1 (the original DDPG uses correlated noise).
    """

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        action: np.ndarray = np.tanh(outputs)
        action += self.sigma * self.generator.standard_normal(action.shape, np.float32)
        return np.clip(action, -1, 1, out=action)
