"""Learners: pace updates by collected rows, write priorities back, average metrics.

``Learner`` samples from a replay. ``RolloutLearner`` learns once from every rollout.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlrun.buffer import saved
from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout, Rollouts
from rlrun.errors import NumericError
from rlrun.log import Log
from rlrun.log.window_figure import WindowFigure, kinds
from rlrun.pipeline.bonus import RND
from rlrun.schema import LearnerConfig
from rlrun.types import Counters, Policy, Sample, Update, Window, returned

DRAWN = 8  # windows in a figure


@dataclass(slots=True)
class Inspector:
    """Shows a batch of windows at the first evaluation of a process and at every ``every``-th.

    Its random numbers depend on the env step alone, so it does not change a run's digest. A batch
    costs about the forward pass of one update.
    """

    every: int
    batch: int
    policy: Any  # with ``inspect``
    window: Window
    buffer: Replay | Mixed
    bonus: RND | None
    log: Log
    evaluations: int = 0

    def evaluated(self, env_steps: int) -> None:
        """Show a batch if it is due. Called after every evaluation."""
        if self.evaluations % self.every == 0 and self.buffer.steps:
            self.show(env_steps)
        self.evaluations += 1

    def show(self, env_steps: int) -> None:
        """Write the figure and the histograms of a batch, or nothing if no window is stored."""
        peek = self.buffer.peek(self.batch, np.random.default_rng(env_steps), env_steps)
        if peek is None:
            return
        sample = peek.sample
        if self.bonus is not None:
            sample = self.bonus.add_to(sample, record=False)
        loss = self.policy.inspect(sample)
        if loss.td is None or loss.q is None:  # a user's policy may leave them out
            return
        td, q = (x.float().numpy(force=True) for x in (loss.td, loss.q))
        td, q = td.reshape(-1, self.batch), q.reshape(-1, self.batch)
        segment = sample.segment
        valid, terminated = (x.numpy(force=True) for x in (segment.valid, segment.terminated))
        kind = kinds(valid, terminated, burnin=self.window.burnin, learned=self.window.learned)
        learned = valid[self.window.burnin : self.window.burnin + self.window.learned]
        fresh = loss.priority.float().numpy(force=True)
        priority = fresh if peek.priority is None else peek.priority
        self.log.histogram("windows/td_abs", env_steps, td[learned])
        self.log.histogram("windows/q_taken", env_steps, q[learned])
        self.log.histogram(
            "windows/priority", env_steps, fresh if peek.stored is None else peek.stored
        )
        whole = np.full(kind.shape, np.nan)
        whole[self.window.burnin : self.window.burnin + self.window.learned] = td
        drawn = np.argsort(-priority[:DRAWN], kind="stable")
        figure = WindowFigure(
            kind[:, drawn],
            whole[:, drawn],
            priority[drawn],
            f"{len(drawn)} sampled windows, position ->",
        )
        encoded, height, width = figure.png()
        self.log.image("windows/sampled", env_steps, encoded, height=height, width=width)


DIAGNOSED = 32  # most windows that ``diagnose`` reads together with their past
DIAGNOSED_ROWS = 512  # most rows that it passes through the networks


class Means:
    """Metrics of updates, averaged between two reports."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.sums: Tensor | None = None
        self.names: list[str] = []
        self.names_loaded = False  # True: names of a checkpoint, compared with the next update's
        self.updates = 0

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Add to running sums without reading a tensor (no device synchronisation).

        All updates have the same metrics, not necessarily in the same order: a delayed actor's come
        last.
        """
        if self.sums is None:
            self.names = list(metrics)
        elif self.names_loaded:
            same = set(self.names) == set(metrics)
            saved.require(same, "learner.means.names", "are not those of this policy")
        self.names_loaded = False
        values = [*map(metrics.__getitem__, self.names)]
        self.updates += 1
        sums = self.sums  # in host memory after a resume
        if isinstance(values[0], float):  # of a kernel; numpy's sum costs less than torch's
            numbers = np.array(values, np.float32)
            self.sums = torch.from_numpy(numbers if sums is None else sums.numpy() + numbers)
        else:
            stacked = torch.stack(cast("list[Tensor]", values)).detach()
            self.sums = stacked if sums is None else sums.to(stacked.device) + stacked

    def require_finite(self) -> None:
        """Raise NumericError unless all sums are finite."""
        if self.sums is not None and not bool(self.sums.isfinite().all()):
            self.report()

    def report(self) -> dict[str, float]:
        """Return train/ metrics: means over the updates since the last call.

        Raises: NumericError if one of them is NaN or infinite.
        """
        if self.sums is None:
            return {}
        means = (self.sums / self.updates).tolist()
        self.sums, self.updates = None, 0
        out = dict(zip(self.names, means, strict=True))
        for name, value in out.items():
            if not math.isfinite(value):
                raise NumericError(
                    f"{name} = {value} after {self.counters.updates} updates: the loss diverged; "
                    "it must stay finite; lower policy.lr or set policy.max_grad_norm"
                )
        return out | {"train/updates": float(self.counters.updates)}

    def state_dict(self) -> dict[str, Any]:
        return {"names": self.names, "sums": self.sums, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = [str(name) for name in state["names"]]
        self.names_loaded = True
        self.updates = saved.integer("learner.means.updates", state["updates"], 0, saved.MOST_ROWS)
        self.sums = state["sums"]
        if self.sums is not None:
            good = isinstance(self.sums, Tensor) and self.sums.shape == (len(self.names),)
            saved.require(good, "learner.means.sums", f"are not of {len(self.names)} metrics")
            saved.require(self.updates > 0, "learner.means.updates", "is 0, but there are sums")


@dataclass(kw_only=True, eq=False)
class _Updates:
    """Base class of the learners: the update of a sample, and the metrics and seconds of all."""

    config: LearnerConfig = field(kw_only=False)
    policy: Policy
    counters: Counters
    bonus: RND | None = None  # added to the rewards of all samples

    def __post_init__(self) -> None:
        self.means = Means(self.counters)
        self.seconds = {"sample": 0.0, "update": 0.0, "prioritize": 0.0}

    def update(self, sample: Sample) -> Update:
        """Learn from a sample."""
        start = time.perf_counter()
        if self.bonus is not None:
            sample = self.bonus.add_to(sample)
        update: Update = returned(self.policy.update(sample), Update, "update()")
        self.counters.updates += update.steps
        self.means.add(update.metrics)
        self.seconds["update"] += time.perf_counter() - start
        return update


@dataclass(kw_only=True, eq=False)
class Learner(_Updates):
    """Learns ``update_per_collect`` times per chunk, or ``replay_ratio`` rows per row."""

    buffer: Replay | Mixed
    td_priority: bool  # new windows get the policy's TD error as priority
    inspector: Inspector | None = None  # shows some samples in TensorBoard
    credit: float = 0.0  # rows to be learned by the next updates
    rows_collected: int = 0  # since the last ``metrics``

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.policy.window is not None
        # Padding included.
        self.rows_per_update = self.config.batch_size * self.policy.window.learned

    def step(self, rows: int, keys: np.ndarray) -> int:
        """Learn after ``rows`` new valid rows and windows ``keys``. Return how many updates."""
        self.rows_collected += rows
        if self.td_priority and len(keys):
            new = self.buffer.get(keys, self.counters.env_steps)
            new = new if self.bonus is None else self.bonus.add_to(new)
            self.buffer.prioritize(keys, self.policy.priority(new))
        if self.buffer.steps < self.config.learning_starts or not len(self.buffer):
            return 0
        updates = self.config.update_per_collect
        if updates is None:  # those that learn ``replay_ratio`` rows per new row
            assert self.config.replay_ratio is not None  # LearnerConfig: exactly one is set
            self.credit += rows * self.config.replay_ratio
            updates = int(self.credit // self.rows_per_update)
            self.credit -= updates * self.rows_per_update
        for _ in range(updates):
            start = time.perf_counter()
            sample = self.buffer.sample(self.config.batch_size, self.counters.env_steps)
            self.seconds["sample"] += time.perf_counter() - start
            update = self.update(sample)
            start = time.perf_counter()
            if update.priority is not None:
                self.buffer.prioritize(sample.key, update.priority)
            self.seconds["prioritize"] += time.perf_counter() - start
        return updates

    def metrics(self) -> dict[str, float]:
        """Return means of train/ metrics since the last call, the replay ratio, buffer/ metrics."""
        updates, rows = self.means.updates, self.rows_collected
        metrics, self.rows_collected = self.means.report(), 0
        if rows and self.counters.updates:  # offline no rows are collected
            metrics["train/replay_ratio"] = updates * self.rows_per_update / rows
        return metrics | self.buffer.metrics(self.counters.env_steps)

    def diagnose(self) -> dict[str, float]:
        """Return train/ metrics that are too slow to compute for every record.

        Called at every evaluation. The windows depend on the clock alone, so no random stream
        changes. Then shows sampled windows.
        """
        if self.inspector is not None:
            self.inspector.evaluated(self.counters.env_steps)
        if not len(self.buffer):
            return {}
        generator = np.random.default_rng(self.counters.env_steps)
        policy: Any = self.policy
        metrics: dict[str, Tensor] = {}
        if hasattr(policy, "delta_q"):  # on windows whose whole past is stored
            windows, history = self.buffer.histories(DIAGNOSED, generator)
            if windows.valid.shape[1]:
                metrics |= policy.delta_q(windows.to(policy.device), history.to(policy.device))
        if hasattr(policy, "network_health"):
            count = max(1, DIAGNOSED_ROWS // policy.window.rows)
            windows = self.buffer.random_windows(count, generator)
            if windows.valid.shape[1]:
                metrics |= policy.network_health(windows.to(policy.device))
        return {name: value.item() for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "credit": self.credit,
            "rows_collected": self.rows_collected,
            "means": self.means.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        most = max(self.rows_per_update, saved.MOST_CREDIT)
        self.credit = saved.number("learner.credit", state["credit"], 0, most)
        rows, most = state["rows_collected"], saved.MOST_ROWS
        self.rows_collected = saved.integer("learner.rows_collected", rows, 0, most)
        self.means.load_state_dict(state["means"])


@dataclass(kw_only=True, eq=False)
class RolloutLearner(_Updates):
    """Learns once from every rollout, as soon as it is collected."""

    buffer: Rollout | Rollouts

    def step(self, rows: int, keys: np.ndarray) -> int:
        """Learn from all stored rows and drop them. Return the number of gradient steps.

        Rollouts before ``learning_starts`` env steps are dropped without learning.
        """
        start = time.perf_counter()
        sample = self.buffer.take(self.counters.env_steps)
        if self.counters.env_steps < self.config.learning_starts:
            return 0
        self.seconds["sample"] += time.perf_counter() - start
        return self.update(sample).steps

    def metrics(self) -> dict[str, float]:
        """Return train/ metrics averaged over the updates since the last call."""
        return self.means.report()

    def diagnose(self) -> dict[str, float]:
        """Return no metrics: recurrent states are exact at the start of rollouts."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"means": self.means.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means.load_state_dict(state["means"])
