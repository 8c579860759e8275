"""Compiled rollouts are those of the collector's own loop."""

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rlrun.buffer.rollout import Rollout
from rlrun.functional.rows import readable
from rlrun.jit import COMPILED
from rlrun.kernels import on_policy, rollouts
from rlrun.types import tree_leaves

pytestmark = pytest.mark.skipif(not COMPILED, reason="rollouts are compiled by numba")
SHORT = "env.max_episode_steps=17"
CASES = {
    "ppo": ("policy=ppo",),
    "shared trunk": ("policy=ppo", "policy.separate_value=false", SHORT),
    "other rewards": ("policy=ppo", "env.kwargs={sutton_barto_reward: true}"),
    "pqn": ("policy=pqn", SHORT),
    "dueling": ("policy=pqn", "policy.dueling=true", "policy.head_hidden=[5]"),
    "a2c": ("policy=a2c", SHORT),
    "impala": ("policy=impala", SHORT),
    "acrobot": ("policy=ppo", "env=acrobot", SHORT),
    "pendulum": ("policy=ppo", "env=pendulum", SHORT),
    "normalised": ("policy=a2c", "env=mountaincar_continuous", "policy.normalize_obs=true", SHORT),
    "mountaincar": ("policy=pqn", "env=mountaincar", "env.kwargs={goal_velocity: 0.01}", SHORT),
    "dqn": ("policy=dqn", "collector.n_sample=256", SHORT),
    "one environment": ("policy=dqn", "collector.num_envs=1", "collector.n_sample=256", SHORT),
}


def count_calls(x, name):
    """Return a list that grows with every call of a method of ``x``."""
    method, calls = getattr(x, name), []
    setattr(x, name, lambda *given, **named: calls.append(1) or method(*given, **named))
    return calls


def same_rows(one, two, near=1e-5):
    """Compare two chunks; ``near``: absolute difference of real numbers."""
    assert one.extras.keys() == two.extras.keys()
    for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=0, atol=near)
    for name, x in one.extras.items():
        np.testing.assert_allclose(x, two.extras[name], rtol=0, atol=near)


def numbers(tree):
    """Return a state with the arrays of its captured environment as what they hold."""
    if isinstance(tree, dict) and {"array", "dtype"} <= tree.keys():
        return np.frombuffer(tree["array"].tobytes(), tree["dtype"])
    if isinstance(tree, dict):
        return {name: numbers(x) for name, x in tree.items()}
    return [numbers(x) for x in tree] if isinstance(tree, list | tuple) else tree


def same_states(one, two, near=0):
    for x, y in zip(tree_leaves(numbers(one)), tree_leaves(numbers(two)), strict=True):
        if near and np.asarray(x).dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=near, atol=near)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_rows_are_those_of_the_collectors_own_loop(words, collector_of):
    ours, text = collector_of(*words), collector_of(*words)
    assert ours.compiled is not None
    text.compiled = None
    acted = [count_calls(x.actor, "act") for x in (ours, text)]
    for _ in range(4):
        same_rows(ours.collect(), text.collect())
        same_states(
            ours.state_dict(), text.state_dict(), near=1e-5 * (ours.policy.net.bounds is not None)
        )
    assert ours.counters.env_steps == text.counters.env_steps >= 800
    assert ours.counters.episodes > 5
    assert len(acted[0]) < len(acted[1]) / 2, "those of the comparison, and of rows with resets"
    same_states(*(x.policy.generator.bit_generator.state for x in (ours, text)))


@pytest.mark.parametrize("words", [("policy=ppo",), ("policy=pqn",)], ids=str)
def test_the_comparison_and_the_rows_need_one_compilation(words, collector_of, monkeypatch):
    numba = pytest.importorskip("numba")
    collector, compiled, types = collector_of(*words), rollouts.rollout, set()
    monkeypatch.setattr(
        rollouts, "rollout", lambda *given: types.add(numba.typeof(given)) or compiled(*given)
    )
    collector.collect()
    collector.collect()
    assert len(types) == 1


@pytest.mark.parametrize("name", ["ppo", "pqn", "dqn"])
def test_a_restored_collector_goes_on_bit_for_bit(name, collector_of):
    ours, again = (collector_of(f"policy={name}") for _ in range(2))
    ours.collect()
    again.load_state_dict(ours.state_dict())
    again.policy.generator.bit_generator.state = ours.policy.generator.bit_generator.state
    again.counters.env_steps = ours.counters.env_steps
    for _ in range(2):
        one, two = (x.collect() for x in (ours, again))
        same_rows(one, two, near=0)


@pytest.mark.parametrize("env", ["cartpole", "acrobot"])
def test_values_of_acting_are_those_of_the_update_bit_for_bit(env, collector_of, monkeypatch):
    collector = collector_of("policy=pqn", f"env={env}", SHORT)
    policy, kernel, computed = collector.policy, collector.policy.kernel, []
    compute = on_policy.greatest_of
    monkeypatch.setattr(
        on_policy, "greatest_of", lambda *given: computed.append(given[3].sum()) or compute(*given)
    )
    for _ in range(2):
        chunk = collector.collect()
        rollout = Rollout(chunk, rows=len(chunk.reward))
        rollout.add(chunk)
        rows = policy.prepare(rollout.take(0))
        read = readable(rows.valid, rows.terminated).numpy()

        def values(rows=rows):
            return kernel.evaluate(rows, policy.batches(rows))[1]

        value, memo, resets = values(), kernel.acted, int(rows.first[:-1].any(-1).sum())
        memo.obs[3] = np.nan  # as if the collector's own loop had acted
        again = values()
        memo.parameters = memo.parameters[:-1]  # as after a resume
        alone, kernel.acted = values(), None
        other_process, kernel.acted = values(), memo
        assert computed[0] <= 1 + 2 * resets * (env != "cartpole"), "of the last observation"
        assert computed[1] > computed[0]
        assert computed[2:] == [len(rows.valid) + 1] * 2
        for x in (again, alone, other_process):
            np.testing.assert_array_equal(value[read], x[read])
        computed.clear()
        kernel.net.values *= 1.5
        assert (value != values())[read].mean() > 0.9
        computed.clear()


def test_a_reset_between_rows_is_seen(collector_of):
    """After environments were lent, the next row opens episodes, and the rest is compiled."""
    ours, text = (collector_of("policy=ppo") for _ in range(2))
    text.compiled = None
    for collector in (ours, text):
        collector.collect()
        with collector.lent_env() as env:
            env.reset(seed=7)
    for _ in range(2):
        same_rows(ours.collect(), text.collect())


def test_another_environment_is_found(collector_of, monkeypatch, caplog):
    step = CartPoleVectorEnv.step

    def doubled(self, action):
        obs, reward, *rest = step(self, action)
        return obs, 2 * reward, *rest

    monkeypatch.setattr(CartPoleVectorEnv, "step", doubled)
    chunk = collector_of("policy=ppo").collect()
    assert set(np.unique(chunk.reward)) <= {0, 2}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("columns", [1, 5])
def test_another_exploration_is_found(columns, collector_of, monkeypatch, caplog):
    collector = collector_of("policy=dqn", f"collector.num_envs={columns}")
    choose = type(collector.actor).choose
    monkeypatch.setattr(
        type(collector.actor), "choose", lambda self, *x: choose(self, *x[:2], 0 * x[2])
    )
    collector.collect()
    assert collector.seconds["act"] > 0
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("epsilon", [0, 1])
def test_another_actor_is_found(epsilon, collector_of, monkeypatch, caplog):
    """Also while the actions of the run's first rows are all random."""
    collector = collector_of("policy=pqn")
    choose = type(collector.actor).choose

    def other(self, outputs, obs, explore):
        return choose(self, -outputs, obs, explore)

    monkeypatch.setattr(type(collector.actor), "choose", other)
    collector.explore = lambda env_steps: np.full(collector.num_envs, float(epsilon))
    collector.collect()
    assert collector.seconds["act"] > 0
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "words",
    [("policy=ppo", x) for x in ("learner.backend=torch", "env.frame_stack=2", "env=tmaze",
     "env.backend=sync", "collector.unit=episode")]
    + [("policy=pqn", "explore=boltzmann")],
    ids=str,
)  # fmt: skip
def test_other_settings_have_the_collectors_own_loop(words, collector_of):
    assert collector_of(*words).compiled is None


def test_a_replaced_actor_acts(collector_of):
    """A predictor of pipeline=ray has its own weights."""
    collector = collector_of("policy=ppo")
    collector.actor = collector.policy.actor(5)
    collector.collect()
    assert collector.seconds["act"] > 0
