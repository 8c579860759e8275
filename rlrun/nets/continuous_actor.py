"""The actor network over bounded real actions."""

import torch
from torch import Tensor, nn

from rlrun.nets.critics import Critics
from rlrun.nets.encoder import ObsEncoder
from rlrun.nets.torso import mlp
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Spec, torch_seed


class ActorNet(nn.Module):
    """Encoder and head with ``outputs`` numbers per action dimension.

    1: the action before tanh. 2: the mean before tanh and the log standard deviation. Two buffers
    travel with the weights to actors in any process.
    """

    learned: Tensor  # 0-d: 0 before the first update, then 1
    noise: Tensor  # 0-d: standard deviation of the exploration noise

    def __init__(
        self,
        policy: ControlConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        spec: Spec,
        *,
        actions: int,
        outputs: int,
    ) -> None:
        super().__init__()
        self.space, self.actions, self.outputs = spec.action, actions, outputs * actions
        self.encoder = ObsEncoder(policy, torso, memory, spec, actions=actions)
        sizes = [self.encoder.size, *self.encoder.head_hidden, self.outputs]
        self.head = mlp(sizes, torso.activation, last=False)
        self.register_buffer("learned", torch.zeros(()))
        self.register_buffer("noise", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return float32 [*, outputs A] of features [*, F]."""
        out: Tensor = self.head(features)
        return out.float()


def make_actor_and_critics(
    policy: ControlConfig,
    torso: TorsoConfig,
    memory: MemoryConfig,
    spec: Spec,
    *,
    actions: int,
    outputs: int,
    critics: int,
    seed: int,
) -> tuple[ActorNet, Critics]:
    """Return both networks initialised from ``seed``; torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        actor = ActorNet(policy, torso, memory, spec, actions=actions, outputs=outputs)
        return actor, Critics(policy, torso, memory, spec, actions=actions, count=critics)
