"""The actor-critic network: torso, memory, a head for the policy and one for the value."""

import math
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.masks import has_mask, unmasked
from rlrun.functional.policy import LogProbEntropy, categorical, gaussian, mask_logits
from rlrun.functional.rows import network_inputs, readable_obs
from rlrun.nets.episodes import unroll_episodes
from rlrun.nets.memory import make_memory
from rlrun.nets.memory.recurrent import NoMemory
from rlrun.nets.running_moments import RunningMoments
from rlrun.nets.torso import make_torso, mlp, one_hot
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree, torch_seed, tree_map


def discrete_sizes(space: gym.Space[Any]) -> tuple[int, ...]:
    """How many actions each independent choice of ``space`` has; () for a Box."""
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.reshape(-1))
    assert isinstance(space, gym.spaces.Box), "checked in rlrun.config"
    return ()


class Trunk(nn.Module):
    """Torso and memory; the memory also sees what stands beside the observation."""

    def __init__(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, extra: int) -> None:
        super().__init__()
        self.torso = make_torso(torso, unmasked(spec.obs))
        self.memory = make_memory(memory, self.torso.size + extra)
        self.size = self.memory.size

    def inputs(self, obs: Tree, side: Tensor) -> Tensor:
        """[*, F] what the memory sees; ``side`` [*, 0] where nothing stands beside."""
        features: Tensor = self.torso(obs)
        return torch.cat([features, side], -1) if side.shape[-1] else features


class ActorCritic(nn.Module):
    """Parameters of a distribution over actions, and V, of (obs, previous action, reward, state).

    Discrete and MultiDiscrete spaces: logits (within the mask, where there is one). Box: the mean
    of a Gaussian whose standard deviation is a parameter of its own. The value has a trunk of its
    own or shares the policy's; the state holds those of all memories.
    """

    def __init__(
        self, policy: OnPolicyConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__()
        self.space, self.sizes = spec.action, discrete_sizes(spec.action)
        self.numbers = 0 if self.sizes else math.prod(spec.action.shape or ())
        self.prev_inputs, self.masked = policy.prev_inputs, has_mask(spec.obs)
        self.scale, self.clip = policy.reward_scale, policy.reward_clip
        self.moments = RunningMoments(spec.obs.shape or ()) if policy.normalize_obs else None
        outputs = sum(self.sizes) + self.numbers
        extra = outputs + 1 if policy.prev_inputs else 0
        self.trunk = Trunk(torso, memory, spec, extra)
        separate = policy.separate_value
        self.value_trunk = Trunk(torso, memory, spec, extra) if separate else None
        self.recurrent = not isinstance(self.trunk.memory, NoMemory)
        sizes = [self.trunk.size, *policy.head_hidden]
        self.policy = mlp([*sizes, outputs], torso.activation, last=False)
        self.value = mlp([*sizes, 1], torso.activation, last=False)
        start = torch.full((self.numbers,), policy.log_std_init)
        self.log_std = None if self.sizes else nn.Parameter(start)
        if policy.orthogonal_init:
            self._orthogonal()

    @property
    def trunks(self) -> list[Trunk]:
        """That of the policy, and that of the value where it is another one."""
        return [self.trunk] if self.value_trunk is None else [self.trunk, self.value_trunk]

    @torch.no_grad()
    def _orthogonal(self) -> None:
        """Orthogonal weights of gain sqrt 2, biases 0; last layers: gain 0.01 (policy), 1 (value).

        Memories keep torch's own. Source: OpenAI Baselines; Huang et al. 2022, "The 37
        Implementation Details of PPO", 2.
        """
        last = {self.policy[-1]: 0.01, self.value[-1]: 1.0}
        parts = [*(trunk.torso for trunk in self.trunks), self.policy, self.value]
        for module in (m for part in parts for m in part.modules()):
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(module.weight, last.get(module, math.sqrt(2)))
                assert module.bias is not None
                module.bias.zero_()

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        """The state before an episode's first row: one part for every trunk, () without memory."""
        if not self.recurrent:
            return ()
        return tuple(trunk.memory.initial_state(batch, device) for trunk in self.trunks)

    # -- inputs ----------------------------------------------------------------------------------

    def side(self, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        """[*, A + 1] what stands beside the torso's features; choices of -1: none taken yet."""
        if not self.prev_inputs:
            return prev_reward.new_empty(*prev_reward.shape, 0)
        lead = prev_reward.shape
        if self.sizes:
            choices = prev_action.reshape(*lead, -1)
            parts = [one_hot(choices[..., i], n) for i, n in enumerate(self.sizes)]
        else:
            parts = [prev_action.reshape(*lead, -1).float()]
        return torch.cat([*parts, prev_reward.unsqueeze(-1)], -1)

    def inputs(self, segment: Segment) -> tuple[Tree, Tensor]:
        """(obs [T+1, B, *O], side [T+1, B, F]) of all rows and the one behind, without padding."""
        if not self.prev_inputs:
            return readable_obs(segment), segment.reward.new_empty(*segment.first.shape, 0)
        obs, *previous = network_inputs(segment, scale=self.scale, clip=self.clip)
        return obs, self.side(*previous)

    # -- outputs ---------------------------------------------------------------------------------

    def forward(self, obs: Tree, side: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        """(parameters of the distribution [T, M, K], V [T, M]) of every row.

        ``state`` [M, ...] stands before row 0; ``first`` bool [T, M] lies on the host.
        """
        if self.moments is not None:
            obs = self.moments(obs)
        h = [
            unroll_episodes(trunk.memory, trunk.inputs(obs, side), first, part)
            for trunk, part in zip(self.trunks, self._parts(state), strict=True)
        ]
        head = self.policy(h[0])
        head = mask_logits(head, obs) if self.masked else head
        return head, self.value(h[-1]).squeeze(-1)

    def _parts(self, state: Tree) -> Tree:
        return state if self.recurrent else [()] * len(self.trunks)

    def choice(self, head: Tensor, action: Tensor) -> LogProbEntropy:
        """log pi(action) and entropy [T, M]; ``action`` [T, M, *A], raw where it is real."""
        if self.log_std is None:
            return categorical(head, action.flatten(2) if action.ndim > 3 else action, self.sizes)
        return gaussian(head, self.log_std, action.flatten(2))

    def step(
        self, obs: Tree, first: Tensor, prev_action: Tensor, prev_reward: Tensor, state: Tree
    ) -> tuple[Tensor, Tree]:
        """(parameters of the distribution [B, K], state) of one row; ``first`` starts it afresh.

        Whoever draws from it heeds the mask.
        """
        if first.any():
            opens = first.unsqueeze(-1)
            state = tree_map(lambda x: torch.where(opens, torch.zeros_like(x), x), state)
            none = -1 if self.sizes else 0
            opens = first.reshape(-1, *[1] * (prev_action.ndim - 1))
            prev_action = torch.where(opens, none, prev_action)
            prev_reward = torch.where(first, 0.0, prev_reward)
        if self.moments is not None:
            obs = self.moments(obs)
        side, after, heads = self.side(prev_action, prev_reward), [], []
        stepped = self.trunks if self.recurrent else [self.trunk]  # no value is asked for
        for trunk, part in zip(stepped, self._parts(state), strict=False):
            h, part = trunk.memory.step(trunk.inputs(obs, side), part)
            heads.append(h)
            after.append(part)
        return self.policy(heads[0]), tuple(after) if self.recurrent else ()


def make_actor_critic(
    policy: OnPolicyConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, *, seed: int
) -> ActorCritic:
    """An ActorCritic whose parameters depend on ``seed`` only; torch's global generator stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "network"))
        return ActorCritic(policy, torso, memory, spec)
