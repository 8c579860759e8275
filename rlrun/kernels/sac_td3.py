"""Updates of feed-forward actors and critics in numpy: SAC, TD3 and DDPG on single rows.

An update of 256 rows through nets of 256 x 256 units is products for two thirds of its time; the
rest is torch's calls and autograd's bookkeeping, most of which numpy does without. Numbers agree
with ``SAC.loss`` (``TD3``, ``DDPG``) to 1e-5.

The gradients of critics and actor are both taken at the weights before the update, so they do not
depend on each other: ``Compute.run_in_thread`` may compute the actor's, and the critics' values of
stored actions, in a second thread. No bit depends on it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.kernels.critics import NumpyCritics
from rlrun.kernels.mlp import IGNORE_OVERFLOW, DifferentiableMLP
from rlrun.kernels.squashed_gaussian import squashed, squashed_grad
from rlrun.nets.continuous_actor import ActorNet
from rlrun.nets.critics import Critics
from rlrun.nets.encoder import FlatObs, prepare_windows
from rlrun.optim.actor_and_critics import ActorCritics
from rlrun.optim.compute import Compute
from rlrun.optim.lagrange import LagrangeMultiplier
from rlrun.optim.target import OnlineTarget
from rlrun.schema import MemoryConfig, SACConfig, TD3Config
from rlrun.types import Sample, Update

T = TypeVar("T")


class RowBatch(NamedTuple):
    """A batch of single rows, arrays [N, ...]."""

    obs: np.ndarray  # features of the row
    next_obs: np.ndarray  # features of the row that its target bootstraps from
    action: np.ndarray  # in [-1, 1]
    reward: np.ndarray  # n-step
    discount: np.ndarray
    valid: np.ndarray
    weight: np.ndarray  # importance weight / N, 0 where not valid

    def mean(self, x: np.ndarray) -> float:
        """Return the mean of ``x`` [N] over valid rows, 0 where there is none."""
        return float(np.where(self.valid, x, np.float32(0)).sum() / max(self.valid.sum(), 1))


class ActorUpdate(NamedTuple):
    """The actor's half of an update, its gradients in place."""

    min_q: np.ndarray  # [N] of the actor's actions
    seconds: float  # of the backward pass


class ContinuousKernel:
    """The parts of an update that SAC, TD3 and DDPG share."""

    def __init__(
        self, actor_critics: ActorCritics, compute: Compute, num_critics: int | None
    ) -> None:
        """``num_critics``: number of critics in the actor's loss, None: all."""
        self.actor_critics, self.config = actor_critics, actor_critics.config
        self.window = self.config.window
        self.compute = compute
        self.actor_grads = _zero_grads(actor_critics.pi)
        self.critic_grads = _zero_grads(actor_critics.q)
        grads = zip(actor_critics.pi.params, self.actor_grads, strict=True)
        self.actor = DifferentiableMLP(
            actor_critics.pi.net.head, {p.data_ptr(): grad.numpy() for p, grad in grads}
        )
        self.target_actor = DifferentiableMLP(actor_critics.pi.target.head, None)
        self.critics = NumpyCritics(actor_critics.q.net, self.critic_grads)
        self.target_critics = NumpyCritics(actor_critics.q.target)
        # The same weights with activations of their own: another thread may run at the same time.
        self.actor_loss_critics = NumpyCritics(actor_critics.q.net, count=num_critics)
        self.size = actor_critics.bounds.size

    def rows(self, sample: Sample) -> RowBatch:
        """Return the arrays of a sample on the CPU."""
        segment = sample.segment
        windows, n, action = prepare_windows(
            segment, self.actor_critics.bounds, self.window, self.config, memory=False
        )
        features = windows.encode_both(self.actor_critics.pi.net.encoder, None)
        obs, next_obs = (x[0].numpy() for x in features)
        valid = segment.valid[0].numpy()
        weight = sample.weight.numpy() * valid / np.float32(len(valid))
        unit, reward, discount = (x[0].numpy() for x in (action, n.reward, n.discount))
        return RowBatch(obs, next_obs, unit, reward, discount, valid, weight)

    def noise(self, number: int, count: int) -> np.ndarray:
        """Return standard normal numbers [count, A]; ``number``: of the noise vector."""
        return self.actor_critics.noise(number, 1, count, self.size)[0].numpy()

    def next_q(self, rows: RowBatch, action: np.ndarray) -> np.ndarray:
        """Return the minimum [N] of the target critics at the bootstrap rows and ``action``."""
        q: np.ndarray = self.target_critics(np.concatenate([rows.next_obs, action], 1)).min(0)
        return q

    def q_selected(self, rows: RowBatch) -> np.ndarray:
        """Return Q [C, N] of the stored actions."""
        return self.critics(np.concatenate([rows.obs, rows.action], 1))

    def critic_loss(
        self, rows: RowBatch, q: np.ndarray, next_value: np.ndarray
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Write the critics' gradients; return |delta| [N] and the metrics.

        ``q``: of ``q_selected``; ``next_value`` [N]. Formula: ``continuous.critic_loss``.
        """
        bootstraps, clip = rows.discount > 0, self.config.td_clip
        target = rows.reward + np.where(bootstraps, rows.discount * next_value, np.float32(0))
        delta = np.where(rows.valid, target - q, np.float32(0))
        clipped = delta if clip is None else np.clip(delta, -clip, clip)
        began = time.perf_counter()
        self.critics.backward(clipped * -rows.weight)
        self.actor_critics.seconds["backward"] += time.perf_counter() - began
        loss = (rows.weight * (clipped * (delta - np.float32(0.5) * clipped))).sum()
        td_abs = np.abs(delta).mean(0)
        means = (rows.mean(x) for x in (td_abs, q.mean(0), target))
        names = ("train/loss", "train/td_abs", "train/q_taken", "train/target")
        metrics = dict(zip(names, (float(loss), *means), strict=True))
        return td_abs, metrics | {"train/valid_fraction": float(rows.valid.mean())}

    def actor_loss(
        self,
        rows: RowBatch,
        action: np.ndarray,
        output_grad: Callable[[np.ndarray], np.ndarray],
    ) -> ActorUpdate:
        """Write the actor's gradients; return the minimum of Q over the critics.

        ``output_grad``: maps d(-min Q) / d action [N, A] to the gradient of the loss with respect
        to the actor's outputs. Where critics are equal the gradient is shared evenly, as in torch.
        """
        q = self.actor_loss_critics(np.concatenate([rows.obs, action], 1))
        min_q: np.ndarray = q.min(0)
        selected = (q == min_q).astype(np.float32)
        q_grad = selected * (-rows.weight / selected.sum(0))
        began = time.perf_counter()
        grad = output_grad(self.actor_loss_critics.action_grad(q_grad, self.size))
        self.actor.backward(grad, inputs=False)
        return ActorUpdate(min_q, time.perf_counter() - began)

    def run_in_thread(self, function: Callable[[], T]) -> Callable[[], T]:
        """Start ``function``, in a second thread where there is one; the result waits for it."""
        return self.compute.run_in_thread(IGNORE_OVERFLOW(function))

    def wait(self, actor_update: Callable[[], ActorUpdate]) -> ActorUpdate:
        """Return the actor's half of the update; counts only the wait for a second thread."""
        began = time.perf_counter()
        result = actor_update()
        waited = time.perf_counter() - began
        seconds = waited if self.compute.target_thread else result.seconds
        self.actor_critics.seconds["backward"] += seconds
        return result

    def apply_gradients(
        self, sample: Sample, metrics: dict[str, float], *, actor: bool
    ) -> dict[str, Tensor]:
        """Step the critics and, with ``actor``, the actor; return all metrics."""
        values = torch.tensor(list(metrics.values()), dtype=torch.float32).unbind()
        actor_grads = self.actor_grads if actor else None
        named = dict(zip(metrics, values, strict=True))
        return self.actor_critics.apply_gradients(
            self.critic_grads, actor_grads, named, sample.env_steps
        )


class SACKernel(ContinuousKernel):
    """One step of critics, actor and temperature, in place of ``SAC.update``."""

    def __init__(
        self,
        actor_critics: ActorCritics,
        compute: Compute,
        temperature: LagrangeMultiplier,
        target_entropy: float,
    ) -> None:
        super().__init__(actor_critics, compute, None)
        self.temperature, self.target_entropy = temperature, target_entropy
        assert isinstance(actor_critics.config, SACConfig)
        self.temperature_auto = actor_critics.config.temperature_auto

    @torch.no_grad()
    @IGNORE_OVERFLOW
    def __call__(self, sample: Sample) -> Update:
        """Apply one step on ``sample``; target networks are not updated."""
        rows, number = self.rows(sample), 2 * self.actor_critics.q.updates
        due = self.actor_critics.actor_due()
        count, temperature = len(rows.weight), np.float32(self.temperature.value().item())
        q_selected = self.run_in_thread(lambda: self.q_selected(rows))
        samples = squashed(
            self.actor(np.concatenate([rows.obs, rows.next_obs])),
            np.concatenate([self.noise(number, count), self.noise(number + 1, count)]),
        )
        action, log_prob = samples.action[:count], samples.log_prob[:count]

        def output_grad(action_grad: np.ndarray) -> np.ndarray:
            return squashed_grad(samples, action_grad, temperature * rows.weight)

        actor_update = None
        if due:
            actor_update = self.run_in_thread(lambda: self.actor_loss(rows, action, output_grad))
        next_q = self.next_q(rows, samples.action[count:])
        next_value = next_q - temperature * samples.log_prob[count:]
        td_abs, metrics = self.critic_loss(rows, q_selected(), next_value)
        metrics["train/temperature"] = float(temperature)
        lr = self.actor_critics.lr_at(sample.env_steps)
        if actor_update is not None:
            min_q = self.wait(actor_update).min_q
            loss = (rows.weight * (temperature * log_prob - min_q)).sum()
            metrics["train/actor_loss"] = float(loss)
            metrics["train/entropy"] = rows.mean(-log_prob)
        all_metrics = self.apply_gradients(sample, metrics, actor=due)
        if due and self.temperature_auto:
            surplus = (rows.weight * (-log_prob - np.float32(self.target_entropy))).sum()
            self.temperature.apply_gradient(torch.as_tensor(temperature * surplus), lr)
        return Update(torch.from_numpy(td_abs), all_metrics)


class TD3Kernel(ContinuousKernel):
    """One step of critics and actor, in place of ``TD3.update`` and ``DDPG.update``."""

    def __init__(self, actor_critics: ActorCritics, compute: Compute) -> None:
        super().__init__(actor_critics, compute, 1)

    @torch.no_grad()
    @IGNORE_OVERFLOW
    def __call__(self, sample: Sample) -> Update:
        """Apply one step on ``sample``; target networks are not updated."""
        rows, due = self.rows(sample), self.actor_critics.actor_due()
        q_selected = self.run_in_thread(lambda: self.q_selected(rows))
        actor_update = self.run_in_thread(lambda: self.update_actor(rows)) if due else None
        next_action = np.tanh(self.target_actor(rows.next_obs))
        if isinstance(self.config, TD3Config):
            sigma, clip = self.config.smoothing, self.config.smoothing_clip
            noise = np.float32(sigma) * self.noise(self.actor_critics.q.updates, len(next_action))
            next_action = (next_action + noise.clip(-clip, clip)).clip(-1, 1)
        next_q = self.next_q(rows, next_action)
        td_abs, metrics = self.critic_loss(rows, q_selected(), next_q)
        if actor_update is not None:
            min_q = self.wait(actor_update).min_q
            metrics["train/actor_loss"] = float(-(rows.weight * min_q).sum())
        all_metrics = self.apply_gradients(sample, metrics, actor=due)
        return Update(torch.from_numpy(td_abs), all_metrics)

    def update_actor(self, rows: RowBatch) -> ActorUpdate:
        """Write the gradients of the deterministic policy gradient."""
        action = np.tanh(self.actor(rows.obs))
        return self.actor_loss(rows, action, lambda grad: grad * (np.float32(1) - action * action))


def supports(actor_critics: ActorCritics, compute: Compute, memory: MemoryConfig) -> bool:
    """Return whether the kernels compute the configured update.

    They do for single rows, linear layers, float32 and the CPU.
    """
    mlp = isinstance(actor_critics.pi.net.encoder.torso, FlatObs) and memory.name == "none"
    single = actor_critics.config.window[:2] == (0, 1) and not actor_critics.config.prev_inputs
    return mlp and single and actor_critics.device.type == "cpu" and compute.precision == "float32"


def _zero_grads(online_target: OnlineTarget[ActorNet] | OnlineTarget[Critics]) -> list[Tensor]:
    return [torch.zeros_like(p, requires_grad=False) for p in online_target.params]
