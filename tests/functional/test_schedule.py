"""Schedules are functions of env steps."""

import math

import pytest

from rlrun.functional.schedule import make_schedule
from rlrun.schema import ScheduleConfig


def schedule(kind, start=1.0, end=0.2, over=None, points=None):
    return make_schedule(ScheduleConfig(kind, start, end, over, points), total_steps=1000)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.8, 0.6, 0.2, 0.2]),
        ("cosine", [1, 0.2 + 0.4 * (1 + math.cos(math.pi / 4)), 0.6, 0.2, 0.2]),
        ("exponential", [1, *(0.2 + 0.8 * math.exp(-x) for x in (0.25, 0.5, 1, 2))]),
    ],
)  # fmt: skip
def test_kinds(kind, values):
    f = schedule(kind)
    assert [f(t) for t in (0, 250, 500, 1000, 2000)] == pytest.approx(values)
    assert f(-5) == pytest.approx(1)


def test_over_and_piecewise():
    assert schedule("linear", over=100)(50) == pytest.approx(0.6)
    f = schedule("piecewise", points=((0.0, 1.0), (10.0, 0.5), (30.0, 0.0)))
    assert [f(t) for t in (0, 5, 10, 20, 99)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
