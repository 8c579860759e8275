"""The floor is honest: it computes what rlrun computes."""

import pytest
import torch

from tests.benchmarks.floor import DEFAULT, PEERS, make_policy, parameters, twin
from tests.benchmarks.update import same_numbers


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for one another crawl where other jobs hold the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("shape", "ends"), [(DEFAULT, 4), (PEERS, 0)])
def test_floor_and_rlrun_agree(shape, ends):
    assert same_numbers(shape, ends=ends)
    policy = make_policy(shape)
    assert twin(policy, shape).parameters == parameters(policy)


def test_another_target_is_seen(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.floor._rescale", lambda x: x)
    assert not same_numbers(DEFAULT)
