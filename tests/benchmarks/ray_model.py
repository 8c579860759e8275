"""What a Ray run needs, by the unit costs that ``ray_costs`` measures.

Computes what 16, 256 and 4096 collectors ask of the driver, the learner, the network and the replay
shards, and which part is the first that has no more to give. Nothing is measured here.
"""

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.runs import RESULTS, json_lines

COSTS = RESULTS / "ray_costs.jsonl"
COLLECTORS = (16, 256, 4096)
INLINE = 100 * 1024  # bytes: smaller results of Ray calls travel through the caller
LINK = 1.25e9  # bytes/s of a node: 10 Gbit/s
SHARD_MEMORY = 32e9  # bytes of rows that a shard may hold
PER_NODE = 16  # collectors of a node, which fetches weights once
BUSY = 0.8  # share of its time that a shard may work, so that queues stay short


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


def read(path: Path) -> Costs:
    """The costs of a file of ``ray_costs``."""
    return Costs([line for line in json_lines(path) if "name" in line])


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


# -- the model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What a run does."""

    collectors: int
    speed: float  # env steps/s of a collector
    chunk_steps: float
    ratio: float  # learned rows per env step
    learned: int  # rows learned by an update: batch x learned rows of a window
    weights_every: float  # env steps of a collector between two versions
    capacity: float  # rows of all shards together
    update: float  # seconds of an update, without its batch
    batch_bytes: float

    @property
    def steps(self) -> float:
        """Env steps/s of all collectors."""
        return self.collectors * self.speed

    @property
    def updates(self) -> float:
        """Updates/s that these pay for."""
        return self.steps * self.ratio / self.learned


@dataclass(frozen=True)
class Need:
    """A part that cannot be multiplied: what is asked of it and what it has, in ``unit``."""

    part: str
    unit: str
    needed: float
    capacity: float

    @property
    def load(self) -> float:
        return self.needed / self.capacity


@dataclass(frozen=True)
class Shards:
    """Shards that each reason asks for."""

    cpu: int
    memory: int
    network: int

    @property
    def count(self) -> int:
        return max(self.cpu, self.memory, self.network)


def needs(cost: Table, s: Setting) -> list[Need]:
    """What is asked of the parts that exist once."""
    chunks = s.steps / s.chunk_steps
    chunk = s.chunk_steps * cost("row_raw")
    inline = 2 * chunk if chunk < INLINE else 0.0  # in with the reply, out with the order to store
    learner = s.update + cost("ray_receive") + cost("ray_priorities")
    versions = s.speed / s.weights_every
    nodes = math.ceil(s.collectors / PER_NODE)
    return [
        Need("driver", "chunks/s", chunks, 1 / cost("driver", s.collectors)),
        Need("driver's link", "GB/s", chunks * (cost("reply") + inline) / 1e9, LINK / 1e9),
        Need("learner", "updates/s", s.updates, 1 / learner),
        Need("learner's link", "GB/s", s.updates * s.batch_bytes / 1e9, LINK / 1e9),
        Need("weights out, raw", "GB/s", versions * nodes * cost("weights_raw") / 1e9, LINK / 1e9),
        Need("weights out, coded", "GB/s", versions * nodes * cost("weights_coded") / 1e9,
             LINK / 1e9),
    ]  # fmt: skip


def shards(cost: Table, s: Setting, *, coded: bool = False) -> Shards:
    """How many shards the rows and samples of a run need."""
    chunks, row = s.steps / s.chunk_steps, cost("row_coded" if coded else "row_raw")
    count = 1
    while count < s.collectors and shard_seconds(cost, s, count, chunks, coded) > BUSY * count:
        count += 1
    traffic = s.steps * row + s.updates * s.batch_bytes
    return Shards(
        count, math.ceil(s.capacity * cost("row_raw") / SHARD_MEMORY), math.ceil(traffic / LINK)
    )


def shard_seconds(cost: Table, s: Setting, count: int, chunks: float, coded: bool = False) -> float:
    """Seconds of work a second of all ``count`` shards together."""
    streams = s.collectors / count
    add = cost("shard_add", streams) + cost("ray_add", s.collectors)
    if coded:
        add += s.chunk_steps * cost("row_raw") * cost("row_decode")
    draw = cost("shard_sample", streams) + cost("shard_prioritize", streams) + cost("ray_send")
    return chunks * add + s.updates * draw


def limits(found: Sequence[Need], s: Setting) -> list[tuple[str, float]]:
    """(part, env steps/s that it allows), the lowest first; raw weights count, coded do not."""
    able = [(n.part, s.steps / n.load) for n in found if n.part != "weights out, coded"]
    return sorted(able, key=lambda pair: pair[1])


# -- many processes on one machine -----------------------------------------------------------------


@dataclass(frozen=True)
class Shared:
    """Rates of a run whose roles share a few cores."""

    chunks: float
    updates: float
    sample: float  # seconds that the learner waits for a batch
    limit: str


def shared(
    cost: Table, *, collectors: int, shards: int, updates_per_chunk: float, cores: float
) -> Shared:
    """Chunks/s: the least of what each process does with a core and all with ``cores``."""
    streams = collectors / shards
    draw = cost("shard_sample", streams) + cost("shard_prioritize", streams) + cost("ray_send")
    add = cost("shard_add", streams) + cost("ray_add", collectors)
    update = cost("update") + cost("ray_receive") + cost("ray_priorities")
    seconds = {
        "driver": cost("driver", collectors),
        "shards": (add + updates_per_chunk * draw) / shards,
        "learner": updates_per_chunk * update,
    }
    total = cost("driver_threads", collectors) + cost("ray_collect", collectors) + add
    total += updates_per_chunk * (draw + update)
    seconds["cores"] = total / cores
    limit = max(seconds, key=lambda name: seconds[name])
    chunks = 1 / seconds[limit]
    updates = chunks * updates_per_chunk
    waits = 1 / updates - cost("update") if updates and limit == "shards" else 0.0
    return Shared(chunks, updates, max(cost("ray_receive"), waits), limit)


# -- settings --------------------------------------------------------------------------------------


def small(cost: Table, collectors: int) -> Setting:
    """policy=r2d2 env=cartpole_novel: collectors as fast as they are here, 120 rows a step."""
    return Setting(
        collectors, 1 / cost("collect"), cost("chunk_steps"), 120, 32 * 15, 400, 1e5,
        cost("update"), cost("batch_bytes"),
    )  # fmt: skip


def paper(cost: Table, collectors: int, *, updates_per_s: float = 200.0) -> Setting:
    """Kapturowski et al. 2019: 260 env steps/s an actor, 5 updates/s of 64 x 80 with 256 actors.

    ``updates_per_s``: of the GPU learner; 200 to 330 on an H100 with the Nature CNN and LSTM-512
    (arithmetic bound, not measured).
    """
    ratio = 5 * 64 * 80 / (256 * 260)
    return Setting(
        collectors, 260, 80, ratio, 64 * 80, 400, 4e6, 1 / updates_per_s,
        cost("batch_bytes"),
    )  # fmt: skip


def report(
    cost: Table, make: Callable[[Table, int], Setting], names: Sequence[int] = COLLECTORS
) -> list[str]:
    """The markdown table of one workload: a column for each number of collectors."""
    settings = [make(cost, n) for n in names]
    every = [needs(cost, s) for s in settings]
    lines = ["| | " + " | ".join(f"{n} collectors" for n in names) + " |"]
    lines.append("| --- |" + " --- |" * len(names))

    def row(title: str, cells: Sequence[str]) -> None:
        lines.append(f"| {title} | " + " | ".join(cells) + " |")

    row("env steps/s", [_number(s.steps) for s in settings])
    for i, need in enumerate(every[0]):
        row(f"{need.part}, {need.unit}: needed / has",
            [f"{_number(x[i].needed)} / {_number(x[i].capacity)}" for x in every])  # fmt: skip
    single = [s.updates * cost("batch_single") / 1e9 for s in settings]
    row("the same if frames were stacked by the learner, GB/s", [_number(x) for x in single])
    for coded in (False, True):
        name = "row_coded" if coded else "row_raw"
        found = [s.steps * cost(name) / 1e9 for s in settings]
        row(f"rows in, {'coded' if coded else 'raw'}, GB/s", [_number(x) for x in found])
    out = [s.updates * s.batch_bytes / 1e9 for s in settings]
    row("samples out, GB/s", [_number(x) for x in out])
    found = [shards(cost, s) for s in settings]
    row(
        "shards for work / memory / network", [f"{x.cpu} / {x.memory} / {x.network}" for x in found]
    )
    ranked = [limits(x, s) for x, s in zip(every, settings, strict=True)]
    row("first limit, at env steps/s", [f"{x[0][0]}, {_number(x[0][1])}" for x in ranked])
    row("second limit, at env steps/s", [f"{x[1][0]}, {_number(x[1][1])}" for x in ranked])
    least = [s.steps * cost("driver", s.collectors) for s in settings]
    row("chunk steps that the driver needs", [_number(x) for x in least])
    row("verdict", [verdict(x) for x in every])
    return lines


def verdict(found: Sequence[Need]) -> str:
    """Feasible, or what is not."""
    over = [n.part for n in found if n.load > 1 and n.part != "weights out, coded"]
    return "feasible" if not over else "infeasible: " + ", ".join(over)


def _number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def main(o: Namespace) -> int:
    """Print the tables."""
    costs = read(o.costs or COSTS)
    for title, make, workload in (
        ("r2d2, cartpole_novel, defaults", small, "small"),
        ("R2D2 as in the paper", paper, "paper"),
    ):
        print(f"\n{title}\n")
        print("\n".join(report(Table(costs, workload), make)))
    return 0
