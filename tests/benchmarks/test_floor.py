"""The floor is honest: it computes what rlrun computes, and rlrun is not far above it."""

import pytest
import torch

from rlrun.optim.compute import cpu_has_bf16_lstm
from tests.benchmarks import update
from tests.benchmarks.shapes import DEFAULT, SHAPES, make_policy, twin
from tests.benchmarks.update import measure_shape, same_numbers


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for one another crawl where other jobs hold the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", SHAPES)
def test_floor_and_rlrun_agree(name):
    assert same_numbers(SHAPES[name])


def test_agree_where_windows_end_in_a_termination():
    assert same_numbers(DEFAULT, ends=4)


def test_same_numbers_sees_another_discount(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.floor.GAMMA", 0.99)
    assert not same_numbers(DEFAULT)


def test_equal_parameter_counts():
    for shape in SHAPES.values():
        policy = make_policy(shape)
        assert twin(policy, shape).parameters == sum(p.numel() for p in policy.net.parameters())


def test_update_is_within_twice_the_floor():
    rows = measure_shape(DEFAULT, repeats=5, seconds=0.05, threads=1, target=None)
    first = rows[0]
    names = ["update", "update+replay", "update, kernel", "update, bf16"]
    assert [row.name for row in rows] == names[: 3 + cpu_has_bf16_lstm()]
    assert first.name == "update"
    assert first.ratio is not None
    assert first.cpu_ratio is not None
    assert min(first.ratio, first.cpu_ratio) <= 2


def test_bf16_is_left_out_where_the_cpu_cannot(monkeypatch, capsys):
    monkeypatch.setattr(update, "cpu_has_bf16_lstm", lambda: False)
    rows = update.measure(threads=(1,), repeats=1, seconds=0.01, shapes=(DEFAULT,))
    assert [row.name for row in rows] == ["update", "update+replay", "update, kernel"]
    assert capsys.readouterr().out.startswith("update, bf16: left out: ")
