"""PPO and PQN with linear layers: all passes over a rollout in one compiled call."""

import math
import time
from typing import Any, cast

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from rlrun.jit import is_cached
from rlrun.kernels import compiled
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, flatten
from rlrun.policy.ppo import PPO
from rlrun.policy.pqn import PQN
from rlrun.policy.rollout import MinibatchLearner, RolloutRows, split_range
from rlrun.types import Sample, Update

ACTIVATIONS = {nn.ReLU: compiled.RELU, nn.Tanh: compiled.TANH, nn.ELU: compiled.ELU}


class PackedLayers:
    """The table of a network's layers, and the position of every parameter in packed arrays.

    See ``kernels/compiled.py``.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        """``parameters``: in the order of the flat array of their optimiser."""
        self.parameters = parameters
        self.positions: dict[int, np.ndarray] = {}  # data_ptr of a parameter -> its positions
        self.rows: list[list[int]] = []
        self.size = self.width = 0  # packed parameters, outputs of all layers in a row
        self.eps = 0.0

    def add(self, modules: nn.Sequential, source: int) -> int:
        """Add the layers of ``modules`` after layer ``source`` (-1: the observation).

        Returns the number of the last one, ``source`` if there are none.
        """
        for module in modules:
            if isinstance(module, nn.Linear):
                out, n_in = module.weight.shape
                ld = compiled.row_length(out)
                row = [source, n_in, out, self.size, ld, -1, compiled.NONE, self.width]
                matrix = self.size + np.arange(n_in + 1)[:, None] * ld + np.arange(out)
                self.positions[module.weight.data_ptr()] = matrix[:-1].T
                self.positions[module.bias.data_ptr()] = matrix[-1]
                self.size, self.width = self.size + (n_in + 1) * ld, self.width + ld
                self.rows.append(row)
                source = len(self.rows) - 1
            elif isinstance(module, nn.LayerNorm):
                self.eps = module.eps
                self.rows[-1][compiled.NORM] = self.place(module.weight)
                self.place(module.bias)
            else:
                self.rows[-1][compiled.ACTIVATION] = ACTIVATIONS[type(module)]
        return source

    def place(self, parameter: Tensor) -> int:
        """Give a vector the next packed positions. Return the first."""
        start, size = self.size, parameter.numel()
        self.positions[parameter.data_ptr()] = start + np.arange(size)
        self.size += size
        return start

    @property
    def inputs(self) -> int:
        """The number of inputs of the first layers."""
        return next(row[compiled.N_IN] for row in self.rows if row[compiled.SOURCE] < 0)

    def table(self) -> np.ndarray:
        """Return the layers, int64 [layers, 8]."""
        return np.array(self.rows, np.int64)

    def index(self) -> np.ndarray:
        """Return the packed position of every number of the flat parameters, int64 [P]."""
        parts = [self.positions[p.data_ptr()].reshape(-1) for p in self.parameters]
        return np.concatenate(parts).astype(np.int64)


class CompiledLearner:
    """Base class of the kernels: the packed network and its arrays."""

    function: Any  # the compiled one
    heads: np.ndarray  # int64 [2]: numbers of the last layers; see ``compiled``

    def __init__(self, policy: MinibatchLearner[Any], space: gym.Space[Any]) -> None:
        """``space``: of the observations that the torsos read."""
        self.policy, self.adam, self.space = policy, policy.parts["net"].adam, space
        flat = self.adam.flatten()
        self.packed = PackedLayers(self.adam.parameters)
        self.state = flat.values.numpy(), *self.adam.flat_moments()
        self.work: tuple[np.ndarray, ...] = ()
        self.room = 0

    @property
    def note(self) -> str | None:
        """A line to show before the first update, or None."""
        if is_cached(self.function):
            return None
        return "kernels: this machine compiles them once, in the first update, in some 20 s"

    def prepare(self) -> None:
        """Make the tables of the layers that were added."""
        self.layers, self.index = self.packed.table(), self.packed.index()

    def reserve(self, rows: int) -> None:
        """Make the arrays for minibatches of up to ``rows`` rows."""
        if rows <= self.room:
            return
        packed, self.room = self.packed, rows
        size, n_in = rows * packed.width, packed.inputs + 1
        most_out = int(self.layers[:, compiled.N_OUT].max())
        turned = most_out * int(self.layers[:, compiled.LD].max())
        sizes = (
            rows * n_in, size, size, rows * len(self.layers), size, turned, *[packed.size] * 4
        )  # fmt: skip
        self.work = tuple(np.zeros(n, np.float32) for n in sizes)

    def learn(self, sample: Sample) -> Update:
        """Return ``MinibatchLearner.learn`` of the policy."""
        began, policy, c = time.perf_counter(), self.policy, self.policy.config
        rows, lr = policy.prepare(sample), policy.rates(sample.env_steps)["net"][0]
        valid = rows.index.numpy()
        parts = max(1, round(len(valid) / c.batch_size))
        ranges = split_range(len(valid), parts)
        bounds = np.array([0, *(stop for _, stop in ranges)])
        self.reserve(int(np.diff(bounds).max(initial=1)))
        states, orders = [], np.zeros((c.epochs, len(valid) if parts > 1 else 0), np.int64)
        for order in orders if parts > 1 else ():
            order[:] = policy.shuffle_generator.permutation(len(valid))
            if policy.target_kl is not None:
                states.append(policy.shuffle_generator.bit_generator.state)
        most = math.inf if c.max_grad_norm is None else c.max_grad_norm
        step = np.array([float(self.adam.counted[0]), lr, most, c.adam_eps])
        passes, steps, norm, metrics = self.passes(rows, valid, orders, bounds, step, sample)
        if states:
            policy.shuffle_generator.bit_generator.state = states[passes - 1]
        self.adam.counted[0] += steps
        self.adam.require_finite(norm)
        metrics |= {"grad_norm": norm, "lr": lr}
        self.finish(rows, metrics)
        policy.seconds["backward"] += time.perf_counter() - began
        return Update(None, {f"train/{name}": x for name, x in metrics.items()}, steps=steps)

    def passes(
        self,
        rows: RolloutRows,
        valid: np.ndarray,
        orders: np.ndarray,
        bounds: np.ndarray,
        step: np.ndarray,
        sample: Sample,
    ) -> tuple[int, int, float, dict[str, float]]:
        """Return (passes, steps, gradient norm, metrics) of the compiled call."""
        raise NotImplementedError

    def finish(self, rows: RolloutRows, metrics: dict[str, float]) -> None:
        """Update statistics after the last pass."""

    def inputs(self, obs: Any) -> np.ndarray:
        """Return the first layer's inputs [(T + 1) B, F]."""
        x = flatten(self.space, obs)
        return x.reshape(-1, x.shape[-1]).numpy()


class PPOKernel(CompiledLearner):
    """``PPO.learn`` for networks of linear layers."""

    function = staticmethod(compiled.ppo_passes)

    def __init__(self, policy: PPO) -> None:
        net, torsos = policy.net, [cast("MLP", t.torso) for t in policy.net.trunks]
        super().__init__(policy, torsos[0].space)
        self.ppo, packed = policy, self.packed
        shared = packed.add(torsos[0].layers, -1)
        policy_head = packed.add(net.policy, shared)  # acting computes the layers up to here
        own = shared if len(torsos) == 1 else packed.add(torsos[1].layers, -1)
        self.heads = np.array([policy_head, packed.add(net.value, own)])
        self.sizes = np.array(net.sizes, np.int64)
        self.log_std_at = 0 if net.log_std is None else packed.place(net.log_std)
        self.prepare()

    def passes(
        self,
        rows: RolloutRows,
        valid: np.ndarray,
        orders: np.ndarray,
        bounds: np.ndarray,
        step: np.ndarray,
        sample: Sample,
    ) -> tuple[int, int, float, dict[str, float]]:
        c, policy = self.ppo.config, self.ppo
        obs = rows.obs if policy.net.moments is None else policy.net.moments(rows.obs)
        steps, columns = rows.valid.shape
        limit = math.inf if c.value_clip is None else c.value_clip
        most_kl = math.inf if policy.target_kl is None else policy.target_kl
        loss = np.array([
            policy.clip_at(sample.env_steps), limit, c.value_coef, c.entropy_coef, most_kl,
            c.normalize_advantage,
        ])  # fmt: skip
        metrics = np.zeros(6)
        action = rows.action.reshape(steps * columns, -1).float().numpy()
        passes, count, norm = self.function(
            self.layers, self.packed.eps, self.index, self.state, self.work, self.inputs(obs),
            action, rows.behaviour_log_prob.reshape(-1).numpy(), rows.reward.numpy(),
            tuple(x.numpy() for x in rows.ends), valid, orders, bounds, self.sizes, self.heads,
            self.log_std_at, np.array([c.gamma, c.gae_lambda]), loss, step,
            np.empty((steps, columns), np.float32), np.empty((steps + 1, columns), np.float32),
            metrics,
        )  # fmt: skip
        policy_loss, value_loss, entropy, kl, clipped, self.explained = metrics.tolist()
        total = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
        return passes, count, norm, {
            "loss": total, "policy_loss": policy_loss, "value_loss": value_loss,
            "entropy": entropy, "approx_kl": kl, "clip_fraction": clipped,
        }  # fmt: skip

    def finish(self, rows: RolloutRows, metrics: dict[str, float]) -> None:
        self.ppo.update_obs_moments(rows)
        metrics["explained_variance"] = self.explained


class PQNKernel(CompiledLearner):
    """``PQN.learn`` for networks of linear layers."""

    function = staticmethod(compiled.pqn_passes)

    def __init__(self, policy: PQN) -> None:
        net: QNet = policy.net
        torso = cast("MLP", net.torso)
        super().__init__(policy, torso.space)
        self.pqn, packed = policy, self.packed
        source = packed.add(torso.layers, -1)
        streams = [net.advantage, *([] if net.value is None else [net.value])]
        heads = [packed.add(cast("nn.Sequential", stream), source) for stream in streams]
        self.heads = np.array([*heads, -1][:2])
        self.prepare()

    def passes(
        self,
        rows: RolloutRows,
        valid: np.ndarray,
        orders: np.ndarray,
        bounds: np.ndarray,
        step: np.ndarray,
        sample: Sample,
    ) -> tuple[int, int, float, dict[str, float]]:
        c, metrics = self.pqn.config, np.zeros(4)
        steps, columns = rows.valid.shape
        passes, count, norm = self.function(
            self.layers, self.packed.eps, self.index, self.state, self.work,
            self.inputs(rows.obs), rows.action.reshape(-1).numpy(), rows.reward.numpy(),
            tuple(x.numpy() for x in rows.ends), valid, orders, bounds, self.heads,
            np.array([c.gamma, c.q_lambda]), step, np.empty((steps, columns), np.float32),
            np.empty((steps + 1, columns), np.float32), metrics,
        )  # fmt: skip
        names = "loss", "td_abs", "q_taken", "target"
        found = dict(zip(names, metrics.tolist(), strict=True))
        return passes, count, norm, found | {"valid_fraction": 1.0}
