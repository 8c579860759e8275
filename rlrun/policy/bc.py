"""Behaviour cloning: maximum likelihood of a dataset's actions, discrete or in a box.

Source: Pomerleau 1991. With a memory it learns from windows: burn-in, then every learned row.
"""

from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.rows import keep_rows, masked_mean, readable_obs, rows
from rlrun.nets.acting import burn_in
from rlrun.nets.policy_net import PolicyNet
from rlrun.policy.actor import Chosen, DistributionActor
from rlrun.policy.base import WindowLearner
from rlrun.schema import BCConfig, IQLConfig, MemoryConfig, TorsoConfig
from rlrun.types import Loss, Segment, Tree

B = TypeVar("B", bound=BCConfig | IQLConfig)


class PolicyNetActor(DistributionActor):
    """The mode of a ``PolicyNet`` when greedy, else a sample."""

    net: PolicyNet

    def refresh(self) -> None:
        super().refresh()
        if self.net.log_std is not None:
            self.std = self.net.action_log_std().detach().exp().numpy(force=True)

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        """Return the mode if ``explore`` is None, else a sample, whatever its values."""
        if self.net.bounds is None:
            logits = self.masked(outputs, obs)
            if explore is not None:  # argmax of logits + Gumbel noise samples the softmax
                logits = logits + self.generator.gumbel(size=logits.shape).astype(logits.dtype)
            return logits.argmax(-1), {}
        if explore is not None:
            noise = self.generator.standard_normal(outputs.shape, dtype=np.float32)
            outputs = outputs + self.std * noise  # ``from_unit`` clips
        return self.net.bounds.from_unit(outputs), {}


class ImitationLearner(WindowLearner[B], Generic[B]):
    """Base class of policy networks trained on a dataset's actions: BC and IQL."""

    actor_class = PolicyNetActor
    net: PolicyNet

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        net = PolicyNet(torso, memory, self.config.head_hidden, self.spec)
        self.net = net.to(self.device)


class BC(ImitationLearner[BCConfig]):
    """Behaviour cloning of sampled rows."""

    config_class = BCConfig  # subclasses inherit its keys

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        self.add("net", self.net)

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return -mean_b(w_b sum_t valid log pi(a_t | o_0..t) / L) over the learned rows.

        Priorities [B]: the mean distance of the mode from the actions.
        """
        bs, learned = self.window.burnin, self.window.learned
        valid, action = (rows(x, bs, bs + learned) for x in (segment.valid, segment.action))
        action = keep_rows(valid, action)
        with self.autocast():
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
        """Return logits or means [L, B, N] of the learned rows.

        Stored states come from another network, so windows start from the zero state. That is exact
        if the window opens its episode; otherwise the burn-in warms the state up.
        """
        bs, learned, net = self.window.burnin, self.window.learned, self.net
        state = net.memory.initial_state(segment.reward.shape[1], self.device)
        if bs:
            with torch.no_grad():
                x = net.inputs(rows(obs, 0, bs))
                state = burn_in(net.memory, x, state, segment.valid[:bs], segment.partial)
        obs = rows(obs, bs, bs + learned)
        return net.apply_mask(net.unroll(net.inputs(obs), state)[0], obs)
