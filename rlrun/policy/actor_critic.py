"""Base class of on-policy actor-critics (A2C, IMPALA, PPO): network, statistics and actor."""

from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.nets.actor_critic import ActorCritic
from rlrun.policy.actor import Chosen, DistributionActor
from rlrun.policy.rollout import Minibatch, RolloutPolicy, RolloutRows, rollout_rows
from rlrun.schema import MemoryConfig, OnPolicyConfig, TorsoConfig
from rlrun.types import Sample, Tree

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
        self.add("net", self.net).flatten()  # so that Adam steps one array instead of a dozen
        super().build(torso, memory)
        self.recurrent = self.net.recurrent
        self.counted = False  # the rollout's observations are in the statistics

    def prepare(self, sample: Sample) -> RolloutRows:
        """Return the rows of a rollout, after adding its rewards to the statistics."""
        reward = self.shaped_reward(sample)
        rows = rollout_rows(sample.segment, reward, self.net, self.config, self.device)
        self.counted = False
        if (moments := self.net.moments) is not None and not moments.count:
            self.update_statistics(rows)  # else the next rollout would be of other units at once
            self.counted = True
        return rows

    def outputs(self, rows: RolloutRows | Minibatch) -> tuple[Tensor, Tensor]:
        """Return (distribution parameters [T, M, K], V [T, M]) of every row, in float32."""
        with self.autocast():
            params, value = self.net(rows.obs, rows.previous, rows.first, rows.state)
        return params.float(), value.float()

    def update_statistics(self, rows: RolloutRows) -> None:
        """Add the rollout's observations to the statistics that normalise the next rollout.

        Called after the update, because the rollout was collected with the earlier statistics; of
        the first rollout, whose actions are nearly uniform, before it.
        """
        if self.net.moments is not None and len(rows.index) and not self.counted:
            seen = rows.obs[:-1].flatten(0, 1)
            self.net.moments.add(seen[rows.index.to(seen.device)])
