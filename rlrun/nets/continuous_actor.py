"""The actor over bounded real actions, and what moves it and its critics."""

import torch
from torch import Tensor, nn

from rlrun.nets.critics import Critics
from rlrun.nets.encoder import Encoder
from rlrun.nets.torso import mlp
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Spec, Tree, torch_seed, tree_map


class ActorNet(nn.Module):
    """Features -> ``outputs`` numbers per action dimension (1: the action before tanh; 2: the mean
    before tanh and the log standard deviation).

    Two buffers travel with the weights, so that whoever acts has them, in whatever process: whether
    anything was learned yet, and the standard deviation of the exploration noise.
    """

    learned: Tensor  # 0-d: 0 until the first update, then 1
    noise: Tensor  # 0-d

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
        self.actions, self.outputs = actions, outputs * actions
        self.encoder = Encoder(policy, torso, memory, spec, actions=actions)
        sizes = [self.encoder.size, *self.encoder.head_hidden, self.outputs]
        self.head = mlp(sizes, torso.activation, last=False)
        self.register_buffer("learned", torch.zeros(()))
        self.register_buffer("noise", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Features [*, F] -> float32 [*, outputs A]."""
        out: Tensor = self.head(features)
        return out.float()

    def step(
        self, obs: Tree, first: Tensor, prev_action: Tensor, prev_reward: Tensor, state: Tree
    ) -> tuple[Tensor, Tree]:
        """Outputs [B, outputs A] of one row; where ``first`` the state starts afresh.

        ``prev_action`` [B, A] in [-1, 1].
        """
        if first.any():
            opens = first.unsqueeze(-1)
            state = tree_map(lambda x: torch.where(opens, torch.zeros_like(x), x), state)
            prev_action = torch.where(opens, 0.0, prev_action)
            prev_reward = torch.where(first, 0.0, prev_reward)
        x = self.encoder.inputs(obs, self.encoder.side(prev_action, prev_reward))
        h, state = self.encoder.memory.step(x, state)
        return self(h), state


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
    """Both networks, which depend on ``seed`` only; torch's global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        actor = ActorNet(policy, torso, memory, spec, actions=actions, outputs=outputs)
        return actor, Critics(policy, torso, memory, spec, actions=actions, count=critics)
