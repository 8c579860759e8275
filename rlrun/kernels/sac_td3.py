"""Updates of plain actors and critics in numpy: what SAC, TD3 and DDPG do with single rows.

An update of 256 rows through nets of 256 x 256 units is products for two thirds of its time; the
rest is torch's calls and autograd's bookkeeping, most of which numpy does without. The numbers are
those of ``SAC.loss`` and its kin to 1e-5.

Neither half of an update, the critics' and the actor's, waits for the other: both see the weights
from before it. ``Compute.run_in_thread`` may have a second thread do the actor's, and before it
what the critics say of the actions taken; no bit depends on it.
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
from rlrun.types import Sample, Update, Window

T = TypeVar("T")


class RowBatch(NamedTuple):
    """What a batch of single rows brings, [N, ...]."""

    here: np.ndarray  # features of the row
    there: np.ndarray  # of the row its target bootstraps from
    taken: np.ndarray  # unit actions
    reward: np.ndarray
    discount: np.ndarray
    valid: np.ndarray
    share: np.ndarray  # weight / N, 0 where not valid

    def mean(self, x: np.ndarray) -> float:
        """Of ``x`` [N] over valid rows, 0 where there is none."""
        return float(np.where(self.valid, x, np.float32(0)).sum() / max(self.valid.sum(), 1))


class ActorUpdate(NamedTuple):
    """Of the actor's half of an update."""

    least: np.ndarray  # min Q [N]
    seconds: float  # its slopes took


class ContinuousKernel:
    """The parts that updates of SAC, TD3 and DDPG are made of."""

    def __init__(self, pair: ActorCritics, compute: Compute, judges: int | None) -> None:
        """``judges``: how many critics the actor listens to, None: to all."""
        self.pair, self.config, self.window = pair, pair.config, Window(*pair.config.window)
        self.compute = compute
        self.of_actor, self.of_critics = _like(pair.pi), _like(pair.q)
        places = zip(pair.pi.params, self.of_actor, strict=True)
        self.pi = DifferentiableMLP(pair.pi.net.head, {p.data_ptr(): s.numpy() for p, s in places})
        self.behind = DifferentiableMLP(pair.pi.target.head, None)
        self.q, self.lagging = (
            NumpyCritics(pair.q.net, self.of_critics),
            NumpyCritics(pair.q.target),
        )
        self.judges = NumpyCritics(
            pair.q.net, count=judges
        )  # the same weights, for the actor's half
        self.size = pair.bounds.size

    def rows(self, sample: Sample) -> RowBatch:
        """Of a sample on the CPU."""
        segment = sample.segment
        view, n, taken = prepare_windows(
            segment, self.pair.bounds, self.window, self.config, memory=False
        )
        here, there = (x[0].numpy() for x in view.both(self.pair.pi.net.encoder, None))
        valid = segment.valid[0].numpy()
        share = sample.weight.numpy() * valid / np.float32(len(valid))
        action, reward, discount = (x[0].numpy() for x in (taken, n.reward, n.discount))
        return RowBatch(here, there, action, reward, discount, valid, share)

    def noise(self, number: int, count: int) -> np.ndarray:
        """[count, A] standard normal; see ``control.Noise``."""
        return self.pair.noise(number, 1, count, self.size)[0].numpy()

    def ahead(self, rows: RowBatch, action: np.ndarray) -> np.ndarray:
        """[N]: the target critics' least value of ``action`` in the rows behind."""
        least: np.ndarray = self.lagging(np.concatenate([rows.there, action], 1)).min(0)
        return least

    def taken(self, rows: RowBatch) -> np.ndarray:
        """[C, N]: what the critics say of the actions taken."""
        return self.q(np.concatenate([rows.here, rows.taken], 1))

    def critics(
        self, rows: RowBatch, q: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, dict[str, float]]:
        """|delta| [N], and the metrics; the slopes over the critics' parameters are in place.

        ``q``: of ``taken``; ``value`` [N]: of the rows behind. See ``continuous.critic_loss``.
        """
        alive, clip = rows.discount > 0, self.config.td_clip
        target = rows.reward + np.where(alive, rows.discount * value, np.float32(0))
        delta = np.where(rows.valid, target - q, np.float32(0))
        within = delta if clip is None else np.clip(delta, -clip, clip)
        began = time.perf_counter()
        self.q.back(within * -rows.share)
        self.pair.seconds["backward"] += time.perf_counter() - began
        loss = (rows.share * (within * (delta - np.float32(0.5) * within))).sum()
        surprise = np.abs(delta).mean(0)
        told = (rows.mean(x) for x in (surprise, q.mean(0), target))
        names = ("train/loss", "train/td_abs", "train/q_taken", "train/target")
        metrics = dict(zip(names, (float(loss), *told), strict=True))
        return surprise, metrics | {"train/valid_fraction": float(rows.valid.mean())}

    def actor(
        self, rows: RowBatch, action: np.ndarray, over: Callable[[np.ndarray], np.ndarray]
    ) -> ActorUpdate:
        """The judges' least value; the slopes over the actor's parameters are in place.

        ``over``: the slope [N, A] of -min Q over ``action`` -> that of the loss over what the
        actor's last layer gave. Where critics agree, each has its part, as in torch.
        """
        q = self.judges(np.concatenate([rows.here, action], 1))
        least: np.ndarray = q.min(0)
        chosen = (q == least).astype(np.float32)
        slope = chosen * (-rows.share / chosen.sum(0))
        began = time.perf_counter()
        self.pi.back(over(self.judges.over_action(slope, self.size)), inputs=False)
        return ActorUpdate(least, time.perf_counter() - began)

    def beside(self, function: Callable[[], T]) -> Callable[[], T]:
        """See ``Compute.run_in_thread``."""
        return self.compute.run_in_thread(IGNORE_OVERFLOW(function))

    def waited(self, half: Callable[[], ActorUpdate]) -> ActorUpdate:
        """The actor's half, when it is done."""
        began = time.perf_counter()
        done = half()
        waited = time.perf_counter() - began
        self.pair.seconds["backward"] += waited if self.compute.target_thread else done.seconds
        return done

    def move(self, sample: Sample, metrics: dict[str, float], *, actor: bool) -> dict[str, Tensor]:
        """Both networks along the slopes in place; all metrics."""
        told = torch.tensor(list(metrics.values()), dtype=torch.float32).unbind()
        of_actor = self.of_actor if actor else None
        named = dict(zip(metrics, told, strict=True))
        return self.pair.apply_gradients(self.of_critics, of_actor, named, sample.env_steps)


class SACKernel(ContinuousKernel):
    """One step of critics, actor and temperature; stands in for ``SAC.update``."""

    def __init__(
        self,
        pair: ActorCritics,
        compute: Compute,
        temperature: LagrangeMultiplier,
        target_entropy: float,
    ) -> None:
        super().__init__(pair, compute, None)
        self.temperature, self.target_entropy = temperature, target_entropy
        assert isinstance(pair.config, SACConfig)
        self.adapts = pair.config.temperature_auto

    @torch.no_grad()
    @IGNORE_OVERFLOW
    def __call__(self, sample: Sample) -> Update:
        """See ``SAC.update``; targets stay."""
        rows, number, due = self.rows(sample), 2 * self.pair.q.updates, self.pair.actor_due()
        count, temperature = len(rows.share), np.float32(self.temperature.value().item())
        taken = self.beside(lambda: self.taken(rows))
        drawn = squashed(
            self.pi(np.concatenate([rows.here, rows.there])),
            np.concatenate([self.noise(number, count), self.noise(number + 1, count)]),
        )
        action, log_prob = drawn.action[:count], drawn.log_prob[:count]

        def over(over_action: np.ndarray) -> np.ndarray:
            return squashed_grad(drawn, over_action, temperature * rows.share)

        half = self.beside(lambda: self.actor(rows, action, over)) if due else None
        ahead = self.ahead(rows, drawn.action[count:])
        value = ahead - temperature * drawn.log_prob[count:]
        surprise, metrics = self.critics(rows, taken(), value)
        metrics["train/temperature"] = float(temperature)
        lr = self.pair.lr_at(sample.env_steps)
        if half is not None:
            loss = (rows.share * (temperature * log_prob - self.waited(half).least)).sum()
            metrics["train/actor_loss"] = float(loss)
            metrics["train/entropy"] = rows.mean(-log_prob)
        told = self.move(sample, metrics, actor=due)
        if due and self.adapts:
            surplus = (rows.share * (-log_prob - np.float32(self.target_entropy))).sum()
            self.temperature.apply_gradient(torch.as_tensor(temperature * surplus), lr)
        return Update(torch.from_numpy(surprise), told)


class TD3Kernel(ContinuousKernel):
    """One step of critics and actor; stands in for ``TD3.update`` and ``DDPG.update``."""

    def __init__(self, pair: ActorCritics, compute: Compute) -> None:
        super().__init__(pair, compute, 1)

    @torch.no_grad()
    @IGNORE_OVERFLOW
    def __call__(self, sample: Sample) -> Update:
        """See ``TD3.update``; targets stay."""
        rows, due = self.rows(sample), self.pair.actor_due()
        taken = self.beside(lambda: self.taken(rows))
        half = self.beside(lambda: self.chosen(rows)) if due else None
        action = np.tanh(self.behind(rows.there))
        if isinstance(self.config, TD3Config):
            sigma, clip = self.config.smoothing, self.config.smoothing_clip
            noise = np.float32(sigma) * self.noise(self.pair.q.updates, len(action))
            action = (action + noise.clip(-clip, clip)).clip(-1, 1)
        ahead = self.ahead(rows, action)
        surprise, metrics = self.critics(rows, taken(), ahead)
        if half is not None:
            metrics["train/actor_loss"] = float(-(rows.share * self.waited(half).least).sum())
        return Update(torch.from_numpy(surprise), self.move(sample, metrics, actor=due))

    def chosen(self, rows: RowBatch) -> ActorUpdate:
        """The actor's half."""
        action = np.tanh(self.pi(rows.here))
        return self.actor(rows, action, lambda over: over * (np.float32(1) - action * action))


def supports(pair: ActorCritics, compute: Compute, memory: MemoryConfig) -> bool:
    """Whether these updates compute what the config asks for: single rows, linear layers."""
    plain = isinstance(pair.pi.net.encoder.torso, FlatObs) and memory.name == "none"
    single = pair.config.window[:2] == (0, 1) and not pair.config.prev_inputs
    return plain and single and pair.device.type == "cpu" and compute.precision == "float32"


def _like(side: OnlineTarget[ActorNet] | OnlineTarget[Critics]) -> list[Tensor]:
    return [torch.zeros_like(p, requires_grad=False) for p in side.params]
