"""CQL on DQN: double Q-learning from a dataset, with a penalty on the values of actions outside it.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.
"""

import torch
from torch import Tensor

from rlrun.acting.values import ValueActor
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.functional.offline import conservative_gap, conservative_grad
from rlrun.functional.transition import transition
from rlrun.functional.value import (
    QLoss,
    greedy,
    scatter_q_grad,
    sequence_loss,
    take_action,
    td_target,
)
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.optim.step import GradientStep
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import CQLConfig, MemoryConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree


class CQL(ValueBasedPolicy[CQLConfig, QNet]):
    """Acts greedily on Q; learns from single rows."""

    def __init__(
        self,
        config: CQLConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.window = config.window
        net = make_qnet(config, torso, memory, spec, seed=seed).to(device)
        super().__init__(
            config, net, seed=seed, total_steps=total_steps, device=device, compute=compute
        )
        self.masked = has_mask(spec.obs)
        self.step = GradientStep(self.online_target, self.loss, device, compute)

    def actor(self, num_envs: int) -> ValueActor:
        """Epsilon-greedy on Q."""
        return ValueActor(self.net, self.config, self.generator, num_envs=num_envs)

    def loss(self, segment: Segment, weight: Tensor) -> QLoss:
        """DQN's loss + conservatism * mean_b(w_b (log sum_a exp Q(s, a) - Q(s, action))).

        Source: Kumar et al. 2020, eq. 4, on the targets of van Hasselt et al. 2016.
        """
        c = self.config
        t = transition(
            segment, nstep=c.nstep, gamma=c.gamma, scale=c.reward_scale, clip=c.reward_clip
        )
        q = self.q_values(self.net, t.obs, t.previous)
        with torch.no_grad():
            q_target = self.q_values(self.target, t.next_obs, t.next_previous)
            selector = (
                self.q_values(self.net, t.next_obs, t.next_previous) if c.double else q_target
            )
            next_mask = allowed_actions(t.next_obs) if self.masked else None
            bootstrap = take_action(q_target, greedy(selector, next_mask))
            target = td_target(t.reward, t.discount, bootstrap, rescale_eps=c.value_rescale_eps)
            q_selected, valid = take_action(q, t.action), t.valid.unsqueeze(0)
            loss, td, row_grad = sequence_loss(
                q_selected[None], target[None], valid, weight, td_clip=c.td_clip
            )
            share = torch.where(t.valid, weight, 0.0) * (c.conservatism / len(weight))
            mask = allowed_actions(t.obs) if self.masked else None
            gap = conservative_gap(q, t.action, mask)
            q_grad = scatter_q_grad(q[None], t.action[None], row_grad)[0]
            q_grad += conservative_grad(q, t.action, share, mask)
            total = loss + (share * gap).sum()
            metrics = {
                "train/loss": total,
                "train/td_abs": td.mean(),
                "train/conservative_gap": gap.mean(),
                "train/q_taken": q_selected.mean(),
                "train/target": target.mean(),
                "train/valid_fraction": valid.float().mean(),
            }
        return QLoss(total, td[0], metrics, q, q_grad)

    def q_values(self, net: QNet, obs: Tree, previous: tuple[Tensor, Tensor]) -> Tensor:
        """Q [B, A] of one row of every window."""
        with self.compute.autocast(self.device):
            q: Tensor = net.unroll(net.inputs(obs, net.encode_previous(*previous)), ())[0]
        return q.float()
