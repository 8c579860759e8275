"""What the heads of an actor or critic see of the rows of windows."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.returns import NStep, nstep_return
from rlrun.functional.rows import network_inputs, shape_reward
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.burn_in import burn_in
from rlrun.nets.memory import make_memory
from rlrun.nets.torso import flat_size, flatten, make_torso
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree, Window, tree_map


class FlatObs(nn.Module):
    """The observation as one vector; the layers of an MLP torso stand in the heads instead."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.space, self.size = space, flat_size(space)

    def forward(self, obs: Tree) -> Tensor:
        return flatten(self.space, obs)


class Encoder(nn.Module):
    """Features [*, F] of rows: the flat observation itself, or the output of torso and memory.

    A feed-forward MLP has nothing that critics could share: their heads have its layers, each its
    own. Images and memories are encoded once for all heads of a network. With ``prev_inputs`` the
    previous action (in [-1, 1], zeros before an episode's first row) and reward stand beside.
    """

    def __init__(
        self,
        policy: ControlConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        spec: Spec,
        *,
        actions: int,
    ) -> None:
        super().__init__()
        self.prev_inputs = policy.prev_inputs
        plain = memory.name == "none" and torso.name == "mlp"
        self.torso = FlatObs(spec.obs) if plain else make_torso(torso, spec.obs)
        self.memory = make_memory(memory, self.torso.size + (actions + 1) * policy.prev_inputs)
        self.size = self.memory.size
        self.head_hidden = (*torso.hidden, *policy.head_hidden) if plain else policy.head_hidden

    def side(self, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        """[*, A + 1] what stands beside the observation: unit action, shaped reward."""
        return torch.cat([prev_action, prev_reward.unsqueeze(-1)], -1)

    def inputs(self, obs: Tree, side: Tensor) -> Tensor:
        """[*, F] what the memory sees."""
        features: Tensor = self.torso(obs)
        return torch.cat([features, side], -1) if self.prev_inputs else features


class SingleRowInputs:
    """Windows of one learned row without memory: only that row and the one its target reads."""

    def __init__(self, segment: Segment, n: NStep) -> None:
        later, alive = n.steps[0], n.discount[0] > 0
        column = torch.arange(len(later), device=later.device)

        one_step = len(segment.reward) == 1

        def ahead(x: Tensor) -> Tensor:
            """What stands behind a termination may be anything: it must not reach a network."""
            x = x[1] if one_step else x[later, column]
            mask = alive.reshape(-1, *[1] * (x.ndim - 1))
            return torch.where(mask, x, torch.zeros_like(x)).unsqueeze(0)

        self.obs = tree_map(lambda x: x[:1], segment.obs), tree_map(ahead, segment.obs)
        self.none = segment.reward.new_empty(0)

    def now(self, encoder: Encoder, state: Tree | None) -> Tensor:
        """Features [1, B, F] of the learned row."""
        return encoder.inputs(self.obs[0], self.none)

    def ahead(self, encoder: Encoder, state: Tree | None) -> Tensor:
        """Features [1, B, F] of the row that the target bootstraps from."""
        return encoder.inputs(self.obs[1], self.none)

    def both(self, encoder: Encoder, state: Tree | None) -> tuple[Tensor, Tensor]:
        """``now`` and ``ahead``."""
        return self.now(encoder, state), self.ahead(encoder, state)


class SequenceInputs:
    """Windows as semantics section 3 has them: burn-in, learned rows, look-ahead."""

    def __init__(
        self, segment: Segment, n: NStep, window: Window, *, scale: float, clip: float | None
    ) -> None:
        """Actions of ``segment`` (``extras`` included) are unit ones."""
        self.window, self.valid, self.partial = window, segment.valid, segment.partial
        self.obs, *self.previous = network_inputs(segment, scale=scale, clip=clip)
        learned = torch.arange(window.learned, device=n.steps.device).unsqueeze(-1)
        self.later = learned + n.steps[: window.learned]
        self.column = torch.arange(segment.valid.shape[1], device=n.steps.device)

    def now(self, encoder: Encoder, state: Tree | None) -> Tensor:
        """Features [L, B, F] of the learned rows."""
        return self._unroll(encoder, state, self.window.learned)

    def ahead(self, encoder: Encoder, state: Tree | None) -> Tensor:
        """Features [L, B, F] of the rows that their targets bootstrap from."""
        return self.both(encoder, state)[1]

    def both(self, encoder: Encoder, state: Tree | None) -> tuple[Tensor, Tensor]:
        """``now`` and ``ahead`` of one unroll."""
        out = self._unroll(encoder, state, self.window.learned + self.window.nstep)
        return out[: self.window.learned], out[self.later, self.column]

    def _unroll(self, encoder: Encoder, state: Tree | None, count: int) -> Tensor:
        """[count, B, F] behind the burn-in, which carries no gradient.

        ``state`` [B, H] is the one before each window's first own row, None: zeros.
        """
        bs, valid = self.window.burnin, self.valid
        if state is None:
            state = encoder.memory.initial_state(valid.shape[1], valid.device)
        if bs:
            with torch.no_grad():
                state = burn_in(
                    encoder, self._inputs(encoder, 0, bs), state, valid[:bs], self.partial
                )
        out: Tensor = encoder.memory.unroll(self._inputs(encoder, bs, bs + count), state)[0]
        return out

    def _inputs(self, encoder: Encoder, start: int, stop: int) -> Tensor:
        action, reward = (x[start:stop] for x in self.previous)
        obs = tree_map(lambda x: x[start:stop], self.obs)
        return encoder.inputs(obs, encoder.side(action, reward))


WindowInputs = SingleRowInputs | SequenceInputs


def prepare_windows(
    segment: Segment, bounds: ActionBounds, window: Window, config: ControlConfig, *, memory: bool
) -> tuple[WindowInputs, NStep, Tensor]:
    """What networks see of ``segment``, its n-step returns [L, B], and the unit actions [L, B, A].

    Actions of rows that are not valid are 0. ``memory``: whether the networks have one.
    """
    c, bs, stop = config, window.burnin, window.burnin + window.learned
    reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
    ends = (x[bs:] for x in (segment.terminated, segment.truncated, segment.valid))
    n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
    n = NStep(*(x[: window.learned] for x in n))
    unit = bounds.unit(segment.action)
    taken = torch.where(segment.valid[bs:stop].unsqueeze(-1), unit[bs:stop], 0.0)
    if (bs, window.learned) == (0, 1) and not (memory or c.prev_inputs):
        return SingleRowInputs(segment, n), n, taken
    before = {**segment.extras, "prev_action": bounds.unit(segment.extras["prev_action"])}
    scaled = replace(segment, action=unit, extras=before)
    return SequenceInputs(scaled, n, window, scale=c.reward_scale, clip=c.reward_clip), n, taken
