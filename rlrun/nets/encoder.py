"""Features of the rows of windows, the inputs of the heads of actors and critics."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.functional.returns import NStep, nstep_return
from rlrun.functional.rows import network_inputs, shape_reward
from rlrun.nets.action_bounds import ActionBounds
from rlrun.nets.memory import make_memory
from rlrun.nets.memory.burn_in import burn_in
from rlrun.nets.torso import flat_size, flatten, make_torso
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree, Window, tree_map


class FlatObs(nn.Module):
    """The flattened observation; the layers of an MLP torso are part of the heads instead."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.space, self.size = space, flat_size(space)

    def forward(self, obs: Tree) -> Tensor:
        return flatten(self.space, obs)


class ObsEncoder(nn.Module):
    """Features [*, F] of rows: the flat observation, or the output of torso and memory.

    Without a memory the layers of an MLP torso belong to the heads, one set per critic. Images and
    memories are encoded once for all heads of a network. With ``prev_inputs`` the memory also reads
    the previous action (in [-1, 1], zeros in an episode's first row) and reward.
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
        mlp = memory.name == "none" and torso.name == "mlp"
        self.torso = FlatObs(spec.obs) if mlp else make_torso(torso, spec.obs)
        self.memory = make_memory(memory, self.torso.size + (actions + 1) * policy.prev_inputs)
        self.size = self.memory.size
        self.head_hidden = (*torso.hidden, *policy.head_hidden) if mlp else policy.head_hidden

    def encode_previous(self, prev_action: Tensor, prev_reward: Tensor) -> Tensor:
        """Return [*, A + 1]: unit action [*, A] and shaped reward [*]."""
        return torch.cat([prev_action, prev_reward.unsqueeze(-1)], -1)

    def inputs(self, obs: Tree, previous: Tensor) -> Tensor:
        """Return the memory's inputs [*, F]; ``previous``: of ``encode_previous``."""
        features: Tensor = self.torso(obs)
        return torch.cat([features, previous], -1) if self.prev_inputs else features


class SingleRowInputs:
    """Windows of one learned row without memory: that row and its bootstrap row."""

    def __init__(self, segment: Segment, n: NStep) -> None:
        steps, bootstraps = n.steps[0], n.discount[0] > 0
        column = torch.arange(len(steps), device=steps.device)
        one_step = len(segment.reward) == 1

        def bootstrap_row(x: Tensor) -> Tensor:
            """Zeros after a termination, where rows may hold anything."""
            x = x[1] if one_step else x[steps, column]
            mask = bootstraps.reshape(-1, *[1] * (x.ndim - 1))
            return torch.where(mask, x, torch.zeros_like(x)).unsqueeze(0)

        self.obs = tree_map(lambda x: x[:1], segment.obs)
        self.next_obs = tree_map(bootstrap_row, segment.obs)
        self.previous = segment.reward.new_empty(0)

    def encode(self, encoder: ObsEncoder, state: Tree | None) -> Tensor:
        """Return features [1, B, F] of the learned row."""
        return encoder.inputs(self.obs, self.previous)

    def encode_next(self, encoder: ObsEncoder, state: Tree | None) -> Tensor:
        """Return features [1, B, F] of the row that the target bootstraps from."""
        return encoder.inputs(self.next_obs, self.previous)

    def encode_both(self, encoder: ObsEncoder, state: Tree | None) -> tuple[Tensor, Tensor]:
        """Return ``encode`` and ``encode_next``."""
        return self.encode(encoder, state), self.encode_next(encoder, state)


class SequenceInputs:
    """Windows of burn-in rows, learned rows, and the n rows after them."""

    def __init__(
        self, segment: Segment, n: NStep, window: Window, *, scale: float, clip: float | None
    ) -> None:
        """Actions of ``segment`` (``extras`` included) are in [-1, 1]."""
        self.window, self.valid, self.partial = window, segment.valid, segment.partial
        self.obs, *self.previous = network_inputs(segment, scale=scale, clip=clip)
        learned = torch.arange(window.learned, device=n.steps.device).unsqueeze(-1)
        self.bootstrap_row = learned + n.steps[: window.learned]
        self.column = torch.arange(segment.valid.shape[1], device=n.steps.device)

    def encode(self, encoder: ObsEncoder, state: Tree | None) -> Tensor:
        """Return features [L, B, F] of the learned rows."""
        return self._unroll(encoder, state, self.window.learned)

    def encode_next(self, encoder: ObsEncoder, state: Tree | None) -> Tensor:
        """Return features [L, B, F] of the rows that their targets bootstrap from."""
        return self.encode_both(encoder, state)[1]

    def encode_both(self, encoder: ObsEncoder, state: Tree | None) -> tuple[Tensor, Tensor]:
        """Return ``encode`` and ``encode_next`` of one unroll."""
        out = self._unroll(encoder, state, self.window.learned + self.window.nstep)
        return out[: self.window.learned], out[self.bootstrap_row, self.column]

    def _unroll(self, encoder: ObsEncoder, state: Tree | None, count: int) -> Tensor:
        """Return features [count, B, F] after the burn-in, which carries no gradient.

        ``state`` [B, H]: before each window's first own row; None: zeros.
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

    def _inputs(self, encoder: ObsEncoder, start: int, stop: int) -> Tensor:
        action, reward = (x[start:stop] for x in self.previous)
        obs = tree_map(lambda x: x[start:stop], self.obs)
        return encoder.inputs(obs, encoder.encode_previous(action, reward))


WindowInputs = SingleRowInputs | SequenceInputs


def prepare_windows(
    segment: Segment, bounds: ActionBounds, window: Window, config: ControlConfig, *, memory: bool
) -> tuple[WindowInputs, NStep, Tensor]:
    """Return the networks' inputs of ``segment``, n-step returns [L, B] and unit actions [L, B, A].

    Actions of rows that are not valid are 0. ``memory``: whether the networks have one.
    """
    c, bs, stop = config, window.burnin, window.burnin + window.learned
    reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
    ends = (x[bs:] for x in (segment.terminated, segment.truncated, segment.valid))
    n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
    n = NStep(*(x[: window.learned] for x in n))
    unit = bounds.to_unit(segment.action)
    action = torch.where(segment.valid[bs:stop].unsqueeze(-1), unit[bs:stop], 0.0)
    if (bs, window.learned) == (0, 1) and not (memory or c.prev_inputs):
        return SingleRowInputs(segment, n), n, action
    extras = {**segment.extras, "prev_action": bounds.to_unit(segment.extras["prev_action"])}
    unit_segment = replace(segment, action=unit, extras=extras)
    inputs = SequenceInputs(unit_segment, n, window, scale=c.reward_scale, clip=c.reward_clip)
    return inputs, n, action
