"""Base class of on-policy actor-critics (A2C, IMPALA, PPO): network, statistics and actor."""

from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.functional.returns import reverse_scan, trace_continues
from rlrun.nets.actor_critic import CLIP, ActorCritic, RunningMoments
from rlrun.policy.actor import Chosen, DistributionActor
from rlrun.policy.rollout import Minibatch, RolloutPolicy, RolloutRows, rollout_rows
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Sample, Segment, Tree

A = TypeVar("A", bound=OnPolicyConfig)


# -- acting ----------------------------------------------------------------------------------------


class OnPolicyActor(DistributionActor):
    """Samples actions and stores their log-probability in ``extras["log_prob"]``.

    Real actions are samples of an unbounded Gaussian. The environment gets them in its own unit,
    clipped to its box. ``extras["raw_action"]`` holds the sample in the network's unit, and
    ``log_prob`` is its log density in that unit.
    """

    net: ActorCritic

    def set_up(self) -> None:
        self.shape = (self.columns, *(self.net.space.shape or ()))
        self.extras = {"log_prob": np.zeros(self.columns, np.float32)}
        if not self.net.sizes:
            self.extras["raw_action"] = np.zeros(self.shape, np.float32)

    def refresh(self) -> None:
        super().refresh()
        if self.net.log_std is not None:
            self.log_std = self.net.log_std.detach().numpy(force=True).copy()

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        """Return the mode if ``explore`` is None, else a sample, whatever its values."""
        generator = None if explore is None else self.generator
        if self.net.sizes:
            logits = self.masked(outputs, obs)
            action, log_prob = draw_categorical(logits, self.net.sizes, generator)
            if action.shape != self.shape:
                action = action.reshape(self.shape)
            return action, {"log_prob": log_prob}
        raw, log_prob = draw_gaussian(outputs, self.log_std, generator)
        assert self.net.bounds is not None
        action = self.net.bounds.from_unit(raw)
        return action, {"log_prob": log_prob, "raw_action": raw.reshape(self.shape)}


# -- learning --------------------------------------------------------------------------------------


class ActorCriticLearner(RolloutPolicy[A], Generic[A]):
    """A policy that samples its actions and learns from whole rollouts."""

    actor_class = OnPolicyActor
    net: ActorCritic

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        self.net = ActorCritic(self.config, torso, memory, self.spec).to(self.device)
        self.add("net", self.net).adam.flatten()  # so that Adam steps one array instead of a dozen
        self.returns = RunningMoments(())  # of discounted returns, whose std divides rewards
        self.running = torch.zeros(0)  # [B] the discounted return of every column's open episode
        self.counted = False  # the rollout's observations are in the statistics

    def prepare(self, sample: Sample) -> RolloutRows:
        """Return the rows of a rollout, after adding its rewards to the statistics."""
        segment = sample.segment
        reward = self.shaped_reward(segment)
        if self.config.normalize_reward:
            reward = self._normalise(reward, segment, sample.key)
        rows = rollout_rows(segment, reward, self.net, self.config, self.device)
        self.counted = False
        if (moments := self.net.moments) is not None and not moments.count:
            self.update_obs_moments(rows)  # else the next rollout would be of other units at once
            self.counted = True
        return rows

    def _normalise(self, reward: Tensor, segment: Segment, column: np.ndarray) -> Tensor:
        """Return rewards over the standard deviation of running discounted returns, clipped.

        R_t = r_t + gamma R_{t-1} within an episode. Source: OpenAI Baselines' VecNormalize.
        """
        ends = (segment.terminated, segment.truncated, segment.valid)
        carry = torch.where(trace_continues(*ends), self.config.gamma, 0.0)
        if (missing := int(column.max()) + 1 - len(self.running)) > 0:
            self.running = torch.cat([self.running, torch.zeros(missing)])
        before = torch.where(segment.first[0] | ~segment.valid[0], 0.0, self.running[column])
        returns = reward.clone()
        returns[0] += self.config.gamma * before
        decay = torch.cat([torch.zeros_like(carry[:1]), carry[:-1]])
        returns = reverse_scan(returns.flip(0), decay.flip(0)).flip(0)  # forward in time
        goes_on = segment.valid[-1] & ~(segment.terminated | segment.truncated)[-1]
        open_return = torch.where(goes_on, returns[-1], 0.0)
        self.running = self.running.index_copy(0, torch.from_numpy(column), open_return)
        seen = returns[segment.valid]
        if len(seen):
            self.returns.add(seen)
        return (reward * self.returns.scale()).clamp(-CLIP, CLIP)

    def outputs(self, rows: RolloutRows | Minibatch) -> tuple[Tensor, Tensor]:
        """Return (distribution parameters [T, M, K], V [T, M]) of every row, in float32."""
        with self.autocast():
            params, value = self.net(rows.obs, rows.previous, rows.first, rows.state)
        return params.float(), value.float()

    def update_obs_moments(self, rows: RolloutRows) -> None:
        """Add the rollout's observations to the statistics that normalise the next rollout.

        Called after the update, because the rollout was collected with the earlier statistics; of
        the first rollout, whose actions are nearly uniform, before it.
        """
        if self.net.moments is not None and len(rows.index) and not self.counted:
            seen = rows.obs[:-1].flatten(0, 1)
            self.net.moments.add(seen[rows.index.to(seen.device)])

    def state_dict(self) -> dict[str, Any]:
        own = {"returns": dict(self.returns.state_dict()), "running": self.running}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.returns.load_state_dict(state["returns"])
        self.running = state["running"].clone()
