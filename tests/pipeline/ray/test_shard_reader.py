"""The learner's replay of several shards: the shares of each, and how late priorities come back.

Actors and their replies are objects of this process.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from rlrun.pipeline.ray import shard_reader
from rlrun.pipeline.ray.shard_reader import ShardReader
from rlrun.pipeline.ray.traffic import RoleTraffic

BATCH = 4


class Shard:
    """An actor that samples batches of its number."""

    def __init__(self, number: int, masses: list[float]) -> None:
        self.sample = SimpleNamespace(remote=self._sample)
        self.prioritize = SimpleNamespace(remote=lambda *given: None)
        self.number, self.masses, self.drawn = number, masses, 0

    def _sample(self, batch: int, env_steps: int) -> SimpleNamespace:
        self.drawn += 1
        key = np.full(batch, self.number)
        mass = self.masses[self.number]
        return SimpleNamespace(
            mass=mass, key=key, incarnation=0, weight=np.ones(batch, np.float32), segment=None
        )


@pytest.fixture
def reader_of(monkeypatch):
    """(reader, its shards) of masses; ``prefetch``: batches asked for ahead."""

    def make(masses: list[float], prefetch: int) -> tuple[ShardReader, list[Shard]]:
        shards = [Shard(i, masses) for i in range(len(masses))]
        monkeypatch.setattr("ray.get_actor", lambda name: shards[int(name)])
        monkeypatch.setattr("ray.get", lambda reply: reply)
        monkeypatch.setattr(shard_reader, "as_segment", lambda arrays: arrays)
        reader = ShardReader([str(i) for i in range(len(masses))], prefetch=prefetch)
        reader.set_masses(masses, 100)
        return reader, shards

    return make


@pytest.mark.parametrize("masses", [[1.0, 3.0], [2.0, 0.0, 6.0], [0.5, 0.5]])
def test_shards_are_drawn_by_the_sums_of_their_priorities(reader_of, masses):
    """Equal shares would give the windows of a small shard more weight than they have."""
    reader, shards = reader_of(masses, 1)
    for _ in range(400):
        reader.sample(BATCH, 0)
    share = np.array(masses) / sum(masses)
    np.testing.assert_allclose([shard.drawn for shard in shards], 400 * share, atol=1)


def test_a_mass_that_changes_is_followed(reader_of):
    masses = [1.0, 1.0]
    reader, shards = reader_of(masses, 1)
    masses[1] = 7.0
    for _ in range(10):  # each shard has told its mass by then
        reader.sample(BATCH, 0)
    before = [shard.drawn for shard in shards]
    for _ in range(400):
        reader.sample(BATCH, 0)
    drawn = [shard.drawn - b for shard, b in zip(shards, before, strict=True)]
    np.testing.assert_allclose(drawn, [50, 350], atol=1)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_the_lag_of_priorities_is_the_updates_since_their_batch_was_drawn(reader_of, prefetch):
    """Without prefetching a batch is drawn, learned and written back: no update lies between."""
    reader, _ = reader_of([1.0], prefetch)
    for _ in range(6):
        sample = reader.sample(BATCH, 0)
        reader.prioritize(sample.key, np.ones(BATCH))
    first = list(range(prefetch))  # those that were asked for before the first update
    assert reader.lags == (first + [prefetch - 1] * 6)[:6]


def test_the_age_of_weights_is_the_env_steps_from_their_publication_to_the_order():
    traffic = RoleTraffic.__new__(RoleTraffic)
    traffic.published, traffic.ages, traffic.coding = {}, [], {}
    traffic.steps = traffic.chunks = traffic.raw = traffic.sent = 0
    traffic.note_version(3, 1000)
    for env_steps, version in ((1000, 3), (1040, 3), (1080, 4)):  # 4: published by nobody
        info = SimpleNamespace(
            stats=SimpleNamespace(steps=8), sizes=(1, 1), version=version, env_steps=env_steps,
            seconds={},
        )  # fmt: skip
        traffic.collected(SimpleNamespace(name="collector_0"), info)
    assert traffic.ages == [0, 40]
