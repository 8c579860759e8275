"""Curves: ragged logs on one axis, bands from five seeds on, steps to a threshold."""

import math

import numpy as np
import pytest

from rlrun.reports.groups import arrivals, cost_of, curve, group_runs, median_steps
from rlrun.reports.intervals import mean_interval
from rlrun.reports.runs import read_run, read_runs
from tests.reports.forge import forge, forge_seeds

NAN = math.nan


def group_of(path):
    (group,) = group_runs(read_runs([str(path)]))
    return group


def test_many_points_are_thinned(tmp_path):
    forge(tmp_path / "0", returns=np.arange(3000.0), steps=range(1, 3001))
    assert 100 <= len(curve(group_of(tmp_path)).x) <= 1000


def test_the_mean_is_that_of_the_runs_that_are_done(tmp_path):
    """A solved run, which ends early, keeps its value; a failed one is drawn, not averaged."""
    forge(tmp_path / "0", seed=0, returns=(1.0, 2.0, 3.0), steps=(100, 200, 300))
    forge(tmp_path / "1", seed=1, returns=(3.0, 4.0), steps=(100, 200))
    forge(tmp_path / "2", seed=2, returns=(9.0,), steps=(100,), status="failed")
    group = group_of(tmp_path)
    found = curve(group)
    np.testing.assert_array_equal(found.mean, [2, 3, 3.5])
    assert [(run.seed, len(x)) for run, x, _ in found.seeds] == [(0, 3), (1, 3), (2, 1)]


def test_no_mean_before_every_seed_was_evaluated(tmp_path):
    forge(tmp_path / "0", seed=0, returns=(1.0, 2.0), steps=(100, 300))
    forge(tmp_path / "1", seed=1, returns=(3.0,), steps=(200,))
    group = group_of(tmp_path)
    np.testing.assert_array_equal(curve(group).mean, [NAN, 2, 2.5])


def test_runs_that_are_done_but_not_in_the_mean_are_named(tmp_path):
    forge_seeds(tmp_path, [1.0, 2.0, 3.0, 4.0])
    (tmp_path / f"{tmp_path.name}_s1/metrics.jsonl").unlink()
    with (tmp_path / f"{tmp_path.name}_s2/metrics.jsonl").open("a") as file:
        file.write("{")
    group = group_of(tmp_path)
    found = curve(group)
    assert [run.seed for run in found.left_out] == [1, 2]
    assert [run.seed for run, _, _ in found.seeds] == [0, 2, 3]
    assert found.mean[-1] == 2.5


@pytest.mark.parametrize("n", [4, 5])
def test_a_band_needs_five_seeds(tmp_path, n):
    forge_seeds(tmp_path, [10.0 * i for i in range(n)])
    found = curve(group_of(tmp_path))
    assert np.isnan(found.low).all() == (n < 5)
    if n == 5:
        last = mean_interval(found.group.scores)
        assert (found.mean[-1], found.low[-1], found.high[-1]) == pytest.approx(
            (last.value, last.low, last.high)
        )


def test_wall_time(tmp_path):
    path = forge(tmp_path / "0", returns=(1.0, 2.0), steps=(150, 300))
    (path / "timings.jsonl").write_text(
        '{"env_steps": 100, "time/wall_seconds": 10}\n{"env_steps": 300, "time/wall_seconds": 30}\n'
    )
    group = group_of(path)
    np.testing.assert_allclose(curve(group, "wall").x, [15, 30])
    (path / "timings.jsonl").unlink()
    group = group_of(path)
    assert (curve(group, "wall").seeds, len(curve(group).seeds)) == ([], 1)


def test_steps_to_a_threshold(tmp_path):
    run = read_run(forge(tmp_path / "0", returns=(1.0, 5.0, 2.0), steps=(10, 20, 30)))
    assert (cost_of(run, 2.0)[0], cost_of(run, 5.0)[0]) == (20, 20)
    assert cost_of(run, 6.0) == (math.inf, math.inf)


def test_seeds_that_failed_have_not_arrived(tmp_path):
    """A seed counts once. Left out: running ones, also those that have arrived, and damaged ones,
    which may have arrived in what is lost."""
    forge(tmp_path / "0", seed=0, returns=(1.0, 5.0), steps=(10, 20))
    forge(tmp_path / "1", seed=1, returns=(1.0, 1.0), steps=(10, 20), status="failed")
    forge(tmp_path / "2", seed=2, returns=(5.0, 5.0), steps=(10, 20), status="failed")
    forge(tmp_path / "3", seed=3, returns=(9.0,), steps=(10,), status="running")
    forge(tmp_path / "4", seed=0, returns=(1.0,), steps=(10,), status="failed")
    forge(tmp_path / "5", seed=5, returns=(), steps=(), status="failed")
    (tmp_path / "6").mkdir()
    path = forge(tmp_path / "7", seed=7, returns=(1.0, 5.0), steps=(10, 20))
    (path / "metrics.jsonl").write_text("{")
    path = forge(tmp_path / "8", seed=8, returns=(1.0, 1.0), steps=(10, 20), status="failed")
    with (path / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    group = group_of(tmp_path)
    assert arrivals(group, 4.0) == ([20, math.inf, 10, math.inf], 3)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([3, 1, 2], 2), ([1, 3], 2), ([1, math.inf], math.inf), ([1, 2, math.inf], 2), ([], NAN)],
)
def test_median_steps(steps, expected):
    """Seeds that did not arrive are late, not missing."""
    np.testing.assert_equal(median_steps(steps), expected)
