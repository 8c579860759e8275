"""No policy ever takes an action that the environment forbids, and masks reach the targets."""

import gymnasium as gym
import numpy as np
import pytest

from rlrun import build
from rlrun.env.mask import MaskFromInfo
from rlrun.errors import ConfigError
from rlrun.functional.explore import Temperature, boltzmann, epsilon_greedy
from rlrun.functional.masks import allowed_actions, has_mask, unmasked
from rlrun.log import Log
from tests.compose import config
from tests.env.masked import Masked

ENV = ("env=gym", "env.id=tests.env.masked:tests/Masked-v0", "env.total_steps=600")
TINY = ("debug=smoke", "logger.progress=off", "logger.tensorboard=false", "run.total_steps=600")


@pytest.mark.parametrize(
    "line",
    [
        "policy=dqn",
        "policy=dqn explore=boltzmann explore.temperature=100",
        "policy=rainbow",
        "policy=qrdqn policy.prev_inputs=true",
        "policy=iqn policy.noisy=9",
        "policy=mdqn",
        "policy=r2d2",
        "policy=r2d2_c51 policy.noisy=9",
        "policy=r2d2_qr explore=boltzmann",
    ],
)
def test_a_run_takes_no_forbidden_action(tmp_path, line):
    """Collecting, evaluating and resuming; the environment raises if one is taken."""
    c = config(*line.split(), *ENV, *TINY)
    with Log(c.logger, tmp_path, total_steps=600, title="") as log:
        pipeline = build.make_pipeline(c, tmp_path, log)
        result = pipeline.run()
        pipeline.close()
    assert pipeline.counters.env_steps >= 600
    assert pipeline.counters.updates > 0
    assert 0 < result.final["return_mean"] <= 6


@pytest.mark.parametrize("policy", ["rainbow", "r2d2"])
def test_a_mask_from_info_is_kept_to(tmp_path, policy):
    shown = ("env.kwargs={where: info}", "env.wrappers=[{name: mask_from_info}]")
    c = config(f"policy={policy}", *ENV, *shown, *TINY)
    with Log(c.logger, tmp_path, total_steps=600, title="") as log:
        pipeline = build.make_pipeline(c, tmp_path, log)
        pipeline.run()
        pipeline.close()
    assert pipeline.counters.updates > 0


def test_the_mask_is_learned_from(tmp_path):
    """The best allowed action is worth 1, a forbidden one's value never enters a target."""
    c = config(
        "policy=dqn", *ENV, "logger.progress=off", "logger.tensorboard=false",
        "run.total_steps=4000", "run.eval_every=4000", "policy.gamma=0.5", "policy.nstep=1",
        "learner.start_after=200", "collector.num_envs=4",
    )  # fmt: skip
    with Log(c.logger, tmp_path, total_steps=4000, title="") as log:
        pipeline = build.make_pipeline(c, tmp_path, log)
        result = pipeline.run()
        pipeline.close()
    assert result.final["return_mean"] >= 5.9


def test_masks_of_the_wrong_width_are_refused():
    from rlrun.config import check

    class Wide(Masked):
        def __init__(self):
            super().__init__()
            parts = dict(self.observation_space.spaces)
            parts["action_mask"] = gym.spaces.MultiBinary(7)
            self.observation_space = gym.spaces.Dict(parts)

    gym.register("tests/WideMask-v0", lambda: Wide())
    try:
        c = config("policy=dqn", "env=gym", "env.id=tests/WideMask-v0", *TINY)
        with pytest.raises(ConfigError, match=r"action_mask is of shape \[7\]; one number per"):
            check(c)
    finally:
        del gym.registry["tests/WideMask-v0"]


def test_masks_from_info():
    env = MaskFromInfo(Masked(where="info"))
    assert has_mask(env.observation_space)
    assert not has_mask(unmasked(env.observation_space))
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        assert env.observation_space.contains(obs)
        np.testing.assert_array_equal(obs["action_mask"], env.unwrapped.mask)
        action = int(np.flatnonzero(obs["action_mask"])[0])
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
    with pytest.raises(ValueError, match="info has no action_mask"):
        MaskFromInfo(Masked(where="obs")).reset(seed=0)
    with pytest.raises(ValueError, match="Discrete"):
        MaskFromInfo(gym.make("Pendulum-v1"))


def test_a_mask_of_zeros_allows_all():
    obs = {"action_mask": np.array([[0, 0, 0], [0, 1, 0]], np.int8)}
    assert allowed_actions(obs).tolist() == [[True, True, True], [False, True, False]]


def test_random_actions_are_uniform_over_the_allowed():
    rng, n = np.random.default_rng(0), 30_000
    mask = np.tile([True, False, True, True], (n, 1))
    q = np.tile(np.array([0, 9, 0, 5], np.float32), (n, 1))
    always = epsilon_greedy(q, np.ones(n, np.float32), rng, mask)
    share = np.bincount(always, minlength=4) / n
    np.testing.assert_allclose(share, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.015)
    assert (epsilon_greedy(q, None, rng, mask) == 3).all()
    half = epsilon_greedy(q, np.full(n, 0.5, np.float32), rng, mask)
    np.testing.assert_allclose(np.mean(half == 3), 0.5 + 0.5 / 3, atol=0.015)


@pytest.mark.parametrize("masked", [False, True])
def test_boltzmann_is_the_softmax(masked):
    rng, n = np.random.default_rng(0), 60_000
    row = np.array([1.0, 0.0, 2.0, 9.0 if masked else 1.5], np.float32)
    mask = np.tile([True, True, True, not masked], (n, 1))
    heat = np.full(n, 0.7, np.float32).view(Temperature)
    got = boltzmann(np.tile(row, (n, 1)), heat, rng, mask if masked else None)
    e = np.exp(row / 0.7) * mask[0]
    np.testing.assert_allclose(np.bincount(got, minlength=4) / n, e / e.sum(), atol=0.01)
    assert not masked or (got != 3).all()
    cold = boltzmann(np.tile(row, (n, 1)), np.zeros(n), rng, mask)
    assert (cold == (2 if masked else 3 if row[3] > 2 else 2)).all()
