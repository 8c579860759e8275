"""PPO, A2C, IMPALA and PQN with linear layers: all passes over a rollout in one compiled call."""

import math
import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlrun.kernels import layers, on_policy
from rlrun.kernels.nstep import or_else
from rlrun.kernels.packed import PackedNet
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, make_flatten
from rlrun.policy.a2c import OnePassLearner
from rlrun.policy.ppo import PPO
from rlrun.policy.pqn import PQN
from rlrun.policy.rollout import RolloutPolicy, RolloutRows, split_range
from rlrun.types import Sample, Update


class Passes(NamedTuple):
    """Results of a compiled call."""

    made: int
    norm: float  # of the last gradient
    metrics: dict[str, float]


Batches = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, orders and bounds; see ``on_policy``


class CompiledLearner(ABC):
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

    def reserve(self, rows: int) -> None:
        """Make the arrays for minibatches of up to ``rows`` rows."""
        self.most_rows = rows
        if rows > self.room:
            x = np.zeros(rows * self.net.inputs, np.float32)
            self.room, self.work = rows, (np.zeros(rows, np.int64), x, *self.net.work(rows))

    def learn(self, sample: Sample) -> Update:
        """Return ``learn`` of the policy."""
        began, policy, adam = time.perf_counter(), self.policy, self.net.adam
        rows, lr = policy.prepare(sample), policy.rates(sample.env_steps)["net"][0]
        batches, states = self.batches(rows.index.numpy())
        self.reserve(int(np.diff(batches[2]).max(initial=1)))
        optimiser = self.net.kind, self.net.state, self.net.most, float(lr), self.net.eps
        before = int(adam.counted[0])
        passes = self.passes(rows, optimiser, batches, sample)
        if states:
            policy.shuffle_generator.bit_generator.state = states[passes.made - 1]
        adam.require_finite(passes.norm)
        metrics = passes.metrics | {"grad_norm": passes.norm, "lr": float(lr)}
        self.finish(rows, metrics)
        policy.seconds["backward"] += time.perf_counter() - began
        named = {f"train/{name}": x for name, x in metrics.items()}
        return Update(None, named, steps=int(adam.counted[0]) - before)

    def batches(self, valid: np.ndarray) -> tuple[Batches, list[Any]]:
        """Return the minibatches, and the shuffle generator's states after every pass.

        There are no states if all passes are made.
        """
        policy, c = self.policy, self.policy.config
        parts = max(1, round(len(valid) / c.batch_size))
        bounds = np.array([0, *(stop for _, stop in split_range(len(valid), parts))])
        states, orders = [], np.zeros((c.epochs, len(valid) if parts > 1 else 0), np.int64)
        for order in orders if parts > 1 else ():
            order[:] = policy.shuffle_generator.permutation(len(valid))
            if policy.target_kl is not None:
                states.append(policy.shuffle_generator.bit_generator.state)
        return (valid, orders, bounds), states

    @abstractmethod
    def passes(
        self, rows: RolloutRows, optimiser: tuple[Any, ...], batches: Batches, sample: Sample
    ) -> Passes:
        """Return the results of the compiled call."""

    def finish(self, rows: RolloutRows, metrics: dict[str, float]) -> None:  # noqa: B027
        """Update statistics after the last pass."""

    def outputs(self, obs: np.ndarray) -> list[np.ndarray]:
        """Return what is read of the network [N, *] for inputs [N, F]; see ``read``.

        Rounding may depend on the number of rows of a product, which therefore must not depend on
        earlier rollouts: a resumed run has not seen them.
        """
        _, _, h, unit, inverse, _ = self.work
        parts = []
        for start in range(0, len(obs), self.most_rows):
            x = obs[start : start + self.most_rows]
            layers.forward(self.layers, self.net.values, x.reshape(-1), len(x), h, unit, inverse)
            parts.append(self.read(h, len(x)))
        return [np.concatenate(x) for x in zip(*parts, strict=True)]

    def read(self, h: np.ndarray, rows: int) -> list[np.ndarray]:
        """Return copies of the outputs of the heads in ``h``; of action values the greatest."""
        return [layers.part(h, self.layers[i], rows).copy() for i in self.heads]

    def inputs(self, obs: Any) -> np.ndarray:
        """Return the first layer's inputs [(T + 1) B, F]."""
        x: torch.Tensor = self.flatten(obs)
        return x.reshape(-1, x.shape[-1]).numpy()


# Metrics of ``on_policy.actor_critic_passes``.
TERMS = "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"


def explained_variance(value: np.ndarray, target: np.ndarray, rows: np.ndarray) -> float:
    """Return ``functional.policy.explained_variance`` of ``rows``."""
    x = target[rows].astype(np.float64)
    total, mean = (x.var(), x.mean()) if len(x) else (0.0, 0.0)
    varies = total > 1e-10 * (total + mean * mean)
    return float(1 - (x - value[rows]).var() / total) if varies else 0.0


class ActorCriticKernel(CompiledLearner):
    """Base class for policies with an ``ActorCritic``."""

    function = staticmethod(on_policy.actor_critic_passes)

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
        log_std = actor_critic.log_std
        self.log_std = None
        if log_std is not None:
            start, stop = net.offset(log_std), net.offset(log_std) + log_std.numel()
            self.log_std = net.values[start:stop], net.grads[start:stop]

    @abstractmethod
    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return advantages and value targets [T, B].

        ``params`` [(T + 1) B, K]: of the distribution; ``value`` [T + 1, B].
        """

    @abstractmethod
    def rule(self, sample: Sample) -> tuple[float, ...]:
        """Return the constants of the loss; see ``on_policy.actor_critic_passes``."""

    def passes(
        self, rows: RolloutRows, optimiser: tuple[Any, ...], batches: Batches, sample: Sample
    ) -> Passes:
        moments, (steps, columns) = self.policy.net.moments, rows.valid.shape
        obs = self.inputs(rows.obs if moments is None else moments(rows.obs))
        params, value = self.outputs(obs)
        value = value.reshape(steps + 1, columns)
        advantage, target = self.targets(rows, params, value)
        explained = explained_variance(value[:-1].reshape(-1), target.reshape(-1), batches[0])
        rollout = (
            obs, rows.action.reshape(steps * columns, -1).float().numpy(),
            rows.behaviour_log_prob.reshape(-1).numpy(), advantage.reshape(-1), target.reshape(-1),
            value.reshape(-1),
        )  # fmt: skip
        metrics = np.zeros(5)
        count, norm = self.function(
            self.layers, self.heads, optimiser, self.work, rollout, batches, self.sizes,
            self.log_std, self.rule(sample), metrics,
        )  # fmt: skip
        c, terms = self.policy.config, dict(zip(TERMS, metrics.tolist(), strict=True))
        total = terms["policy_loss"] + c.value_coef * terms["value_loss"]
        terms = {"loss": total - c.entropy_coef * terms["entropy"]} | terms
        return Passes(count, norm, terms | {"explained_variance": explained})

    def finish(self, rows: RolloutRows, metrics: dict[str, float]) -> None:
        self.policy.update_obs_moments(rows)


class PPOKernel(ActorCriticKernel):
    """``PPO.learn`` for networks of linear layers."""

    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        c, advantage = self.policy.config, np.empty(rows.valid.shape, np.float32)
        reward, *ends = (x.numpy() for x in (rows.reward, *rows.ends))
        rule = c.gamma, c.gae_lambda
        on_policy.gae(reward, value, ends[0], ends[1], ends[2], *rule, advantage)
        return advantage, value[:-1] + advantage

    def rule(self, sample: Sample) -> tuple[float, ...]:
        policy, c = self.policy, self.policy.config
        constants = (
            policy.clip_at(sample.env_steps), or_else(c.value_clip, math.inf), c.value_coef,
            c.entropy_coef, or_else(policy.target_kl, math.inf), c.normalize_advantage, True,
        )  # fmt: skip
        return tuple(float(x) for x in constants)

    def finish(self, rows: RolloutRows, metrics: dict[str, float]) -> None:
        super().finish(rows, metrics)
        metrics["explained_variance"] = metrics.pop("explained_variance")  # the last, as in PPO


class OnePassKernel(ActorCriticKernel):
    """``OnePassLearner.learn`` of A2C and IMPALA. Advantages are those of the policy."""

    def batches(self, valid: np.ndarray) -> tuple[Batches, list[Any]]:
        bounds = np.array([0, len(valid)] if len(valid) else [0])
        return (valid, np.zeros((1, 0), np.int64), bounds), []

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
        self, rows: RolloutRows, optimiser: tuple[Any, ...], batches: Batches, sample: Sample
    ) -> Passes:
        out = super().passes(rows, optimiser, batches, sample)
        explained = out.metrics.pop("explained_variance")
        for name in ("approx_kl", "clip_fraction"):
            del out.metrics[name]
        for name, x in self.row_terms.items():
            mean = torch.where(rows.valid, x, 0.0).sum() / max(1, len(rows.index))
            out.metrics[name.removeprefix("train/")] = float(mean)
        out.metrics["explained_variance"] = explained
        return out

    def rule(self, sample: Sample) -> tuple[float, ...]:
        c, inf = self.policy.config, math.inf
        return inf, inf, c.value_coef, c.entropy_coef, inf, 0.0, 0.0


class PQNKernel(CompiledLearner):
    """``PQN.learn`` for networks of linear layers."""

    function = staticmethod(on_policy.pqn_passes)

    def __init__(self, policy: PQN) -> None:
        net: QNet = policy.net
        torso = cast("MLP", net.torso)
        super().__init__(policy, torso.space)
        source, value = self.net.add(torso.layers, -1), -1
        advantage = self.net.add(cast("nn.Sequential", net.advantage), source)
        if net.value is not None:
            value = self.net.add(cast("nn.Sequential", net.value), source)
        self.heads, self.layers, self.actions = (advantage, value), self.net.table(), net.actions

    def read(self, h: np.ndarray, rows: int) -> list[np.ndarray]:
        value = np.empty(rows, np.float32)
        on_policy.greatest(h, self.layers, self.heads, self.actions, value)
        return [value]

    def passes(
        self, rows: RolloutRows, optimiser: tuple[Any, ...], batches: Batches, sample: Sample
    ) -> Passes:
        c, (steps, columns) = self.policy.config, rows.valid.shape
        obs, q = self.inputs(rows.obs), np.empty((self.room, self.actions), np.float32)
        value = self.outputs(obs)[0].reshape(steps + 1, columns)
        target = np.empty((steps, columns), np.float32)
        reward, *ends = (x.numpy() for x in (rows.reward, *rows.ends))
        rule = c.gamma, c.q_lambda
        on_policy.lambda_return(reward, value, ends[0], ends[1], ends[2], *rule, target)
        rollout, metrics = (obs, rows.action.reshape(-1).numpy(), target.reshape(-1)), np.zeros(4)
        count, norm = self.function(
            self.layers, self.heads, optimiser, self.work, rollout, batches, q, metrics
        )
        names = "loss", "td_abs", "q_taken", "target"
        terms = dict(zip(names, metrics.tolist(), strict=True))
        return Passes(count, norm, terms | {"valid_fraction": 1.0})
