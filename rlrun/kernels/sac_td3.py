"""Gradients of feed-forward actors and critics in numpy: SAC, TD3 and DDPG on single rows.

Two thirds of the time of an update of 256 rows through networks of 256 x 256 units is matrix
products. The rest is torch's calls and autograd's bookkeeping, most of which numpy avoids. Numbers
agree with ``SAC.loss`` (``TD3``, ``DDPG``) to 1e-5.

The gradients of critics and actor are taken at the weights before the update, so they do not depend
on each other. ``Compute.run_in_thread`` may compute the actor's, and the critics' values of stored
actions, in a second thread with bit-identical results.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import LOG_STD_BOUNDS
from rlrun.kernels.mlp import DifferentiableMLP, LinearLayer, flat_gradients
from rlrun.kernels.nstep import TD_METRICS, read_rows, reward_rule, window_of
from rlrun.nets.actor_and_critics import Critics
from rlrun.nets.torso import FlatObs
from rlrun.policy.base import FlatStep, Gradients
from rlrun.policy.control import ControlLearner
from rlrun.policy.optim import IGNORE_OVERFLOW
from rlrun.policy.sac import SAC
from rlrun.policy.td3 import TD3
from rlrun.schema import SACConfig, TD3Config
from rlrun.types import Sample

_LOW, _HIGH = (np.float32(x) for x in LOG_STD_BOUNDS)
_LOG_2, _HALF, _TWO = (np.float32(x) for x in (math.log(2.0), 0.5, 2.0))
_LOG_ROOT = np.float32(0.5 * math.log(2 * math.pi))


class SquashedActions(NamedTuple):
    """Samples of tanh(Normal), and the factors of their gradient."""

    action: np.ndarray  # [N, A] in [-1, 1]
    log_prob: np.ndarray  # [N]
    std_noise: np.ndarray  # [N, A] std x noise: d u / d log std
    in_bounds: np.ndarray  # bool [N, A]: log std within its bounds, both included


def squashed(outputs: np.ndarray, noise: np.ndarray) -> SquashedActions:
    """Return ``squashed_gaussian`` of ``outputs`` [N, 2 A] (means, then log standard deviations).

    ``noise`` float32 [N, A], standard normal. Source: Haarnoja et al. 2018a, appendix C, eq. 21.
    """
    size = noise.shape[1]
    mean, raw = outputs[:, :size], outputs[:, size:]
    log_std = np.clip(raw, _LOW, _HIGH)
    std_noise = np.exp(log_std) * noise
    u = mean + std_noise
    log_prob = noise * noise
    log_prob *= -_HALF
    log_prob -= log_std
    log_prob -= _LOG_ROOT
    log_prob -= _TWO * (_LOG_2 - u - np.logaddexp(np.float32(0), -_TWO * u))
    return SquashedActions(np.tanh(u), log_prob.sum(1), std_noise, raw == log_std)


def squashed_grad(samples: SquashedActions, action: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
    """Return d loss / d outputs [n, 2 A] of the first n samples.

    ``action`` [n, A], ``log_prob`` [n]: d loss / d action and d loss / d log pi. With a = tanh u:
    da/du = 1 - a^2, and d(-log(1 - a^2))/du = 2 a. The noise is constant.
    """
    count, size = action.shape
    a = samples.action[:count]
    u_grad = action * (np.float32(1) - a * a)
    u_grad += _TWO * log_prob[:, None] * a
    grad = np.empty((count, 2 * size), np.float32)
    grad[:, :size] = u_grad
    log_std_grad = u_grad * samples.std_noise[:count]
    log_std_grad -= log_prob[:, None]
    grad[:, size:] = log_std_grad * samples.in_bounds[:count]
    return grad


T = TypeVar("T")
P = TypeVar("P", bound=ControlLearner[Any])


class RowBatch(NamedTuple):
    """A batch of single rows, arrays [N, ...]."""

    obs: np.ndarray  # features of the row
    next_obs: np.ndarray  # features of the row from which its target bootstraps
    action: np.ndarray  # in [-1, 1]
    reward: np.ndarray  # n-step
    discount: np.ndarray
    valid: np.ndarray
    weight: np.ndarray  # importance weight / N, 0 where not valid

    def mean(self, x: np.ndarray) -> float:
        """Return the mean of ``x`` [N] over valid rows, 0 if there are none."""
        return float(np.where(self.valid, x, np.float32(0)).sum() / max(self.valid.sum(), 1))


class ContinuousKernel(Generic[P]):
    """Base class of the kernels of SAC, TD3 and DDPG."""

    def __init__(self, policy: P, num_critics: int | None) -> None:
        """``num_critics``: number of critics in the actor's loss; None: all."""
        self.policy, self.compute = policy, policy.compute
        pi_grads, q_grads = (flat_gradients(policy.parts[x]) for x in ("actor", "critics"))
        self.pi = DifferentiableMLP(policy.pi.head, pi_grads)
        self.pi_target = DifferentiableMLP(policy.pi_target.head)
        self.q = DifferentiableMLP(critic_layers(policy.q, q_grads))
        self.q_target = DifferentiableMLP(critic_layers(policy.q_target))
        # The same weights with separate activations: another thread may run at the same time.
        self.q_of_pi = DifferentiableMLP(critic_layers(policy.q, count=num_critics))
        self.size = policy.bounds.size
        assert isinstance(policy.pi.encoder.torso, FlatObs)
        self.flatten, self.rewards = policy.pi.encoder.torso.flatten, reward_rule(policy.config)

    def rows(self, sample: Sample) -> RowBatch:
        """Return the arrays of a sample on the CPU."""
        segment, window = sample.segment, window_of(sample.segment, self.flatten)
        (count, size), valid = window[0].shape[1:], window[1][3][0]
        obs, next_obs = np.empty((2, count, size), np.float32)
        reward, discount = np.empty((2, count), np.float32)
        read_rows(window, self.rewards, obs.reshape(-1), next_obs.reshape(-1), reward, discount)
        unit = self.policy.bounds.to_unit_array(segment.action[0].numpy())
        action = np.where(valid[:, None], unit, np.float32(0))
        share = sample.weight.numpy() * valid / np.float32(count)
        return RowBatch(obs, next_obs, action, reward, discount, valid, share)

    def noise(self, number: int, count: int) -> np.ndarray:
        """Return standard normal numbers [count, A]; ``number`` is that of the noise vector."""
        return self.policy.noise(number, 1, count, self.size)[0].numpy()

    def next_q(self, rows: RowBatch, action: np.ndarray) -> np.ndarray:
        """Return the minimum [N] of the target critics at the bootstrap rows and ``action``."""
        q: np.ndarray = self.q_target(np.concatenate([rows.next_obs, action], 1))[..., 0].min(0)
        return q

    def q_selected(self, rows: RowBatch) -> np.ndarray:
        """Return Q [C, N] of the stored actions."""
        return self.q(np.concatenate([rows.obs, rows.action], 1))[..., 0]

    def critic_loss(
        self, rows: RowBatch, q: np.ndarray, next_value: np.ndarray
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Write the critics' gradients. Return |delta| [N] and the metrics.

        ``q``: from ``q_selected``. ``next_value`` [N].
        """
        bootstraps, clip = rows.discount > 0, self.policy.config.td_clip
        target = rows.reward + np.where(bootstraps, rows.discount * next_value, np.float32(0))
        delta = np.where(rows.valid, target - q, np.float32(0))
        clipped = delta if clip is None else np.clip(delta, -clip, clip)
        self.q.backward((clipped * -rows.weight)[..., None], inputs=False)
        loss = (rows.weight * (clipped * (delta - np.float32(0.5) * clipped))).sum()
        td_abs = np.abs(delta).mean(0)
        means = rows.mean(td_abs), rows.mean(q.mean(0)), rows.mean(target)
        metrics = float(loss), *means, float(rows.valid.mean())
        return td_abs, dict(zip(TD_METRICS, metrics, strict=True))

    def actor_loss(
        self, rows: RowBatch, action: np.ndarray, output_grad: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Write the actor's gradients. Return the minimum of Q over the critics [N].

        ``output_grad``: maps d(-min Q) / d action [N, A] to the gradient of the loss with respect
        to the actor's outputs. Equal critics share the gradient evenly, as in torch.
        """
        q = self.q_of_pi(np.concatenate([rows.obs, action], 1))[..., 0]
        min_q: np.ndarray = q.min(0)
        selected = (q == min_q).astype(np.float32)
        q_grad = selected * (-rows.weight / selected.sum(0))
        action_grad = self.q_of_pi.backward(q_grad[..., None], inputs=slice(-self.size, None))
        self.pi.backward(output_grad(action_grad.sum(0)), inputs=False)
        return min_q

    def run_in_thread(self, function: Callable[[], T]) -> Callable[[], T]:
        """Start ``function``, in a second thread if there is one. Return what waits for it."""
        return self.compute.run_in_thread(IGNORE_OVERFLOW(function))

    def steps(self, *, actor: bool) -> dict[str, Sequence[Tensor] | FlatStep]:
        """Return the steps of the critics, and of the actor if ``actor``, with their gradients."""
        names = ("critics", "actor") if actor else ("critics",)
        return {name: self.policy.parts[name].adam.flat_step for name in names}


class SACKernel(ContinuousKernel[SAC[SACConfig]]):
    """The gradients of SAC on single rows."""

    def __init__(self, policy: SAC[SACConfig]) -> None:
        super().__init__(policy, None)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of critics, actor and temperature."""
        policy, rows = self.policy, self.rows(sample)
        number, count, due = 2 * policy.updates, len(rows.weight), policy.actor_due()
        alpha = np.float32(policy.log_alpha.detach().exp().item())
        q_selected = self.run_in_thread(lambda: self.q_selected(rows))
        samples = squashed(
            self.pi(np.concatenate([rows.obs, rows.next_obs])),
            np.concatenate([self.noise(number, count), self.noise(number + 1, count)]),
        )
        action, log_prob = samples.action[:count], samples.log_prob[:count]

        def output_grad(action_grad: np.ndarray) -> np.ndarray:
            return squashed_grad(samples, action_grad, alpha * rows.weight)

        actor_update = None
        if due:
            actor_update = self.run_in_thread(lambda: self.actor_loss(rows, action, output_grad))
        next_q = self.next_q(rows, samples.action[count:])
        next_value = next_q - alpha * samples.log_prob[count:]
        td_abs, metrics = self.critic_loss(rows, q_selected(), next_value)
        metrics["train/temperature"], grads = float(alpha), self.steps(actor=due)
        if actor_update is not None:
            loss = (rows.weight * (alpha * log_prob - actor_update())).sum()
            metrics["train/actor_loss"] = float(loss)
            metrics["train/entropy"] = rows.mean(-log_prob)
            if policy.config.temperature_auto:
                surplus = (rows.weight * (-log_prob - np.float32(policy.target_entropy))).sum()
                grads["temperature"] = [torch.as_tensor(alpha * surplus)]
        return Gradients(grads, torch.from_numpy(td_abs), metrics)


class TD3Kernel(ContinuousKernel[TD3[Any]]):
    """The gradients of TD3 and DDPG on single rows."""

    def __init__(self, policy: TD3[Any]) -> None:
        super().__init__(policy, 1)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of the critics, and every ``actor_every`` updates of the actor."""
        rows, c, due = self.rows(sample), self.policy.config, self.policy.actor_due()
        q_selected = self.run_in_thread(lambda: self.q_selected(rows))
        actor_update = self.run_in_thread(lambda: self.update_actor(rows)) if due else None
        next_action = np.tanh(self.pi_target(rows.next_obs))
        if isinstance(c, TD3Config):
            noise = np.float32(c.smoothing) * self.noise(self.policy.updates, len(next_action))
            noise = noise.clip(-c.smoothing_clip, c.smoothing_clip)
            next_action = (next_action + noise).clip(-1, 1)
        next_q = self.next_q(rows, next_action)
        td_abs, metrics = self.critic_loss(rows, q_selected(), next_q)
        if actor_update is not None:
            metrics["train/actor_loss"] = float(-(rows.weight * actor_update()).sum())
        return Gradients(self.steps(actor=due), torch.from_numpy(td_abs), metrics)

    def update_actor(self, rows: RowBatch) -> np.ndarray:
        """Write the gradients of the deterministic policy gradient; see ``actor_loss``."""
        action = np.tanh(self.pi(rows.obs))
        return self.actor_loss(rows, action, lambda grad: grad * (np.float32(1) - action * action))


def critic_layers(
    net: Critics, grads: dict[int, np.ndarray] | None = None, count: int | None = None
) -> list[LinearLayer]:
    """Return the layers of critics [C, N] -> [C, N, 1], views of the network's parameters.

    ``grads``: data_ptr of a parameter -> array for its gradient; None: not computed. ``count``:
    only the first critics; None: all.
    """
    layers, depth = list[LinearLayer](), len(net.weights)
    for i, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        w, b = (x.detach().numpy()[:count] for x in (weight, bias))  # [C, in, out], [C, 1, out]
        activation = type(net.activations[i]) if i < depth - 1 else None
        layer = LinearLayer(w.mT, b, None, None, activation)
        if grads is not None:
            w_grad, b_grad = (grads[x.data_ptr()] for x in (weight, bias))
            layer = layer._replace(weight_grad=w_grad.mT, bias_grad=b_grad[:, 0])
        layers.append(layer)
    return layers
