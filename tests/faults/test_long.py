"""The long proofs in their shortest form."""

from tests.faults import soak, workers
from tests.faults.forks import Forks


def test_nothing_grows_in_a_long_run(tmp_path):
    forks = Forks()
    used = soak.soak(forks, tmp_path, 60_000)
    forks.close()
    assert len(used) >= 8
    assert soak.growth(used) == []


def test_growth_is_found():
    flat = [soak.Use(i, 300.0, 11, 2, 1000) for i in range(16)]
    assert soak.growth(flat) == []
    grown = [u._replace(mib=300 + i, files=11 + i) for i, u in enumerate(flat)]
    assert [text.split(":")[0] for text in soak.growth(grown)] == ["mib", "files"]


def test_killed_workers_are_replaced_and_none_is_left():
    plain, cut, left = workers.measure(seconds=2.0, every=0.5, num_envs=3)
    assert (cut.kills, left) == (4, 0)
    assert cut.per_second > 0.2 * plain.per_second, "two seconds apart in the long form: 0.85"
