"""Where the time of a run goes: torch's profiler over some updates, and the sums of all parts."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

PARTS = (  # in the order of the loop; those indented are part of the one before
    "collect", " act", " env", "add", "sample", "update", " forward", " backward", " optimiser",
    "prioritize", "eval", "log", "checkpoint",
)  # fmt: skip
OPS = 12  # lines of the table of operators


class Profiler:
    """Records ``updates`` updates and what is collected between them, once learning has begun.

    The trace lies in ``directory`` as TensorBoard's profiler plugin (torch-tb-profiler) and
    Perfetto read it: ``profile.pt.trace.json``. What is recorded runs slower.
    """

    def __init__(self, directory: Path, updates: int) -> None:
        self.directory, self.updates = directory, updates
        self.begun: int | None = None
        self.table: str | None = None
        self.torch: profile | None = None
        self.seconds = 0.0  # spent on writing the trace

    def step(self, updates: int) -> None:
        """To be called between chunks; ``updates`` done so far."""
        if self.table is not None or updates == 0:
            return
        if self.torch is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self.torch = profile(activities=activities, acc_events=True)
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self.torch.start()
            self.begun = updates
        elif self.begun is not None and updates - self.begun >= self.updates:
            self.stop()

    def stop(self) -> None:
        """Write the trace; harmless when nothing was recorded."""
        if self.torch is None or self.table is not None:
            return
        began = time.perf_counter()
        self.torch.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.torch.export_chrome_trace(str(self.directory / "profile.pt.trace.json"))
        averages = self.torch.key_averages()
        self.table = averages.table(sort_by="self_cpu_time_total", row_limit=OPS)
        self.seconds += time.perf_counter() - began


def shares(seconds: Mapping[str, float], wall: float) -> list[str]:
    """Lines that say what share of ``wall`` seconds each part took."""
    lines = ["part          seconds   share"]
    for part in PARTS:
        spent = seconds.get(part.strip())
        if spent is not None:
            lines.append(f"{part:12s} {spent:8.2f}  {spent / max(wall, 1e-9):6.1%}")
    told = sum(seconds.get(p, 0.0) for p in PARTS if not p.startswith(" "))
    rest = max(0.0, wall - told)
    return [*lines, f"{'other':12s} {rest:8.2f}  {rest / max(wall, 1e-9):6.1%}"]
