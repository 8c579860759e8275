"""IMPALA's learner: an actor-critic with V-trace, on rollouts of a policy that may lag behind.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures", ICML 2018. The lag is 0 with pipeline=serial, one chunk with pipeline=overlapped.
"""

from typing import Any

import torch
from torch import Tensor

from rlrun.functional.policy import counted, explained_variance, gradient_slope, value_terms
from rlrun.functional.returns import vtrace
from rlrun.nets.acting_policy import PolicyActor
from rlrun.nets.actor_critic import make_actor_critic
from rlrun.nets.compute import PLAIN, Compute
from rlrun.nets.onpolicy import Descender, Loss, Rows, join, opening, told
from rlrun.schedule import make_schedule
from rlrun.schema import IMPALAConfig, MemoryConfig, TorsoConfig
from rlrun.types import Sample, Spec, Update, Window, generator


class IMPALA:
    """Draws actions from its distribution and learns from them once, importance-weighted."""

    window: Window | None = None  # it keeps no replay

    def __init__(
        self,
        config: IMPALAConfig,
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
        """One gradient step on a whole rollout, by whatever earlier policy its actions are."""
        rows = self.descender.read(sample.segment)
        out = self.loss(rows)
        stepped = self.descender.step(out, sample.env_steps)
        self.descender.absorb(rows)
        return Update(None, out.metrics | stepped)

    def loss(self, rows: Rows) -> Loss:
        """Policy gradient and value error towards V-trace targets, and the entropy bonus."""
        c, real = self.config, counted(rows.valid)
        net, began = self.descender, opening(rows.states)
        head, value = net.outputs(rows.obs, rows.side, rows.first, began)
        choice = net.choice(head[:-1], rows.action)
        log_ratio = choice.log_prob.detach() - rows.behaviour
        found = vtrace(
            log_ratio, rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.vtrace_lambda,
            rho_clip=c.rho_clip, c_clip=c.c_clip,
        )  # fmt: skip
        gain = found.advantage
        extra = {"train/rho_clipped": real.mean((log_ratio.exp() > c.rho_clip).float())}
        now = value[:-1]
        baseline = value_terms(now, found.target, real, old=None, clip=None)
        out = join(c, choice, gradient_slope(gain, real), now, baseline.slope, real)
        policy = -real.mean(gain * choice.log_prob.detach())
        metrics = told(c, policy, baseline.loss, choice, real) | extra
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
