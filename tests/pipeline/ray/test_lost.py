"""What the driver does when replies fail: lost chunks and roles, errors of roles, signals.

Private: the order of replies that matters cannot be brought about from outside.
"""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from rlrun.errors import CheckpointError, ResourceError
from rlrun.pipeline.ray import delivery as delivery_module
from rlrun.pipeline.ray import roles as roles_module
from rlrun.pipeline.ray import shard_reader
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.delivery import MAX_DAMAGED, Delivery
from rlrun.pipeline.ray.messages import Collected, Learned, RoleFailure, Stored
from rlrun.pipeline.ray.pump import Lost, Pump
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.remote_buffer import RemoteBuffer, RemoteRollouts
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.ray.roles import CollectorHandle, Role, Roles, ShardHandle
from rlrun.pipeline.ray.shard_reader import ShardReader
from rlrun.pipeline.ray.source import RaySource
from rlrun.types import Counters


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


class ByHand:
    """A pump whose timers and replies are those of the test."""

    def __init__(self):
        self.timers, self.waiting, self.replies = [], [], 0

    def after(self, seconds, call):
        self.timers.append(call)

    def when(self, reply, handle):
        self.waiting.append(handle)

    def run(self, timeout):
        self.replies += 1
        assert self.replies < 100_000, "it waits for ever"


@pytest.fixture
def roles():
    """Roles of one collector and one shard, both idle, whose calls are noted."""
    roles = Roles.__new__(Roles)
    roles.pump, roles.predictor = ByHand(), None
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


def chunk_of(roles, seq):
    return SimpleNamespace(
        collector=roles.collectors[0], info=SimpleNamespace(seq=seq), payload=None
    )


# -- chunks ----------------------------------------------------------------------------------------


def test_a_first_chunk_that_is_late_is_waited_for():
    receiver = Receiver({}, lambda rows, sender: rows)
    assert receiver.early(0, 5, since=4)
    assert not receiver.early(0, 4, since=4)
    assert not receiver.again(0, 4)
    receiver.accept(0, 4)
    assert receiver.again(0, 4)
    assert not receiver.early(0, 5, since=4)


def test_one_try_of_a_chunk_is_under_way_however_long_its_shard_is_away(roles):
    shard, pump = roles.shards[0], roles.pump
    shard.down, shard.down_since = True, time.monotonic()
    delivery, done = Delivery(roles), []
    delivery.send(chunk_of(roles, 0), lambda chunk, stored: done.append(stored), done.append)
    for _ in range(6):  # the call fails, and the timers of all tries so far are due
        handles, pump.waiting = pump.waiting, []
        for handle in handles:
            handle(Lost(None))
        timers, pump.timers = pump.timers, []
        for timer in timers:
            timer()
    assert len(shard.handle.add.calls) == 7
    stored = Stored(1, True, steps=1, windows=0, mass=0.0)
    pump.waiting[-1](stored)
    pump.waiting[-1](stored)
    assert done == [True]
    assert not delivery.pending
    assert not delivery.tries


def test_a_chunk_that_was_lost_with_its_node_is_collected_again(roles):
    """Its shard is not at fault; later chunks of its collector are of no use without it."""
    pump = roles.pump
    (shard,), (collector,) = roles.shards, roles.collectors
    delivery = Delivery(roles)
    source = made_source(roles, delivery)
    for seq in (0, 1):
        source.launch()
        source._replied(collector, f"rows {seq}", collected(seq))
    collector.busy = True  # a third one is being collected
    first, second = pump.waiting[1], pump.waiting[-1]
    first(Stored(1, True))
    assert [(chunk.info.seq, chunk.payload) for chunk in source.ready] == [(0, "rows 0")]
    second(gone())
    assert (shard.restarts, shard.down) == (0, False)
    assert not delivery.pending
    assert (collector.seq, collector.state, collector.waiting) == (1, {"after": 0}, 1)
    assert not collector.handle.load.calls, "an order is under way"
    source._replied(collector, "rows 2", collected(2))
    assert collector.handle.load.calls == [({"after": 0}, 0, 0)]
    pump.waiting[-1](None)
    order = collector.handle.collect.calls[-1][0]
    assert (order.seq, source.traffic.lost) == (1, 1)


def test_a_chunk_that_comes_while_a_state_is_saved_is_no_part_of_it(roles):
    """Else its shard would hold it and the resumed collector would collect that number again."""
    sent, (collector,) = [], roles.collectors
    collector.busy = True
    delivery = SimpleNamespace(drain=lambda: None, send=lambda chunk, *given: sent.append(chunk))
    source = made_source(roles, delivery)
    assert source.quiesce() == []
    source._replied(collector, "rows", collected(0))
    assert (collector.seq, collector.state, sent, collector.busy) == (0, None, [], True)
    source.go_on()
    assert (collector.seq, collector.state) == (1, {"after": 0})
    assert [chunk.payload for chunk in sent] == ["rows"]


def test_a_chunk_that_always_comes_damaged_is_given_up(roles, caplog):
    delivery, given_up, chunk = Delivery(roles), [], chunk_of(roles, 3)
    delivery.send(chunk, lambda *given: None, given_up.append)
    for _ in range(MAX_DAMAGED + 1):
        roles.pump.waiting[-1](Stored(3, False, damaged=True))
        roles.pump.timers[-1]()
    assert given_up == [chunk]
    assert not delivery.pending
    assert f"arrived damaged {MAX_DAMAGED + 1} times" in caplog.text


def test_a_lost_chunk_ends_a_strict_run_and_restarts_no_learner(roles):
    learner = made_learner(roles, RemoteRollouts())
    learner._send_rollouts([chunk_of(roles, 3)])
    roles.pump.waiting[-1](gone())
    assert (roles.learner.restarts, learner.traffic.lost) == (0, 1)
    roles.pump.run = lambda timeout: roles.pump.waiting.pop()(gone())
    buffer = RemoteBuffer(roles, Delivery(roles), rounds=True, directory=None)
    with pytest.raises(ResourceError, match="chunk 3 of collector 0 is lost"):
        buffer.add([chunk_of(roles, 3)])


# -- roles -----------------------------------------------------------------------------------------


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


def test_a_role_that_does_not_come_back_ends_the_run(roles, monkeypatch):
    """Whether one call is waited for or every call fails; after a signal soon."""
    monkeypatch.setattr(roles_module, "GIVE_UP_SECONDS", 0.0)
    monkeypatch.setattr(roles_module, "STOP_SECONDS", 0.0)
    roles.pump.wait = lambda reply: Lost(None)
    handle = SimpleNamespace(state=Method())
    with pytest.raises(ResourceError, match="the learner was lost and does not come back"):
        roles.ask(Role("learner", handle), "state")
    monkeypatch.setattr(roles_module, "GIVE_UP_SECONDS", 1000.0)
    role = Role("replay 0", None)
    roles.note_lost(role, Lost(None))
    roles.note_lost(role, Lost(None))
    assert role.restarts == 1
    roles.stop = lambda: True
    assert roles.stopping() >= 0.0
    with pytest.raises(ResourceError, match="the replay 0 was lost and does not come back"):
        roles.note_lost(role, Lost(None))
    roles.value(role, None)
    roles.note_lost(role, Lost(None))  # it had answered in between


def test_a_signal_ends_a_round_whose_shard_does_not_answer(roles, monkeypatch):
    monkeypatch.setattr(delivery_module, "STOP_SECONDS", 0.01)
    roles.stop = lambda: True
    buffer = RemoteBuffer(roles, Delivery(roles), rounds=True, directory=None)
    with pytest.raises(ResourceError, match="a chunk was not stored within"):
        buffer.add([chunk_of(roles, 3)])


def test_a_resume_with_another_number_of_collectors_is_refused():
    source = RaySource.__new__(RaySource)
    source.roles = SimpleNamespace(collectors=[None, None], pump=None)
    for saved in ({"collectors": [{}]}, {}):
        with pytest.raises(CheckpointError, match="num_actors = 2"):
            source.load_state_dict(saved)


# -- updates ---------------------------------------------------------------------------------------


def test_updates_that_a_restarted_learner_lacks_are_done_again(roles):
    """Those since the last state that was saved, and those that were under way."""
    learner = made_learner(roles)
    states = {"policy": None, "learner": {"means": None}}
    roles.ask = lambda role, method, *given: {"state": states, "frame": (0, None)}.get(method)
    learner._submit = lambda: None
    learner.flying, learner.calls = 12, 4
    learner._learned(3, 0.0, Learned(3, 3))
    learner._learned(3, 0.0, Learned(6, 3))
    learner.calls = 0
    learner.sync()
    learner.calls = 2
    learner._learned(5, 0.0, Learned(11, 5))
    learner._learned(1, 0.0, Lost(None))
    assert (learner.due, learner.counters.updates, learner.flying) == (1 + 5, 6, 0)
    learner._refill()  # lost once more, with nothing done since
    assert (learner.due, learner.counters.updates) == (6, 6)


# -- the learner's replay of several shards --------------------------------------------------------

BATCH = 4


class Shard:
    """An actor that samples batches of its number."""

    def __init__(self, number: int, masses: list[float]) -> None:
        self.sample = SimpleNamespace(remote=self._sample)
        self.prioritize = Method()
        self.number, self.masses, self.drawn = number, masses, 0

    def _sample(self, batch: int, env_steps: int) -> SimpleNamespace:
        self.drawn += 1
        return SimpleNamespace(
            mass=self.masses[self.number], key=np.full(batch, self.number), incarnation=0,
            weight=np.ones(batch, np.float32), segment=None,
        )  # fmt: skip


def reader_of(monkeypatch, masses, prefetch):
    """(reader, its shards) of masses; ``prefetch``: batches asked for ahead."""
    shards = [Shard(i, masses) for i in range(len(masses))]
    monkeypatch.setattr("ray.get_actor", lambda name: shards[int(name)])
    monkeypatch.setattr("ray.get", lambda reply: reply)
    monkeypatch.setattr(shard_reader, "as_segment", lambda arrays: arrays)
    reader = ShardReader([str(i) for i in range(len(masses))], prefetch=prefetch)
    reader.set_masses(masses, 100)
    return reader, shards


@pytest.mark.parametrize("masses", [[1.0, 3.0], [2.0, 0.0, 6.0]])
def test_shards_are_drawn_by_the_sums_of_their_priorities(monkeypatch, masses):
    """Equal shares would give the windows of a small shard more weight than they have."""
    reader, shards = reader_of(monkeypatch, masses, 1)
    for _ in range(400):
        reader.sample(BATCH, 0)
    share = np.array(masses) / sum(masses)
    np.testing.assert_allclose([shard.drawn for shard in shards], 400 * share, atol=1)
    masses[-1] = 7 * sum(masses[:-1])
    for _ in range(10):  # each shard has told its mass by then
        reader.sample(BATCH, 0)
    before = shards[-1].drawn
    for _ in range(400):
        reader.sample(BATCH, 0)
    assert shards[-1].drawn - before == pytest.approx(350, abs=1)


def test_a_resumed_reader_goes_on_with_the_shard_whose_turn_it_is(monkeypatch):
    """Also where the driver has heard of other masses since."""

    def draws(reader, count):
        return [int(reader.sample(BATCH, 0).key[0]) for _ in range(count)]

    masses = [1.0, 3.0]
    whole, _ = reader_of(monkeypatch, masses, 1)
    draws(whole, 5)
    resumed, _ = reader_of(monkeypatch, [3.0, 1.0], 1)
    resumed.load_state_dict(whole.state_dict())
    for shard in resumed.shards:
        shard.masses = masses
    assert draws(resumed, 9) == draws(whole, 9)
    for wrong in ({"mass": [1.0]}, {"turn": [0.0, float("nan")]}, {"mass": [-1.0, 1.0]}):
        with pytest.raises(CheckpointError):
            resumed.load_state_dict(whole.state_dict() | wrong)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_priorities_are_there_before_the_next_rows(monkeypatch, prefetch):
    """In lock-step; a row that another process stores would come before or after them."""
    reader, _ = reader_of(monkeypatch, [1.0], prefetch)
    for _ in range(5):
        reader.prioritize(reader.sample(BATCH, 0).key, np.ones(BATCH))
    reader.settle()
    assert len(reader.written) == prefetch - 1


@pytest.mark.parametrize(("prefetch", "lags"), [(1, [0, 0, 0, 0]), (3, [0, 1, 2, 2])])
def test_the_lag_of_priorities_is_in_updates(monkeypatch, prefetch, lags):
    """0 where a batch is drawn after the priorities of the one before it were sent."""
    reader, _ = reader_of(monkeypatch, [1.0], prefetch)
    for _ in lags:
        reader.prioritize(reader.sample(BATCH, 0).key, np.ones(BATCH, np.float32))
    assert reader.lags == lags
