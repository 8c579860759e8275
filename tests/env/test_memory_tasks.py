"""Native memory tasks: the rows of POPGym and bsuite, hidden states, horizons."""

import json

import numpy as np
import pytest

from rlrun.env import make_env
from tests.env.popgym_walks import GOLDEN, TASKS, excerpt, native
from tests.env.presets import preset
from tests.reference.oracle import play, uniform


def test_rows_are_those_recorded_from_popgym():
    golden = json.loads(GOLDEN.read_text())
    assert set(golden) == set(TASKS)
    for task, theirs in golden.items():
        ours = excerpt(native(task)[0])
        assert [row[0] for row in ours] == [row[0] for row in theirs], task  # length too
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one[1], other[1], rtol=1e-6, atol=1e-6, err_msg=task)
            assert one[2:] == other[2:], task


@pytest.mark.parametrize(
    ("name", "kwargs", "best"),
    [
        ("repeat_previous", {"k": 9}, 1.0),
        ("repeat_first", {"decks": 2}, 1.0),
        ("count_recall", {}, 1.0),
        ("autoencode", {}, 1.0),
        ("memory_chain", {"length": 3, "bits": 5}, 1.0),
        ("multiarmed_bandit", {"arms": 4}, 0.6),
    ],
)
def test_the_full_state_holds_what_a_policy_without_memory_needs(name, kwargs, best):
    env = make_env(preset(name, kwargs={**kwargs, "full_state": True}), num_envs=10)
    assert env.obs_space.dtype == np.float32
    asked_later = name in ("repeat_previous", "autoencode")
    assert asked_later != env.reset(seed=3).any(), "zeros where nothing is asked for"
    returns, _ = play(env, lambda obs, first: obs.argmax(1), 6, seed=3)
    if name == "multiarmed_bandit":
        assert abs(returns.mean() - best) < 0.1  # 2 * 4/5 - 1
    else:
        np.testing.assert_allclose(returns, best, atol=1e-4)
    other = make_env(preset(name, kwargs=kwargs), num_envs=10)
    assert play(other, uniform(2, 0), 6, seed=3)[0].mean() < best - 0.3


def test_full_states_of_mazes_poles_and_decks():
    env = make_env(preset("tmaze", kwargs={"full_state": True}), num_envs=4)
    returns, _ = play(
        env, lambda o, f: np.where(o[:, 3] == 1, 1 + o[:, :2].argmax(1), 0), 2, seed=0
    )
    assert (returns == 1).all()
    env = make_env(
        preset("position_only_cartpole", kwargs={"full_state": True, "noise": 0.3}), num_envs=4
    )
    force = np.array([0.1, 0.3, 3.0, 1.0])
    returns, _ = play(env, lambda obs, first: (obs @ force > 0).astype(int), 2, seed=0)
    np.testing.assert_allclose(returns, 1.0, rtol=1e-5)

    def higher(obs, first):  # more higher than lower cards left
        ranks = np.arange(13)
        newest = obs[:, :13].argmax(1)[:, None]
        more = (obs[:, 13:] * (ranks > newest)).sum(1) > (obs[:, 13:] * (ranks < newest)).sum(1)
        return np.where(more, 0, 1)

    env = make_env(preset("higher_lower", kwargs={"full_state": True}), num_envs=50)
    counting = play(env, higher, 10, seed=0)[0].mean()
    blind = make_env(preset("higher_lower"), num_envs=50)
    guessing = play(blind, lambda obs, first: (obs >= 6).astype(int), 10, seed=0)[0].mean()
    assert abs(guessing - 0.497) < 0.02
    assert counting > guessing + 0.02


def test_the_full_state_of_concentration_finds_every_pair():
    def match(obs, first):
        kinds, up, turned = obs[:, :104].reshape(-1, 52, 2), obs[:, 104:156] > 0, obs[:, 156:] > 0
        same = (kinds == (kinds * turned[..., None]).sum(1, keepdims=True)).all(2)
        return (~up & ~turned & (same | ~turned.any(1, keepdims=True))).argmax(1)

    env = make_env(preset("concentration", kwargs={"full_state": True}), num_envs=4)
    returns, _ = play(env, match, 2, seed=0)
    np.testing.assert_allclose(returns, 1.0, rtol=1e-5)


def bsuite_chain(context, query, length, actions):
    """Observations and rewards as bsuite's memory chain defines them, by hand."""

    def observe(clock):
        obs = np.zeros(2 + len(context), np.float32)
        obs[0] = 1 - clock / length
        obs[1] = query if clock == length - 1 else 0
        obs[2:] = 2 * context - 1 if clock == 0 else 0
        return obs

    rows = [(observe(0), 0.0, False)]
    for clock, action in enumerate(actions):
        ended = clock == length
        right = action == context[query]
        rows.append((observe(clock), (1.0 if right else -1.0) * ended, ended))
    return rows


@pytest.mark.parametrize(("length", "bits"), [(1, 1), (10, 1), (2, 7)])
def test_the_memory_chain_is_bsuite_s(length, bits):
    env = make_env(preset("memory_chain", kwargs={"length": length, "bits": bits}), num_envs=3)
    obs = env.reset(seed=4)
    rng = np.random.default_rng(1)
    actions = rng.integers(2, size=(length + 1, 3))
    steps = [env.step(action) for action in actions]
    context, query = obs[:, 2:] > 0, steps[length - 1].obs[:, 1].astype(int)
    for i in range(3):
        theirs = bsuite_chain(context[i], query[i], length, actions[:, i])
        np.testing.assert_array_equal(obs[i], theirs[0][0])
        for t, (want, reward, ended) in enumerate(theirs[1:]):
            np.testing.assert_array_equal(steps[t].obs[i], want)
            assert (steps[t].reward[i], steps[t].terminated[i]) == (reward, ended)
    assert np.abs(env.step(actions[0]).obs[:, 2:]).min() == 1  # the next episode
