"""What on-policy learners share: rows out of a rollout, descent, running statistics."""

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
class Rows:
    """A rollout as a learner reads it, on its device; padding is zero everywhere."""

    obs: Tree  # [T+1, B, *O]
    side: Tensor  # [T+1, B, F] previous action and reward, where the network sees them
    first: Tensor  # [T+1, B] bool, on the host
    states: Tree  # [T, B, ...] before every row
    action: Tensor  # [T, B, *A] raw where it is real
    behaviour: Tensor  # [T, B] log mu(action) of who acted
    reward: Tensor  # [T, B] scaled, clipped, normalised
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    places: Tensor  # [N] int64, on the host: where valid is, rows and columns flattened

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """(terminated, truncated, valid)."""
        return self.terminated, self.truncated, self.valid


class Descender:
    """An actor-critic network, the Adam that moves it, and the running moments of returns."""

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

    def read(self, segment: Segment) -> Rows:
        """The rows of a rollout (on the host); takes its rewards into the statistics first."""
        c = self.config
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        reward = torch.where(segment.valid, reward, torch.zeros_like(reward))
        if c.normalize_reward:
            reward = self._normalise(reward, segment)
        first, places = segment.first, segment.valid.flatten().nonzero().squeeze(-1)
        segment, reward = segment.to(self.device), moved(reward, self.device)
        obs, side = self.net.inputs(segment)
        valid, extras = segment.valid, segment.extras
        action = extras.get("raw_action", segment.action)
        own = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        behaviour = extras["log_prob"]
        return Rows(
            obs=obs,
            side=side,
            first=first,
            states=segment.states,
            action=torch.where(own, action, torch.zeros_like(action)),
            behaviour=torch.where(valid, behaviour, torch.zeros_like(behaviour)),
            reward=reward,
            terminated=segment.terminated,
            truncated=segment.truncated,
            valid=valid,
            places=places,
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

    def step(self, out: "Loss", env_steps: int) -> dict[str, Tensor]:
        """Descend on a loss of the last ``outputs`` and ``choice``.

        Gradient norm before clipping, step size.
        """
        began = time.perf_counter()
        self.backprop.backward(out.choice, out.value, out.slopes)
        backward, lr = time.perf_counter(), self.lr_at(env_steps)
        norm = self.adam.step([self.flat.grads], lr)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}

    def bare_step(
        self,
        drawn: ActionLogProb,
        log_prob: np.ndarray,
        value: np.ndarray,
        entropy: np.ndarray | None,
        lr: float,
    ) -> float:
        """``step`` in numpy, of the last ``run`` and ``say``; the norm before clipping.

        The slopes [N] of the loss over log pi, V and entropy.
        """
        assert isinstance(self.backprop, NumpyActorCritic)
        began = time.perf_counter()
        self.backprop.backward_arrays(drawn, log_prob, value, entropy)
        backward = time.perf_counter()
        norm = self.adam.numpy_step(self.flat.grads, lr)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return norm

    def absorb(self, rows: Rows) -> None:
        """Take the rollout's observations into the statistics that the next one is seen with.

        Behind the update: who acted in this rollout saw it with the earlier ones.
        """
        if self.net.moments is not None and len(rows.places):
            seen = rows.obs[:-1].flatten(0, 1)
            self.net.moments.add(seen[rows.places.to(seen.device)])

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


class Loss(NamedTuple):
    """What is descended on: slopes over log pi, V and entropy, and 0-d metrics."""

    choice: LogProbEntropy
    value: Tensor
    slopes: OutputGrads
    metrics: dict[str, Tensor]


def join(
    config: OnPolicyConfig,
    choice: LogProbEntropy,
    policy: Tensor,
    value: Tensor,
    baseline: Tensor,
    rows: ValidRows,
) -> Loss:
    """The loss of policy + value_coef V - entropy_coef mean entropy, no metrics yet.

    ``policy``, ``baseline``: the slopes [*] of the first two over log pi and V.
    """
    worth = None
    if config.entropy_coef > 0:
        worth = rows.select((-config.entropy_coef * rows.share).expand_as(value))
    return Loss(choice, value, OutputGrads(policy, config.value_coef * baseline, worth), {})


def told(
    config: OnPolicyConfig,
    policy: Tensor,
    baseline: Tensor,
    choice: LogProbEntropy,
    rows: ValidRows,
) -> dict[str, Tensor]:
    """The metrics of every on-policy learner; ``policy``, ``baseline``: losses, 0-d."""
    entropy = rows.mean(choice.entropy)
    return {
        "train/loss": policy + config.value_coef * baseline - config.entropy_coef * entropy,
        "train/policy_loss": policy,
        "train/value_loss": baseline,
        "train/entropy": entropy,
    }


def opening(states: Tree) -> Tree:
    """The states [B, ...] before row 0 of [T, B, ...]."""
    return tree_map(lambda x: x[0], states)
