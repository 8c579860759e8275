"""Roles in this process, and what the driver does when one does not come back."""

import asyncio
from unittest.mock import ANY

import numpy as np
import pytest

from rlrun.env.rows import NativeVector
from rlrun.errors import CheckpointError, ResourceError
from rlrun.pipeline.ray import roles
from rlrun.pipeline.ray.driver import RaySource
from rlrun.pipeline.ray.roles import CollectorThreads, Lost, Role
from rlrun.run import ray as build
from rlrun.run.build import make_collector
from rlrun.run.plan import make_plan
from rlrun.schema import RoleConfig
from rlrun.types import Counters, tree_leaves
from tests.compose import config

RUN = ("policy=r2d2", "env=cartpole", "pipeline=ray", "pipeline.num_actors=3", "memory.hidden=8",
       "torso.hidden=[8]", "collector.num_envs=4", "collector.n_sample=60",
       "transport=coded")  # fmt: skip


def collector_role(number=0):
    plan = make_plan(config(*RUN))
    role = build.collector_role(plan, number)
    return role, [
        build.make_learner_side(plan.config.transport, 0).pack(role.collector.policy.weights())
    ]


def test_collectors_share_the_ladder_and_have_seeds_of_their_own():
    collectors = [collector_role(i)[0].collector for i in range(3)]
    ladder = [e for collector in collectors for e in collector.explore(0).tolist()]
    assert ladder == sorted(ladder, reverse=True)
    assert ladder[0] == pytest.approx(0.4)
    assert len({*ladder}) == 12
    assert len({collector.seed for collector in collectors}) == 3
    assert len({collector.policy.generator.random() for collector in collectors}) == 3
    serial = make_collector(make_plan(config("policy=r2d2", "env=cartpole")), Counters())
    assert collectors[0].seed == serial.seed


def test_a_restarted_collector_opens_episodes_that_were_not_collected_before(monkeypatch):
    """Whether or not chunks came in between, and also after a resume at another env step."""
    seeds, reset = [], NativeVector.reset

    def recorded(self, seed):
        seeds.append(seed)
        return reset(self, seed)

    monkeypatch.setattr(NativeVector, "reset", recorded)
    role, weights = collector_role()
    _, _, _, state = role.collect_for(0, False, None, *weights)
    for env_steps, restarts in ((0, 1), (0, 2), (120, 2), (180, 0)):
        collector_role()[0].load(state, env_steps, restarts)
    first, loaded = seeds[0], [seed for seed in seeds if seed != seeds[0]]
    assert first == role.collector.seed, "that of the serial pipeline"
    assert len(loaded) == len({*loaded}) == 4


def test_a_new_process_sends_the_states_of_all_rows_from_which_windows_may_start():
    """It does not know how far the episodes have come that are open in the driver's replay."""
    role, weights = collector_role()
    *_, state = role.collect_for(0, True, None, *weights)
    other, _ = collector_role()
    other.load(state, 0, 0)
    blanked = []
    for one in (role, other):
        chunk = one.collector.collect_rows()
        filtered = one.transport.thin(chunk)
        open_before = ~np.logical_or.accumulate(chunk.first[: len(chunk.reward)], axis=0)
        pairs = zip(tree_leaves(chunk.states), tree_leaves(filtered.states), strict=True)
        changed = np.logical_or.reduce([(a != b).any(-1) for a, b in pairs])
        assert open_before.any()
        blanked.append(changed[open_before].sum())
    assert blanked[0] > blanked[1] == 0


def test_a_resume_with_another_number_of_collectors_is_refused():
    """Private: a resume does not take pipeline.num_actors; the checkpoint may be a stranger's."""
    source = RaySource.__new__(RaySource)
    source.collectors = [None, None]
    for saved in ({"collectors": [{}]}, {}):
        with pytest.raises(CheckpointError, match="num_actors = 2"):
            source.load_state_dict(saved)


def test_calls_of_a_thread_are_made_in_their_order_whatever_comes_first():
    """Ray may deliver the second one first."""

    class Keeps(list):
        close = list.clear

    async def calls():
        first, second = (threads.call(1, i, "append", i) for i in range(2))
        assert await asyncio.gather(second, first) == [(None, None)] * 2
        assert await threads.call(0, 0, "pop") == ("IndexError", ANY)
        assert kept == [[], [0, 1]]
        assert await threads.close() == (None, None)

    kept = [Keeps(), Keeps()]
    threads = CollectorThreads(kept)
    asyncio.run(calls())
    assert kept == [[], []]


class Breaks:
    """A role whose methods raise, or end its process."""

    def __init__(self, fails=False):
        assert not fails, "bad part"

    def raises(self):
        raise ValueError("bad reply")

    def reply(self):
        return lambda: None  # Ray pickles it, the driver calls it

    def end(self):
        import os

        os._exit(1)


def test_an_exception_in_a_role_is_no_lost_process(tmp_path):
    """Also one of its constructor, or of arguments that cannot be read."""
    import ray

    given = {"resources": RoleConfig(0, 0, {}), "log": tmp_path / "roles" / "x.log"}
    good, bad = (
        Role("learner", make=Breaks, **given),
        Role("bad", make=lambda: Breaks(True), **given),
    )
    with pytest.raises(RuntimeError, match=r"(?s)learner.*ValueError: bad reply"):
        good.value(good.call("raises"))
    with pytest.raises(RuntimeError, match=r"(?s)bad.*bad part"):
        bad.value(bad.call("raises"))
    with pytest.raises(Lost):
        good.value(good.call("end"))
    good.replace("it has ended")
    assert good.lost_since is not None
    assert callable(good.value(good.call("reply")))
    assert (good.restarts, good.lost_since) == (1, None)
    assert given["log"].read_text().count("process") >= 2
    for role in (good, bad):
        ray.kill(role.handle)


def test_a_role_that_does_not_come_back_ends_the_run(monkeypatch):
    """Private: a run would have to wait for minutes on a cluster that has lost a machine."""
    role = Role.__new__(Role)
    role.name, role.lost_since = "collector 0", None
    role.require(1000.0)
    role.lost_since = 1.0  # since the machine was started
    monkeypatch.setattr(roles, "GIVE_UP_SECONDS", 1e9)
    role.require(1.0)
    with pytest.raises(ResourceError, match=r"collector 0 .* 3 s"):
        role.require(4.0)
    monkeypatch.setattr(roles, "GIVE_UP_SECONDS", 0.0)
    with pytest.raises(ResourceError, match=" 0 s"):
        role.require(0.0)
