"""The arithmetic of ``ray_model``, by hand numbers."""

from dataclasses import replace

import pytest

from tests.benchmarks import ray_model
from tests.benchmarks.ray_model import Costs, Table

GIVEN = {  # name -> {size: cost}
    "driver": {16: 1e-3, 256: 2e-3},
    "driver_threads": {16: 2e-3, 256: 3e-3},
    "ray_collect": {16: 1e-3, 256: 1e-3},
    "ray_add": {16: 5e-4, 256: 5e-4},
    "shard_add": {1: 5e-4, 101: 1.5e-3},
    "shard_sample": {1: 1e-3, 101: 11e-3},
    "shard_prioritize": {1: 1e-3},
    "ray_send": {0: 1e-3},
    "ray_receive": {0: 4e-3},
    "ray_priorities": {0: 1e-3},
    "update": {0: 15e-3},
    "row_raw": {0: 10_000.0},
    "row_coded": {0: 1000.0},
    "row_decode": {0: 1e-9},
    "reply": {0: 6000.0},
    "weights_raw": {0: 10e6},
    "weights_coded": {0: 5e6},
    "batch_bytes": {0: 50e6},
    "batch_single": {0: 12.5e6},
    "chunk_steps": {0: 80.0},
}


@pytest.fixture
def cost():
    costs = Costs()
    for name, sizes in GIVEN.items():
        for size, value in sizes.items():
            costs.add("paper", name, "", [value], size)
    return Table(costs, "paper")


def need(found, part):
    return next(n for n in found if n.part == part)


def test_costs_between_and_beyond_measured_sizes(cost):
    assert cost("driver", 1) == 1e-3
    assert cost("driver", 136) == pytest.approx(1.5e-3)
    assert cost("driver", 496) == pytest.approx(3e-3)
    assert cost("shard_prioritize", 77) == 1e-3
    costs = Costs()
    for size, value in ((1, 2.0), (11, 1.0)):
        costs.add("x", "a", "", [value], size)
    assert Table(costs, "x")("a", 100) == 1.0  # a cost never falls beyond the last size


def test_costs_are_multiplied_by_what_a_run_adds_to_their_process():
    costs = Costs()
    costs.add("small", "in_run_shards", "x", [1.5])
    for workload in ("small", "paper"):
        costs.add(workload, "shard_add", "", [2.0], 1)
        costs.add(workload, "update", "", [4.0])
        cost = Table(costs, workload)
        assert (cost("shard_add", 1), cost("update")) == (3.0, 4.0)


def test_the_paper_by_hand(cost):
    """256 x 260 = 66,560 env steps/s in chunks of 80: 832 chunks/s; 5 updates/s of 50 MB."""
    s = ray_model.paper(cost, 256)
    assert s.steps == 66_560
    assert s.updates == pytest.approx(5)
    found = ray_model.needs(cost, s)
    driver, learner = need(found, "driver"), need(found, "learner")
    assert (driver.needed, driver.capacity) == pytest.approx((832, 500))
    assert (learner.needed, learner.capacity) == pytest.approx((5, 100))  # 5 ms + 5 ms
    assert need(found, "learner's link").needed == pytest.approx(0.25)
    assert need(found, "driver's link").needed == pytest.approx(832 * 6000 / 1e9)  # 800 KB chunks
    weights = need(found, "weights out, raw").needed  # 0.65 versions/s to 16 nodes
    assert weights == pytest.approx(0.65 * 16 * 10e6 / 1e9)
    assert ray_model.verdict(found) == "infeasible: driver"
    assert ray_model.limits(found, s)[0] == ("driver", pytest.approx(40_000))


def test_small_chunks_travel_through_the_driver(cost):
    s = replace(ray_model.paper(cost, 256), chunk_steps=5)
    found = need(ray_model.needs(cost, s), "driver's link").needed
    assert found == pytest.approx(66_560 / 5 * (6000 + 2 * 50_000) / 1e9)


def test_shards_by_hand(cost):
    """With J streams a chunk takes 1 ms + 10 us (J - 1), a batch 3 ms + 100 us (J - 1)."""
    s = ray_model.paper(cost, 256)
    # Two shards of 128 streams: 832 x 2.27 ms + 5 x 15.7 ms = 1.967 s > 1.6; three of 85.3:
    # 832 x 1.843 ms + 5 x 11.43 ms = 1.59 s <= 2.4.
    assert ray_model.shard_seconds(cost, s, 2, 832) == pytest.approx(1.967, rel=1e-3)
    assert ray_model.shard_seconds(cost, s, 3, 832) == pytest.approx(1.591, rel=1e-3)
    found = ray_model.shards(cost, s)
    assert (found.cpu, found.memory, found.network) == (3, 2, 1)  # 40 GB; 0.67 + 0.25 GB/s
    assert found.count == 3


def test_one_machine_by_hand(cost):
    """16 collectors, 1 shard: 0.65 + 0.5 ms to add a chunk, 4.5 ms a batch, 20 ms an update."""
    given = {"collectors": 16, "shards": 1, "cores": 2.0}
    found = ray_model.shared(cost, updates_per_chunk=1.0, **given)
    assert (found.limit, found.chunks) == ("learner", pytest.approx(50))
    found = ray_model.shared(cost, updates_per_chunk=0.0, **given)  # 2 + 1 + 1.15 ms over 2 cores
    assert (found.limit, found.chunks) == ("cores", pytest.approx(2 / 4.15e-3))
