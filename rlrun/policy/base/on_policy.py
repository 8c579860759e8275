"""Base classes of on-policy policies: gradient step and checkpointing; rows of actor-critics.

``RolloutPolicy``: of PQN and of ``OnPolicy``, which A2C, PPO and IMPALA share. Subclasses define
the loss and ``torch_update``.
"""

import time
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.acting.stochastic import OnPolicyActor
from rlrun.functional.returns import reverse_scan, trace_continues
from rlrun.functional.rows import shape_reward
from rlrun.nets.actor_critic import ActorCritic, make_actor_critic
from rlrun.nets.memory import memory_parameters
from rlrun.nets.running_moments import CLIP, RunningMoments
from rlrun.optim.adam import Adam
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.policy.base.rollout import Minibatch, RolloutRows, rollout_rows
from rlrun.schedule import make_rates
from rlrun.schema import MemoryConfig, OnPolicyConfig, PQNConfig, TorsoConfig
from rlrun.types import Actor, Sample, Segment, Spec, Update, UpdateKernel, Window, generator

C = TypeVar("C", bound=OnPolicyConfig | PQNConfig)
A = TypeVar("A", bound=OnPolicyConfig)
Net = TypeVar("Net", bound=nn.Module)


class RolloutPolicy(ABC, Generic[C, Net]):
    """A policy that learns from every rollout once, then drops it."""

    window: Window | None = None  # no replay
    kernel: UpdateKernel | None = None  # replaces torch_update, unless learner.backend=torch
    optimiser: type[Adam] = Adam

    def __init__(
        self,
        config: C,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.config, self.device, self.compute = config, device, compute
        self.seed, self.total_steps, self.spec = seed, total_steps, spec
        self.net: Net = self.make_net(torso, memory, spec, seed).to(device)
        self.adam = self.optimiser(
            self.net.parameters(), eps=config.adam_eps, grad_clip=config.grad_clip,
            apart=() if config.memory_lr is None else memory_parameters(self.net),
        )  # fmt: skip
        self.adam.flatten()  # small networks: one array is stepped, not a dozen
        self.rates_at = make_rates(config.lr, config.memory_lr, total_steps=total_steps)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}
        self.set_up()

    @abstractmethod
    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> Net:
        """The network, initialised from ``seed``."""

    def set_up(self) -> None:
        """Set up the parts of a subclass beyond the network."""

    @abstractmethod
    def actor(self, num_envs: int) -> Actor:
        """An actor for ``num_envs`` environments."""

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """Learn from a rollout."""
        return self.kernel.update(sample) if self.kernel is not None else self.torch_update(sample)

    @abstractmethod
    def torch_update(self, sample: Sample) -> Update:
        """``update`` by autograd."""

    def step(self, loss: Tensor, env_steps: int) -> dict[str, Tensor]:
        """One gradient step on ``loss`` (0-d): backward, clipping of the norm, Adam; metrics."""
        began = time.perf_counter()
        grads = torch.autograd.grad(loss, self.adam.parameters, materialize_grads=True)
        backward, rates = time.perf_counter(), self.rates_at(env_steps)
        norm = self.adam.step(grads, *rates)
        self.seconds["backward"] += backward - began
        self.seconds["optimiser"] += time.perf_counter() - backward
        return {"train/grad_norm": norm, "train/lr": norm.new_full((), rates[0])}

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    # -- saving ----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.weights(),
            "adam": self.adam.state_dict(),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        self.generator.bit_generator.state = state["generator"]


class OnPolicy(RolloutPolicy[A, ActorCritic]):
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
