"""The chain: one action moves up, all others down."""

import numpy as np
import pytest

from rlrun.env.diagnostic.chain import ChainVectorEnv
from rlrun.errors import ConfigError


@pytest.mark.parametrize("pattern", [None, 0, 3])
@pytest.mark.parametrize("actions", [2, 5])
def test_one_action_moves_up(actions, pattern):
    env = ChainVectorEnv(actions, length=8, pattern=pattern, actions=actions)
    assert env.single_action_space.n == actions
    up = np.ones(8, int) if pattern is None else env.up
    assert np.array_equal(env.up, up)
    assert set(up) <= set(range(actions))
    env.reset(seed=0)
    for state in range(1, 7):  # every action of every state, each in a column of its own
        env.state[:] = state
        obs = env.step(np.arange(actions))[0]
        want = np.where(np.arange(actions) == up[state], state + 1, state - 1)
        np.testing.assert_array_equal(env.state, want)
        np.testing.assert_array_equal(obs.sum(-1), want + 1)


def test_every_action_moves_up_somewhere():
    for actions in (2, 3, 5):
        env = ChainVectorEnv(1, length=100, pattern=0, actions=actions)
        assert set(env.up) == set(range(actions))


def test_one_action_is_no_choice():
    with pytest.raises((ValueError, ConfigError), match="actions"):
        ChainVectorEnv(1, actions=1)
