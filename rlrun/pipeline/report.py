"""Log of the loop: metrics, the seconds of its parts, the line in the terminal, a profile."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from rlrun.pipeline.parts import Parts
from rlrun.pipeline.saving import Saving

PARTS = (  # in the order of the loop; those indented are part of the one before
    "collect", " act", " env", "add", "sample", "update", " forward", " backward", " optimiser",
    "prioritize", "eval", "log", "checkpoint",
)  # fmt: skip
OPS = 12  # lines of the table of operators


class Profiler:
    """Record ``updates`` updates and the collecting between them, once learning has begun.

    The trace is written to ``directory/profile.pt.trace.json``, for Perfetto and TensorBoard's
    profiler plugin (torch-tb-profiler). Recorded updates run slower.
    """

    def __init__(self, directory: Path, updates: int) -> None:
        self.directory, self.updates = directory, updates
        self.first_update: int | None = None
        self.table: str | None = None
        self.torch: profile | None = None
        self.seconds = 0.0  # to write the trace

    def step(self, updates: int) -> None:
        """Start or stop recording; called between chunks with the updates done so far."""
        if self.table is not None or updates == 0:
            return
        if self.torch is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self.torch = profile(activities=activities, acc_events=True)
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self.torch.start()
            self.first_update = updates
        elif self.first_update is not None and updates - self.first_update >= self.updates:
            self.stop()

    def stop(self) -> None:
        """Write the trace, if something was recorded."""
        if self.torch is None or self.table is not None:
            return
        began = time.perf_counter()
        self.torch.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.torch.export_chrome_trace(str(self.directory / "profile.pt.trace.json"))
        averages = self.torch.key_averages()
        self.table = averages.table(sort_by="self_cpu_time_total", row_limit=OPS)
        self.seconds += time.perf_counter() - began


def time_table(seconds: Mapping[str, float], wall: float) -> list[str]:
    """Return lines with the seconds of each part and their share of ``wall`` seconds."""
    lines = ["part          seconds   share"]
    for part in PARTS:
        took = seconds.get(part.strip())
        if took is not None:
            lines.append(f"{part:12s} {took:8.2f}  {took / max(wall, 1e-9):6.1%}")
    listed = sum(seconds.get(p, 0.0) for p in PARTS if not p.startswith(" "))
    rest = max(0.0, wall - listed)
    return [*lines, f"{'other':12s} {rest:8.2f}  {rest / max(wall, 1e-9):6.1%}"]


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
