"""DDPG: a deterministic actor trained by the critic's gradient with respect to the action.

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", ICLR. It
equals TD3 with one critic, without smoothed target actions and, by default, without delays. The
noise is uncorrelated: Fujimoto et al. 2018 found no gain from the original's Ornstein-Uhlenbeck
process.
"""

from torch import Tensor

from rlrun.policy.td3 import TD3
from rlrun.schema import DDPGConfig


class DDPG(TD3[DDPGConfig]):
    """A deterministic actor and one critic that learn from windows of rows."""

    config_class = DDPGConfig  # subclasses inherit its keys
    critics = 1

    def smoothed(self, action: Tensor) -> Tensor:
        return action
