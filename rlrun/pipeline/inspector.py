"""Sampled windows for TensorBoard: a figure of them, and histograms."""

from typing import Protocol, runtime_checkable

import numpy as np

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.peek import peek
from rlrun.buffer.replay import Replay
from rlrun.log import Log
from rlrun.log.window_figure import WindowFigure, kinds
from rlrun.pipeline.bonus import RND
from rlrun.types import Loss, Sample, Window

DRAWN = 8  # windows in a figure


@runtime_checkable
class InspectedPolicy(Protocol):
    """A policy that computes the loss of a batch row by row."""

    def inspect(self, sample: Sample) -> Loss:
        """The loss with ``td`` and ``q`` of every learned row, without learning."""


class Inspector:
    """Shows a batch of windows at the first evaluation of a process and every ``every`` ones.

    It has random numbers of its own, a function of the env step: a run with it has the digest of
    the one without. A batch costs about the forward pass of an update.
    """

    def __init__(
        self,
        every: int,
        batch: int,
        *,
        policy: InspectedPolicy,
        window: Window,
        buffer: Replay | Mixed,
        bonus: RND | None,
        log: Log,
    ) -> None:
        self.every, self.batch, self.window = every, batch, window
        self.policy, self.buffer, self.bonus, self.log = policy, buffer, bonus, log
        self.evaluations = 0

    def evaluated(self, env_steps: int) -> None:
        """Show a batch if it is time; called after every evaluation."""
        if self.evaluations % self.every == 0 and self.buffer.rows:
            self.show(env_steps)
        self.evaluations += 1

    def show(self, env_steps: int) -> None:
        """Write the figure and the histograms of a batch; nothing where there is no window."""
        found = peek(self.buffer, self.batch, np.random.default_rng(env_steps), env_steps)
        if found is None:
            return
        sample = found.sample
        if self.bonus is not None:
            sample = self.bonus.add_to(sample, record=False)
        loss = self.policy.inspect(sample)
        if loss.td is None or loss.q is None:  # a policy of the user's that does not give them
            return
        td, q = (x.float().numpy(force=True) for x in (loss.td, loss.q))
        td, q = td.reshape(-1, self.batch), q.reshape(-1, self.batch)
        segment = sample.segment
        valid, terminated = (x.numpy(force=True) for x in (segment.valid, segment.terminated))
        kind = kinds(valid, terminated, burnin=self.window.burnin, learned=self.window.learned)
        learned = valid[self.window.burnin : self.window.burnin + self.window.learned]
        fresh = loss.priority.float().numpy(force=True)
        priority = fresh if found.priority is None else found.priority
        self.log.histogram("windows/td_abs", env_steps, td[learned])
        self.log.histogram("windows/q_taken", env_steps, q[learned])
        self.log.histogram(
            "windows/priority", env_steps, fresh if found.stored is None else found.stored
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
