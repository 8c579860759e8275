"""PPO, A2C, IMPALA and PQN with linear layers: all passes over a rollout in one compiled call."""

import math
from abc import ABC, abstractmethod
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch

from rlrun.kernels import layers, on_policy
from rlrun.kernels.nstep import TD_METRICS, or_else
from rlrun.kernels.packed import PackedNet
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.torso import MLP, make_flatten
from rlrun.policy.a2c import OnePassLearner
from rlrun.policy.ppo import PPO
from rlrun.policy.pqn import PQN
from rlrun.policy.rollout import Batches, Passes, RolloutPolicy, RolloutRows


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

    def reserve(self, batches: Batches) -> None:
        """Make the arrays for the largest minibatch."""
        rows = self.most_rows = int(np.diff(batches.bounds).max(initial=1))
        if rows > self.room:
            x = np.zeros(rows * self.net.inputs, np.float32)
            self.room, self.work = rows, (np.zeros(rows, np.int64), x, *self.net.work(rows))

    @abstractmethod
    def passes(self, rows: RolloutRows, batches: Batches, lr: float, env_steps: int) -> Passes:
        """Make all gradient steps on a rollout in a compiled call; see ``PassesKernel``."""

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


TERMS = tuple(  # metrics of ``on_policy.actor_critic_passes``
    f"train/{name}"
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
)


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
    def rule(self, env_steps: int) -> tuple[float, ...]:
        """Return the constants of the loss; see ``on_policy.actor_critic_passes``."""

    def passes(self, rows: RolloutRows, batches: Batches, lr: float, env_steps: int) -> Passes:
        self.reserve(batches)
        moments, (steps, columns) = self.policy.net.moments, rows.valid.shape
        obs = self.inputs(rows.obs if moments is None else moments(rows.obs))
        params, value = self.outputs(obs)
        value = value.reshape(steps + 1, columns)
        advantage, target = self.targets(rows, params, value)
        explained = explained_variance(value[:-1].reshape(-1), target.reshape(-1), batches.rows)
        rollout = (
            obs, rows.action.reshape(steps * columns, -1).float().numpy(),
            rows.behaviour_log_prob.reshape(-1).numpy(), advantage.reshape(-1), target.reshape(-1),
            value.reshape(-1),
        )  # fmt: skip
        metrics = np.zeros(5)
        count, norm = self.function(
            self.layers, self.heads, self.net.optimiser(lr), self.work, rollout, batches,
            self.sizes, self.log_std, self.rule(env_steps), metrics,
        )  # fmt: skip
        c, (policy_loss, value_loss, entropy, *_) = self.policy.config, metrics.tolist()
        loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        terms = dict(zip(TERMS, metrics.tolist(), strict=True))
        explained_terms = {"train/explained_variance": explained}
        return Passes(count, norm, {"train/loss": loss} | terms, explained_terms)


class PPOKernel(ActorCriticKernel):
    """``PPO.passes`` for networks of linear layers."""

    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        c, advantage = self.policy.config, np.empty(rows.valid.shape, np.float32)
        reward, *ends = (x.numpy() for x in (rows.reward, *rows.ends))
        rule = c.gamma, c.gae_lambda
        on_policy.gae(reward, value, ends[0], ends[1], ends[2], *rule, advantage)
        return advantage, value[:-1] + advantage

    def rule(self, env_steps: int) -> tuple[float, ...]:
        policy, c = self.policy, self.policy.config
        constants = (
            policy.clip_at(env_steps), or_else(c.value_clip, math.inf), c.value_coef,
            c.entropy_coef, or_else(policy.target_kl, math.inf), c.normalize_advantage, True,
        )  # fmt: skip
        return tuple(float(x) for x in constants)


class OnePassKernel(ActorCriticKernel):
    """``OnePassLearner.passes`` of A2C and IMPALA. Advantages are those of the policy."""

    @torch.no_grad()
    def targets(
        self, rows: RolloutRows, params: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        steps, columns = rows.valid.shape
        of_rows = torch.from_numpy(params).reshape(steps + 1, columns, -1)[:-1]
        log_prob, _ = self.policy.net.evaluate_actions(of_rows, rows.action)
        out, self.row_terms = self.policy.advantages(rows, log_prob, torch.from_numpy(value))
        return out.advantage.numpy(), out.target.numpy()

    def passes(self, rows: RolloutRows, batches: Batches, lr: float, env_steps: int) -> Passes:
        out = super().passes(rows, batches, lr, env_steps)
        terms = {name: x for name, x in out.metrics.items() if name not in TERMS[3:]}
        for name, x in self.row_terms.items():
            mean = torch.where(rows.valid, x, 0.0).sum() / max(1, len(rows.index))
            terms[name] = float(mean)
        return out._replace(metrics=terms | out.rollout_metrics, rollout_metrics={})

    def rule(self, env_steps: int) -> tuple[float, ...]:
        c, inf = self.policy.config, math.inf
        return inf, inf, c.value_coef, c.entropy_coef, inf, 0.0, 0.0


class PQNKernel(CompiledLearner):
    """``PQN.passes`` for networks of linear layers."""

    function = staticmethod(on_policy.pqn_passes)

    def __init__(self, policy: PQN) -> None:
        net = policy.net
        super().__init__(policy, cast("MLP", net.torso).space)
        self.heads, self.actions = self.net.add_action_values(net), net.actions
        self.layers = self.net.table()

    def read(self, h: np.ndarray, rows: int) -> list[np.ndarray]:
        value = np.empty(rows, np.float32)
        on_policy.greatest(h, self.layers, self.heads, self.actions, value)
        return [value]

    def passes(self, rows: RolloutRows, batches: Batches, lr: float, env_steps: int) -> Passes:
        self.reserve(batches)
        c, (steps, columns) = self.policy.config, rows.valid.shape
        obs, q = self.inputs(rows.obs), np.empty((self.room, self.actions), np.float32)
        value = self.outputs(obs)[0].reshape(steps + 1, columns)
        target = np.empty((steps, columns), np.float32)
        reward, *ends = (x.numpy() for x in (rows.reward, *rows.ends))
        rule = c.gamma, c.q_lambda
        on_policy.lambda_return(reward, value, ends[0], ends[1], ends[2], *rule, target)
        rollout, metrics = (obs, rows.action.reshape(-1).numpy(), target.reshape(-1)), np.zeros(4)
        count, norm = self.function(
            self.layers, self.heads, self.net.optimiser(lr), self.work, rollout, batches, q, metrics
        )
        terms = dict(zip(TD_METRICS, (*metrics.tolist(), 1.0), strict=True))
        return Passes(count, norm, terms, {})
