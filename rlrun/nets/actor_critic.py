"""The actor-critic network: torso, memory, a head for the policy and one for the value."""

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.masks import has_mask, unmasked
from rlrun.functional.policy import LogProbEntropy, categorical, gaussian, mask_logits
from rlrun.nets.acting import ActingNet, ActionBounds, TorsoMemory, Trunk, action_size
from rlrun.nets.memory import Memory, reset_state
from rlrun.nets.memory.gated import GRU, LSTM, NoMemory
from rlrun.nets.memory.linear import EpisodeMemory
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.torso import make_torso, mlp
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Spec, Tree, tree_map

CLIP = 10.0  # standard deviations; OpenAI Baselines' VecNormalize
ROUNDING = 1e-14  # relative error of a mean in float64
EPS = 1e-8  # added to the variance; OpenAI Baselines' VecNormalize


class RunningMoments(nn.Module):
    """Mean and variance [*S] of all values added, in float64; 0 and 1 before the first.

    A number that never varied counts as of mean 0 and variance 1, so that networks see it.
    """

    count: Tensor
    mean: Tensor
    square: Tensor  # the sum of squared deviations from the mean

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        for name, size in (("count", ()), ("mean", shape), ("square", shape)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Add N >= 1 values, x [N, *S]. Source: Chan, Golub & LeVeque 1979, eq. 2.1."""
        x = x.double()
        mean, count = x.mean(0), len(x)
        total, shift = self.count + count, mean - self.mean
        deviations = (x - mean).square().sum(0) + shift.square() * (self.count * count / total)
        self.square += deviations
        self.mean += shift * (count / total)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """Return float32 [*S]: 1 / sqrt(variance + EPS); 1 before the first value."""
        return self.inverse_std().float()

    def inverse_std(self) -> Tensor:
        """Return float64 [*S]: ``scale`` before rounding."""
        variance = torch.where(self._varied(), self.square / self.count.clamp(min=1), 1.0)
        return (variance + EPS).rsqrt()

    def center(self) -> Tensor:
        """Return float64 [*S]: what is subtracted."""
        return torch.where(self._varied(), self.mean, 0.0)

    def _varied(self) -> Tensor:
        """Return bool [*S]: whether the deviations are more than rounding errors of the mean."""
        return self.square > self.count * (ROUNDING * self.mean).square()

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / std as float32, clipped to [-CLIP, CLIP]; x [*, *S].

        float32 would lose the digits in which a clock or a coordinate differs from its mean.
        """
        return ((x.double() - self.center()) * self.inverse_std()).clamp(-CLIP, CLIP).float()


def is_vector(space: gym.Space[Any]) -> bool:
    """Return whether observations are vectors of real numbers, or stacks of them."""
    return (
        isinstance(space, gym.spaces.Box) and space.dtype.kind == "f" and len(space.shape) in (1, 2)
    )


class ActorCritic(ActingNet):
    """pi(action) and V for (observation, previous action, previous reward, state).

    Discrete and MultiDiscrete spaces: logits, masked if observations hold a mask. Box: the mean of
    a Gaussian in the unit of ``bounds``. Its log standard deviation is a parameter, the same in all
    states. The value has its own trunk or shares the policy's. The state holds the states of all
    memories.
    """

    def __init__(
        self, policy: OnPolicyConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__(spec.action)
        if isinstance(spec.action, gym.spaces.Box):
            self.bounds = ActionBounds(spec.action, rescale=policy.rescale_actions)
        self.prev_inputs, self.masked = policy.prev_inputs, has_mask(spec.obs)
        standardised = is_vector(spec.obs) if policy.normalize_obs is None else policy.normalize_obs
        self.moments = RunningMoments(spec.obs.shape or ()) if standardised else None
        if self.moments is not None:  # normalised inputs have no bounds
            spec = Spec(gym.spaces.Box(-np.inf, np.inf, spec.obs.shape, np.float32), spec.action)

        def trunk() -> Trunk:
            return Trunk(make_torso(torso, unmasked(spec.obs)), memory, self.previous_size)

        self.trunk = trunk()
        self.value_trunk = trunk() if policy.separate_value else None
        self.recurrent = not isinstance(self.trunk.memory, NoMemory)
        sizes = [self.trunk.size, *policy.head_hidden]
        outputs = action_size(spec.action)
        self.policy = mlp([*sizes, outputs], torso.activation, last=False)
        self.value = mlp([*sizes, 1], torso.activation, last=False)
        log_std = torch.full((outputs,), policy.log_std_init)
        self.log_std = None if self.sizes else nn.Parameter(log_std)
        if policy.orthogonal_init:
            self._init_orthogonal()

    @property
    def trunks(self) -> list[Trunk]:
        """The policy's trunk, then the value's if it has its own."""
        return [self.trunk] if self.value_trunk is None else [self.trunk, self.value_trunk]

    @torch.no_grad()
    def _init_orthogonal(self) -> None:
        """Set orthogonal weights of gain sqrt 2 (last layers: 0.01 policy, 1 value) and biases 0.

        Memories keep torch's initialisation. Source: OpenAI Baselines; Huang et al. 2022, "The 37
        Implementation Details of PPO", 2.
        """
        last_gain = {self.policy[-1]: 0.01, self.value[-1]: 1.0}
        parts = [*(trunk.torso for trunk in self.trunks), self.policy, self.value]
        for module in (m for part in parts for m in part.modules()):
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(module.weight, last_gain.get(module, math.sqrt(2)))
                assert module.bias is not None
                module.bias.zero_()

    def acting_trunks(self) -> list[TorsoMemory]:
        trunks = self.trunks if self.recurrent else [self.trunk]  # states of both are stored
        return [(trunk.torso, trunk.memory) for trunk in trunks]

    def head_outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        out: Tensor = self.policy(h)
        return out

    def normalise(self, obs: Tree) -> Tree:
        return obs if self.moments is None else self.moments(obs)

    # -- outputs ---------------------------------------------------------------------------------

    def forward(
        self, obs: Tree, previous: Tensor, first: Tensor, state: Tree
    ) -> tuple[Tensor, Tensor]:
        """Return (parameters of the distribution [T, M, K], V [T, M]) of every row.

        ``state`` [M, ...]: before row 0. ``first`` bool [T, M]: in host memory.
        """
        obs, state = self.normalise(obs), state if self.recurrent else [()] * len(self.trunks)
        h = [
            unroll_episodes(trunk.memory, trunk.inputs(obs, previous), first, part)
            for trunk, part in zip(self.trunks, state, strict=True)
        ]
        params = self.policy(h[0])
        params = mask_logits(params, obs) if self.masked else params
        return params, self.value(h[-1]).squeeze(-1)

    def action_log_std(self) -> Tensor:
        """Return the log standard deviations [A] of a Box."""
        assert self.log_std is not None, "a Box"
        return self.log_std

    def evaluate_actions(self, params: Tensor, action: Tensor) -> LogProbEntropy:
        """Return log pi(action) and entropy [T, M].

        ``params``: from ``forward``. ``action`` [T, M, *A]: real actions before clipping, in the
        network's unit.
        """
        if self.log_std is None:
            return categorical(params, action.flatten(2) if action.ndim > 3 else action, self.sizes)
        return gaussian(params, self.log_std, action.reshape(params.shape))


# -- unrolling a memory over rows in which episodes begin -----------------------------------------


class EpisodePieces(NamedTuple):
    """Columns [T, M] cut at episode starts, as columns of a new array [steps, count]."""

    row_index: Tensor  # int64 [T * M]: flat position of row (t, m) in [steps, count]
    first_piece: Tensor  # int64 [M]: the first piece of every column
    steps: int  # rows of the longest piece
    num_pieces: int


def cut_pieces(first: Tensor) -> EpisodePieces:
    """Cut columns at ``first``, bool [T, M] in host memory."""
    starts = first.clone()
    starts[0] = True
    number = starts.cumsum(0)
    first_piece = number[-1].cumsum(0) - number[-1]
    rows = torch.arange(len(first)).unsqueeze(-1)
    steps_since = rows - torch.where(starts, rows, 0).cummax(0).values
    count = int(number[-1].sum())
    index = steps_since * count + (number - 1 + first_piece)
    return EpisodePieces(index.reshape(-1), first_piece, int(steps_since.max()) + 1, count)


def unroll_episodes(memory: Memory, x: Tensor, first: Tensor, state: Tree) -> Tensor:
    """Return outputs [T, M, H] of ``x`` [T, M, F]. The state is zero before every ``first`` row.

    ``state`` [M, ...]: before row 0. ``first`` bool [T, M]: in host memory, which avoids a
    synchronisation with the device. Linear and attention memories set a decay or a mask to 0 at
    ``first`` rows, compiled loops the state. For other memories columns are cut at episode starts,
    and all pieces unroll in one batch, so any memory that unrolls [T, B, F] works.
    """
    if isinstance(memory, NoMemory):
        return x
    state = reset_state(first[0], state)
    if not first[1:].any():
        return memory.unroll(x, state)[0]
    if isinstance(memory, EpisodeMemory):
        return memory.unroll_episodes(x, first, state)
    if isinstance(memory, LSTM | GRU) and memory.compiled is not None:
        return memory.compiled(memory, x, state, first)[0]
    pieces = cut_pieces(first)
    index, first_piece = pieces.row_index.to(x.device), pieces.first_piece.to(x.device)
    flat = x.new_zeros(pieces.steps * pieces.num_pieces, x.shape[-1])
    flat = flat.index_copy(0, index, x.flatten(0, 1))
    begin = memory.initial_state(pieces.num_pieces, x.device)
    begin = tree_map(
        lambda zero, s: zero.index_copy(0, first_piece, s.to(zero.dtype)), begin, state
    )
    out, _ = memory.unroll(flat.reshape(pieces.steps, pieces.num_pieces, -1), begin)
    return out.flatten(0, 1)[index].reshape(*first.shape, -1)
