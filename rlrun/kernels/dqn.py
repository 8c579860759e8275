"""DQN's update of a plain network in numpy: no operation of torch but n-step returns and Adam's.

An update of 64 rows through 256 x 256 units is half products, half the cost of calling some eighty
operations of torch; numpy's calls cost a third. The numbers are those of ``DQN.loss`` to 1e-5.
"""

import time

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.returns import NStep, nstep_return
from rlrun.functional.rows import shape_reward
from rlrun.functional.value import td_target
from rlrun.kernels.mlp import IGNORE_OVERFLOW, DifferentiableMLP
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, flatten
from rlrun.optim.autograd import LinearQ, QFunction
from rlrun.optim.target import ScheduledOnlineTarget
from rlrun.schema import DQNConfig
from rlrun.types import Sample, Segment, Update, tree_map

METRICS = ("loss", "td_abs", "q_taken", "target", "valid_fraction", "grad_norm", "lr")


class NumpyQNet:
    """Action values of rows; ``places``: where slopes belong, None: nothing is kept for them."""

    def __init__(self, net: QNet, places: dict[int, np.ndarray] | None = None) -> None:
        assert isinstance(net.torso, MLP)
        assert isinstance(net.advantage, nn.Sequential)
        self.torso, self.advantage = (
            DifferentiableMLP(net.torso.layers, places),
            DifferentiableMLP(net.advantage, places),
        )
        self.value = (
            DifferentiableMLP(net.value, places) if isinstance(net.value, nn.Sequential) else None
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[B, F] -> [B, A]."""
        h = self.torso(x)
        q = self.advantage(h)
        if self.value is not None:
            q -= q.mean(1, keepdims=True)
            q += self.value(h)
        return q

    def back(self, slope: np.ndarray) -> None:
        """The slopes over the parameters, of that [B, A] over the last values, to their places."""
        deep = bool(self.torso.layers)
        if self.value is None:
            h = self.advantage.back(slope, inputs=deep)
        else:
            total = slope.sum(1, keepdims=True)
            h = self.value.back(total, inputs=deep)
            h = h + self.advantage.back(slope - total / np.float32(slope.shape[1]), inputs=deep)
        if deep:
            self.torso.back(h, inputs=False)


class DQNKernel:
    """One gradient step; stands in for ``DQN.update`` where ``fits`` says so."""

    def __init__(
        self,
        config: DQNConfig,
        pair: ScheduledOnlineTarget[QNet],
        online: LinearQ,
        lagging: LinearQ,
    ) -> None:
        self.config, self.pair, self.space = config, pair, online.space
        parts = zip(pair.net.parameters(), online.flat.grad_views, strict=True)
        self.online = NumpyQNet(pair.net, {p.data_ptr(): s.numpy() for p, s in parts})
        self.select, self.lagging = NumpyQNet(pair.net), NumpyQNet(pair.target)
        self.slopes = online.flat.grads
        self.row = np.arange(0)

    @torch.no_grad()
    @IGNORE_OVERFLOW
    def __call__(self, sample: Sample) -> Update:
        """See ``DQN.update``."""
        c, segment, pair = self.config, sample.segment, self.pair
        ends = (segment.terminated, segment.truncated, segment.valid)
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        now, ahead = self.inputs(segment, n)
        if len(self.row) != len(now):
            self.row = np.arange(len(now))
        row, action, valid = self.row, segment.action[0].numpy(), segment.valid[0].numpy()

        said, later = self.online(now), self.lagging(ahead)
        best = (self.select(ahead) if c.double else later).argmax(1)
        bootstrap = torch.from_numpy(later[row, best])
        eps = c.value_rescale_eps
        target = td_target(n.reward[0], n.discount[0], bootstrap, rescale_eps=eps).numpy()
        taken = said[row, action]
        delta = np.where(valid, target - taken, np.float32(0))
        within = delta if c.td_clip is None else np.clip(delta, -c.td_clip, c.td_clip)
        share = sample.weight.numpy() / np.float32(len(row))
        weighed = within * share

        began = time.perf_counter()
        slope = np.zeros_like(said)
        slope[row, action] = -weighed
        self.online.back(slope)
        backward = time.perf_counter()
        lr = pair.lr_at(sample.env_steps)
        norm = pair.adam.numpy_step(self.slopes, lr)
        pair.finish_update()
        pair.seconds["backward"] += backward - began
        pair.seconds["optimiser"] += time.perf_counter() - backward

        surprise, count = np.abs(delta), len(row)
        loss = np.dot(weighed, delta - np.float32(0.5) * within)
        sums = (surprise.sum(), taken.sum(), target.sum(), np.count_nonzero(valid))
        told = np.array((loss, *(x / count for x in sums), norm, lr), np.float32)
        values = torch.from_numpy(told).unbind()
        metrics = {f"train/{name}": x for name, x in zip(METRICS, values, strict=True)}
        return Update(torch.from_numpy(surprise), metrics)

    def inputs(self, segment: Segment, n: NStep) -> tuple[np.ndarray, np.ndarray]:
        """float32 [B, F] of row 0 and of the row it bootstraps from, zeros behind a termination."""
        later, alive = n.steps[0], n.discount[0].numpy() > 0

        def at(x: Tensor) -> Tensor:
            return x[1] if self.config.nstep == 1 else x[later, torch.arange(len(later))]

        now = flatten(self.space, tree_map(lambda x: x[0], segment.obs))
        ahead = flatten(self.space, tree_map(at, segment.obs))
        return now.numpy(), np.where(alive[:, None], ahead.numpy(), np.float32(0))


def make_dqn_kernel(
    config: DQNConfig,
    pair: ScheduledOnlineTarget[QNet],
    online: QFunction,
    lagging: QFunction,
    *,
    masked: bool,
) -> DQNKernel | None:
    """One, where it computes what the config asks for."""
    switched = config.distribution != "none" or config.munchausen is not None
    if switched or masked or config.prev_inputs:
        return None
    if not (isinstance(online, LinearQ) and isinstance(lagging, LinearQ)):
        return None
    return DQNKernel(config, pair, online, lagging)
