"""IQL: values by expectile regression on a dataset's actions, then advantage-weighted imitation.

Source: Kostrikov, Nair & Levine, "Offline Reinforcement Learning with Implicit Q-Learning", ICLR
2022. Values of actions outside the dataset are never used. Actions are discrete or in a box.
"""

from typing import Any

import torch
from torch import Tensor

from rlrun.functional.offline import advantage_weight, expectile_loss
from rlrun.functional.returns import transition
from rlrun.functional.rows import masked_mean, shape_reward
from rlrun.functional.value import td_target
from rlrun.nets.acting import seeded
from rlrun.nets.policy_net import IQLNets, twin_q
from rlrun.policy.base import Metrics
from rlrun.policy.bc import ImitationLearner
from rlrun.schema import IQLConfig, MemoryConfig, TorsoConfig
from rlrun.types import Loss, Segment


class IQL(ImitationLearner[IQLConfig]):
    """Learns expectile values and an advantage-weighted policy from single rows."""

    config_class = IQLConfig  # subclasses inherit its keys

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        with seeded(self.seed, "values"):
            nets = IQLNets(self.net, torso, self.config.head_hidden, self.spec)
        self.nets = nets.to(self.device)
        part = self.add("net", self.nets, follows=self.nets.critics)
        assert part.target is not None
        self.target: Any = part.target

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return mean_b w_b (L_V + L_Q + L_pi), which share no parameters (eqs. 5 to 7).

        Priorities [B]: the larger |delta| of the two critics.
        """
        c, net, nets = self.config, self.net, self.nets
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        t = transition(segment, reward, nstep=c.nstep, gamma=c.gamma)
        action = t.action if net.log_std is None else net.to_unit(t.action)
        with self.autocast():
            with torch.no_grad():
                target_q = twin_q(self.target, t.obs, action).amin(0)
                next_value = nets.value(t.next_obs)
            value, q = nets.value(t.obs), twin_q(nets.critics, t.obs, action)
            outputs = net.head_outputs(net.inputs(t.obs)).float()
            log_prob = net.log_prob(net.apply_mask(outputs, t.obs), t.action).float()
        advantage = target_q.float() - value.float()
        target = td_target(t.reward, t.discount, next_value.float())
        delta = target - q.float()

        value_loss = expectile_loss(advantage, c.expectile)  # eq. 5: |tau - 1(u < 0)| u^2
        q_loss = delta.square().sum(0)  # eq. 6, of both critics
        imitation_weight = advantage_weight(advantage, c.inverse_temperature, c.weight_clip)
        policy_loss = -imitation_weight * log_prob  # eq. 7: -exp(beta u) log pi(a | s)
        loss = torch.where(t.valid, weight * (value_loss + q_loss + policy_loss), 0.0).mean()
        td_abs = torch.where(t.valid, delta.detach().abs().amax(0), 0.0)
        with torch.no_grad():
            metrics = {
                "train/loss": loss.detach(),
                "train/value_loss": masked_mean(value_loss, t.valid),
                "train/td_abs": td_abs.mean(),
                "train/advantage": masked_mean(advantage, t.valid),
                "train/imitation_weight": masked_mean(imitation_weight, t.valid),
                "train/log_prob": masked_mean(log_prob, t.valid),
                "train/valid_fraction": t.valid.float().mean(),
            }
        return Loss(loss, td_abs, metrics)

    def finish_update(self, norms: Metrics, metrics: Metrics, env_steps: int) -> Metrics:
        """Make a soft step of the target critics."""
        self.parts["net"].soft_step(self.config.target_tau)
        return {}
