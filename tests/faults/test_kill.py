"""Killed at random and resumed, also while a checkpoint is written: the run nothing killed."""

import signal

import pytest

from tests.faults.forks import Forks
from tests.faults.kill import LINES, Killer


@pytest.fixture(scope="module")
def forks():
    forks = Forks()
    yield forks
    forks.close()


@pytest.mark.parametrize("name", LINES)
def test_a_killed_run_is_the_whole_run(forks, tmp_path, name):
    killer = Killer(forks, LINES[name], tmp_path, seed=len(name))
    killer.send(5)
    killer.send(2, signal.SIGTERM)
    assert killer.out.faults == []
    assert killer.out.points, "never resumed"
    assert killer.out.slowest < 5, "seconds from SIGTERM to the end"
