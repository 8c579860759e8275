"""The training loop: collect, store, learn, log, evaluate, save.

All pipelines run this loop. They differ in the source of chunks (``rlrun.pipeline.source``): serial
collects with the present weights, overlapped with the weights from before the last chunk was
learned, Ray with several collectors, and offline does not collect. The loop calls ``report``,
``evaluations``, ``saving`` and ``faults`` (``rlrun.pipeline.parts``).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.pipeline.collector import ChunkInterrupted
from rlrun.pipeline.parts import Faults, LoopEvaluations, LoopReport, Parts, Saving
from rlrun.pipeline.stop import StopRequest
from rlrun.schema import RunConfig

_NO_WINDOWS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run.

    ``stopped`` is the exit code of the signal that ended the run, or None if it was not stopped.
    """

    final: dict[str, float] | None  # summary of the final weights; None: not evaluated
    best: dict[str, float] | None
    stopped: int | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The training loop and the parts that it calls."""

    config: RunConfig
    parts: Parts
    report: LoopReport
    evaluations: LoopEvaluations
    saving: Saving
    faults: Faults

    def run(self, stop: StopRequest) -> Result:
        """Run until total_steps, stop_return or ``stop``, then save the last state.

        Raises: EnvError, NumericError. The state before the fault is saved if it is finite.
        """
        self.parts.source.stop_when(stop)
        done = False
        while not done:
            try:
                if self.evaluations.pending:
                    self.evaluations.evaluate(stop)
                    self.saving.save()  # else a second resume would evaluate again
                self._train(stop)
                while not stop() and not self.evaluations.current:
                    self.evaluations.evaluate(stop)
                    self._train(stop)  # goes on if the last weights do not reach stop_return
                self.saving.finish()
                self.report.finish()
                done = True
            except (Exception, SystemExit) as e:
                self.faults.handle(e)  # raises, unless an earlier state was loaded
        last = self.evaluations.last if self.evaluations.current else None
        return Result(last, self.evaluations.best, stop.code)

    def _train(self, stop: StopRequest) -> None:
        """Collect and learn until total_steps, stop_return or ``stop``."""
        source, progress = self.parts.source, self.parts.progress
        counters = progress.counters
        while counters.env_steps < self.config.total_steps and not stop():
            if self.evaluations.solved:
                break
            before = counters.env_steps
            progress.phase, progress.unsaved = source.phase, True
            try:
                with progress.part("collect"):
                    chunk = source.next_chunk()
            except ChunkInterrupted:  # by ``stop``; the rows so far are part of the state
                break
            self.learn(chunk, before)
            self.report.after_chunk(before)
            self.evaluations.after_chunk(before, stop)
            self.saving.after_chunk(before)

    def learn(self, chunk: Any, before: int) -> None:
        """Store ``chunk``, collected since env step ``before``, and do the updates due for it."""
        p, progress, keys = self.parts, self.parts.progress, _NO_WINDOWS
        env_steps = progress.counters.env_steps
        if chunk is not None and p.buffer is not None:
            with progress.part("add"):
                keys = p.buffer.add(chunk)
        if chunk is not None and p.bonus is not None:
            with progress.part("bonus"):
                p.bonus.observe(chunk)
        progress.phase = "learn"
        if p.learner is not None:
            p.source.after_updates(p.learner.step(env_steps - before, keys))
        if p.bonus is not None:  # after the policy, so that its bonus counts the chunk as new
            with progress.part("bonus"):
                p.bonus.update(progress.counters.env_steps)

    def pulse(self) -> tuple[str, Any]:
        """Return the phase of the loop and numbers that change with its progress."""
        p, counters = self.parts, self.parts.progress.counters
        moved = p.source.pulse, counters.env_steps, counters.updates, p.evaluator.steps
        return p.progress.phase, moved

    def close(self) -> None:
        """Close all environments and wait until the last checkpoint is durable."""
        self.parts.source.close()
        self.parts.evaluator.close()
        self.saving.close()
