"""Scores and secrets of the diagnostic environments."""

import numpy as np
import pytest

from rlrun.env import make_env
from tests.env.presets import preset
from tests.reference.oracle import Maze, Recall, identity, play, second_arm, uniform


def scores(name, player, episodes=20, num_envs=20, evaluate=False, **kwargs):
    config = preset(name, kwargs=kwargs)
    env = make_env(config, num_envs=num_envs, evaluate=evaluate, keep_info=("is_success",))
    returns, wins = play(env, player, episodes, seed=11)
    return returns, wins


def test_repeat_previous_uses_whole_decks():
    env = make_env(preset("repeat_previous", kwargs={"decks": 2, "k": 7}), num_envs=2)
    seen = [env.reset(seed=0)] + [env.step(np.zeros(2, int)).obs for _ in range(103)]
    for column in np.array(seen).T:
        assert np.bincount(column).tolist() == [26] * 4
    np.testing.assert_allclose(scores("repeat_previous", Recall(7), decks=2, k=7)[0], 1, atol=1e-5)


def turn_left(obs, first):
    return np.where(obs[:, 3] == 1, 1, 0)


def test_tmaze_needs_memory():
    for length in (1, 10):
        returns, wins = scores("tmaze", Maze(), episodes=4, length=length)
        np.testing.assert_array_equal(returns, 1.0)
        np.testing.assert_array_equal(wins, 1.0)
    for num_envs, episodes in ((100, 10), (1, 10), (5, 2)):  # balanced: half of them, exactly
        returns, wins = scores("tmaze", turn_left, episodes, num_envs, evaluate=True, length=1)
        assert wins.mean() == 0.5
        np.testing.assert_allclose(returns, np.where(wins == 1, 1, -0.1), atol=1e-6)
    wins = scores("tmaze", turn_left, 50, 20, length=1)[1]
    assert 0.4 < wins.mean() < 0.6, "random in training"
    assert len(set(wins.mean(axis=0))) > 3


def test_tmaze_idle_moves_cost_and_the_limit_truncates():
    env = make_env(preset("tmaze", kwargs={"length": 2}), num_envs=1)
    env.reset(seed=0)
    moves = [1, 0, 2, 0, 0, 0, 0, 0]  # turn in the corridor, forward at the junction
    steps = [env.step(np.array([move])) for move in moves]
    rewards = [float(step.reward[0]) for step in steps]
    np.testing.assert_allclose(rewards, np.array([-0.02, 0, -0.02, 0, -0.02, -0.02, -0.02, -0.02]))
    assert [step.truncated[0] for step in steps] == [False] * 7 + [True]
    assert not any(step.terminated[0] for step in steps)


def test_tmaze_shows_nothing_of_the_cue_after_the_start():
    """Two mazes with opposite cues, the same actions: all that a policy sees is the same."""
    env = make_env(preset("tmaze", kwargs={"length": 3, "balanced": True}), num_envs=2)
    assert env.reset(seed=0).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    corridor, junction = [0, 0, 1, 0], [0, 0, 0, 1]
    for action, seen in ((1, corridor), (0, corridor), (0, corridor), (0, junction), (0, junction)):
        step = env.step(np.array([action, action]))
        assert step.obs.tolist() == [seen, seen]
        assert step.reward[0] == step.reward[1]
    last = env.step(np.array([1, 1]))
    assert sorted(last.reward.tolist()) == pytest.approx([-0.1, 1.0])


def test_bandit_and_identity():
    assert (scores("bandit", second_arm)[0] == 1).all()
    assert abs(scores("bandit", second_arm, 100, noise=0.25)[0].mean() - 0.75) < 0.05
    assert abs(scores("bandit", uniform(2, 0), 100)[0].mean() - 0.5) < 0.06
    assert (scores("identity", identity)[0] == 10).all()
    assert abs(scores("identity", uniform(4, 0))[0].mean() - 2.5) < 0.4
    assert (scores("identity", identity, n=7, length=3)[0] == 3).all()


def test_cartpole_novel_is_cartpole_without_velocities():
    novel = make_env(preset("cartpole_novel"), num_envs=4)
    whole = make_env(preset("cartpole"), num_envs=4)
    np.testing.assert_array_equal(novel.reset(seed=2), whole.reset(seed=2)[:, [0, 2]])
    rng = np.random.default_rng(0)
    for _ in range(200):
        action = rng.integers(2, size=4)
        one, other = novel.step(action), whole.step(action)
        np.testing.assert_array_equal(one.obs, other.obs[:, [0, 2]])
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.terminated, other.terminated)


def walking(env, move):
    """The action that moves up (1) or down (0) in the chain, from what a policy sees."""
    pattern = np.random.default_rng(0).integers(2, size=env.obs_space.shape[0])

    def player(obs, first):
        up = pattern[obs.sum(axis=1).astype(int) - 1]
        return up if move else 1 - up

    return player


@pytest.mark.parametrize("length", [3, 20])
def test_chain_rewards_its_last_state(length):
    env = make_env(preset("chain", kwargs={"length": length}), num_envs=3)
    for move, best in ((1, 12), (0, (length + 9) * 0.001)):
        returns, _ = play(env, walking(env, move), 2, seed=0)
        np.testing.assert_allclose(returns, best, rtol=1e-5)


def test_chain_s_pattern_belongs_to_the_environment():
    env = make_env(preset("chain"), num_envs=2)
    for seed in (0, 1):
        np.testing.assert_array_equal(env.reset(seed=seed), [[1, 1] + [0] * 18] * 2)
    for pattern, best in ((None, True), (3, False)):
        env = make_env(preset("chain", kwargs={"pattern": pattern}), num_envs=1)
        assert (play(env, lambda obs, first: np.ones(1, int), 1, seed=0)[0] == 12) == best


@pytest.mark.parametrize("actions", [2, 5])
def test_one_action_moves_up_a_chain_and_the_others_down(actions):
    """Every action of every state, each in a column of its own; a thermometer shows the state."""
    config, ups = preset("chain", kwargs={"length": 30, "pattern": 3, "actions": actions}), []
    for state in range(1, 29):
        env = make_env(config, num_envs=actions)
        env.reset(seed=0)
        for up in ups:
            env.step(np.full(actions, up))
        seen = env.step(np.arange(actions)).obs.sum(-1)
        assert sorted(seen) == [state] * (actions - 1) + [state + 2]
        ups.append(int(seen.argmax()))
    assert set(ups) == set(range(actions)), "no action is always the right one"


def test_bandit_of_a_continuous_action():
    env = make_env(preset("bandit_continuous", kwargs={"dims": 2}), num_envs=3)
    env.reset(seed=0)
    step = env.step(np.array([[1.2, 1.2], [-1, 2], [0.2, 1.2]], np.float32))
    np.testing.assert_allclose(step.reward, [0, -(2.2**2 + 0.8**2) / 2, -0.5], atol=1e-6)
    assert step.terminated.all()
    rng = np.random.default_rng(0)
    returns, _ = scores(
        "bandit_continuous", lambda o, f: rng.uniform(-1, 2, (len(f), 1)).astype(np.float32), 100
    )
    assert abs(returns.mean() + 1.24) < 5 * returns.std() / np.sqrt(returns.size)


class Lagged:
    """Names what was seen ``lag`` rows ago."""

    def __init__(self, lag):
        self.lag, self.seen = lag, []

    def __call__(self, obs, first):
        self.seen = [*self.seen, np.array(obs)][-self.lag - 1 :]
        return self.seen[0]


@pytest.mark.parametrize("lag", [0, 3])
def test_tracking(lag):
    assert (scores("tracking", Lagged(lag), lag=lag)[0] == 0).all()
    still, _ = scores("tracking", lambda o, f: np.zeros_like(o), 100, lag=lag)
    assert abs(still.mean() + (10 - lag) / 3) < 5 * still.std() / np.sqrt(still.size)


def test_twostep_rewards_equal_the_papers():
    env = make_env(preset("twostep"), num_envs=8)
    first = env.reset(seed=0)
    assert (first["agents"] == 0).all()
    pairs = np.array([[a, b] for a in (0, 1) for b in (0, 1)])
    openings = np.array([[c, 0] for c in (0, 1) for _ in range(4)])
    step = env.step(openings)
    assert step.obs["agents"].tolist() == [[1, 1]] * 4 + [[2, 2]] * 4
    assert step.obs["state"].argmax(1).tolist() == [1] * 4 + [2] * 4
    assert not step.reward.any()
    step = env.step(np.concatenate([pairs, pairs]))
    assert step.reward.tolist() == [7, 7, 7, 7, 0, 1, 1, 8]
    assert step.terminated.all()


def relay_player(cues, delay, *, speaks=True, remembers=True):
    """Play with a fixed rule for cue and answer; return the team's mean reward."""
    env = make_env(preset("relay", kwargs={"cues": cues, "delay": delay}), num_envs=60)
    obs, heard, total = env.reset(seed=3), np.zeros((60, 2), np.int64), 0.0
    for t in range(delay + 3):
        shown = obs["agents"]
        state = obs["state"].reshape(60, 2, cues + 2)
        np.testing.assert_array_equal(state.argmax(2), shown)
        np.testing.assert_array_equal(state.sum(2), 1)
        assert (shown < cues).any(0).tolist() == [t == 0, t == 1], "who is shown something, when"
        heard = np.where(shown < cues, shown, heard if remembers else 0)
        last = (shown == cues + 1).all()
        assert last == (t == delay + 2)
        step = env.step(heard if last or speaks else np.zeros_like(heard))
        obs, total = step.obs, total + float(step.reward.mean())
    assert step.terminated.all()
    return total


@pytest.mark.parametrize(("cues", "delay"), [(3, 0), (4, 3)])
def test_relay_needs_word_and_memory(cues, delay):
    assert relay_player(cues, delay) == 1
    # the first agent keeps the cue, the second hears 0 whatever it was
    silent = 0.25 + 0.75 / cues
    assert abs(relay_player(cues, delay, speaks=False) - silent) < 0.12
    assert abs(relay_player(cues, delay, remembers=False) - 0.5 - 0.5 / cues) < 0.1
