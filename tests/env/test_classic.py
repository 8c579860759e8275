"""The native classic control environments have the rows of Gymnasium's single ones, bit for bit."""

import gymnasium as gym
import numpy as np
import pytest

from rlrun.env import make_env
from rlrun.env.catalog import NATIVE
from tests.compose import changed, config

PUSHED = {"MountainCar-v0": (0, 2), "MountainCarContinuous-v0": (-1.0, 1.0)}  # left, right


def actions(env_id, env, obs, step, rng):
    """Random ones, held for a while; where there is a goal, half of the time towards it."""
    if env_id in PUSHED and step % 4:
        left, right = PUSHED[env_id]
        chosen = np.where(obs[:, 1] >= 0, right, left)
        return chosen.reshape(-1, *env.action_space.shape).astype(env.action_space.dtype)
    env.action_space.seed(int(rng.integers(2**31)))
    return np.array([env.action_space.sample() for _ in range(env.num_envs)])


ARGUMENTS = [
    ("Pendulum-v1", {"g": 9.8}),
    ("MountainCar-v0", {"goal_velocity": 0.01}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.01}),
]


@pytest.mark.parametrize(("env_id", "kwargs"), [*((env_id, {}) for env_id in NATIVE), *ARGUMENTS])
def test_rows_are_those_of_single_environments(env_id, kwargs):
    base = config("env=gym", f"env.id={env_id}").env
    envs = [
        make_env(changed(base, kwargs=kwargs, backend=backend), num_envs=3)
        for backend in ("vector", "sync")
    ]
    assert envs[0].native is not None
    assert envs[1].native is None
    assert envs[0].obs_space == envs[1].obs_space
    assert envs[0].action_space == envs[1].action_space
    rng, ends = np.random.default_rng(0), 0
    one, two = (env.reset(seed=5) for env in envs)
    assert one.tobytes() == two.tobytes()
    for step in range(1100):
        action = actions(env_id, envs[0], one, step, rng)
        rows = [env.step(action) for env in envs]
        for name in ("obs", "first", "reward", "terminated", "truncated"):
            got, want = (getattr(row, name) for row in rows)
            assert (got.dtype, got.tobytes()) == (want.dtype, want.tobytes()), (step, name)
        one, ends = rows[0].obs, ends + int(rows[0].first.sum())
    assert ends > 3
    for env in envs:
        env.close()


def test_gymnasiums_registry_stays_as_it_is():
    make_env(config("env=acrobot").env, num_envs=2).close()
    assert all(gym.spec(env_id).vector_entry_point is None for env_id in NATIVE)
