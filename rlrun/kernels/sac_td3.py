"""Updates of feed-forward actors and critics in compiled loops: SAC, TD3 and DDPG on single rows.

Numbers agree with ``SAC.loss`` (``TD3``, ``DDPG``) to 1e-5.

The gradients of critics and actor are taken at the weights before the update, so they do not depend
on each other. ``Compute.run_in_thread`` may compute the actor's, and the critics' values of stored
actions, in a second thread with bit-identical results.
"""

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from rlrun.functional.policy import LOG_STD_BOUNDS
from rlrun.jit import inner, jit_ieee
from rlrun.kernels.layers import (
    HALF,
    N_IN,
    ONE,
    OUT,
    ZERO,
    F,
    PackedNet,
    backward,
    forward,
    input_gradients,
    part,
)
from rlrun.kernels.nstep import TD_METRICS, clamp, or_else, read_rows, reward_rule, window_of
from rlrun.nets.torso import FlatObs
from rlrun.policy.base import Gradients
from rlrun.policy.control import ControlLearner
from rlrun.policy.sac import SAC
from rlrun.policy.td3 import TD3
from rlrun.schema import SACConfig, TD3Config
from rlrun.types import Sample

_LOW, _HIGH = (F(x) for x in LOG_STD_BOUNDS)
_LOG_2, _TWO = F(math.log(2.0)), F(2)
_LOG_ROOT = F(0.5 * math.log(2 * math.pi))

# -- actions ---------------------------------------------------------------------------------------


@inner
@jit_ieee
def squash(
    outputs: np.ndarray, noise: np.ndarray, action: np.ndarray, log_prob: np.ndarray
) -> None:
    """Fill ``action`` [N, A] and ``log_prob`` [N]: ``squashed_gaussian`` of ``outputs`` [N, 2 A].

    ``outputs``: means, then log standard deviations. ``noise`` [N, A]: standard normal. Source:
    Haarnoja et al. 2018a, appendix C, eq. 21.
    """
    rows, size = action.shape
    for i in range(rows):
        total = ZERO
        for j in range(size):
            log_std, x = outputs[i, size + j], noise[i, j]
            log_std = _LOW if log_std < _LOW else _HIGH if log_std > _HIGH else log_std
            u = outputs[i, j] + math.exp(log_std) * x
            softplus = max(-_TWO * u, ZERO) + math.log1p(math.exp(-abs(_TWO * u)))
            total -= HALF * x * x + log_std + _LOG_ROOT + _TWO * (_LOG_2 - u - softplus)
            action[i, j] = math.tanh(u)
        log_prob[i] = total


@inner
@jit_ieee
def squash_backward(
    outputs: np.ndarray, noise: np.ndarray, action: np.ndarray, log_prob: np.ndarray,
    grad: np.ndarray,
) -> None:  # fmt: skip
    """Complete ``grad`` [N, 2 A], d loss / d outputs, whose first half is d loss / d action.

    ``log_prob`` [N]: d loss / d log pi. With a = tanh u: da/du = 1 - a^2, and
    d(-log(1 - a^2))/du = 2 a. The noise is constant.
    """
    rows, size = action.shape
    for i in range(rows):
        for j in range(size):
            a, log_std = action[i, j], outputs[i, size + j]
            u_grad = grad[i, j] * (ONE - a * a) + _TWO * log_prob[i] * a
            grad[i, j], grad[i, size + j] = u_grad, ZERO
            if _LOW <= log_std <= _HIGH:
                grad[i, size + j] = u_grad * math.exp(log_std) * noise[i, j] - log_prob[i]


@jit_ieee
def sac_actions(pi: Any, x: np.ndarray, noise: np.ndarray, work: Any, out: Any) -> None:
    """Fill actions [N, A] and log-probabilities [N] ``out`` for inputs ``x``, flat [N, F].

    ``pi``: table of layers, parameters. ``noise`` [N, A]. ``work``: see ``PackedNet.work``.
    """
    (layers, p), (h, unit, inverse, _), (action, log_prob) = pi, work, out
    forward(layers, p, x, len(noise), h, unit, inverse)
    squash(part(h, layers[len(layers) - 1], len(noise)), noise, action, log_prob)


@jit_ieee
def td3_actions(pi: Any, x: np.ndarray, noise: np.ndarray, work: Any, action: np.ndarray) -> None:
    """Fill ``action`` [N, A] with clip(tanh(outputs) + noise, -1, 1); see ``sac_actions``."""
    (layers, p), (h, unit, inverse, _) = pi, work
    rows, size = action.shape
    forward(layers, p, x, rows, h, unit, inverse)
    outputs = part(h, layers[len(layers) - 1], rows)
    for i in range(rows):
        for j in range(size):
            action[i, j] = clamp(F(math.tanh(outputs[i, j])) + noise[i, j], ONE)


# -- critics ---------------------------------------------------------------------------------------


@jit_ieee
def critic_values(q: Any, x: np.ndarray, action: np.ndarray, pairs: np.ndarray, work: Any) -> None:
    """Write the critics' outputs for inputs ``x``, flat [N, F], and ``action`` [N, A].

    ``q``: table of layers, the critics' last layers, parameters. ``pairs``: to be filled, flat
    [N, F + A]. ``work``: see ``PackedNet.work``.
    """
    (layers, _, p), (h, unit, inverse, _) = q, work
    rows, size = action.shape
    width = len(x) // rows
    for i in range(rows):
        at = i * (width + size)
        for j in range(width):
            pairs[at + j] = x[i * width + j]
        for j in range(size):
            pairs[at + width + j] = action[i, j]
    forward(layers, p, pairs, rows, h, unit, inverse)


@inner
@jit_ieee
def smallest(q: Any, h: np.ndarray, i: int, rows: int) -> np.float32:
    """Return the minimum over the critics ``q`` of row ``i`` of ``rows``, NaN if one is."""
    layers, last, _ = q
    least: np.float32 = h[layers[last[0], OUT] * rows + i]
    for c in range(1, len(last)):
        value = h[layers[last[c], OUT] * rows + i]
        if value < least or value != value:
            least = value
    return least


@jit_ieee
def critic_gradients(
    q: Any, g: np.ndarray, pairs: np.ndarray, work: Any, rows: Any, target: Any,
    td_clip: np.float32, td_abs: np.ndarray, metrics: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients of the critics' loss.

    Args:
        q, pairs, work: of ``critic_values`` for the stored actions.
        g: gradients of the critics' parameters, to be filled.
        rows: n-step return, discount, valid, importance weight / N (0 where not valid) [N].
        target: target critics ``q``, their outputs for the rows from which targets bootstrap, and
            what is added to the least one [N].
        td_clip: largest TD error with a quadratic loss.
        td_abs: [N], to be filled with |delta|.
        metrics: to be filled [5]; see ``TD_METRICS``.
    """
    (layers, last, p), (h, unit, inverse, d) = q, work
    (reward, discount, valid, weight), (q_target, target_h, added) = rows, target
    batch, count, real = len(td_abs), len(last), 0
    loss = sizes = predictions = targets = 0.0
    for b in range(batch):
        value = reward[b]
        if discount[b] > ZERO:
            value += discount[b] * (smallest(q_target, target_h, b, batch) + added[b])
        size = mean = ZERO
        for c in range(count):
            at = layers[last[c], OUT] * batch + b
            delta = value - h[at] if valid[b] else ZERO
            clipped = clamp(delta, td_clip)
            loss += float(weight[b] * (clipped * (delta - HALF * clipped)))
            size += abs(delta)
            mean += h[at]
            d[at] = -weight[b] * clipped
        td_abs[b] = size / F(count)
        if valid[b]:
            sizes += float(td_abs[b])
            predictions += float(mean / F(count))
            targets += float(value)
            real += 1
    divisor = max(real, 1)
    metrics[0], metrics[1], metrics[2] = loss, sizes / divisor, predictions / divisor
    metrics[3], metrics[4] = targets / divisor, real / batch
    backward(layers, p, g, pairs, batch, batch, h, unit, inverse, d)


# -- actors ----------------------------------------------------------------------------------------


@jit_ieee
def actor_gradients(
    pi: Any, g: np.ndarray, x: np.ndarray, pi_work: Any, sampled: Any, q: Any, q_work: Any,
    weight: np.ndarray, least: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients of the actor's loss, -min Q + alpha log pi.

    Args:
        pi: table of layers, parameters.
        g: gradients of the actor's parameters, to be filled.
        x, pi_work: of ``sac_actions`` or ``td3_actions``, whose first N rows the loss reads.
        sampled: actions [N, A] and noise of that call, alpha. Noise without rows: the actions are
            tanh(outputs), as TD3's.
        q, q_work: of ``critic_values`` for the actions. Equal critics share the gradient evenly, as
            in torch.
        weight: importance weight / N [N], 0 where not valid.
        least: [N], to be filled with min Q.
    """
    (layers, p), (h, unit, inverse, d), (action, noise, alpha) = pi, pi_work, sampled
    (q_layers, last, q_p), (q_h, q_unit, q_inverse, q_d) = q, q_work
    (batch, size), room = action.shape, len(x) // layers[0, N_IN]
    for b in range(batch):
        least[b], count = smallest(q, q_h, b, batch), ZERO
        for c in range(len(last)):
            count += ONE if q_h[q_layers[last[c], OUT] * batch + b] == least[b] else ZERO
        for c in range(len(last)):
            at = q_layers[last[c], OUT] * batch + b
            q_d[at] = (ONE if q_h[at] == least[b] else ZERO) * (-weight[b] / count)
    end = layers[len(layers) - 1]
    outputs, grad = part(h, end, room)[:batch], part(d, end, room)[:batch]
    nothing = q_h[:0]
    backward(q_layers, q_p, nothing, nothing, batch, batch, q_h, q_unit, q_inverse, q_d)
    input_gradients(q_layers, q_p, q_d, batch, q_layers[0, N_IN] - size, grad)
    if len(noise):
        squash_backward(outputs, noise, action, alpha * weight, grad)
    else:
        for b in range(batch):
            for j in range(size):
                grad[b, j] *= ONE - action[b, j] * action[b, j]
    backward(layers, p, g, x, room, batch, h, unit, inverse, d)


# -- kernels ---------------------------------------------------------------------------------------

P = TypeVar("P", bound=ControlLearner[Any])


class RowArrays:
    """A batch of single rows, and arrays that an update of as many rows overwrites."""

    stored: np.ndarray  # actions [N, A] in [-1, 1]
    valid: np.ndarray  # bool [N]
    weight: np.ndarray  # importance weight / N [N], 0 where not valid

    def __init__(self, batch: int, inputs: int, actions: int, pi: PackedNet, q: PackedNet) -> None:
        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.float32)

        self.x = zeros(2 * batch * inputs)  # of rows, then of those from which targets bootstrap
        self.obs, self.next_obs = self.x[: batch * inputs], self.x[batch * inputs :]
        self.reward, self.discount, self.least = (zeros(batch) for _ in range(3))
        self.action, self.log_prob = zeros(2 * batch, actions), zeros(2 * batch)  # the actor's
        self.pi, self.pi_target = pi.work(2 * batch), pi.work(batch)
        # ``pairs`` and ``work`` of ``critic_values``: of stored actions, in the rows from which
        # targets bootstrap, and of the actor's.
        self.of_stored, self.of_next, self.of_pi = (
            (zeros(batch * (inputs + actions)), q.work(batch)) for _ in range(3)
        )


class ContinuousKernel(Generic[P]):
    """Base class of the kernels of SAC, TD3 and DDPG."""

    function = staticmethod(critic_gradients)  # see run/precompile.py

    def __init__(self, policy: P, num_critics: int) -> None:
        """``num_critics``: number of critics in the actor's loss."""
        self.policy = policy
        self.pi_net, self.q_net = (PackedNet(policy.parts[x]) for x in ("actor", "critics"))
        self.pi_net.add(policy.pi.head, -1)
        last = np.array(self.q_net.add_critics(policy.q), np.int64)
        pi, q = self.pi_net.table(), self.q_net.table()
        self.pi, self.pi_target = (pi, self.pi_net.values), (pi, self.pi_net.target)
        self.q, self.q_target = (q, last, self.q_net.values), (q, last, self.q_net.target)
        first = last[:num_critics]
        self.q_of_pi = q[: first[-1] + 1], first, self.q_net.values
        self.size, torso = policy.bounds.size, policy.pi.encoder.torso
        assert isinstance(torso, FlatObs)
        self.flatten, self.rewards = torso.flatten, reward_rule(policy.config)
        self.td_clip = or_else(policy.config.td_clip, np.inf)
        self.arrays: RowArrays | None = None

    def read(self, sample: Sample) -> RowArrays:
        """Return the arrays with the rows of a sample on the CPU."""
        window, action = window_of(sample.segment, self.flatten), sample.segment.action[0].numpy()
        (batch, size), valid = window[0].shape[1:], window[1][3][0]
        a = self.arrays
        if a is None or len(a.reward) != batch:
            a = self.arrays = RowArrays(batch, size, self.size, self.pi_net, self.q_net)
        read_rows(window, self.rewards, a.obs, a.next_obs, a.reward, a.discount)
        a.stored = np.where(valid[:, None], self.policy.bounds.to_unit_array(action), ZERO)
        a.valid, a.weight = valid, sample.weight.numpy() * valid / F(batch)
        return a

    def noise(self, number: int, batch: int) -> np.ndarray:
        """Return standard normal numbers [N, A]; ``number`` is that of the noise vector."""
        return self.policy.noise(number, 1, batch, self.size)[0].numpy()

    def stored_values(self, a: RowArrays) -> Callable[[], None]:
        """Start to compute the critics of stored actions. Return what waits for it."""
        return self.in_thread(critic_values, self.q, a.obs, a.stored, *a.of_stored)

    def critic_update(
        self, a: RowArrays, next_action: np.ndarray, added: np.ndarray, values: Callable[[], None]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Write the critics' gradients. Return |delta| [N] and the metrics.

        ``next_action`` [N, A], ``added`` [N]: in the rows from which targets bootstrap. ``values``:
        of ``stored_values``.
        """
        td_abs, metrics = np.empty(len(added), np.float32), np.empty(len(TD_METRICS))
        critic_values(self.q_target, a.next_obs, next_action, *a.of_next)
        values()
        target_h = a.of_next[1][0]
        critic_gradients(
            self.q, self.q_net.grads, *a.of_stored, (a.reward, a.discount, a.valid, a.weight),
            (self.q_target, target_h, added), self.td_clip, td_abs, metrics,
        )  # fmt: skip
        return torch.from_numpy(td_abs), dict(zip(TD_METRICS, metrics.tolist(), strict=True))

    def actor_update(
        self, a: RowArrays, x: np.ndarray, action: np.ndarray, noise: np.ndarray, alpha: np.float32
    ) -> None:
        """Write the actor's gradients, and min Q to ``a.least``; see ``actor_gradients``."""
        critic_values(self.q_of_pi, a.obs, action, *a.of_pi)
        actor_gradients(
            self.pi, self.pi_net.grads, x, a.pi, (action, noise, alpha), self.q_of_pi,
            a.of_pi[1], a.weight, a.least,
        )  # fmt: skip

    def in_thread(self, function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        """Start ``function``, in a second thread if there is one. Return what waits for it."""
        return self.policy.compute.run_in_thread(lambda: function(*arguments))

    def steps(self, *, actor: bool) -> dict[str, Any]:
        """Return the steps of the critics, and of the actor if ``actor``, with their gradients."""
        return {"critics": self.q_net.step} | ({"actor": self.pi_net.step} if actor else {})


class SACKernel(ContinuousKernel[SAC[SACConfig]]):
    """The gradients of SAC on single rows."""

    def __init__(self, policy: SAC[SACConfig]) -> None:
        super().__init__(policy, policy.critics)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of critics, actor and temperature."""
        policy, a = self.policy, self.read(sample)
        number, count, due = 2 * policy.updates, len(a.stored), policy.actor_due()
        alpha, values = F(policy.log_alpha.exp().item()), self.stored_values(a)
        noise = np.concatenate([self.noise(number, count), self.noise(number + 1, count)])
        sac_actions(self.pi, a.x, noise, a.pi, (a.action, a.log_prob))
        arguments = a, a.x, a.action[:count], noise[:count], alpha
        actor = self.in_thread(self.actor_update, *arguments) if due else None
        added = -alpha * a.log_prob[count:]
        td_abs, metrics = self.critic_update(a, a.action[count:], added, values)
        metrics["train/temperature"], grads = float(alpha), self.steps(actor=due)
        if actor is not None:
            actor()
            log_prob, real = a.log_prob[:count], max(a.valid.sum(), 1)
            metrics["train/actor_loss"] = float((a.weight * (alpha * log_prob - a.least)).sum())
            metrics["train/entropy"] = float(np.where(a.valid, -log_prob, ZERO).sum() / real)
            if policy.config.temperature_auto:
                surplus = (a.weight * (-log_prob - F(policy.target_entropy))).sum()
                grads["temperature"] = [torch.as_tensor(alpha * surplus)]
        return Gradients(grads, td_abs, metrics)


class TD3Kernel(ContinuousKernel[TD3[Any]]):
    """The gradients of TD3 and DDPG on single rows."""

    def __init__(self, policy: TD3[Any]) -> None:
        super().__init__(policy, 1)

    @torch.no_grad()
    def gradients(self, sample: Sample) -> Gradients:
        """Return the gradients of the critics, and every ``actor_every`` updates of the actor."""
        c, a, due = self.policy.config, self.read(sample), self.policy.actor_due()
        count, values, noise = len(a.stored), self.stored_values(a), np.zeros_like(a.stored)
        actor = self.in_thread(self.act_and_update, a, a.action[:count]) if due else None
        if isinstance(c, TD3Config):
            noise = F(c.smoothing) * self.noise(self.policy.updates, count)
            noise = noise.clip(-c.smoothing_clip, c.smoothing_clip)
        next_action = a.action[count:]
        td3_actions(self.pi_target, a.next_obs, noise, a.pi_target, next_action)
        td_abs, metrics = self.critic_update(a, next_action, np.zeros_like(a.reward), values)
        if actor is not None:
            actor()
            metrics["train/actor_loss"] = float(-(a.weight * a.least).sum())
        return Gradients(self.steps(actor=due), td_abs, metrics)

    def act_and_update(self, a: RowArrays, action: np.ndarray) -> None:
        """Fill the actor's ``action``, and write the deterministic policy gradient."""
        td3_actions(self.pi, a.obs, np.zeros_like(action), a.pi, action)
        self.actor_update(a, a.obs, action, action[:0], ZERO)
