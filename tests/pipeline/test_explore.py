"""The ladder is that of Ape-X; one environment follows the schedule."""

import numpy as np
import pytest

from rlrun.pipeline.collector import ladder, make_explore
from rlrun.schema import ExploreConfig, ScheduleConfig


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
