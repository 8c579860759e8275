"""Compiled episodes of evaluations are those of the evaluator's own loop."""

from contextlib import closing

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rlrun.errors import NumericError
from rlrun.jit import COMPILED
from rlrun.kernels import rollouts
from rlrun.kernels.episodes import CompiledEpisodes
from rlrun.pipeline import evaluate
from rlrun.pipeline.evaluate import Evaluator, Watch
from tests.compose import config
from tests.kernels.conftest import WORDS
from tests.kernels.test_rollouts import CASES, SHORT, count_calls

pytestmark = pytest.mark.skipif(not COMPILED, reason="episodes are compiled by numba")
DQN = {
    "dqn": ("policy=dqn",),
    "plain dqn": ("policy=dqn", "policy.dueling=false", "env=acrobot", SHORT),
}


def evaluator_of(*words, episodes=12, max_steps=1000, **named):
    env = config(*WORDS, *words).env
    return Evaluator(
        env, episodes=episodes, seed=3, max_steps=max_steps, compiled=CompiledEpisodes.of, **named
    )


def both(collector, *words, watch=None, **named):
    """Evaluations of a policy with and without compiled rows, and the calls of both actors."""
    out = []
    for plain in (True, False):
        with closing(evaluator_of(*words, **named)) as evaluator:
            evaluator.compile = evaluator.compile if plain else None
            evaluator.env.reset(seed=0)
            calls = count_calls(evaluator._actor(collector.policy), "act")
            out.append((evaluator.run(collector.policy, env_steps=0, watch=watch), calls))
            out[-1] += (evaluator,)
    return out


@pytest.mark.parametrize("words", (CASES | DQN).values(), ids=CASES | DQN)
@pytest.mark.parametrize("envs", [5, 12])
def test_episodes_are_those_of_the_evaluators_own_loop(words, envs, collector_of):
    (ours, acted, one), (text, calls, two) = both(collector_of(*words), *words, envs=envs)
    assert one.compiled.agreed
    assert two.compiled is None
    near = 1e-4 if "env=pendulum" in words or "env=mountaincar_continuous" in words else 0
    np.testing.assert_allclose(ours.returns, text.returns, rtol=near, atol=near)
    np.testing.assert_array_equal(ours.lengths, text.lengths)
    assert len(calls) >= ours.lengths.max()
    assert len(acted) <= rollouts.CHECKED + 12  # rows of the comparison, and that open episodes


def test_later_evaluations_use_later_weights(collector_of):
    collector = collector_of("policy=pqn")
    with closing(evaluator_of()) as ours, closing(evaluator_of()) as text:
        text.compile = None
        results = []
        for _ in range(2):
            one, two = (x.run(collector.policy, env_steps=0) for x in (ours, text))
            np.testing.assert_array_equal(one.returns, two.returns)
            results.append(one.returns)
            collector.policy.kernel.net.values *= np.float32(-1)
    assert (results[0] != results[1]).any()


@pytest.mark.parametrize(("max_steps", "long"), [(9, 10_000), (10, 8), (150, 140), (16, 16)])
@pytest.mark.parametrize("env", ["env=cartpole", "env=pendulum"])
def test_episodes_are_cut_and_warned_of_at_the_same_step(
    max_steps, long, env, collector_of, monkeypatch, caplog
):
    monkeypatch.setattr(evaluate, "LONG", long)
    collector = collector_of("policy=ppo", env)
    (ours, _, _), (text, _, _) = both(collector, env, max_steps=max_steps)
    np.testing.assert_array_equal(ours.lengths, text.lengths)
    assert ours.cut == text.cut
    half = len(caplog.messages) // 2
    assert caplog.messages[:half] == caplog.messages[half:]
    assert half >= (env == "env=pendulum")


@pytest.mark.parametrize("env", ["env=pendulum", "env=mountaincar_continuous"])
def test_a_policy_that_diverged_is_an_error(env, collector_of, caplog):
    collector = collector_of("policy=a2c", env)
    errors = []
    collector.policy.kernel.net.values[:] = np.nan
    for plain in (True, False):
        with closing(evaluator_of(env)) as evaluator:
            evaluator.compile = evaluator.compile if plain else None
            with pytest.raises(NumericError) as error:
                evaluator.run(collector.policy, env_steps=0)
            assert (evaluator.compiled is not None) == plain
            errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert not caplog.messages


def test_an_evaluation_stops_between_calls(collector_of):
    collector, asked = collector_of("policy=ppo", "env=pendulum"), []
    with closing(evaluator_of("env=pendulum")) as evaluator:
        ended = evaluator.run_until(
            lambda: asked.append(1) or len(asked) > 1, collector.policy, env_steps=0
        )
        assert evaluator.steps == rollouts.ROWS
    assert ended is None


def test_a_watched_evaluation_has_every_row(collector_of):
    seen = []
    watch = Watch(seen.append)
    with closing(evaluator_of(episodes=1, envs=1, render=True)) as evaluator:
        result = evaluator.run(collector_of("policy=pqn").policy, env_steps=0, watch=watch)
        assert evaluator.compiled is None
    assert len(seen) == result.lengths[0] + 1


@pytest.mark.parametrize("name", ["step", "choose"])
def test_another_environment_or_actor_is_found(name, collector_of, monkeypatch, caplog):
    collector = collector_of("policy=pqn")
    step, choose = CartPoleVectorEnv.step, type(collector.actor).choose

    def doubled(self, action):
        obs, reward, *rest = step(self, action)
        return obs, 2 * reward, *rest

    def other(self, outputs, obs, explore):
        return choose(self, -outputs, obs, explore)

    if name == "step":
        monkeypatch.setattr(CartPoleVectorEnv, "step", doubled)
    else:
        monkeypatch.setattr(type(collector.actor), "choose", other)
    (ours, _, _), (text, _, _) = both(collector)
    np.testing.assert_array_equal(ours.returns, text.returns)
    assert [x for x in caplog.messages if x.startswith("evaluation: the compiled rows")]


@pytest.mark.parametrize(
    "words",
    [("policy=ppo", x) for x in ("learner.backend=torch", "env.frame_stack=2", "env=tmaze")]
    + [("policy=r2d2",), ("policy=ppo", "memory=lstm"), ("policy=sac", "env=pendulum")],
    ids=str,
)
def test_other_settings_have_the_evaluators_own_loop(words, collector_of):
    with closing(evaluator_of(*words)) as evaluator:
        evaluator._actor(collector_of(*words).policy)
        assert evaluator.compiled is None


@pytest.mark.parametrize("words", [("policy=pqn",), ("policy=ppo", "env=pendulum")], ids=str)
def test_collector_and_evaluator_need_one_compilation(words, collector_of, monkeypatch):
    numba = pytest.importorskip("numba")
    collector, compiled, types = collector_of(*words), rollouts.rollout, set()
    monkeypatch.setattr(
        rollouts, "rollout", lambda *given: types.add(numba.typeof(given)) or compiled(*given)
    )
    collector.collect()
    both(collector, *words)
    assert len(types) == 1
