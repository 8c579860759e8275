"""The learner of on-policy policies: rows of a rollout, gradient steps, running statistics."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import LogProbEntropy, ValidRows
from rlrun.functional.returns import reverse_scan, trace_continues
from rlrun.functional.rows import shape_reward
from rlrun.kernels.actor_critic import NumpyActorCritic, OutputGrads, make_actor_critic_backprop
from rlrun.kernels.policy_losses import ActionLogProb
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.running_moments import CLIP, RunningMoments
from rlrun.optim.adam import Adam, FlatParameters
from rlrun.optim.compute import Compute
from rlrun.schema import OnPolicyConfig
from rlrun.types import Segment, Tree, moved, tree_map


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """A rollout on the learner's device; padding is zero everywhere."""

    obs: Tree  # [T+1, B, *O]
    previous: Tensor  # [T+1, B, F] previous action and reward, where the network sees them
    first: Tensor  # [T+1, B] bool, on the host
    states: Tree  # [T, B, ...] before every row
    action: Tensor  # [T, B, *A] raw where it is real
    behaviour_log_prob: Tensor  # [T, B] log mu(action) of the acting policy
    reward: Tensor  # [T, B] scaled, clipped, normalised
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    index: Tensor  # [N] int64, on the host: valid rows of the flattened rows and columns

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """(terminated, truncated, valid)."""
        return self.terminated, self.truncated, self.valid


class ActorCriticLearner:
    """An actor-critic network, its Adam, and the running moments of returns."""

    def __init__(
        self,
        net: ActorCritic,
        config: OnPolicyConfig,
        lr_at: Callable[[int], float],
        compute: Compute,
    ) -> None:
        """``lr_at``: env_steps -> learning rate."""
        self.net, self.config, self.lr_at = net, config, lr_at
        self.device = next(net.parameters()).device
        self.flat = FlatParameters(net.parameters())
        self.backprop = make_actor_critic_backprop(net, self.flat, compute)
        self.outputs, self.evaluate_actions = self.backprop.outputs, self.backprop.evaluate_actions
        self.adam = Adam([self.flat.values], eps=config.adam_eps, grad_clip=config.grad_clip)
        self.returns = RunningMoments(
            ()
        )  # of discounted returns so far, which rewards are divided by
        self.running = torch.zeros(0)  # [B] the discounted return of every open episode
        self.seconds = {"backward": 0.0, "optimiser": 0.0}

    def prepare(self, segment: Segment) -> RolloutRows:
        """The rows of a rollout (on the host), after adding its rewards to the statistics."""
        c = self.config
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        reward = torch.where(segment.valid, reward, torch.zeros_like(reward))
        if c.normalize_reward:
            reward = self._normalise(reward, segment)
        first, index = segment.first, segment.valid.flatten().nonzero().squeeze(-1)
        segment, reward = segment.to(self.device), moved(reward, self.device)
        obs, previous = self.net.inputs(segment)
        valid, extras = segment.valid, segment.extras
        action = extras.get("raw_action", segment.action)
        own = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        behaviour_log_prob = extras["log_prob"]
        return RolloutRows(
            obs=obs,
            previous=previous,
            first=first,
            states=segment.states,
            action=torch.where(own, action, torch.zeros_like(action)),
            behaviour_log_prob=torch.where(
                valid, behaviour_log_prob, torch.zeros_like(behaviour_log_prob)
            ),
            reward=reward,
            terminated=segment.terminated,
            truncated=segment.truncated,
            valid=valid,
            index=index,
        )

    def _normalise(self, reward: Tensor, segment: Segment) -> Tensor:
        """Rewards divided by the standard deviation of running discounted returns, then clipped.

        R_t = r_t + gamma R_{t-1} within an episode. Source: OpenAI Baselines' VecNormalize.
        """
        ends = (segment.terminated, segment.truncated, segment.valid)
        on = torch.where(trace_continues(*ends), self.config.gamma, 0.0)
        if len(self.running) != reward.shape[1]:
            self.running = torch.zeros(reward.shape[1])
        begun = torch.where(segment.first[0] | ~segment.valid[0], 0.0, self.running)
        reached = reward.clone()
        reached[0] += self.config.gamma * begun
        decay = torch.cat([torch.zeros_like(on[:1]), on[:-1]]).flip(0)
        reached = reverse_scan(reached.flip(0), decay).flip(0)
        last = segment.valid[-1] & ~(segment.terminated | segment.truncated)[-1]
        self.running = torch.where(last, reached[-1], 0.0)
        seen = reached[segment.valid]
        if len(seen):
            self.returns.add(seen)
        return (reward * self.returns.scale()).clamp(-CLIP, CLIP)

    def step(self, out: "ActorCriticLoss", env_steps: int) -> dict[str, Tensor]:
        """One gradient step on a loss of the last ``outputs`` and ``choice``; its metrics."""
        began = time.perf_counter()
        self.backprop.backward(out.choice, out.value, out.grads)
        backward, lr = time.perf_counter(), self.lr_at(env_steps)
        norm = self.adam.step([self.flat.grads], lr)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}

    def numpy_step(
        self,
        evaluated: ActionLogProb,
        log_prob: np.ndarray,
        value: np.ndarray,
        entropy: np.ndarray | None,
        lr: float,
    ) -> float:
        """``step`` in numpy; d loss / d log pi, V and entropy are [N]. The norm before clipping."""
        assert isinstance(self.backprop, NumpyActorCritic)
        began = time.perf_counter()
        self.backprop.backward_arrays(evaluated, log_prob, value, entropy)
        backward = time.perf_counter()
        norm = self.adam.numpy_step(self.flat.grads, lr)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return norm

    def update_obs_moments(self, rows: RolloutRows) -> None:
        """Add the rollout's observations to the statistics that normalise the next rollout.

        Called after the update, since the rollout was acted with the earlier statistics.
        """
        if self.net.moments is not None and len(rows.index):
            seen = rows.obs[:-1].flatten(0, 1)
            self.net.moments.add(seen[rows.index.to(seen.device)])

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return dict(self.net.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.weights(),
            "adam": self.adam.state_dict(),
            "returns": dict(self.returns.state_dict()),
            "running": self.running,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        self.returns.load_state_dict(state["returns"])
        self.running = state["running"].clone()


class ActorCriticLoss(NamedTuple):
    """Outputs of a loss, its gradients over them, and 0-d metrics."""

    choice: LogProbEntropy
    value: Tensor
    grads: OutputGrads
    metrics: dict[str, Tensor]


def make_loss(
    config: OnPolicyConfig,
    choice: LogProbEntropy,
    policy_grad: Tensor,
    value: Tensor,
    value_grad: Tensor,
    rows: ValidRows,
) -> ActorCriticLoss:
    """Policy loss + value_coef value loss - entropy_coef mean entropy, without metrics.

    ``policy_grad``, ``value_grad``: gradients [*] of the first two over log pi and V.
    """
    entropy_grad = None
    if config.entropy_coef > 0:
        entropy_grad = rows.select((-config.entropy_coef * rows.share).expand_as(value))
    grads = OutputGrads(policy_grad, config.value_coef * value_grad, entropy_grad)
    return ActorCriticLoss(choice, value, grads, {})


def loss_metrics(
    config: OnPolicyConfig,
    policy_loss: Tensor,
    value_loss: Tensor,
    choice: LogProbEntropy,
    rows: ValidRows,
) -> dict[str, Tensor]:
    """The metrics of every on-policy learner; losses are 0-d."""
    entropy = rows.mean(choice.entropy)
    return {
        "train/loss": policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy,
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy": entropy,
    }


def first_states(states: Tree) -> Tree:
    """States [B, ...] before row 0, of states [T, B, ...]."""
    return tree_map(lambda x: x[0], states)
