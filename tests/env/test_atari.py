"""env=atari: the frames of Gymnasium's AtariPreprocessing, exact rows at every kind of end."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from rlrun.env import make_env
from rlrun.env.atari import envpool_arguments, find_game
from tests.env.presets import assert_same, needs_envpool, preset, run, table
from tests.installed import needs

GAMES = ["breakout", "ms_pacman", "pong", "pong_tournament"]


def test_games_by_any_spelling_and_the_arguments_of_envpool():
    """Private: neither package is installed where the suite runs."""
    names = ("Pong", "MsPacman", "ms-pacman", "BREAKOUT")
    assert [find_game(x, GAMES) for x in names] == ["pong", "ms_pacman", "ms_pacman", "breakout"]
    with pytest.raises(ValueError, match=r"game = Brekout: .* breakout, "):
        find_game("Brekout", GAMES)
    kwargs = {"game": "MsPacman", "sticky": 0.0, "frame_skip": 3}
    env_id, given = envpool_arguments(kwargs, ["MsPacman-v5"])
    assert env_id == "MsPacman-v5"
    off = ("reward_clip", "use_fire_reset", "episodic_life", "full_action_space")
    assert not any(given[key] for key in off)
    assert (given["stack_num"], given["frame_skip"], given["max_episode_steps"]) == (1, 3, 36_000)
    limit = envpool_arguments({"max_episode_steps": 7}, ["Pong-v5"])[1]["max_episode_steps"]
    assert limit == 7


def reference(game, **kwargs):
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make(
        f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=True,
        disable_env_checker=True, **kwargs,
    )  # fmt: skip
    return gym.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4)


@needs("ale_py")
@needs("cv2")
@pytest.mark.parametrize("game", ["Breakout", "Seaquest"])
def test_frames_and_rewards_are_those_of_atari_preprocessing(game):
    kwargs = {"game": game, "sticky": 0.0, "full_action_set": True}
    env, other = make_env(preset("atari", kwargs=kwargs), num_envs=2), reference(game)
    np.testing.assert_array_equal(env.reset(seed=0)[1], other.reset(seed=0)[0])
    rng, total = np.random.default_rng(1), 0.0
    for _ in range(600):
        action = int(rng.integers(18))
        step = env.step(np.array([0, action]))
        obs, reward, terminated, _, _ = other.step(action)
        np.testing.assert_array_equal(step.obs[1], obs)
        assert (step.reward[1], step.terminated[1]) == (reward, terminated)
        total += abs(float(reward))
        if terminated:
            break
    assert total > 0


@needs("ale_py")
def test_ids_of_ale_py_are_what_gymnasium_makes_and_pay_raw_rewards():
    """ale-py's own vector environment shows other images and clips: another task."""
    import ale_py

    gym.register_envs(ale_py)
    config = replace(preset("atari"), id="ALE/MsPacman-v5", kwargs={})
    plain = gym.make(config.id, disable_env_checker=True)
    env = make_env(config, num_envs=2)
    assert env.obs_space == plain.observation_space
    plain.reset(seed=0)
    native = make_env(replace(config, backend="vector"), num_envs=2)
    native.reset(seed=0)
    paid = {float(r) for _ in range(300) for r in native.step(np.array([3, 3])).reward}
    assert max(paid) >= 10, "a dot is worth 10, clipped 1"


@needs("ale_py")
@needs("cv2")
def test_the_last_observation_before_a_cut_is_the_whole_one():
    """ale-py's own limit leaves out the last frame; the value of this observation counts."""
    kwargs = {"game": "Breakout", "sticky": 0.0, "full_action_set": True}
    for backend in ("vector", "sync"):
        config = preset("atari", kwargs=kwargs, max_episode_steps=15, backend=backend)
        env, other = make_env(config, num_envs=1), reference("Breakout")
        env.reset(seed=0), other.reset(seed=0)
        for t in range(15):
            action = (1, 3)[t > 0]  # fire, then move: the picture changes with every frame
            step = env.step(np.array([action]))
            obs = other.step(action)[0]
        assert step.truncated[0]
        np.testing.assert_array_equal(step.obs[0], obs)
        opening = env.step(np.array([3]))
        assert opening.first[0]
        np.testing.assert_array_equal(opening.obs[0], reference("Breakout").reset(seed=0)[0])


def lives(backend, **kwargs):
    config = preset("atari", kwargs={"game": "Breakout", "sticky": 0.0, **kwargs}, backend=backend)
    env = make_env(config, num_envs=2, keep_info=("lives",))
    rows = run(env, 400, seed=0)[1:]
    env.close()
    return (*table(rows, "terminated", "first"), np.stack([r.info["lives"] for r in rows]))


@needs("ale_py")
@pytest.mark.parametrize("backend", ["auto", pytest.param("envpool", marks=needs_envpool)])
def test_a_lost_life_ends_an_episode_and_the_game_goes_on(backend):
    terminated, first, left = lives(backend, life_loss=True)
    column = terminated[:, 0]
    ends = np.flatnonzero(column[:-1])
    assert left[ends, 0].tolist() == [4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4, 3, 2, 1, 0][: len(ends)]
    assert left[ends + 1, 0].tolist() == [x or 5 for x in left[ends, 0].tolist()]
    assert first[ends + 1, 0].all()
    assert len(ends) > 5
    whole, *_ = lives(backend, life_loss=False)
    assert 0 < whole[:, 0].sum() < len(ends) / 3


ONE_GAME = [("Breakout", {"life_loss": True, "noop_max": 30}), ("Qbert", {"frame_skip": 3}),
            ("Seaquest", {"full_action_set": True, "frame_skip": 1})]  # fmt: skip


@needs("ale_py")
@pytest.mark.parametrize(("game", "kwargs"), ONE_GAME)
def test_single_games_have_the_rows_of_the_vector_environment(game, kwargs):
    """Frames, rewards, ends, sticky actions, frames without action, lost lives: bit for bit."""
    found = []
    for backend in ("vector", "sync"):
        config = preset("atari", kwargs={"game": game, **kwargs}, backend=backend)
        env, rng = make_env(config, num_envs=2), np.random.default_rng(0)
        opened = np.array(env.reset(seed=11))
        actions = rng.integers(env.action_space.n, size=(400, 2))
        found.append((opened, *run_on(env, actions)))
        env.close()
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


@needs("ale_py")
@pytest.mark.parametrize("sticky", [0.0, 0.5])
def test_a_game_goes_on_from_its_state(sticky, tmp_path):
    """Ten times, each at another step: a clone of ale-py lacks the action held by chance."""
    kwargs = {"game": "Breakout", "sticky": sticky, "life_loss": True}
    config = preset("atari", kwargs=kwargs, backend="sync")
    one, two = (make_env(config, num_envs=2, resumable=True) for _ in range(2))
    one.reset(seed=5), two.reset(seed=6)
    rng = np.random.default_rng(0)
    for _ in range(10):
        for _ in range(rng.integers(1, 30)):
            one.step(rng.integers(4, size=2))
        assert two.load_state_dict(one.state_dict()) == []
        actions = rng.integers(4, size=(12, 2))
        for x, y in zip(run_on(one, actions), run_on(two, actions), strict=True):
            assert_same(x, y)
    assert one.inexact is None
    one.close(), two.close()


def run_on(env, actions):
    """Copies of all rows, which the next step overwrites."""
    rows = []
    for action in actions:
        step = env.step(action)
        rows.append(replace(step, obs=np.array(step.obs)))
    return table(rows, "obs", "reward", "terminated", "truncated", "first")
