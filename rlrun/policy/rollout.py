"""Rollouts: base classes of policies that learn from them once, their rows, and minibatches."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.returns import Advantage, reverse_scan, trace_continues
from rlrun.functional.rows import keep_rows, shape_reward
from rlrun.nets.acting import ActingNet
from rlrun.nets.actor_critic import CLIP, RunningMoments
from rlrun.policy.base import (
    Gradients,
    LearningPolicy,
    Losses,
    LossMetrics,
    Metrics,
    Rates,
    step_metrics,
)
from rlrun.schema import MemoryConfig, OnPolicyConfig, PPOConfig, PQNConfig, TorsoConfig
from rlrun.types import Sample, Segment, Tree, Update, generator, moved, tree_map

R = TypeVar("R", bound=OnPolicyConfig | PQNConfig)
M = TypeVar("M", bound=PPOConfig | PQNConfig)


class RolloutPolicy(LearningPolicy[R], Generic[R]):
    """A policy that learns from every rollout once, then drops it."""

    kernel: "PassesKernel | None" = None
    recurrent = False  # its network has a memory

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        self.returns = RunningMoments(())  # of discounted returns, whose std divides rewards
        self.running = torch.zeros(0)  # [B] the discounted return of every column's open episode

    def shaped_reward(self, sample: Sample) -> Tensor:
        """Return rewards [T, B] scaled, clipped and normalised, 0 in padding.

        They are added to the statistics first.
        """
        c, segment = self.config, sample.segment
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        reward = keep_rows(segment.valid, reward)
        return self._normalise(reward, segment, sample.key) if c.normalize_reward else reward

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

    def learn(self, sample: Sample) -> Update:
        rates, rows = self.rates(sample.env_steps), self.prepare(sample)
        if self.kernel is None:
            update = self.passes(rows, rates, sample.env_steps)
        else:
            update = self.kernel_passes(self.kernel, rows, rates, sample.env_steps)
        self.update_statistics(rows)
        return update

    @abstractmethod
    def prepare(self, sample: Sample) -> "RolloutRows":
        """Return the rows of a rollout."""

    @abstractmethod
    def passes(self, rows: "RolloutRows", rates: Rates, env_steps: int) -> Update:
        """Make all gradient steps on a rollout by autograd."""

    @abstractmethod
    def batches(self, rows: "RolloutRows") -> "Batches":
        """Return the minibatches of all passes, for a kernel."""

    def kernel_passes(
        self, kernel: "PassesKernel", rows: "RolloutRows", rates: Rates, env_steps: int
    ) -> Update:
        """Make all gradient steps on a rollout by a kernel."""
        began, batches = time.perf_counter(), self.batches(rows)
        out = kernel.passes(rows, batches, rates["net"], env_steps)
        self.seconds["backward"] += time.perf_counter() - began
        self.passes_made(rows, out.made)
        self.parts["net"].adam.require_finite(out.norm)
        metrics = {**out.metrics, **step_metrics(out.norm, rates["net"][0]), **out.rollout_metrics}
        return Update(None, metrics, steps=out.made * (len(batches.bounds) - 1))

    def passes_made(self, rows: "RolloutRows", made: int) -> None:
        """Take back the random numbers of ``batches`` for passes that a kernel did not make."""

    def update_statistics(self, rows: "RolloutRows") -> None:
        """Update statistics after the last pass."""

    def gradient_step(self, gradients: Gradients, rates: Rates) -> Metrics:
        """Make one gradient step. Return the metrics of ``gradients``, if any, and of the step."""
        norm = self.step(gradients, rates)["net"]
        if not gradients.metrics:
            return {}
        return {**gradients.metrics, **step_metrics(norm, rates["net"][0])}

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    def state_dict(self) -> dict[str, Any]:
        rollout_state = {"returns": dict(self.returns.state_dict()), "running": self.running}
        return super().state_dict() | rollout_state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "returns" in state:  # not those of earlier PQNs
            self.returns.load_state_dict(state["returns"])
            self.running = state["running"].clone()


class MinibatchLearner(RolloutPolicy[M], Generic[M]):
    """A policy that makes several passes over each rollout in random minibatches.

    Targets come from the network before the update, metrics from the last minibatch.
    """

    target_kl: float | None = None  # passes end when train/approx_kl exceeds it

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        super().build(torso, memory)
        self.shuffle_generator = generator(self.seed, "minibatch")

    @abstractmethod
    def values(self, rows: "RolloutRows") -> Tensor:
        """Return the outputs from which targets are computed, [T+1, B, ...]."""

    @abstractmethod
    def with_targets(self, rows: "RolloutRows", values: Tensor) -> "Minibatch":
        """Return the rows of a rollout (memory: its segments) with targets made of ``values``."""

    @abstractmethod
    def minibatch_loss(
        self, batch: "Minibatch", env_steps: int, *, with_metrics: bool
    ) -> LossMetrics:
        """Return the loss of a minibatch, 0-d, and metrics if ``with_metrics``."""

    def rollout_metrics(self, rollout: "Minibatch") -> dict[str, Tensor]:
        """Return metrics of the whole rollout."""
        return {}

    def count_parts(self, rows: "RolloutRows") -> int:
        """Return the number of minibatches of a pass."""
        return max(1, round(len(rows.index) / self.config.batch_size))

    def passes(self, rows: "RolloutRows", rates: Rates, env_steps: int) -> Update:
        c, steps, parts = self.config, 0, self.count_parts(rows)
        with torch.no_grad():
            whole = self.with_targets(rows, self.values(rows))
        for epoch in range(c.epochs):
            batches = self.shuffle(whole, parts)
            read = self.target_kl is not None or epoch == c.epochs - 1
            for batch in batches:
                wanted = read and batch is batches[-1]
                out = self.gradients(batch, env_steps, with_metrics=wanted)
                metrics = self.gradient_step(out, rates)
            steps += len(batches)
            if self.target_kl is not None and metrics["train/approx_kl"] > self.target_kl:
                break
        return Update(None, metrics | self.rollout_metrics(whole), steps=steps)

    def batches(self, rows: "RolloutRows", passes: int | None = None) -> "Batches":
        """Return the minibatches of ``passes``, in the same random order; None: of all epochs."""
        self.before_batches = self.shuffle_generator.bit_generator.state
        numbers, parts = rows.index.numpy(), self.count_parts(rows)
        if self.recurrent:
            index, real = segments(rows, self.config.segment_len)
            numbers = torch.where(real, index, -1).numpy()
        count, passes = numbers.shape[-1], self.config.epochs if passes is None else passes
        orders = np.zeros((passes, count if parts > 1 else 0), np.int64)
        for order in orders if parts > 1 else ():
            order[:] = self.shuffle_generator.permutation(count)
        bounds = np.array([0, *(stop for _, stop in split_range(count, parts))])
        return Batches(numbers, orders, bounds)

    def passes_made(self, rows: "RolloutRows", made: int) -> None:
        if made < self.config.epochs:
            self.shuffle_generator.bit_generator.state = self.before_batches
            self.batches(rows, made)

    def shuffle(self, rollout: "Minibatch", parts: int) -> list["Minibatch"]:
        """Return random minibatches. A single one is not shuffled."""
        return rollout.shuffle(parts, self.shuffle_generator)

    def gradients(self, batch: "Minibatch", env_steps: int, *, with_metrics: bool) -> Gradients:
        """Return the gradients of a minibatch's loss."""
        loss, metrics = self.minibatch_loss(batch, env_steps, with_metrics=with_metrics)
        return self.autograd(Losses({"net": loss}, None, metrics))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "shuffle_generator": self.shuffle_generator.bit_generator.state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.shuffle_generator.bit_generator.state = state["shuffle_generator"]


# -- kernels ---------------------------------------------------------------------------------------


class Batches(NamedTuple):
    """The minibatches of N valid rows in all passes over a rollout, as a kernel reads them.

    With a memory, of N segments of S rows.
    """

    rows: np.ndarray  # int64 [N] numbers of the flattened rows and columns; [S, N], -1: padding
    orders: np.ndarray  # int64 [passes, N] positions in ``rows``; [passes, 0]: in their order
    bounds: np.ndarray  # int64: where the minibatches of a pass begin, and N


class Passes(NamedTuple):
    """The passes that a kernel made over a rollout."""

    made: int  # number of passes
    norm: float  # of the last gradient, before clipping
    metrics: dict[str, float]  # of the last minibatch
    rollout_metrics: dict[str, float]


class PassesKernel(Protocol):
    """A faster ``passes`` of one class of policies, equal up to rounding.

    It reads settings of a policy and writes the parameters and moments of its network, nothing
    else.
    """

    def passes(
        self, rows: "RolloutRows", batches: Batches, rates: Sequence[float], env_steps: int
    ) -> Passes:
        """Make all gradient steps on a rollout, until one of them is not finite.

        ``rates``: the learning rate, then that of memories if they have their own.
        """


# -- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """The rows of a rollout. Padding is zero in every field."""

    obs: Tree  # [T+1, B, *O]
    previous: Tensor  # [T+1, B, F] previous action and reward, if the network reads them
    first: Tensor  # [T+1, B] bool, on the host
    states: Tree  # [T, B, ...] before every row
    action: Tensor  # [T, B, *A]; real ones before clipping
    behaviour_log_prob: Tensor  # [T, B] log mu(action) of the acting policy
    reward: Tensor  # [T, B] scaled, clipped, normalised
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    index: Tensor  # [N] int64, on the host: valid rows of the flattened rows and columns

    @property
    def state(self) -> Tree:
        """The state [B, ...] before row 0."""
        return tree_map(lambda x: x[0], self.states)

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """(terminated, truncated, valid)."""
        return self.terminated, self.truncated, self.valid


def rollout_rows(
    segment: Segment,
    reward: Tensor,
    net: ActingNet,
    config: OnPolicyConfig | PQNConfig,
    device: torch.device,
) -> RolloutRows:
    """Return the rows of ``segment`` (in host memory) on ``device``.

    ``reward`` [T, B]: the shaped one, 0 in padding. log mu is 0 if the actor does not record it.
    """
    first, index = segment.first, torch.from_numpy(np.flatnonzero(segment.valid.numpy()))
    segment, reward = segment.to(device), moved(reward, device)
    obs, previous = net.window_inputs(segment, config)
    valid = segment.valid
    log_prob = segment.extras.get("log_prob")
    log_prob = torch.zeros_like(reward) if log_prob is None else keep_rows(valid, log_prob)
    action = segment.extras.get("raw_action", segment.action)
    return RolloutRows(
        obs=obs,
        previous=previous,
        first=first,
        states=segment.states,
        action=keep_rows(valid, action),
        behaviour_log_prob=log_prob,
        reward=reward,
        terminated=segment.terminated,
        truncated=segment.truncated,
        valid=valid,
        index=index,
    )


@dataclass(frozen=True, slots=True)
class Minibatch:
    """M segments of S rows; without a memory M = N valid rows, S = 1."""

    obs: Tree  # [S, M, *O]
    previous: Tensor  # [S, M, F]
    first: Tensor  # [S, M] bool, on the host
    state: Tree  # [M, ...] stored state before row 0
    action: Tensor  # [S, M, *A]
    behaviour_log_prob: Tensor  # [S, M]
    advantage: Tensor  # [S, M]
    target: Tensor  # [S, M] of the value
    value: Tensor  # [S, M] before the update
    valid: Tensor  # [S, M] bool

    def size(self) -> int:
        """The number of segments."""
        return self.valid.shape[1]

    def take(self, index: np.ndarray) -> "Minibatch":
        """Return the segments ``index`` (int64 [m])."""
        on_host = torch.from_numpy(index)
        on_device = moved(on_host, self.valid.device)

        def select(x: Tensor, axis: int) -> Tensor:
            return x.index_select(axis, on_host if x.device.type == "cpu" else on_device)

        return self._map(select)

    def shuffle(self, parts: int, generator: np.random.Generator) -> list["Minibatch"]:
        """Return ``parts`` random minibatches of nearly equal size. One is not shuffled."""
        if parts == 1:
            return [self]
        return self.take(generator.permutation(self.size())).split(parts)

    def split(self, parts: int) -> list["Minibatch"]:
        """Return ``parts`` views of successive segments, of nearly equal size."""

        def part(start: int, stop: int) -> Minibatch:
            return self._map(lambda x, axis: x.narrow(axis, start, stop - start))

        return [part(start, stop) for start, stop in split_range(self.size(), parts)]

    def _map(self, function: Callable[[Tensor, int], Tensor]) -> "Minibatch":
        """Apply ``function(x, axis)`` to every tensor; ``axis`` is that of its segments."""

        def of(tree: Tree, axis: int) -> Tree:
            return tree_map(lambda x: function(x, axis), tree)

        parts = {f.name: of(getattr(self, f.name), int(f.name != "state")) for f in fields(self)}
        return Minibatch(**parts)


def split_range(count: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, stop) of ``parts`` successive ranges of nearly equal length, none empty."""
    bounds = [round(i * count / parts) for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(bounds) if a < b]


def split_rollout(
    rows: RolloutRows, advantages: Advantage, value: Tensor, length: int | None
) -> Minibatch:
    """Return segments of about ``length`` rows of a rollout with their stored states.

    ``length`` None: every valid row is a segment, without a state. Columns are cut into equal
    segments. The last is padded if the rows do not divide evenly.
    """
    if length is None:
        index, real = rows.index.unsqueeze(0), torch.ones(1, len(rows.index), dtype=torch.bool)
        state: Tree = ()
    else:
        index, real = segments(rows, length)
        state = tree_map(lambda x: x.flatten(0, 1)[index[0].to(x.device)], rows.states)
    on_device = index.to(rows.valid.device)

    def of(x: Tensor) -> Tensor:
        return x.flatten(0, 1)[on_device]

    return Minibatch(
        obs=tree_map(lambda x: of(x[:-1]), rows.obs),
        previous=of(rows.previous[:-1]),
        first=rows.first[:-1].flatten()[index] & real,
        state=state,
        action=of(rows.action),
        behaviour_log_prob=of(rows.behaviour_log_prob),
        advantage=of(advantages.advantage),
        target=of(advantages.target),
        value=of(value),
        valid=of(rows.valid) & real.to(on_device.device),
    )


def segments(rows: RolloutRows, length: int) -> tuple[Tensor, Tensor]:
    """Return the ``segment_index`` of equal segments of about ``length`` rows."""
    steps, columns = rows.valid.shape
    return segment_index(steps, columns, -(-steps // max(1, round(steps / length))))


def segment_index(steps: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """Return (int64 [length, M] indices of flattened [steps, columns] rows, bool [length, M] not
    padding).

    Segment k of column b has number k columns + b. Padding has the index of the last row.
    """
    count = -(-steps // length)
    row = torch.arange(count) * length + torch.arange(length).unsqueeze(-1)  # [length, count]
    index = row.clamp(max=steps - 1).unsqueeze(-1) * columns + torch.arange(columns)
    real = (row < steps).unsqueeze(-1).expand_as(index)
    return index.reshape(length, -1), real.reshape(length, -1)
