"""CrossQ: SAC without target networks, whose networks normalise their inputs over batches.

Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity", ICLR. Values of a target come from the critics themselves, which see the
rows of both ends of a transition as one batch, so that actions of the replay and of the policy are
normalised by the same statistics. The first moments of Adam forget faster (``adam_beta1``).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlrun.nets.actor_and_critics import ActorNet, Batch, Critics
from rlrun.nets.renorm import (
    BatchRenorm,
    NormalisedActor,
    NormalisedCritics,
    batch_statistics,
    normalisations,
)
from rlrun.policy.base import Losses, Part
from rlrun.policy.optim import Adam
from rlrun.policy.sac import SAC
from rlrun.schema import CrossQConfig, MemoryConfig, TorsoConfig


class CrossQ(SAC[CrossQConfig]):
    """SAC with batch renormalisation in place of target networks."""

    config_class = CrossQConfig

    def make_nets(self, torso: TorsoConfig, memory: MemoryConfig) -> tuple[ActorNet, Critics]:
        c, shared = self.config, (self.config, torso, memory, self.spec)
        make_norm = partial(BatchRenorm, momentum=c.norm_momentum, warmup=c.norm_warmup)
        actor = NormalisedActor(*shared, self.outputs, make_norm=make_norm)
        return actor, NormalisedCritics(*shared, self.critics, make_norm=make_norm)

    def add(self, *net: Any, follows: object = None, **options: Any) -> Part:
        """Add a part without a target network."""
        return super().add(*net, optimiser=partial(Adam, beta1=self.config.adam_beta1), **options)

    def control_losses(self, batch: Batch) -> Losses:
        """Return losses of critics, actor, temperature; rows [L, B], Q of the critics [C, L, B]."""
        alpha = self.log_alpha.detach().exp()
        features, next_features = batch.encode_both(self.pi.encoder, batch.state)
        outputs = None
        if self.actor_due():
            with batch_statistics(self.pi, batch.valid):
                outputs = self.pi(features)

        # a' ~ pi(s')
        with torch.no_grad():
            next_action, next_log_pi = self.sample_action(self.pi(next_features), 1)

        # Q(s, a), Q(s', a')                                                       (figure 2)
        q_features, next_q_features = batch.encode_both(self.q.encoder)
        both = torch.cat([q_features, next_q_features]), torch.cat([batch.action, next_action])
        with batch_statistics(self.q, torch.cat([batch.valid, batch.valid & (batch.discount > 0)])):
            q, next_q = self.q(*both).chunk(2, 1)
        y = self.soft_target(batch, next_q.detach(), -alpha * next_log_pi)
        out = self.critic_losses(batch, q, y)
        return self.add_actor_losses(out, batch, outputs, q_features, alpha)

    def update_all_targets(self, env_steps: int, *, actor_stepped: bool) -> dict[str, Tensor]:
        """Update the statistics with which networks act and rate actions."""
        for net in (self.q, self.pi) if actor_stepped else (self.q,):
            for norm in normalisations(net):
                norm.follow()
        return {}
