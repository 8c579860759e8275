"""Schedules are functions of env steps; the ladder is Ape-X's."""

import math

import numpy as np
import pytest

from rlrun.schedule import ladder, make_explore, make_schedule
from rlrun.schema import ExploreConfig, ScheduleConfig


def schedule(kind, start=1.0, end=0.2, over=None, points=None):
    return make_schedule(ScheduleConfig(kind, start, end, over, points), total_steps=1000)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.6, 0.2, 0.2]),
        ("cosine", [1, 0.6, 0.2, 0.2]),
        ("exponential", [1, 0.2 + 0.8 * math.exp(-0.5), 0.2 + 0.8 * math.exp(-1),
                         0.2 + 0.8 * math.exp(-2)]),
    ],
)  # fmt: skip
def test_kinds(kind, values):
    f = schedule(kind)
    assert [f(t) for t in (0, 500, 1000, 2000)] == pytest.approx(values)
    assert f(-5) == pytest.approx(1)


def test_over_and_piecewise():
    assert schedule("linear", over=100)(50) == pytest.approx(0.6)
    f = schedule("piecewise", points=((0.0, 1.0), (10.0, 0.5), (30.0, 0.0)))
    assert [f(t) for t in (0, 5, 10, 20, 99)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_cosine_is_flat_at_its_ends():
    f = schedule("cosine")
    assert 1 - f(10) < 0.1 * (1 - schedule("linear")(10))


def test_ladder_golden():
    np.testing.assert_allclose(ladder(0.4, 7, 8), [0.4 ** (1 + i) for i in range(8)], rtol=1e-6)
    assert ladder(0.4, 7, 1).tolist() == pytest.approx([0.4])


def test_a_single_environment_follows_the_schedule():
    epsilon = ScheduleConfig("linear", 1.0, 0.0, None, None)
    config = ExploreConfig("ladder", 0.4, 7.0, epsilon, temperature=None)
    assert make_explore(config, num_envs=1, total_steps=100)(50).tolist() == [0.5]
    fixed = make_explore(config, num_envs=4, total_steps=100)
    assert fixed(0).tolist() == fixed(99).tolist()
    assert len(set(fixed(0).tolist())) == 4
