"""256 collectors on one machine: ``python -m tests.benchmarks.ray_simulation [--quick]``.

Recorded chunks instead of environments: two actors reply for all collectors, as fast as orders
come. Driver, replay shards and learner are the real ones, with the real pacing. The rates are
compared with those that ``ray_model`` predicts from unit costs for as many cores as the run got.
With ``--sittings N`` the costs are measured anew before and after each of N simulations, and their
means are used: hosts change their speed in minutes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import ray_model
from tests.benchmarks import ray_setting as setting
from tests.benchmarks.process import CHECKOUT
from tests.benchmarks.product import Cluster
from tests.benchmarks.ray_costs import CALIBRATED
from tests.benchmarks.ray_loop import RATIOS, Measured, simulate
from tests.benchmarks.ray_table import Costs, Table, read
from tests.benchmarks.timing import machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print measured beside predicted, write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ray_simulation")
    parser.add_argument("--collectors", type=int, default=256)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each replay ratio")
    parser.add_argument("--costs", type=Path, default=ray_model.RESULTS)
    parser.add_argument("--sittings", type=int, default=0, help="that measure costs of their own")
    parser.add_argument("--quick", action="store_true", help="one ratio, 32 collectors, 1 s")
    parser.add_argument("--json", type=Path, help="write JSON lines here")
    given = parser.parse_args(arguments)
    if given.sittings and given.shards != 1:
        parser.error("--sittings measures the costs of one shard")
    count = 32 if given.quick else given.collectors
    seconds, warm = (1.0, 1.0) if given.quick else (given.seconds, 15.0)
    ratios, lines = RATIOS[1:] if given.quick else RATIOS, []
    cluster = Cluster(None, cpus=8, gpus=0, custom={})
    try:
        plan = setting.plan_of("small")
        with setting.own_logging():
            recorded = setting.Recorded.collect(plan, 40 if given.quick else 200)
        for sitting in range(max(given.sittings, 1)):
            before = costs_now(count) if given.sittings else read(given.costs)
            found = [
                simulate(cluster, recorded, count, given.shards, ratio, warm, seconds)
                for ratio in ratios
            ]
            after = costs_now(count) if given.sittings else before
            cost = Table(mean_of(before, after), "small")
            for ratio, rates in zip(ratios, found, strict=True):
                compared = compare(cost, rates, count, given.shards, ratio)
                lines += [{"sitting": sitting, **line} for line in compared]
    finally:
        cluster.close()
    print(machine())
    print("\n".join(table(lines)))
    if given.json is not None:
        head = {"machine": machine(), "collectors": count, "shards": given.shards}
        text = "".join(json.dumps(line) + "\n" for line in (head, *lines))
        given.json.write_text(text, encoding="utf-8")
    return 0


def costs_now(count: int) -> Costs:
    """Measure what the model needs for ``count`` collectors, in a process with its own Ray."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "costs.jsonl"
        sizes = [str(size) for size in sorted({CALIBRATED, count})]
        words = ("--workload", "small", "--json", str(path), "--sizes", *sizes)
        subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.ray_costs", *words], cwd=CHECKOUT,
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return read(path)


def mean_of(a: Costs, b: Costs) -> Costs:
    """Return the costs of ``a`` with the means of the medians of both."""
    pairs = zip(a.rows, b.rows, strict=True)
    return Costs([{**x, "median": (x["median"] + y["median"]) / 2} for x, y in pairs])


def compare(
    cost: Any, found: Measured, collectors: int, shards: int, ratio: float
) -> list[dict[str, Any]]:
    """One line for each rate: measured, predicted, their ratio."""
    cores = sum(found.cpu.values()) - found.cpu.get("ray", 0.0)
    predicted = ray_model.shared(
        cost, collectors=collectors, shards=shards, updates_per_chunk=found.updates_per_chunk,
        cores=max(cores, 0.1),
    )  # fmt: skip
    rows = found.rows / max(found.chunks, 1e-9)
    pairs = [
        ("chunks/s", found.chunks, predicted.chunks),
        ("rows/s", found.rows, predicted.chunks * rows),
        ("updates/s", found.updates, predicted.updates),
        ("sample wait, ms", 1e3 * found.sample, 1e3 * predicted.sample),
    ]
    return [
        {"ratio": ratio, "measure": name, "measured": a, "model": b, "quotient": a / max(b, 1e-9),
         "limit": predicted.limit, "cores": cores, "cpu": found.cpu, "seconds": found.seconds,
         "updates_per_chunk": found.updates_per_chunk, "load": found.load}
        for name, a, b in pairs
    ]  # fmt: skip


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: a row for each ratio and measure, the sittings side by side."""
    out = ["| replay ratio | measure | measured | model | measured / model | median | the model's "
           "limit |"]  # fmt: skip
    out.append("| --- | --- | --- | --- | --- | --- | --- |")
    rows: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for x in lines:
        rows.setdefault((x["ratio"], x["measure"]), []).append(x)
    for (ratio, measure), found in rows.items():
        cells = [", ".join(f"{x[key]:.4g}" for x in found) for key in ("measured", "model")]
        quotients = [x["quotient"] for x in found]
        limit = ", ".join(dict.fromkeys(f"{x['limit']}, {x['cores']:.2f} cores" for x in found))
        cells += [", ".join(f"{q:.2f}" for q in quotients), f"{statistics.median(quotients):.2f}"]
        out.append(f"| {ratio:g} | {measure} | {' | '.join(cells)} | {limit} |")
    return out


if __name__ == "__main__":
    raise SystemExit(main())
