"""What a Ray run needs: ``python -m tests.benchmarks.ray_model [--costs FILE] [--quick]``.

Computes from unit costs (``ray_costs``) what 16, 256 and 4096 collectors ask of the driver, the
learner, the network and the replay shards, and which part is the first that has no more to give.
Nothing is measured here.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.process import CHECKOUT
from tests.benchmarks.ray_table import Table, read

RESULTS = CHECKOUT / "tests/benchmarks/results/ray_costs.jsonl"
COLLECTORS = (16, 256, 4096)
INLINE = 100 * 1024  # bytes: smaller results of Ray calls travel through the caller
LINK = 1.25e9  # bytes/s of a node: 10 Gbit/s
SHARD_MEMORY = 32e9  # bytes of rows that a shard may hold
PER_NODE = 16  # collectors of a node, which fetches weights once
BUSY = 0.8  # share of its time that a shard may work, so that queues stay short


@dataclass(frozen=True)
class Setting:
    """What a run does; ``costs`` are looked up under ``workload``."""

    workload: str
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
        "small", collectors, 1 / cost("collect"), cost("chunk_steps"), 120, 32 * 15, 400, 1e5,
        cost("update"), cost("batch_bytes"),
    )  # fmt: skip


def paper(cost: Table, collectors: int, *, updates_per_s: float = 200.0) -> Setting:
    """Kapturowski et al. 2019: 260 env steps/s an actor, 5 updates/s of 64 x 80 with 256 actors.

    ``updates_per_s``: of the GPU learner; 200 to 330 on an H100 with the Nature CNN and LSTM-512
    (arithmetic bound, not measured).
    """
    ratio = 5 * 64 * 80 / (256 * 260)
    return Setting(
        "paper", collectors, 260, 80, ratio, 64 * 80, 400, 4e6, 1 / updates_per_s,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ray_model")
    parser.add_argument("--costs", type=Path, default=RESULTS, help="file of ray_costs")
    parser.add_argument("--quick", action="store_true", help="the same: it measures nothing")
    given = parser.parse_args(arguments)
    costs = read(given.costs)
    for title, make, workload in (
        ("r2d2, cartpole_novel, defaults", small, "small"),
        ("R2D2 as in the paper", paper, "paper"),
    ):
        print(f"\n{title}\n")
        print("\n".join(report(Table(costs, workload), make)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
