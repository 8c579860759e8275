"""Costs of the roles of a Ray run: the file, and what a run of any size spends."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROCESSES = {  # of a run -> its costs a chunk, its costs an update
    "driver": (("driver_threads",), ()),
    "shards": (
        ("shard_add", "ray_add"), ("shard_sample", "shard_prioritize", "ray_send"),
    ),
    "learner": ((), ("update", "ray_receive", "ray_priorities")),
    "feeders": (("ray_collect",), ()),
}  # fmt: skip


@dataclass
class Costs:
    """Measured costs by workload, name and size (streams, collectors; 0: no size)."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, workload: str, name: str, unit: str, values: Sequence[float], size: int = 0
    ) -> None:
        """Add repeated measurements of one cost."""
        self.rows.append({
            "workload": workload, "name": name, "size": size, "unit": unit,
            "median": statistics.median(values), "min": min(values), "max": max(values),
            "repeats": len(values),
        })  # fmt: skip

    def median(self, workload: str, name: str, size: int = 0) -> float:
        """The median of a cost that was added."""
        found = [r for r in self.rows if (r["workload"], r["name"], r["size"]) ==
                 (workload, name, size)]  # fmt: skip
        return float(found[-1]["median"])


def read(path: Path) -> Costs:
    """The costs of a file of ``ray_costs``."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Costs([line for line in lines if "name" in line])


class Table:
    """Costs of one workload; of those that depend on a size, lines between the measured sizes.

    Each is multiplied by what its process spends in a run of the small workload, as a multiple of
    the costs of its parts (``in_run_...``; without it: 1).

    The driver is measured with 4096 collectors in the small workload only: what it then spends
    more than with 256 does not depend on the rows, and is added in the others.
    """

    def __init__(self, costs: Costs, workload: str) -> None:
        self.points: dict[str, list[tuple[int, float]]] = {}
        for row in costs.rows:
            if row["workload"] == workload:
                self.points.setdefault(row["name"], []).append((row["size"], row["median"]))
        known = {
            (r["name"], r["size"]): r["median"] for r in costs.rows if r["workload"] == "small"
        }
        self.in_run: dict[str, float] = {}
        for kind, names in PROCESSES.items():
            for name in (*names[0], *names[1]):
                self.in_run[name] = known.get((f"in_run_{kind}", 0), 1.0)
        self.in_run["driver"] = self.in_run["driver_threads"]
        for name in ("driver", "driver_threads"):
            sizes = dict(self.points.get(name, ()))
            if 256 in sizes and 4096 not in sizes and (name, 4096) in known:
                more = known[name, 4096] - known[name, 256]
                self.points[name].append((4096, sizes[256] + max(more, 0.0)))

    def __call__(self, name: str, size: float = 0) -> float:
        """The cost; beyond the measured sizes, the last line goes on upwards only."""
        points, factor = sorted(self.points[name]), self.in_run.get(name, 1.0)
        if len(points) == 1 or size <= points[0][0]:
            return factor * points[0][1]
        at = next((i for i, (x, _) in enumerate(points) if x >= size), len(points) - 1)
        (x0, y0), (x1, y1) = points[at - 1], points[at]
        slope = (y1 - y0) / (x1 - x0)
        return factor * (y1 + (size - x1) * (slope if size <= x1 else max(slope, 0.0)))
