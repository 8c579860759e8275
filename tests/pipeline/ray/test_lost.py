"""What the driver does when replies fail: lost chunks and roles, errors of roles, signals."""

import json
import time
from types import SimpleNamespace

import pytest

from rlrun.errors import NumericError, ResourceError
from rlrun.pipeline.ray import delivery as delivery_module
from rlrun.pipeline.ray import roles as roles_module
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.delivery import MAX_DAMAGED, Delivery
from rlrun.pipeline.ray.learning import LearnerRole
from rlrun.pipeline.ray.messages import Collected, Learned, RoleFailure, Stored
from rlrun.pipeline.ray.pipeline import RayPipeline
from rlrun.pipeline.ray.pump import Lost, Pump
from rlrun.pipeline.ray.remote_buffer import RemoteBuffer
from rlrun.pipeline.ray.remote_evaluator import RemoteEvaluator
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.ray.roles import CollectorHandle, Role, Roles, ShardHandle
from rlrun.pipeline.ray.shard_reader import ShardReader
from rlrun.pipeline.rollback import MAX_ROLLBACKS
from rlrun.pipeline.serial import Pipeline
from rlrun.run import train
from rlrun.types import Counters
from tests.compose import config
from tests.pipeline.ray.test_async import RAY, ByHand
from tests.pipeline.test_faults import DIVERGES


def gone():
    """The reply to a call with a chunk whose node was lost."""
    from ray.exceptions import ObjectLostError

    return Lost(ObjectLostError("ff", None, ""))


class Method:
    """A method of an actor: notes its calls."""

    def __init__(self, reply=None):
        self.calls, self.reply = [], reply

    def remote(self, *given):
        self.calls.append(given)
        return self.reply

    def options(self, **given):
        return self


class Idle(ByHand):
    """A pump without replies; a loop that waits for one does not end."""

    def __init__(self):
        super().__init__()
        self.runs = self.replies = 0

    def run(self, timeout):
        self.runs += 1
        assert self.runs < 100_000, "it waits for ever"


def made_roles(pump):
    """Roles of one collector and one shard, both idle, whose calls are noted."""
    roles = Roles.__new__(Roles)
    roles.pump, roles.predictor = pump, None
    roles.shards = [ShardHandle("replay 0", SimpleNamespace(add=Method()))]
    own = SimpleNamespace(load=Method(), collect=Method((None, None)))
    roles.collectors = [CollectorHandle("collector 0", own)]
    roles.learner = Role("learner", SimpleNamespace(learn=Method(), learn_rollouts=Method()))
    roles.evaluator = Role("evaluator", SimpleNamespace(run=Method()))
    roles.frames = SimpleNamespace(since=lambda version: [])
    roles.write_log = lambda *given: None
    return roles


def made_source(roles, delivery):
    source = AsyncSource(roles, SimpleNamespace(counters=Counters()), keep_env=False,
                         max_seconds=None, delivery=delivery, total_steps=1000)  # fmt: skip
    source.traffic.collected = lambda *given: None
    return source


def made_learner(roles, buffer=None, *, rounds=False):
    learner = RemoteLearner(
        SimpleNamespace(), roles, SimpleNamespace(lost=0, learning=0.0, lags=[]),
        policy=SimpleNamespace(window=None, seconds={}, load_state_dict=lambda state: None),
        buffer=buffer, counters=Counters(), rounds=rounds, max_lead=0, publish_every=1000,
        stop=lambda: False,
    )  # fmt: skip
    learner.publication = SimpleNamespace(publish=lambda frame: None)
    return learner


def collected(seq):
    return Collected(seq, None, None, {"after": seq}, 0, 0, {}, (0, 0))


def named(chunks):
    return [(chunk.info.seq, chunk.payload) for chunk in chunks]


# -- chunks ----------------------------------------------------------------------------------------


def test_a_chunk_that_was_lost_with_its_node_is_collected_again():
    """Its shard is not at fault; later chunks of its collector are of no use without it."""
    pump = ByHand()
    roles = made_roles(pump)
    (shard,), (collector,) = roles.shards, roles.collectors
    delivery = Delivery(roles)
    source = made_source(roles, delivery)
    for seq in (0, 1):
        source.launch()
        source._replied(collector, f"rows {seq}", collected(seq))
    collector.busy = True  # a third one is being collected
    first, second = pump.waiting[1], pump.waiting[-1]
    first(Stored(1, True))
    assert named(source.ready) == [(0, "rows 0")]
    second(gone())
    assert (shard.restarts, shard.down) == (0, False)
    assert not delivery.pending
    assert (collector.seq, collector.state, collector.waiting) == (1, {"after": 0}, 1)
    assert not collector.handle.load.calls, "an order is under way"
    source._replied(collector, "rows 2", collected(2))
    assert collector.handle.load.calls == [({"after": 0}, 0, 0)]
    assert not delivery.pending
    pump.waiting[-1](None)
    order = collector.handle.collect.calls[-1][0]
    assert (order.seq, source.traffic.lost) == (1, 1)


def test_chunks_after_a_lost_one_are_taken_back():
    roles = made_roles(ByHand())
    (collector,) = roles.collectors
    delivery = Delivery(roles)
    source = made_source(roles, delivery)
    source.launch()
    for seq in (0, 1):
        source._replied(collector, "rows", collected(seq))
    collector.busy = False
    roles.pump.waiting[1](gone())
    assert not delivery.pending
    assert not delivery.tries
    assert (collector.seq, collector.state, collector.busy) == (0, None, True)
    roles.pump.waiting[3](Stored(2, True))  # of the one that was taken back
    assert not source.ready


def test_a_chunk_that_always_comes_damaged_is_given_up(caplog):
    roles, given_up = made_roles(ByHand()), []
    delivery = Delivery(roles)
    chunk = SimpleNamespace(
        collector=roles.collectors[0], info=SimpleNamespace(seq=3), payload=None
    )
    delivery.send(chunk, lambda *given: None, given_up.append)
    for _ in range(MAX_DAMAGED + 1):
        roles.pump.waiting[-1](Stored(3, False, damaged=True))
        roles.pump.timers[-1]()
    assert given_up == [chunk]
    assert not delivery.pending
    assert "chunk 3 of collector 0 is lost (it arrived damaged 21 times)" in caplog.text


def test_a_strict_run_ends_where_a_chunk_is_lost():
    roles = made_roles(ByHand())
    roles.pump.run = lambda timeout: roles.pump.waiting.pop()(gone())
    buffer = RemoteBuffer(roles, Delivery(roles), rounds=True, directory=None)
    chunk = SimpleNamespace(
        collector=roles.collectors[0], info=SimpleNamespace(seq=3), payload=None
    )
    with pytest.raises(ResourceError, match="chunk 3 of collector 0 is lost"):
        buffer.add([chunk])


# -- errors of roles -------------------------------------------------------------------------------


def test_an_exception_in_a_role_is_no_lost_process():
    """Also one that no method catches: of arguments, replies, or the constructor."""
    import ray

    @ray.remote(num_cpus=0, max_restarts=-1)
    class Broken:
        def __init__(self, fails):
            assert not fails, "no such part"

        def reply(self):
            raise ValueError("no such reply")

        def end(self):
            import os

            os._exit(1)

    pump = Pump(lambda: None)
    good, bad = Broken.remote(False), Broken.remote(True)
    found = pump.wait(good.reply.remote())
    assert isinstance(found, RoleFailure)
    with pytest.raises(RuntimeError, match=r"(?s)in learner:.*ValueError: no such reply"):
        raise found.error("learner")
    found = pump.wait(bad.reply.remote())
    assert isinstance(found, RoleFailure)
    assert "no such part" in found.text
    found = pump.wait(good.end.remote())
    assert isinstance(found, Lost)
    assert not found.of_object
    for actor in (good, bad):
        ray.kill(actor)


def test_a_learner_is_not_diagnosed_while_the_shard_is_away(monkeypatch):
    import ray

    def lost(reply):
        raise ray.exceptions.ActorUnavailableError("restarting", None)

    monkeypatch.setattr(ray, "get", lost)
    role, reader = LearnerRole.__new__(LearnerRole), ShardReader([], prefetch=1)
    reader.shards = [SimpleNamespace(random_windows=Method())]
    role.failed, role.blank, role.reader, role.counters = None, False, reader, Counters()
    role.learner = SimpleNamespace(diagnose=lambda: reader.random_windows(1, None))
    assert role.diagnose(0, 1) == {}


# -- signals ---------------------------------------------------------------------------------------


def test_a_signal_ends_a_round_whose_shard_does_not_answer(monkeypatch):
    monkeypatch.setattr(delivery_module, "STOP_SECONDS", 0.01, raising=False)
    roles = made_roles(Idle())
    roles.stop = lambda: True
    buffer = RemoteBuffer(roles, Delivery(roles), rounds=True, directory=None)
    chunk = SimpleNamespace(
        collector=roles.collectors[0], info=SimpleNamespace(seq=3), payload=None
    )
    with pytest.raises(ResourceError, match="a chunk was not stored within"):
        buffer.add([chunk])


def test_a_signal_does_not_wait_long_for_a_lost_role(monkeypatch):
    roles, role = made_roles(ByHand()), Role("replay 0", None)
    monkeypatch.setattr(roles_module, "STOP_SECONDS", 0.0, raising=False)
    roles.note_lost(role, Lost(None))
    roles.note_lost(role, Lost(None))
    roles.stop = lambda: True
    assert roles.stopping() >= 0.0
    time.sleep(0.01)
    with pytest.raises(ResourceError, match="the replay 0 was lost and does not come back"):
        roles.note_lost(role, Lost(None))


# -- rollbacks -------------------------------------------------------------------------------------


def test_a_diverging_run_goes_back_as_often_as_it_may(tmp_path):
    """Calls under way fail too; they are of the run that is given up."""
    words = (*DIVERGES, *RAY, "run.on_nan=rollback", "run.checkpoint_every=100",
             "learner.learning_starts=1000", "run.total_steps=3000")  # fmt: skip
    with pytest.raises(NumericError, match="go on: rlrun resume"):
        train.run(config(*words), tmp_path, raw_yaml="", overrides=[])
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["rollbacks"], record["exit_code"]) == (MAX_ROLLBACKS, NumericError.exit_code)


def test_failures_of_a_run_that_is_given_up_are_ignored():
    """The next calls fail as the one that led to the rollback."""
    roles = made_roles(Idle())
    learner = made_learner(roles)
    roles.ask = lambda *given: None
    learner.due, learner.calls, learner.flying = 40, 2, 6
    replies = [RoleFailure("NumericError", "train/loss = nan"), Learned(9, 3)]
    roles.pump.run = lambda timeout: learner._learned(3, 0.0, replies.pop(0))
    learner.abandon()
    assert not replies
    assert not roles.learner.handle.learn.calls


def test_an_evaluation_under_way_is_forgotten_by_a_rollback(monkeypatch):
    roles = made_roles(ByHand())
    pipeline = RayPipeline.__new__(RayPipeline)
    pipeline.evaluator, pipeline.evaluated = RemoteEvaluator(roles), []
    pipeline.learner = made_learner(roles)
    roles.ask = lambda *given: None
    pipeline.under_way = 100, {}
    pipeline.evaluator.start({}, 100, pipeline.evaluated.append)
    monkeypatch.setattr(Pipeline, "load_state_dict", lambda self, state: None)
    pipeline.load_state_dict({})
    roles.pump.waiting[-1](("an evaluation", []))
    assert pipeline.under_way is None
    assert pipeline.evaluated == []
    pipeline.evaluator.start({}, 200, pipeline.evaluated.append)
    roles.pump.waiting[-1](("another", []))
    assert pipeline.evaluated == ["another"]
