"""Base class of A2C, PPO and IMPALA: the actor-critic network, rollout rows, running statistics.

Subclasses define the loss and ``torch_update``.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

from rlrun.acting.stochastic import OnPolicyActor
from rlrun.functional.returns import reverse_scan, trace_continues
from rlrun.functional.rows import shape_reward
from rlrun.nets.actor_critic import ActorCritic, make_actor_critic
from rlrun.nets.running_moments import CLIP, RunningMoments
from rlrun.policy.base.rollout import Minibatch, RolloutRows, rollout_rows
from rlrun.policy.base.rollout_policy import RolloutPolicy
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Segment, Spec

C = TypeVar("C", bound=OnPolicyConfig)


class OnPolicy(RolloutPolicy[C, ActorCritic]):
    """A policy that samples its actions and learns from whole rollouts."""

    def make_net(
        self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int
    ) -> ActorCritic:
        return make_actor_critic(self.config, torso, memory, spec, seed=seed)

    def set_up(self) -> None:
        self.returns = RunningMoments(())  # of discounted returns; rewards are divided by their std
        self.running = torch.zeros(0)  # [B] the discounted return of every open episode

    def actor(self, num_envs: int) -> OnPolicyActor:
        """An actor that samples from the policy's distribution."""
        return OnPolicyActor(self.net, self.config, self.generator, num_envs=num_envs)

    # -- learning --------------------------------------------------------------------------------

    def prepare(self, segment: Segment) -> RolloutRows:
        """The rows of a rollout on the host, after adding its rewards to the statistics."""
        c = self.config
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        reward = torch.where(segment.valid, reward, torch.zeros_like(reward))
        if c.normalize_reward:
            reward = self._normalise(reward, segment)
        return rollout_rows(segment, reward, self.net.inputs, self.device)

    def _normalise(self, reward: Tensor, segment: Segment) -> Tensor:
        """Rewards divided by the standard deviation of running discounted returns, then clipped.

        R_t = r_t + gamma R_{t-1} within an episode. Source: OpenAI Baselines' VecNormalize.
        """
        ends = (segment.terminated, segment.truncated, segment.valid)
        carry = torch.where(trace_continues(*ends), self.config.gamma, 0.0)
        if len(self.running) != reward.shape[1]:
            self.running = torch.zeros(reward.shape[1])
        before = torch.where(segment.first[0] | ~segment.valid[0], 0.0, self.running)
        returns = reward.clone()
        returns[0] += self.config.gamma * before
        decay = torch.cat([torch.zeros_like(carry[:1]), carry[:-1]])
        returns = reverse_scan(returns.flip(0), decay.flip(0)).flip(0)  # forward in time
        goes_on = segment.valid[-1] & ~(segment.terminated | segment.truncated)[-1]
        self.running = torch.where(goes_on, returns[-1], 0.0)
        seen = returns[segment.valid]
        if len(seen):
            self.returns.add(seen)
        return (reward * self.returns.scale()).clamp(-CLIP, CLIP)

    def outputs(self, rows: RolloutRows | Minibatch) -> tuple[Tensor, Tensor]:
        """(parameters of the distribution [T, M, K], V [T, M]) of every row, in float32."""
        given = (rows.obs, rows.previous, rows.first, rows.state)
        if self.compute.precision == "float32":
            outputs: tuple[Tensor, Tensor] = self.net(*given)
            return outputs
        with torch.autocast(self.device.type, torch.bfloat16):
            params, value = self.net(*given)
        return params.float(), value.float()

    def update_obs_moments(self, rows: RolloutRows) -> None:
        """Add the rollout's observations to the statistics that normalise the next rollout.

        Called after the update, since the rollout was acted with the earlier statistics.
        """
        if self.net.moments is not None and len(rows.index):
            seen = rows.obs[:-1].flatten(0, 1)
            self.net.moments.add(seen[rows.index.to(seen.device)])

    # -- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        own = {"returns": dict(self.returns.state_dict()), "running": self.running}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.returns.load_state_dict(state["returns"])
        self.running = state["running"].clone()
