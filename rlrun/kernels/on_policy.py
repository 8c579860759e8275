"""Compiled passes of PPO, A2C, IMPALA and PQN without a memory over a rollout.

One call makes all minibatches of an update: between two products there is nothing but compiled
loops.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch

from rlrun.jit import inner, jit_ieee, leaf
from rlrun.kernels import layers
from rlrun.kernels.layers import (
    HALF,
    N_OUT,
    ONE,
    ZERO,
    F,
    PackedNet,
    action_values,
    action_values_backward,
    backward,
    forward,
    part,
    step,
)
from rlrun.kernels.nstep import TD_METRICS, or_else
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.torso import MLP, make_flatten
from rlrun.policy.a2c import OnePassLearner
from rlrun.policy.ppo import PPO
from rlrun.policy.pqn import PQN
from rlrun.policy.rollout import Batches, Passes, RolloutPolicy, RolloutRows

# -- minibatches -----------------------------------------------------------------------------------


@inner
@jit_ieee
def choose(
    valid_rows: np.ndarray, orders: np.ndarray, epoch: int, begin: int, end: int, obs: np.ndarray,
    x: np.ndarray, rows: np.ndarray,
) -> int:  # fmt: skip
    """Write the rows of a minibatch and their inputs ``x``, flat. Return their number."""
    width = obs.shape[1]
    for k in range(begin, end):
        row = valid_rows[orders[epoch, k] if orders.shape[1] else k]
        rows[k - begin] = row
        at = (k - begin) * width
        for j in range(width):
            x[at + j] = obs[row, j]
    return end - begin


# -- PPO, A2C, IMPALA ------------------------------------------------------------------------------

# Metrics of ``actor_critic_loss``, in this order.
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION = range(5)


@jit_ieee
def gae(
    reward: Any, value: Any, terminated: Any, truncated: Any, valid: Any, gamma: float,
    trace: float, advantage: Any,
) -> None:  # fmt: skip
    """Write ``functional.returns.gae``'s advantages [T, B]; ``value`` [T + 1, B]."""
    steps, columns = reward.shape
    for b in range(columns):
        following = 0.0
        for t in range(steps - 1, -1, -1):
            if not valid[t, b]:
                following = advantage[t, b] = 0.0
                continue
            if terminated[t, b] or truncated[t, b] or t + 1 == steps or not valid[t + 1, b]:
                following = 0.0
            after = 0.0 if terminated[t, b] else value[t + 1, b]
            following = reward[t, b] + gamma * (after + trace * following) - value[t, b]
            advantage[t, b] = following


@leaf
@jit_ieee
def count_rows(rows: Any) -> int:
    """Return how many ``rows`` are learned: those that are not negative."""
    count = 0
    for i in range(len(rows)):
        count += rows[i] >= 0
    return count


@leaf
@jit_ieee
def moments(x: Any, rows: Any, count: int) -> tuple[float, float]:
    """Return (mean, 1 / (std + 1e-8)) of the ``count`` learned rows, (0, 1) of a single one.

    See ``standardise``.
    """
    if count < 2:
        return 0.0, 1.0
    mean, square = 0.0, 0.0
    for i in range(len(rows)):
        mean += x[rows[i]] if rows[i] >= 0 else 0.0
    mean /= count
    for i in range(len(rows)):
        apart = x[rows[i]] - mean if rows[i] >= 0 else 0.0
        square += apart * apart
    return mean, 1 / (math.sqrt(square / (count - 1)) + 1e-8)


@leaf
@jit_ieee
def choices(z: Any, action: Any, sizes: Any, p: Any, entropies: Any) -> tuple[Any, Any]:
    """Return log pi and the entropy of a row's choices; write probabilities and entropies.

    ``z`` [sum(sizes)]: logits. ``p``: like it. ``entropies`` [choices].
    """
    log_prob = entropy = ZERO
    start = 0
    for c in range(len(sizes)):
        stop = start + sizes[c]
        most, total, mean = z[start], ZERO, ZERO
        for j in range(start + 1, stop):
            most = max(most, z[j])
        for j in range(start, stop):
            p[j] = np.exp(z[j] - most)
            total += p[j]
        for j in range(start, stop):
            p[j] /= total
            mean += p[j] * (z[j] - most)
        log_total = np.log(total)
        log_prob += z[start + int(action[c])] - most - log_total
        entropies[c] = log_total - mean
        entropy += entropies[c]
        start = stop
    return log_prob, entropy


@leaf
@jit_ieee
def choices_backward(
    d: Any, action: Any, sizes: Any, p: Any, entropies: Any, log_prob: Any, entropy: Any
) -> None:
    """Write the gradients of logits from those of log pi and of the entropy.

    d log p_a / d z_j = 1[j = a] - p_j; d H / d z_j = -p_j (log p_j + H).
    """
    start = 0
    for c in range(len(sizes)):
        stop, choice_entropy = start + sizes[c], entropies[c]
        for j in range(start, stop):
            d[j] = -log_prob * p[j]
            if entropy != ZERO and p[j] > ZERO:
                d[j] -= entropy * p[j] * (np.log(p[j]) + choice_entropy)
        d[start + int(action[c])] += log_prob
        start = stop


@leaf
@jit_ieee
def gaussian(z: Any, action: Any, log_std: Any, scaled: Any) -> tuple[Any, Any]:
    """Return log pi and the entropy of real actions [K]; write (action - mean) / std."""
    log_prob = entropy = ZERO
    for j in range(len(z)):
        scaled[j] = (action[j] - z[j]) * np.exp(-log_std[j])
        constant = log_std[j] + F(0.5 * math.log(2 * math.pi))
        log_prob -= constant + HALF * scaled[j] * scaled[j]
        entropy += constant + HALF
    return log_prob, entropy


@leaf
@jit_ieee
def actor_critic_loss(
    rows: Any, rollout: Any, sizes: Any, log_std: Any, outputs: Any, grads: Any, rule: Any,
    p: Any, entropies: Any, metrics: Any,
) -> None:  # fmt: skip
    """Write the gradients of ``PPO.loss`` or ``OnePassLearner.loss`` for ``rows`` of the rollout.

    Negative rows are padding, without gradients. ``outputs``, ``grads``: the policy's outputs
    [n, K] and V [n, 1], and their gradients. ``p`` [K] and ``entropies`` [choices] are overwritten.
    Others: see ``actor_critic_passes``.
    """
    _, action, behaviour, advantage, target, old = rollout
    clip, value_clip, value_coef, entropy_coef, _, standardised, surrogate = rule
    (z, value), (dz, dv) = outputs, grads
    count = count_rows(rows)
    share, low, high = F(1 / max(1, count)), F(1 - clip), F(1 + clip)
    mean, inverse = moments(advantage, rows, count) if standardised > 0 else (0.0, 1.0)
    weight = F(-entropy_coef) * share
    metrics[:] = 0.0
    if log_std is not None:
        log_std[1][:] = ZERO
    for i in range(len(rows)):
        r = rows[i]
        if r < 0:
            dz[i] = dv[i] = ZERO
            continue
        if log_std is None:
            log_prob, entropy = choices(z[i], action[r], sizes, p, entropies)
        else:
            log_prob, entropy = gaussian(z[i], action[r], log_std[0], p)
        gain = F((advantage[r] - mean) * inverse)
        log_ratio = log_prob - behaviour[r]
        ratio = np.exp(log_ratio)
        clipped = min(max(ratio, low), high)
        if surrogate > 0:
            slope = -ratio * gain * share if ratio * gain <= clipped * gain else ZERO
            metrics[POLICY_LOSS] += max(-gain * ratio, -gain * clipped) * share
        else:  # the score function
            slope = -gain * share
            metrics[POLICY_LOSS] += slope * log_prob
        if log_std is None:
            choices_backward(dz[i], action[r], sizes, p, entropies, slope, weight)
        else:
            for j in range(len(p)):
                dz[i, j] = slope * p[j] * np.exp(-log_std[0][j])
                log_std[1][j] += slope * (p[j] * p[j] - ONE) + weight

        error, change = value[i, 0] - target[r], value[i, 0] - old[r]
        loss, active = error * error, ONE
        if value_clip < np.inf:
            limited = error + (min(max(change, F(-value_clip)), F(value_clip)) - change)
            if limited * limited > loss:
                loss, active = limited * limited, ZERO
        dv[i, 0] = F(value_coef) * active * error * share

        metrics[VALUE_LOSS] += HALF * loss * share
        metrics[ENTROPY] += entropy * share
        metrics[APPROX_KL] += (ratio - ONE - log_ratio) * share
        metrics[CLIP_FRACTION] += share if ratio != clipped else ZERO


@jit_ieee
def actor_critic_passes(
    layers: Any, heads: Any, optimiser: Any, work: Any, rollout: Any, batches: Any, sizes: Any,
    log_std: Any, rule: Any, metrics: Any,
) -> tuple[int, float]:  # fmt: skip
    """Make all passes over a rollout. Return their number and the norm of the last gradient.

    Args:
        layers, heads: the table, and the numbers of the layers of the policy and of the value.
        optimiser: arguments of ``layers.step``.
        work: rows of a minibatch, int64, and their inputs, flat, then those of ``PackedNet.work``.
        rollout: inputs [(T + 1) B, F], action [T B, S], and [T B]: log-probability of the actor,
            advantage, target of the value, the value before the update.
        batches: rows to learn from [n]; orders [epochs, n]: positions in it, or [epochs, 0]; where
            the minibatches of a pass begin, and n.
        sizes: of the choices of an action. log_std: None, or for real numbers the logarithm of the
            standard deviation and its gradient, [K] each.
        rule: clip, value clip, value and entropy coefficient, target KL, whether advantages are
            standardised, and whether the surrogate of PPO is the objective.
        metrics: to be filled [5]: those of the last minibatch.
    """
    rows, x, h, unit, inverse, d = work
    kind, state, most, lr, eps = optimiser
    p, g = state[0], state[1]
    valid_rows, orders, bounds = batches
    norm, passes, parts = 0.0, 0, len(bounds) - 1
    chances = np.empty(layers[heads[0], N_OUT], np.float32)
    entropies = np.empty(max(1, len(sizes)), np.float32)
    for epoch in range(len(orders)):
        for k in range(parts):
            count = bounds[k + 1] - bounds[k]
            if parts > 1 or epoch == 0:
                choose(valid_rows, orders, epoch, bounds[k], bounds[k + 1], rollout[0], x, rows)
            forward(layers, p, x, count, h, unit, inverse)
            outputs = part(h, layers[heads[0]], count), part(h, layers[heads[1]], count)
            grads = part(d, layers[heads[0]], count), part(d, layers[heads[1]], count)
            actor_critic_loss(
                rows[:count], rollout, sizes, log_std, outputs, grads, rule, chances, entropies,
                metrics,
            )  # fmt: skip
            backward(layers, p, g, x, count, count, h, unit, inverse, d)
            norm = step(kind, state, most, lr, eps)
            if not np.isfinite(norm):
                return passes + 1, norm
        passes += 1
        if metrics[APPROX_KL] > rule[4]:
            break
    return passes, norm


# -- PQN -------------------------------------------------------------------------------------------

# Metrics of ``pqn_passes``, in this order.
LOSS, TD_ABS, Q_TAKEN, TARGET, VALID = range(5)


@inner
@jit_ieee
def row_maxima(q: Any, value: Any) -> None:
    """Write the largest number [n] of every row of ``q`` [n, A], NaN if one is."""
    for i in range(len(value)):
        best = q[i, 0]
        for j in range(1, q.shape[1]):
            best = best if best >= q[i, j] or best != best else q[i, j]
        value[i] = best


@jit_ieee
def greatest(h: Any, layers: Any, heads: tuple[int, int], actions: int, value: Any) -> None:
    """Write max_a Q [n] of the rows of ``h``, NaN if one is; see ``layers.action_values``."""
    q = np.empty((len(value), actions), np.float32)
    action_values(h, layers, heads, len(value), q)
    row_maxima(q, value)


@jit_ieee
def greatest_of(
    network: Any, actions: int, x: np.ndarray, wanted: np.ndarray, value: np.ndarray
) -> None:
    """Write max_a Q [R, E] of the rows ``wanted`` [R] of the inputs ``x`` [R, E F].

    A product has the columns of one row, as in acting: rounding may depend on their number.
    """
    layers, heads, p, (h, unit, inverse) = network
    for t in range(len(wanted)):
        if wanted[t]:
            forward(layers, p, x[t], value.shape[1], h, unit, inverse)
            greatest(h, layers, heads, actions, value[t])


@jit_ieee
def lambda_return(
    reward: Any, value: Any, terminated: Any, truncated: Any, valid: Any, gamma: float,
    trace: float, target: Any,
) -> None:  # fmt: skip
    """Write ``functional.returns.lambda_return`` [T, B]; ``value`` [T + 1, B]."""
    steps, columns = reward.shape
    for b in range(columns):
        following = 0.0
        for t in range(steps - 1, -1, -1):
            if not valid[t, b]:
                following = target[t, b] = 0.0
                continue
            decay = trace
            if terminated[t, b] or truncated[t, b] or t + 1 == steps or not valid[t + 1, b]:
                decay = 0.0
            after = 0.0 if terminated[t, b] else value[t + 1, b]
            following = reward[t, b] + gamma * ((1 - decay) * after + decay * following)
            target[t, b] = following


@inner
@jit_ieee
def action_value_loss(
    rows: Any, rollout: Any, q: Any, advantage: Any, value: Any, dueling: bool, metrics: Any
) -> None:
    """Write the gradients of ``PQN.loss`` for ``rows`` of the rollout, negative ones: padding.

    ``rollout``: inputs, action, target. ``q`` [n, A]. ``advantage``, ``value``: gradients of the
    heads' outputs, see ``action_values_backward``. ``metrics`` [5]: to be filled.
    """
    _, action, target = rollout
    count = count_rows(rows)
    share = F(1 / max(1, count))
    metrics[:] = 0.0
    metrics[VALID] = count / len(rows)
    for i in range(len(rows)):
        taken, error = 0 * rows[i], ZERO
        if rows[i] >= 0:
            taken = action[rows[i]]
            error = q[i, taken] - target[rows[i]]
            metrics[LOSS] += HALF * error * error * share
            metrics[TD_ABS] += abs(error) * share
            metrics[Q_TAKEN] += q[i, taken] * share
            metrics[TARGET] += target[rows[i]] * share
        action_values_backward(advantage, value, dueling, i, taken, error * share)


@jit_ieee
def pqn_passes(
    layers: Any, heads: Any, optimiser: Any, work: Any, rollout: Any, batches: Any, q: Any,
    metrics: Any,
) -> tuple[int, float]:  # fmt: skip
    """Make all passes of PQN over a rollout. Return (passes, norm of the last gradient).

    Arguments are those of ``actor_critic_passes``, except heads: numbers of the layers of the
    advantages and of the value (-1: none); rollout: inputs, action [T B], target [T B]; metrics
    [5].
    """
    rows, x, h, unit, inverse, d = work
    kind, state, most, lr, eps = optimiser
    p, g = state[0], state[1]
    valid_rows, orders, bounds = batches
    norm, passes, parts = 0.0, 0, len(bounds) - 1
    for epoch in range(len(orders)):
        for k in range(parts):
            count = bounds[k + 1] - bounds[k]
            if parts > 1 or epoch == 0:
                choose(valid_rows, orders, epoch, bounds[k], bounds[k + 1], rollout[0], x, rows)
            forward(layers, p, x, count, h, unit, inverse)
            action_values(h, layers, heads, count, q[:count])
            advantage = part(d, layers[heads[0]], count)
            value = part(d, layers[max(heads[1], 0)], count)
            action_value_loss(rows[:count], rollout, q, advantage, value, heads[1] >= 0, metrics)
            backward(layers, p, g, x, count, count, h, unit, inverse, d)
            norm = step(kind, state, most, lr, eps)
            if not np.isfinite(norm):
                return passes + 1, norm
        passes += 1
    return passes, norm


# -- kernels ---------------------------------------------------------------------------------------


class CompiledLearner:
    """Base class of the kernels: the packed network and its arrays."""

    function: Any  # the compiled one
    layers: np.ndarray  # the table
    heads: tuple[int, int]  # numbers of the last layers; see ``on_policy``
    policy: Any

    def __init__(self, policy: RolloutPolicy[Any], space: gym.Space[Any]) -> None:
        """``space``: of the observations that the torsos read."""
        self.policy, self.flatten = policy, make_flatten(space)
        self.net = PackedNet(policy.parts["net"])
        self.work: tuple[np.ndarray, ...] = ()
        self.room = self.most_rows = 0  # of the arrays, of a minibatch of the present rollout

    def reserve(self, batches: Batches, columns: int = 0) -> None:
        """Make the arrays for the largest minibatch, or for ``columns``."""
        rows = self.most_rows = max(columns, int(np.diff(batches.bounds).max(initial=1)))
        if rows > self.room:
            x = np.zeros(rows * self.net.inputs, np.float32)
            self.room, self.work = rows, (np.zeros(rows, np.int64), x, *self.net.work(rows))

    def outputs(self, obs: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of the heads [N, *] for inputs [N, F].

        Rounding may depend on the number of rows of a product, which therefore must not depend on
        earlier rollouts: a resumed run has not seen them.
        """
        _, _, h, unit, inverse, _ = self.work
        parts = []
        for start in range(0, len(obs), self.most_rows):
            x = obs[start : start + self.most_rows]
            layers.forward(self.layers, self.net.values, x.reshape(-1), len(x), h, unit, inverse)
            parts.append([part(h, self.layers[i], len(x)).copy() for i in self.heads])
        return [np.concatenate(x) for x in zip(*parts, strict=True)]

    def inputs(self, obs: Any) -> np.ndarray:
        """Return the first layer's inputs [(T + 1) B, F]."""
        x: torch.Tensor = self.flatten(obs)
        return x.reshape(-1, x.shape[-1]).numpy()


TERMS = tuple(  # metrics of ``actor_critic_passes``
    f"train/{name}"
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
)


def explained_variance(value: np.ndarray, target: np.ndarray, index: torch.Tensor) -> float:
    """Return ``functional.policy.explained_variance`` of the rows ``index``."""
    rows = index.numpy()
    x = target[rows].astype(np.float64)
    total, mean = (x.var(), x.mean()) if len(x) else (0.0, 0.0)
    varies = total > 1e-10 * (total + mean * mean)
    return float(1 - (x - value[rows]).var() / total) if varies else 0.0


class ActorCriticTerms(ABC):
    """The update of a policy with an ``ActorCritic``, but for the passes of its network."""

    policy: Any

    @abstractmethod
    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return advantages and value targets [T, B].

        ``params`` [(T + 1) B, K]: of the distribution; ``value`` [T + 1, B].
        """

    @abstractmethod
    def rule(self, env_steps: int) -> tuple[float, ...]:
        """Return the constants of the loss; see ``actor_critic_passes``."""

    @abstractmethod
    def evaluate(
        self, rows: RolloutRows, obs: Any, batches: Batches
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return (what ``run`` reads of the rows, the policy's outputs [(T + 1) B, K], V).

        ``obs``: normalised.
        """

    @abstractmethod
    def run(
        self, rollout: Any, batches: Batches, rates: Sequence[float], rule: tuple[float, ...],
        metrics: np.ndarray,
    ) -> tuple[int, float]:  # fmt: skip
        """Make all passes; see ``actor_critic_passes``. Return its result."""

    def passes(
        self, rows: RolloutRows, batches: Batches, rates: Sequence[float], env_steps: int
    ) -> Passes:
        """Make all gradient steps on a rollout; see ``PassesKernel``."""
        moments, (steps, columns) = self.policy.net.moments, rows.valid.shape
        obs = rows.obs if moments is None else moments(rows.obs)
        inputs, params, value = self.evaluate(rows, obs, batches)
        value = value.reshape(steps + 1, columns)
        advantage, target = self.targets(rows, params, value)
        explained = explained_variance(value[:-1].reshape(-1), target.reshape(-1), rows.index)
        rollout = (
            inputs, rows.action.reshape(steps * columns, -1).float().numpy(),
            rows.behaviour_log_prob.reshape(-1).numpy(), advantage.reshape(-1), target.reshape(-1),
            value.reshape(-1),
        )  # fmt: skip
        metrics = np.zeros(5)
        count, norm = self.run(rollout, batches, rates, self.rule(env_steps), metrics)
        c, (policy_loss, value_loss, entropy, *_) = self.policy.config, metrics.tolist()
        loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        terms = dict(zip(TERMS, metrics.tolist(), strict=True))
        explained_terms = {"train/explained_variance": explained}
        return Passes(count, norm, {"train/loss": loss} | terms, explained_terms)


def log_std_of(net: PackedNet, actor_critic: ActorCritic) -> slice | None:
    """Return where the logarithms of the standard deviations are; None: actions are numbers."""
    if (log_std := actor_critic.log_std) is None:
        return None
    start = net.offset(log_std)
    return slice(start, start + log_std.numel())


class ActorCriticKernel(ActorCriticTerms, CompiledLearner):
    """Base class for policies with an ``ActorCritic`` of linear layers."""

    function = staticmethod(actor_critic_passes)

    def __init__(self, policy: PPO | OnePassLearner[Any]) -> None:
        actor_critic: ActorCritic = policy.net
        torsos = [cast("MLP", t.torso) for t in actor_critic.trunks]
        super().__init__(policy, torsos[0].space)
        net = self.net
        shared = net.add(torsos[0].layers, -1)
        policy_head = net.add(actor_critic.policy, shared)  # acting computes the layers up to here
        value_input = shared if len(torsos) == 1 else net.add(torsos[1].layers, -1)
        self.heads = policy_head, net.add(actor_critic.value, value_input)
        self.layers, self.sizes = net.table(), np.array(actor_critic.sizes, np.int64)
        place = log_std_of(net, actor_critic)
        self.log_std = None if place is None else (net.values[place], net.grads[place])
        self.log_std_place = place or slice(0)

    def evaluate(
        self, rows: RolloutRows, obs: Any, batches: Batches
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.reserve(batches)
        inputs = self.inputs(obs)
        params, value = self.outputs(inputs)
        return inputs, params, value

    def run(
        self, rollout: Any, batches: Batches, rates: Sequence[float], rule: tuple[float, ...],
        metrics: np.ndarray,
    ) -> tuple[int, float]:  # fmt: skip
        out: tuple[int, float] = self.function(
            self.layers, self.heads, self.net.optimiser(rates[0]), self.work, rollout, batches,
            self.sizes, self.log_std, rule, metrics,
        )  # fmt: skip
        return out


class PPOTerms(ActorCriticTerms):
    """The update of ``PPO``."""

    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        c, advantage = self.policy.config, np.empty(rows.valid.shape, np.float32)
        reward, *ends = (x.numpy() for x in (rows.reward, *rows.ends))
        rule = c.gamma, c.gae_lambda
        gae(reward, value, ends[0], ends[1], ends[2], *rule, advantage)
        return advantage, value[:-1] + advantage

    def rule(self, env_steps: int) -> tuple[float, ...]:
        policy, c = self.policy, self.policy.config
        constants = (
            policy.clip_at(env_steps), or_else(c.value_clip, math.inf), c.value_coef,
            c.entropy_coef, or_else(policy.target_kl, math.inf), c.normalize_advantage, True,
        )  # fmt: skip
        return tuple(float(x) for x in constants)


class OnePassTerms(ActorCriticTerms):
    """The update of ``OnePassLearner``: A2C and IMPALA. Advantages are those of the policy."""

    @torch.no_grad()
    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        steps, columns = rows.valid.shape
        of_rows = torch.from_numpy(params).reshape(steps + 1, columns, -1)[:-1]
        log_prob, _ = self.policy.net.evaluate_actions(of_rows, rows.action)
        out, self.row_terms = self.policy.advantages(rows, log_prob, torch.from_numpy(value))
        return out.advantage.numpy(), out.target.numpy()

    def passes(
        self, rows: RolloutRows, batches: Batches, rates: Sequence[float], env_steps: int
    ) -> Passes:
        out = super().passes(rows, batches, rates, env_steps)
        terms = {name: x for name, x in out.metrics.items() if name not in TERMS[3:]}
        for name, x in self.row_terms.items():
            mean = torch.where(rows.valid, x, 0.0).sum() / max(1, len(rows.index))
            terms[name] = float(mean)
        return out._replace(metrics=terms | out.rollout_metrics, rollout_metrics={})

    def rule(self, env_steps: int) -> tuple[float, ...]:
        c, inf = self.policy.config, math.inf
        return inf, inf, c.value_coef, c.entropy_coef, inf, 0.0, 0.0


class PPOKernel(PPOTerms, ActorCriticKernel):
    """``PPO.passes`` for networks of linear layers."""


class OnePassKernel(OnePassTerms, ActorCriticKernel):
    """``OnePassLearner.passes`` for networks of linear layers."""


class PQNTerms(ABC):
    """The update of ``PQN``, but for the passes of its network."""

    policy: Any

    @abstractmethod
    def evaluate(self, rows: RolloutRows, batches: Batches) -> tuple[Any, np.ndarray]:
        """Return (what ``run`` reads of the rows, max_a Q [(T + 1) B])."""

    @abstractmethod
    def run(
        self, rollout: Any, batches: Batches, rates: Sequence[float], metrics: np.ndarray
    ) -> tuple[int, float]:
        """Make all passes; see ``pqn_passes``. Return its result."""

    def passes(
        self, rows: RolloutRows, batches: Batches, rates: Sequence[float], env_steps: int
    ) -> Passes:
        """Make all gradient steps on a rollout; see ``PassesKernel``."""
        c, (steps, columns) = self.policy.config, rows.valid.shape
        inputs, value = self.evaluate(rows, batches)
        target = np.empty((steps, columns), np.float32)
        reward, *ends = (x.numpy() for x in (rows.reward, *rows.ends))
        rule = c.gamma, c.q_lambda
        value = value.reshape(steps + 1, columns)
        lambda_return(reward, value, ends[0], ends[1], ends[2], *rule, target)
        rollout = inputs, rows.action.reshape(-1).numpy(), target.reshape(-1)
        metrics = np.eye(5)[VALID]  # those of a rollout without minibatches
        count, norm = self.run(rollout, batches, rates, metrics)
        terms = dict(zip(TD_METRICS, metrics.tolist(), strict=True))
        return Passes(count, norm, terms, {})


class PQNKernel(PQNTerms, CompiledLearner):
    """``PQN.passes`` for networks of linear layers."""

    function = staticmethod(pqn_passes)
    acted: Any = None  # ``rollouts.ActedValues`` if rows are compiled

    def __init__(self, policy: PQN) -> None:
        net = policy.net
        super().__init__(policy, cast("MLP", net.torso).space)
        self.heads, self.actions = self.net.add_action_values(net), net.actions
        self.layers = self.net.table()

    def evaluate(self, rows: RolloutRows, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
        self.reserve(batches, columns := rows.valid.shape[1])
        inputs = self.inputs(rows.obs)
        x = inputs.reshape(-1, columns, inputs.shape[1])
        value, unknown = np.zeros(x.shape[:2], np.float32), np.ones(len(x), bool)
        if self.acted is not None:
            self.acted.recall(rows, x, value, unknown)
        _, _, h, unit, inverse, _ = self.work
        network = self.layers, self.heads, self.net.values, (h, unit, inverse)
        greatest_of(network, self.actions, x.reshape(len(x), -1), unknown, value)
        return inputs, value

    def run(
        self, rollout: Any, batches: Batches, rates: Sequence[float], metrics: np.ndarray
    ) -> tuple[int, float]:
        q = np.empty((self.room, self.actions), np.float32)
        out: tuple[int, float] = self.function(
            self.layers, self.heads, self.net.optimiser(rates[0]), self.work, rollout, batches, q,
            metrics,
        )  # fmt: skip
        return out
