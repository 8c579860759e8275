"""Evaluation: fixed shares and seeds, greedy actions, end rows not counted, success."""

from dataclasses import replace

import numpy as np
import pytest

from rlrun.env.diagnostic.memory import FORWARD, LEFT, RIGHT
from rlrun.env.diagnostic.tasks import counter_reward
from rlrun.env.workers import EnvServer
from rlrun.errors import EnvError
from rlrun.log import eval_metrics
from rlrun.pipeline import evaluate
from rlrun.pipeline.evaluate import MAX_ENVS, Evaluation, Evaluator
from rlrun.types import Act, Spec
from tests.compose import changed, config
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.test_pettingzoo import SHARED, ZOO, config_of
from tests.pipeline.make import Acting, counter
from tests.policy.make import build


def expected_step(i, e, t):
    return float(counter_reward(*(np.array(x) for x in (i, e, t))))


def expected(lengths, i, e):
    return sum(expected_step(i, e, t) for t in range(lengths[(i + e) % len(lengths)]))


@pytest.mark.parametrize("episodes", [7, MAX_ENVS + 23])
def test_every_environment_plays_an_equal_number_of_episodes(episodes):
    """Counting the episodes that end first would favour short ones."""
    lengths = (5, 1, 40, 3)
    evaluator = Evaluator(counter(lengths), episodes=episodes, seed=0, max_steps=10**5)
    policy = build("r2d2", spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    result = evaluator.run(policy, env_steps=12)
    envs = min(episodes, MAX_ENVS)
    share = [episodes // envs + (i < episodes % envs) for i in range(envs)]
    played = [(e, i) for e in range(max(share)) for i in range(envs) if e < share[i]]
    want = [expected(lengths, i, e) for e, i in played]
    np.testing.assert_allclose(result.returns, want)  # in this order, so that means are the same
    assert result.lengths.tolist() == [lengths[(i + e) % len(lengths)] for e, i in played]
    summary = result.summary()
    assert summary["episodes"] == episodes
    assert summary["env_steps"] == 12
    assert summary["return_mean"] == pytest.approx(np.mean(want))
    assert summary["return_median"] == pytest.approx(np.median(want))
    assert summary["return_max"] == pytest.approx(max(want))
    assert "success" not in summary
    evaluator.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_copies_do_not_step_after_their_last_episode(backend, monkeypatch):
    """Two evaluations, since the first leaves environments at rest; the longest has 40 steps."""
    stepped, step = [], EnvServer.step
    monkeypatch.setattr(EnvServer, "step", lambda self: stepped.append(self.index) or step(self))
    lengths = (5, 1, 40, 3)
    env = replace(counter(lengths), backend=backend)
    evaluator = Evaluator(env, episodes=7, seed=0, max_steps=10**5)
    policy = build("r2d2", spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    for _ in range(2):
        result = evaluator.run(policy, env_steps=0)
        np.testing.assert_allclose(result.returns, [expected(lengths, i, 0) for i in range(7)])
    assert len(stepped) == (2 * result.lengths.sum() if backend == "sync" else 0)
    evaluator.close()


def test_evaluations_repeat_their_seeds_and_leave_the_policy_unchanged():
    evaluator = Evaluator(config("env=cartpole").env, episodes=6, seed=5, max_steps=10**5)
    policy = build("r2d2", spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    before = policy.generator.bit_generator.state
    one, two = (evaluator.run(policy, env_steps=0) for _ in range(2))
    np.testing.assert_array_equal(one.returns, two.returns)
    assert policy.generator.bit_generator.state == before, "greedy evaluation drew a coin"
    assert len(set(one.returns)) > 1, "episodes differ by seed"
    other = Evaluator(config("env=cartpole").env, episodes=6, seed=6, max_steps=10**5).run(
        policy, env_steps=0
    )
    assert one.returns.tolist() != other.returns.tolist(), "and by that of the evaluator"


def crashing(episodes, **kwargs):
    """An evaluator of ``Faulty`` environments in worker processes, seeds from 20 on."""
    changes = {"backend": "async", "on_worker_failure": "restart", "kwargs": kwargs}
    changes["worker_seconds"] = 900.0
    env = config_of("test/Faulty-v0", **changes)
    evaluator = Evaluator(env, episodes=episodes, seed=20, max_steps=10**5)
    return evaluator, Acting(actions=1)


def test_an_episode_that_a_restart_cut_is_played_again(caplog):
    """Every episode has 5 steps of reward 1; a worker ends in the third one of environment 0."""
    evaluator, policy = crashing(4, fault="kill", bad_seed=20, length=5)
    result = evaluator.run(policy, env_steps=12)
    evaluator.close()
    assert result.returns.tolist() == [5, 5, 5, 5]
    assert result.lengths.tolist() == [5, 5, 5, 5]
    assert result.summary()["restarted_episodes"] == 1
    assert "step 3" in result.inexact
    assert any("1" in record.getMessage() for record in caplog.records)


def test_an_evaluation_in_which_no_episode_ends_is_an_error(monkeypatch):
    """Workers end long after their restart, each time before the episode does."""
    monkeypatch.setattr(evaluate, "MAX_LOST", 2)
    evaluator, policy = crashing(2, fault="kill", bad_seed=None, at=15)
    with pytest.raises(EnvError, match=r"environment 0 .* 2 episodes"):
        evaluator.run(policy, env_steps=0)
    evaluator.close()


def test_a_stopped_evaluation_can_be_repeated():
    whole, stopped = (
        Evaluator(config("env=cartpole").env, episodes=6, seed=5, max_steps=10**5) for _ in range(2)
    )
    policy = build("r2d2", spec=Spec(whole.env.obs_space, whole.env.action_space))
    told = iter([False, False, True])
    assert stopped.run_until(lambda: next(told), policy, env_steps=0) is None
    assert next(told, None) is None
    one, two = (e.run(policy, env_steps=0) for e in (whole, stopped))
    np.testing.assert_array_equal(one.returns, two.returns)


class Turning(Acting):
    """Goes to the junction and always turns the same way."""

    def __init__(self, turn):
        super().__init__()
        self.turn = turn

    def act(self, obs, first, prev_action, prev_reward, state, *, explore):
        return Act(np.where(obs[..., -1] > 0.5, self.turn, FORWARD), {}, state)


def test_success_is_balanced_without_memory():
    """A constant turn solves exactly half of the T-mazes; never turning solves none."""
    evaluator = Evaluator(config("env=tmaze").env, episodes=100, seed=0, max_steps=10**5)
    found = [evaluator.run(Turning(turn), env_steps=0) for turn in (FORWARD, LEFT, RIGHT)]
    assert [x.summary()["success"] for x in found] == [0.0, 0.5, 0.5]


def test_the_actor_receives_the_previous_row():
    lengths, policy = (4, 2), Acting(actions=3)
    Evaluator(counter(lengths), episodes=2, seed=0, max_steps=10**5).run(policy, env_steps=0)
    assert len(policy.shown) == 4
    for t, (obs, first, action, reward, state) in enumerate(policy.shown):
        assert obs[0].tolist() == [0, 0, t]
        assert first.tolist() == [t == 0, t in (0, 3)], "column 1 opens its second episode"
        assert state.tolist() == [t, t]
        assert action.tolist() == [t % 3, t % 3]
        assert reward[0] == (expected_step(0, 0, t - 1) if t else 0)


def test_stacks_begin_with_the_episode():
    policy = Acting(actions=3)
    env = changed(counter((3, 1)), frame_stack=2)
    Evaluator(env, episodes=2, seed=0, max_steps=10**5).run(policy, env_steps=0)
    steps = [obs[0, :, 2].tolist() for obs, *_ in policy.shown]
    assert steps == [[0, 0], [0, 1], [1, 2]]
    assert policy.shown[2][0][1].tolist() == [[1, 1, 0], [1, 1, 0]], "its second episode"


def test_an_evaluation_uses_the_current_weights():
    evaluator = Evaluator(counter((2,)), episodes=1, seed=0, max_steps=10**5)
    one, two = Acting(actions=3), Acting(actions=3)
    for policy in (one, one, two):
        evaluator.run(policy, env_steps=0)
    assert (one.refreshed, two.refreshed) == (2, 1), "before its first row"
    assert (len(one.shown), two.explored) == (4, [None] * 2)


def test_summary_of_hand_computed_episodes():
    returns, lengths = np.array([1.0, 2.0, 6.0]), np.array([4, 1, 1])
    summary = Evaluation(returns, lengths, np.array([1.0, 0.0, 0.5]), 30).summary()
    hand = {
        "return_mean": 3.0, "return_median": 2.0, "return_std": (14 / 3) ** 0.5,
        "return_min": 1.0, "return_max": 6.0, "length_mean": 2.0, "success": 0.5,
    }  # fmt: skip
    assert summary == pytest.approx(hand | {"episodes": 3, "env_steps": 30})
    assert eval_metrics(summary) == {f"eval/{name}": summary[name] for name in hand}


def test_a_waiting_agent_plays_no_episode():
    env = config_of(ZOO, kwargs={"lives": (1, 3)})
    evaluator = Evaluator(env, episodes=2 * MAX_ENVS, seed=0, max_steps=10**5, agents=SHARED)
    found = evaluator.run(Acting(actions=3), env_steps=0)
    assert found.lengths.tolist() == [1, 3] * 2 * MAX_ENVS
    assert found.returns[:2].tolist() == [1, 101 + 102 + 103]


def test_an_episode_that_never_ends_is_cut(caplog):
    """Its return so far counts, once; other environments play all of their episodes."""
    evaluator = Evaluator(counter((3, 10**9)), episodes=2 * MAX_ENVS, seed=0, max_steps=7)
    for _ in range(2):
        result = evaluator.run(Acting(actions=3), env_steps=0)
    lengths = sorted(result.lengths)
    assert result.cut == lengths.count(7) > 0
    assert set(lengths) <= {3, 7}
    assert result.summary()["cut_episodes"] == result.cut
    assert eval_metrics(result.summary())["eval/cut_episodes"] == result.cut
    (line,) = caplog.messages
    assert "eval.max_episode_steps = 7" in line


def test_a_long_episode_is_told_of_while_it_lasts(caplog, monkeypatch):
    monkeypatch.setattr("rlrun.pipeline.evaluate.LONG", 10)
    evaluator = Evaluator(counter((3, 12)), episodes=2 * MAX_ENVS, seed=0, max_steps=1000)
    for _ in range(2):
        evaluator.run(Acting(actions=3), env_steps=0)
    (line,) = caplog.messages
    assert "10 steps" in line
    assert "env.max_episode_steps" in line
