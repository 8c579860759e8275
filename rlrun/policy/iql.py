"""IQL: values by expectile regression on a dataset's own actions, then weighted imitation.

Kostrikov, Nair & Levine, "Offline Reinforcement Learning with Implicit Q-Learning", ICLR 2022.
Values of actions outside the dataset are never used. Discrete actions, or in a box.
"""

import copy
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.acting.stochastic import PolicyNetActor
from rlrun.functional.offline import advantage_weight, expectile_loss
from rlrun.functional.rows import masked_mean, shape_reward
from rlrun.functional.transition import Transition, transition
from rlrun.functional.value import td_target
from rlrun.nets.iql import make_iql_nets, twin_q
from rlrun.optim.adam import Adam
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.schedule import make_schedule
from rlrun.schema import IQLConfig, MemoryConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Update, generator


class IQLLoss(NamedTuple):
    """Loss of a batch of windows, with its gradient."""

    loss: Tensor  # 0-d: sum of the three losses, which share no parameters
    priority: Tensor  # [B] larger |delta| of the two critics
    metrics: dict[str, Tensor]


class IQL:
    """Expectile values and an advantage-weighted policy, learned from single rows."""

    def __init__(
        self,
        config: IQLConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.config, self.device, self.compute = config, device, compute
        self.window = config.window
        self.nets = make_iql_nets(torso, memory, config.head_hidden, spec, seed=seed).to(device)
        self.net = self.nets.policy
        self.target = copy.deepcopy(self.nets.critics).requires_grad_(False)
        self.adam = Adam(self.nets.parameters(), eps=config.adam_eps, grad_clip=config.grad_clip)
        self.lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}

    def actor(self, num_envs: int) -> PolicyNetActor:
        """An actor that samples, or takes the mode when greedy."""
        return PolicyNetActor(self.net, self.generator, num_envs=num_envs)

    def update(self, sample: Sample) -> Update:
        """One gradient step of policy, critics and value, then a soft step of the target critics;
        priorities are |delta|."""
        out = self.loss(*sample.to(self.device))
        lr, began = self.lr_at(sample.env_steps), time.perf_counter()
        grads = list(torch.autograd.grad(out.loss, self.adam.parameters))
        backward = time.perf_counter()
        self.seconds["backward"] += backward - began
        norm = self.adam.step(grads, lr)
        with torch.no_grad():
            params, target_params = self.nets.critics.parameters(), self.target.parameters()
            torch._foreach_lerp_(list(target_params), list(params), self.config.target_tau)
        self.seconds["optimiser"] += time.perf_counter() - backward
        metrics = {k: v.detach() for k, v in out.metrics.items()}
        stepped = {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}
        return Update(out.priority, metrics | stepped)

    def loss(self, segment: Segment, weight: Tensor) -> IQLLoss:
        """Expectile loss of V, squared TD errors of both Q, weighted log-likelihood of pi.

        L_V = |tau - 1(u < 0)| u^2 with u = min Q^-(s, a) - V(s);  L_Q = (R + gamma^k V(s') - Q)^2;
        L_pi = - min(exp(beta u), clip) log pi(a | s). Source: Kostrikov et al. 2022, eqs. 5 to 7.
        """
        c = self.config
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        t = transition(segment, reward, nstep=c.nstep, gamma=c.gamma)
        with self.compute.autocast(self.device):
            parts = self._parts(t)
        gap, deltas, log_prob = (x.float() for x in parts)
        fit = expectile_loss(gap, c.expectile)
        regress = deltas.square().sum(0)
        imitation_weight = advantage_weight(gap, c.inverse_temperature, c.weight_clip)
        every = torch.where(t.valid, weight * (fit + regress - imitation_weight * log_prob), 0.0)
        count, td = t.valid, torch.where(t.valid, deltas.detach().abs().amax(0), 0.0)
        metrics = {
            "train/loss": every.mean(),
            "train/value_loss": masked_mean(fit, count),
            "train/td_abs": td.mean(),
            "train/advantage": masked_mean(gap, count),
            "train/imitation_weight": masked_mean(imitation_weight, count),
            "train/log_prob": masked_mean(log_prob, count),
            "train/valid_fraction": count.float().mean(),
        }
        return IQLLoss(every.mean(), td, metrics)

    def _parts(self, t: Transition) -> tuple[Tensor, Tensor, Tensor]:
        """(min target Q - V [B], target - Q of both critics [2, B], log pi(a | s) [B])."""
        nets, none = self.nets, ()
        action = t.action if self.net.log_std is None else self.net.to_unit(t.action)
        with torch.no_grad():
            target_q = twin_q(self.target, t.obs, action).amin(0)
            next_value = nets.value(t.next_obs)
            target = td_target(t.reward, t.discount, next_value.float(), rescale_eps=None)
        gap = target_q - nets.value(t.obs)
        deltas = target - twin_q(nets.critics, t.obs, action)
        out, _ = self.net.unroll(self.net.inputs(t.obs), none)
        return gap, deltas, self.net.log_prob(self.net.apply_mask(out.float(), t.obs), t.action)

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.loss(*sample.to(self.device)).priority

    def weights(self) -> dict[str, Tensor]:
        """The policy's parameters, detached, not copied; actors need no values."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "nets": dict(self.nets.state_dict()),
            "target": dict(self.target.state_dict()),
            "adam": self.adam.state_dict(),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nets.load_state_dict(state["nets"])
        self.target.load_state_dict(state["target"])
        self.adam.load_state_dict(state["adam"])
        self.generator.bit_generator.state = state["generator"]
