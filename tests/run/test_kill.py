"""Processes killed at random and resumed, also while a checkpoint is written; a long run."""

import signal

import pytest

from tests.run import soak
from tests.run.kill import LINES, Killer

CHOSEN = ("r2d2 cartpole vector", "dqn frozenlake async", "ppo cartpole vector overlapped")


@pytest.mark.parametrize("name", CHOSEN)
def test_a_killed_run_is_the_whole_run(forks, tmp_path, name):
    killer = Killer(forks, LINES[name], tmp_path, seed=len(name), steps=400)
    killer.send(3)
    killer.send(1, signal.SIGTERM)
    assert killer.out.faults == []
    assert killer.out.points, "never resumed"


def test_nothing_grows_in_a_long_run(forks, tmp_path):
    """Neither memory nor files, threads or disk."""
    used = soak.soak(forks, tmp_path, 40_000)
    assert len(used) >= 8
    assert soak.growth(used) == []
    grown = [u._replace(mib=300 + 9 * i, files=11 + i) for i, u in enumerate(used)]
    assert [text.split(":")[0] for text in soak.growth(grown)] == ["mib", "files"]
