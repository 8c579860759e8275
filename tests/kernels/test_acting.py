"""Compiled actions in environments without a compiled step are the actor's."""

import numpy as np
import pytest

from rlrun.jit import COMPILED
from rlrun.kernels.acting import CompiledActor
from rlrun.policy.actor_critic import OnPolicyActor
from tests.kernels.make import perturb
from tests.kernels.test_rollouts import same_rows, same_states

pytestmark = pytest.mark.skipif(not COMPILED, reason="actions are compiled by numba")
CASES = {
    "ppo": ("policy=ppo", "env=tmaze"),
    "one environment": ("policy=a2c", "collector.num_envs=1"),
    "stacked frames": ("policy=ppo", "env.frame_stack=2"),
    "episodes": ("policy=impala", "collector.unit=episode", "collector.n_sample=4"),
    "pqn": ("policy=pqn", "env=tmaze", "policy.dueling=true", "policy.head_hidden=[5]"),
    "pqn, one": ("policy=pqn", "collector.num_envs=1", "learner.batch_size=50"),
    "dqn": ("policy=dqn",),
    "dqn, several": ("policy=dqn", "collector.num_envs=3", "policy.dueling=true"),
    "box": ("policy=ppo", "env=tracking"),
    "normalised": ("policy=a2c", "env=tracking", "policy.normalize_obs=true"),
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_rows_are_the_actors(words, collector_of):
    ours, text = collector_of(*words), collector_of(*words)
    assert isinstance(ours.actor, CompiledActor)
    text.actor = text.actor.actor
    for _ in range(3):
        same_rows(ours.collect(), text.collect(), near=1e-5)
        same_states(ours.light_state_dict(), text.light_state_dict(), near=1e-5)
        same_states(*(x.policy.generator.bit_generator.state for x in (ours, text)))
        for collector in (ours, text):  # the next rows have other weights
            perturb(collector.policy)
    assert ours.actor.agrees
    assert ours.counters.episodes > 5


def test_actions_do_not_change_before_the_next_refresh(collector_of):
    collector = collector_of("policy=ppo", "env=tmaze")
    actor = collector.actor
    actor.refresh()
    row = collector.obs, collector.first, collector.prev_action, collector.prev_reward, ()
    explore, generator = collector.explore(0), collector.policy.generator
    state = generator.bit_generator.state

    def log_prob():
        generator.bit_generator.state = state
        return actor.act(*row, explore=explore).extras["log_prob"]

    before = log_prob()
    perturb(collector.policy)
    np.testing.assert_array_equal(log_prob(), before)
    actor.refresh()
    assert not np.array_equal(log_prob(), before)


def test_an_edited_actor_acts(collector_of, monkeypatch, caplog):
    choose = OnPolicyActor.choose

    def other(self, outputs, obs, explore):
        action, extras = choose(self, -outputs, obs, explore)
        return action, extras

    monkeypatch.setattr(OnPolicyActor, "choose", other)
    ours, text = (collector_of("policy=ppo", "env=tmaze") for _ in range(2))
    text.actor = text.actor.actor
    same_rows(ours.collect(), text.collect(), near=0)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "words",
    [("policy=ppo", "env=tmaze", x) for x in ("learner.backend=torch", "memory=lstm")]
    + [("policy=pqn", "env=tmaze", "explore=boltzmann"), ("policy=ppo",)],
    ids=str,
)  # fmt: skip
def test_other_settings_have_their_actor(words, collector_of):
    assert not isinstance(collector_of(*words).actor, CompiledActor)
