"""DQN whose loss has a factor, a key of its own."""

from dataclasses import dataclass

from rlrun.policy.dqn import DQN
from rlrun.schema import DQNConfig


@dataclass(frozen=True)
class ScaledConfig(DQNConfig):
    loss_scale: float


class ScaledDQN(DQN):
    config_class = ScaledConfig

    def loss(self, segment, weight):
        out = super().loss(segment, weight * self.config.loss_scale)
        return out._replace(metrics={**out.metrics, "train/scaled": out.loss})
