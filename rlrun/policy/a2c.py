"""A2C: the advantage actor-critic, one gradient step on every rollout.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", ICML 2016, without the threads:
all environments step together. Generalised advantages (Schulman et al. 2016); lambda 1 is A3C's.
"""

from typing import Any

import torch
from torch import Tensor

from rlrun.functional.policy import (
    counted,
    explained_variance,
    gradient_slope,
    standardise,
    value_terms,
)
from rlrun.functional.returns import gae
from rlrun.nets.acting_policy import PolicyActor
from rlrun.nets.actor_critic import make_actor_critic
from rlrun.nets.compute import PLAIN, Compute
from rlrun.nets.onpolicy import Descender, Loss, Rows, join, opening, told
from rlrun.schedule import make_schedule
from rlrun.schema import A2CConfig, MemoryConfig, TorsoConfig
from rlrun.types import Sample, Spec, Update, Window, generator


class A2C:
    """Draws actions from its distribution and learns from them once."""

    window: Window | None = None  # it keeps no replay

    def __init__(
        self,
        config: A2CConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = PLAIN,
    ) -> None:
        self.config, self.device = config, device
        net = make_actor_critic(config, torso, memory, spec, seed=seed).to(device)
        lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.net, self.descender = net, Descender(net, config, lr_at, compute)
        self.generator, self.seconds = generator(seed, "explore"), self.descender.seconds

    def actor(self, num_envs: int) -> PolicyActor:
        """Draws from the policy's distribution."""
        return PolicyActor(self.net, self.config, self.generator, num_envs=num_envs)

    def update(self, sample: Sample) -> Update:
        """One gradient step on a whole rollout, whose actions are the present policy's."""
        rows = self.descender.read(sample.segment)
        out = self.loss(rows)
        stepped = self.descender.step(out, sample.env_steps)
        self.descender.absorb(rows)
        return Update(None, out.metrics | stepped)

    def loss(self, rows: Rows) -> Loss:
        """Policy gradient, half the squared error of V and the entropy bonus of a rollout."""
        c, real = self.config, counted(rows.valid)
        net, began = self.descender, opening(rows.states)
        head, value = net.outputs(rows.obs, rows.side, rows.first, began)
        choice = net.choice(head[:-1], rows.action)
        found = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        gain = standardise(found.advantage, real) if c.normalize_advantage else found.advantage
        now = value[:-1]
        baseline = value_terms(now, found.target, real, old=None, clip=None)
        out = join(c, choice, gradient_slope(gain, real), now, baseline.slope, real)
        policy = -real.mean(gain * choice.log_prob.detach())
        metrics = told(c, policy, baseline.loss, choice, real)
        metrics["train/explained_variance"] = explained_variance(now, found.target, real)
        return out._replace(metrics=metrics)

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return self.descender.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return self.descender.state_dict() | {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.descender.load_state_dict(state)
        self.generator.bit_generator.state = state["generator"]
