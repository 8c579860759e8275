"""The actor over bounded real actions, and what moves it and its critics."""

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.nets.critics import Critics
from rlrun.nets.encoder import Encoder
from rlrun.nets.optimise import Adam
from rlrun.nets.torso import mlp
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Spec, Tree, torch_seed, tree_map

Net = TypeVar("Net", bound=nn.Module)


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


def make_control(
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


class Trained(Generic[Net]):
    """A network, the Adam that moves it, and the target network that follows it."""

    def __init__(self, net: Net, config: ControlConfig) -> None:
        self.net, self.config = net, config
        self.target: Net = copy.deepcopy(net).requires_grad_(False)
        self.online: list[Tensor] = list(net.parameters())
        self.lagging: list[Tensor] = list(self.target.parameters())
        self.adam = Adam(self.online, eps=config.adam_eps, grad_clip=config.grad_clip)
        self.updates = 0

    def gradient(self, output: Tensor, slope: Tensor | None = None) -> list[Tensor]:
        """d output / d parameters, ``output`` weighed by ``slope``; the parameters stay."""
        return list(torch.autograd.grad(output, self.online, slope))

    def step(self, gradient: list[Tensor], lr: float) -> Tensor:
        """One descent; the gradient's norm before clipping, 0-d."""
        self.updates += 1
        return self.adam.step(gradient, lr)

    @torch.no_grad()
    def follow(self, updates: int, since: int) -> None:
        """The target: a soft step, or a copy where ``updates`` passed ``target_update_every``.

        ``updates``: of the critics; ``since``: how many of them since the last call.
        """
        every, theta = self.config.target_update_every, self.config.target_theta
        if theta is not None:
            torch._foreach_lerp_(self.lagging, self.online, theta)
        elif every is not None and updates // every > (updates - since) // every:
            torch._foreach_copy_(self.lagging, self.online)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": dict(self.net.state_dict()),
            "target": dict(self.target.state_dict()),
            "adam": self.adam.state_dict(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.target.load_state_dict(state["target"])
        self.adam.load_state_dict(state["adam"])
        self.updates = int(state["updates"])


class Noise:
    """Random numbers that depend on the seed and the number of the update alone.

    A loss is then a function of batch and parameters, and nothing of it has to be saved.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.base, self.device = torch_seed(seed, "noise"), device
        self.generator = torch.Generator(device)

    def __call__(self, update: int, *shape: int) -> Tensor:
        """Standard normal float32 [*shape] of the update with that number."""
        self.generator.manual_seed((self.base + update) % 2**63)
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, update: int, *shape: int) -> Tensor:
        """Uniform float32 [*shape] in [-1, 1) of the update with that number."""
        self.generator.manual_seed((self.base + update) % 2**63)
        return 2 * torch.rand(shape, generator=self.generator, device=self.device) - 1
