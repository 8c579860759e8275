"""Evaluation: fixed shares and seeds, greedy, end rows not counted, success."""

import numpy as np
import pytest

from rlrun.env.diagnostic.counter import counter_reward
from rlrun.env.diagnostic.tmaze import FORWARD, LEFT, RIGHT
from rlrun.pipeline.evaluate import MOST_ENVS, Evaluator
from rlrun.types import Act, Spec
from tests.compose import changed, config
from tests.pipeline.test_collector import counter
from tests.policy.factory import r2d2


def expected(lengths, i, e):
    steps = range(lengths[(i + e) % len(lengths)])
    return sum(float(counter_reward(*(np.array(x) for x in (i, e, t)))) for t in steps)


@pytest.mark.parametrize("episodes", [1, 7, MOST_ENVS, MOST_ENVS + 23])
def test_every_environment_plays_its_share(episodes):
    """Counting whichever episodes end first would favour short ones."""
    lengths = (5, 1, 40, 3)
    evaluator = Evaluator(counter(lengths), episodes=episodes, seed=0)
    policy = r2d2(spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    result = evaluator.run(policy, env_steps=12)
    envs = min(episodes, MOST_ENVS)
    share = [episodes // envs + (i < episodes % envs) for i in range(envs)]
    want = [expected(lengths, i, e) for i in range(envs) for e in range(share[i])]
    np.testing.assert_allclose(sorted(result.returns), sorted(want))
    summary = result.summary()
    assert summary["episodes"] == episodes
    assert summary["env_steps"] == 12
    assert summary["return_mean"] == pytest.approx(np.mean(want))
    assert summary["return_median"] == pytest.approx(np.median(want))
    assert summary["return_max"] == pytest.approx(max(want))
    assert "success" not in summary
    evaluator.close()


def test_same_seeds_every_time_and_no_trace_in_the_policy():
    evaluator = Evaluator(config("env=cartpole").env, episodes=6, seed=5)
    policy = r2d2(spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    before = policy.generator.bit_generator.state
    one, two = (evaluator.run(policy, env_steps=0) for _ in range(2))
    np.testing.assert_array_equal(one.returns, two.returns)
    assert policy.generator.bit_generator.state == before, "greedy evaluation drew a coin"
    assert len(set(one.returns)) > 1, "episodes differ by seed"


def test_it_can_be_stopped_and_begun_anew():
    evaluator = Evaluator(config("env=cartpole").env, episodes=6, seed=5)
    policy = r2d2(spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    asked = []

    def third():
        asked.append(len(asked))
        return len(asked) == 3

    assert evaluator.run_unless(third, policy, env_steps=0) is None
    assert len(asked) == 3
    whole = evaluator.run(policy, env_steps=0)
    fresh = Evaluator(config("env=cartpole").env, episodes=6, seed=5).run(policy, env_steps=0)
    np.testing.assert_array_equal(whole.returns, fresh.returns)


class Always:
    """Walks to the junction and turns the same way."""

    def actor(self, num_envs):
        return self

    def refresh(self):
        pass

    def initial_state(self):
        return ()

    def act(self, obs, first, prev_action, prev_reward, state, *, explore):
        junction = obs[..., -1] > 0.5
        return Act(np.where(junction, self.turn, self.forward), {}, ())


def test_success_is_balanced_without_memory():
    """Always the same turn solves exactly half of the T-maze; never turning solves nothing."""
    evaluator = Evaluator(config("env=tmaze").env, episodes=100, seed=0)
    share = []
    for turn in (FORWARD, LEFT, RIGHT):
        policy = Always()
        policy.turn, policy.forward = turn, FORWARD
        share.append(evaluator.run(policy, env_steps=0).summary()["success"])
    assert share == [0.0, 0.5, 0.5]


def test_evaluation_config_overrides_kwargs():
    env = changed(counter((3,)), eval_kwargs={"lengths": [7]})
    evaluator = Evaluator(env, episodes=2, seed=0)
    policy = r2d2(spec=Spec(evaluator.env.obs_space, evaluator.env.action_space))
    assert evaluator.run(policy, env_steps=0).lengths.tolist() == [7, 7]
