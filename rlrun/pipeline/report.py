"""What the loop logs: metrics, the seconds of its parts, the line in the terminal."""

from dataclasses import dataclass

from rlrun.pipeline.parts import Parts
from rlrun.pipeline.profile import Profiler
from rlrun.pipeline.saving import Saving

_SHOWN = {"collect/return_mean": "return", "collect/epsilon_mean": "epsilon"}  # in the terminal


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Writes a record every ``every`` env steps."""

    every: int  # logger.every
    parts: Parts
    saving: Saving
    profiler: Profiler | None

    def after_chunk(self, before: int) -> None:
        """Show the counters; write a record if one is due since env step ``before``."""
        counters = self.parts.progress.counters
        self.parts.log.progress(counters.env_steps, counters.updates)
        if self.profiler is not None:
            self.profiler.step(counters.updates)
        if self.parts.progress.due(self.every, before):
            self._write()

    def _write(self) -> None:
        p, counters = self.parts, self.parts.progress.counters
        with p.progress.part("log"):
            metrics = p.source.metrics()
            if p.buffer is not None and p.learner is not None:
                metrics |= p.learner.metrics() | p.buffer.metrics(counters.env_steps)
            if p.bonus is not None:
                metrics |= p.bonus.metrics()
            p.log.write(counters.env_steps, metrics)
            shown = {short: metrics[name] for name, short in _SHOWN.items() if name in metrics}
            p.log.progress(counters.env_steps, counters.updates, **shown)
        seconds = {f"time/{name}_seconds": value for name, value in self.elapsed().items()}
        p.log.write_timings(counters.env_steps, seconds | self._codec_metrics())

    def _codec_metrics(self) -> dict[str, float]:
        """codec/ metrics, logged with ``time/``: a run has the same digest whether coded or not."""
        buffer = self.parts.buffer
        stored = buffer.codec_metrics() if buffer is not None else {}
        sent = self.parts.source.transport_metrics()
        return sent | stored | self.saving.files.codec_metrics()

    def elapsed(self) -> dict[str, float]:
        """Seconds of each part since this process began.

        act and env are part of collect; forward, backward and optimiser of update.
        """
        p = self.parts
        seconds = p.progress.seconds | p.source.seconds
        if p.learner is not None:
            inside = p.policy.seconds
            seconds |= p.learner.seconds | inside
            seconds["forward"] = max(0.0, seconds["update"] - sum(inside.values()))
        return seconds

    def finish(self) -> None:
        """Write the trace of the profiler."""
        if self.profiler is not None:
            self.profiler.stop()
