"""DDPG: a deterministic actor trained by the critic's gradient with respect to the action.

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", ICLR. It
equals TD3 with one critic and without smoothed target actions. The noise is uncorrelated: Fujimoto
et al. 2018 found no gain from the original's Ornstein-Uhlenbeck process.
"""

from torch import Tensor

from rlrun.nets.actor_and_critics import Batch
from rlrun.policy.td3 import DeterministicLearner
from rlrun.schema import DDPGConfig


class DDPG(DeterministicLearner[DDPGConfig]):
    """A deterministic actor and one critic that learn from windows of rows."""

    config_class = DDPGConfig  # subclasses inherit its keys
    critics = 1

    def target_action(self, batch: Batch) -> Tensor:
        """Return pi'(s')."""
        features = batch.encode_next(self.pi_target.encoder, batch.state)
        action: Tensor = self.pi_target(features).tanh()
        return action
