"""What a process that stands in for a lost one goes on with; roles are called without Ray.

Private: a loss at the moment that matters cannot be brought about from outside.
"""

import asyncio
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.env.rows import NativeVector
from rlrun.pipeline.ray import collecting, learning, predicting
from rlrun.pipeline.ray.collecting import CollectorRole
from rlrun.pipeline.ray.learning import LearnerRole
from rlrun.pipeline.ray.messages import Order
from rlrun.pipeline.ray.process import packed
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import CollectorHandle, Role, Roles
from rlrun.pipeline.ray.source import RaySource
from rlrun.run import ray as build
from rlrun.run.plan import make_plan
from rlrun.types import Counters, tree_leaves
from tests.compose import config

RUN = ("policy=r2d2", "env=cartpole", "pipeline=ray", "pipeline.num_actors=2", "memory.hidden=8",
       "torso.hidden=[8]", "collector.num_envs=2", "collector.n_sample=60")  # fmt: skip


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch):
    """Roles leave the logging and the threads of this process as they are."""
    for module in (collecting, learning, predicting):
        monkeypatch.setattr(module, "prepare", lambda name, threads: SimpleNamespace(take=tuple))


def collector_role(plan, number, **given):
    make = packed(partial(build.collector_parts, plan, number, float("inf")))
    return CollectorRole(make, number, throttle=0.0, **{"predictor": None} | given)


class Rejoining(RaySource):
    """A source whose collectors are restarted at once, in this process."""

    def __init__(self):
        roles = Roles.__new__(Roles)
        roles.pump = SimpleNamespace(when=lambda reply, handle: handle(reply), replies=0)
        roles.collectors, roles.shards, roles.predictor = [CollectorHandle("c", None)], [], None
        counts = SimpleNamespace(counters=Counters())
        super().__init__(roles, counts, keep_env=False, max_seconds=None)

    def lose(self, role):
        """Let ``role`` stand in for the collector's process."""
        (collector,) = self.roles.collectors
        collector.handle = SimpleNamespace(load=SimpleNamespace(remote=role.load))
        self._replied(collector, None, Lost(None))

    def rejoined(self, collector):
        assert not collector.busy


def test_a_restarted_collector_opens_episodes_that_were_not_collected_before(monkeypatch):
    """Whether or not chunks came in between, also after a resume."""
    plan, seeds, reset = make_plan(config(*RUN)), [], NativeVector.reset

    def recorded(self, seed):
        seeds.append(seed)
        return reset(self, seed)

    monkeypatch.setattr(NativeVector, "reset", recorded)
    source, role = Rejoining(), collector_role(plan, 0)
    first = plan.env_seeds.collect
    assert seeds == [first], "those of the serial pipeline"
    (collector,) = source.roles.collectors
    collector.state = role.collect(Order(0, 0, ()))[0].state
    for _ in range(2):
        source.lose(collector_role(plan, 0))
    source.counters.env_steps = 120
    source.lose(collector_role(plan, 0))
    for env_steps in (120, 180):  # two processes, each resumed from the one before
        source = Rejoining()
        source.counters.env_steps = env_steps
        role, saved = collector_role(plan, 0), {"seq": 1, "state": collector.state}
        source.roles.ask = lambda c, name, *given, role=role: role.load(*given)
        source.collect_metrics = SimpleNamespace(load_state_dict=len)
        source.load_state_dict({"collectors": [saved], "collector": []})
    loaded = [seed for seed in seeds if seed != first]
    assert len(loaded) == 5
    assert len({*loaded}) == 5


def central(plan, monkeypatch):
    """A predictor, and a handle of it for collectors made from now on."""
    predictor = predicting.PredictorRole(packed(partial(build.predictor_parts, plan)))
    handle = SimpleNamespace(role=predictor)

    def act(number, message):
        import ray

        return ray.put(asyncio.run(handle.role.act(number, message)))

    handle.act = SimpleNamespace(remote=act)
    monkeypatch.setattr("ray.get_actor", lambda name: handle)
    return handle


def chunk_of(role, seq):
    """(``Collected``, the actions of a chunk)."""
    collected, payload = role.collect(Order(seq, 0, (), keep_env=True))
    return collected, payload.message.action.copy()


@pytest.mark.parametrize("event", ["another shard", "an earlier state"])
def test_states_are_sent_of_all_rows_from_which_windows_may_start(event):
    """A shard that begins anew inside an episode has windows that start at other rows of it."""
    role = collector_role(make_plan(config(*RUN)), 0)
    sent, side = [], role.parts.side
    side.pack = lambda chunk: sent.append((chunk, role.parts.state_filter.filter(chunk)))
    replies = [role._collect(Order(seq, 0, (), keep_env=True), ())[0] for seq in range(2)]
    if event == "another shard":
        role._collect(Order(2, 0, (), incarnation=7, since=2), ())
    else:
        role.load(replies[0].state, 0, 0)
        role._collect(Order(1, 0, ()), ())

    def blanked(chunk, filtered):
        """(rows of episodes that were open before the chunk, those of them with a blank state)."""
        open_before = ~np.logical_or.accumulate(chunk.first[: len(chunk.reward)], axis=0)
        pairs = zip(tree_leaves(chunk.states), tree_leaves(filtered.states), strict=True)
        changed = np.logical_or.reduce([(a != b).any(-1) for a, b in pairs])
        return open_before.sum(), changed[open_before].sum()

    count, before = blanked(*sent[1])
    assert 0 < before <= count, "most states are not needed"
    count, after = blanked(*sent[2])
    assert (count > 0, after) == (True, 0)


@pytest.mark.parametrize("actors", [1, 2])
@pytest.mark.parametrize("lost", ["collector", "collector at its beginning", "predictor"])
def test_a_chunk_of_a_strict_run_with_a_predictor_is_the_same_after_a_loss(
    lost, actors, monkeypatch
):
    words = ("pipeline.inference=central", "pipeline.strict=true", "explore.alpha=0",
             f"pipeline.num_actors={actors}")  # fmt: skip
    plan = make_plan(config(*RUN, *words))
    number, make = actors - 1, partial(collector_role, plan, actors - 1, predictor="predictor")
    handle = central(plan, monkeypatch)
    whole = make()
    state = chunk_of(whole, 0)[0].state
    _, expected = chunk_of(whole, 1)
    if lost == "predictor":
        handle = central(plan, monkeypatch)
        role = make()
        chunk_of(role, 0)
        handle.role = predicting.PredictorRole(packed(partial(build.predictor_parts, plan)))
    elif lost == "collector":  # the predictor has acted for the chunk, which never came
        role = make()
        assert role.load(state, 60, 1) is None
    else:
        role = make()
        assert role.load(None, 0, 1) is None
        chunk_of(role, 0)
    _, actions = chunk_of(role, 1)
    np.testing.assert_array_equal(actions, expected)
    assert len(np.unique(actions)) > 1
    assert number in handle.role.states


def test_a_run_that_lost_what_it_had_not_saved_stays_inexact_when_it_is_resumed():
    source, resumed = Rejoining(), Rejoining()
    lost = source.roles.learner = Role("learner", None)
    for one in (source, resumed):
        one.collect_metrics = SimpleNamespace(state_dict=dict, load_state_dict=len)
        one.roles.ask = lambda c, name, *given: None
    source.state_dict()
    assert source.inexact is None
    source.roles.note_lost(lost, Lost(None))
    resumed.load_state_dict(source.state_dict())
    assert resumed.inexact == "learner was lost, with what it had not saved"


def test_a_restored_learner_draws_on_as_the_one_that_was_saved():
    """A policy or a cell of the user's may draw from torch's or numpy's own generators."""
    plan = make_plan(config("policy=ppo", "env=cartpole", "pipeline=ray", "torso.hidden=[8]"))
    make = packed(partial(build.learner_parts, plan, float("inf")))
    roles = [LearnerRole(make, (), threads=1, seed=s, prefetch=0, throttle=0.0) for s in (1, 2)]
    state = roles[0].state()
    drawn = torch.rand(3).tolist(), np.random.rand(3).tolist()
    assert roles[1].load(state, {}) is None
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist()) == drawn
