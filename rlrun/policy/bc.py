"""Behaviour cloning: maximum likelihood of a dataset's actions, discrete or in a box.

Pomerleau 1991. With a memory it learns from windows: burn-in, then every learned row.
"""

from typing import Any

import torch
from torch import Tensor

from rlrun.functional.rows import masked_mean, readable_obs, rows
from rlrun.nets.memory.burn_in import burn_in
from rlrun.nets.policy_net import PolicyNet, make_policy_net
from rlrun.policy.base.imitation import Imitation
from rlrun.schema import BCConfig, MemoryConfig, TorsoConfig
from rlrun.types import Loss, Segment, Spec, Tree


class BC(Imitation[BCConfig, PolicyNet]):
    """Behaviour cloning of sampled rows."""

    config_class = BCConfig  # a subclass inherits its keys

    def make_nets(
        self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int
    ) -> PolicyNet:
        self.net = make_policy_net(torso, memory, self.config.head_hidden, spec, seed=seed)
        return self.net

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """- mean_b(w_b sum_t valid log pi(a_t | o_0..t) / L) over the learned rows.

        Priorities [B]: the mean distance of the mode from the actions.
        """
        bs, learned = self.window.burnin, self.window.learned
        valid, action = (rows(x, bs, bs + learned) for x in (segment.valid, segment.action))
        own = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        action = torch.where(own, action, torch.zeros_like(action))
        with self.compute.autocast(self.device):
            outputs = self.unroll(readable_obs(segment), segment).float()
        log_prob = torch.where(valid, self.net.log_prob(outputs, action), 0.0)
        loss = -(weight * log_prob.sum(0) / learned).mean()
        with torch.no_grad():
            error = torch.where(valid, self.net.mode_error(outputs, action), 0.0)
            metrics = {
                "train/loss": loss.detach(),
                "train/log_prob": masked_mean(log_prob, valid),
                "train/imitation_error": masked_mean(error, valid),
                "train/valid_fraction": valid.float().mean(),
            }
        return Loss(loss, error.sum(0) / valid.sum(0).clamp(min=1), metrics)

    def unroll(self, obs: Tree, segment: Segment) -> Tensor:
        """Logits or means [L, B, N] of the learned rows.

        A stored state is another network's, so windows start from the zero state: exact where a
        window opens its episode, warmed up by the burn-in rows elsewhere.
        """
        bs, learned, net = self.window.burnin, self.window.learned, self.net
        state = net.memory.initial_state(segment.reward.shape[1], self.device)
        if bs:
            with torch.no_grad():
                x = net.inputs(rows(obs, 0, bs))
                state = burn_in(net, x, state, segment.valid[:bs], segment.partial)
        obs = rows(obs, bs, bs + learned)
        return net.apply_mask(net.unroll(net.inputs(obs), state)[0], obs)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"net": self.weights()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.net.load_state_dict(state["net"])
