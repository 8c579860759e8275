"""The training loop: collect, store, learn, log, evaluate, save.

All pipelines run it. They differ in where chunks come from (``rlrun.pipeline.source``): serial acts
with the present weights; overlapped with those of before the last chunk was learned from; on Ray
several collectors do; offline has none. Beside the loop stand ``report``, ``evaluations``,
``saving`` and ``faults`` (``rlrun.pipeline.parts``).
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
    """End of a run. ``stopped``: exit code of the signal that ended it, None: it is done."""

    final: dict[str, float] | None  # summary of the final weights, where they were evaluated
    best: dict[str, float] | None
    stopped: int | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of a run, and the loop over them."""

    config: RunConfig
    parts: Parts
    report: LoopReport
    evaluations: LoopEvaluations
    saving: Saving
    faults: Faults

    def run(self, stop: StopRequest) -> Result:
        """Run until total_steps, stop_return or ``stop``; the last state is always saved.

        Raises: EnvError, NumericError: the state before the fault is saved where it is finite.
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
                    self._train(stop)  # where older weights had solved it, and these have not
                self.saving.finish()
                self.report.finish()
                done = True
            except Exception as e:
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
            except ChunkInterrupted:  # ``stop``: its rows so far are part of the state
                break
            self.learn(chunk, before)
            self.report.after_chunk(before)
            self.evaluations.after_chunk(before, stop)
            self.saving.after_chunk(before)

    def learn(self, chunk: Any, before: int) -> None:
        """Store the rows that came after env step ``before``, and learn what they pay for."""
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
        if p.bonus is not None:  # after the policy, for which the chunk was still new
            with progress.part("bonus"):
                p.bonus.update(progress.counters.env_steps)

    def pulse(self) -> tuple[str, Any]:
        """Return the phase of the loop and numbers that change as long as it moves."""
        p, counters = self.parts, self.parts.progress.counters
        moved = p.source.pulse, counters.env_steps, counters.updates, p.evaluator.steps
        return p.progress.phase, moved

    def close(self) -> None:
        """Close all environments; the last checkpoint is durable then."""
        self.parts.source.close()
        self.parts.evaluator.close()
        self.saving.files.close()
