"""Collectors that never wait for each other: counts, pacing, bad links, killed roles."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

from rlrun.build import ray as build
from rlrun.build.pipeline import make_collector
from rlrun.build.plan import make_plan
from rlrun.errors import ResourceError
from rlrun.pipeline.ray import roles as roles_module
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.delivery import Delivery
from rlrun.pipeline.ray.messages import Blank, Collected, Stored
from rlrun.pipeline.ray.pipeline import RayPipeline
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.remote_buffer import RemoteBuffer
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.ray.roles import CollectorHandle, Role, Roles, ShardHandle
from rlrun.rundir.checkpoint import load_newest
from rlrun.types import Counters
from tests.compose import config
from tests.exact import differences
from tests.faults.ray_chaos import follows
from tests.log.records import read_records
from tests.pipeline.test_serial import go

RAY = ("pipeline=ray", "watchdog.max_seconds=60")
COUNTER = ("policy=r2d2", "env=counter", "collector.num_envs=2", "memory.hidden=8",
           "torso.hidden=[8]", "learner.learning_starts=32", "learner.batch_size=4")  # fmt: skip


def last(run_dir, key):
    """The newest value of a metric that is no part of the digest."""
    lines = [line for line in read_records(run_dir / "timings.jsonl") if key in line]
    return lines[-1][key]


def stored_rows(run_dir):
    """Observations (environment, episode, t) of all rows of every stream, column by column."""
    state, _ = load_newest(run_dir / "checkpoints")
    found = []
    for shard in state["buffer"]["shards"]:
        for stream in shard["streams"]:
            rows = stream["ring"]["obs"]
            rows = rows["rows"] if isinstance(rows, dict) else rows
            found.append(rows.read(rows.first, rows.stop))
    return state, found


def assert_whole(run_dir):
    """Every row that counts is stored once, in its column's order."""
    state, streams = stored_rows(run_dir)
    counted = sum(
        stream["counts"]["rows"]
        for shard in state["buffer"]["shards"]
        for stream in shard["streams"]
    )
    assert counted == state["counters"]["env_steps"]
    for rows in streams:
        for column in rows:
            episode, t = column[:, 1], column[:, 2]
            goes_on = (episode[1:] == episode[:-1]) & (t[1:] == t[:-1] + 1)
            opens = (episode[1:] == episode[:-1] + 1) & (t[1:] == 0)
            assert (goes_on | opens).all()


def test_every_row_is_stored_once_and_updates_keep_their_ratio(tmp_path):
    words = (*COUNTER, "run.total_steps=2000", "learner.replay_ratio=8", "logger.every=400")
    record = go(tmp_path, *words, *RAY, "pipeline.num_shards=2", "collector.n_sample=32")
    assert_whole(tmp_path)
    assert not record["exact"]
    assert "strict" in record["exact_reason"]
    ratios = [x["train/replay_ratio"] for x in read_records(tmp_path / "metrics.jsonl")
              if "train/replay_ratio" in x]  # fmt: skip
    assert sum(ratios[1:]) / len(ratios[1:]) == pytest.approx(8, rel=0.25)
    assert {p.name for p in (tmp_path / "roles").iterdir()} >= {"collector_0.log", "replay_1.log"}
    assert last(tmp_path, "ray/weights_age") >= 0


def test_a_first_chunk_that_is_late_is_waited_for():
    receiver = Receiver({}, lambda rows, sender: rows)
    assert receiver.early(0, 5, since=4)
    assert not receiver.early(0, 4, since=4)
    assert not receiver.again(0, 4)
    receiver.accept(0, 4)
    assert receiver.again(0, 4)
    assert not receiver.early(0, 5, since=4)


def test_a_bad_link_loses_nothing_and_stores_nothing_twice(tmp_path, monkeypatch):
    """Of four messages one is dropped, sent twice, late or damaged."""
    chaos = {"drop": 0.06, "twice": 0.06, "late": 0.06, "corrupt": 0.06, "answer_seconds": 0.3}
    monkeypatch.setenv(build.FAULTS, json.dumps(chaos))
    words = (*COUNTER, "run.total_steps=2500", "learner.replay_ratio=2", "collector.n_sample=16")
    go(tmp_path, *words, *RAY, "transport=coded", "transport.key_seconds=0")
    assert_whole(tmp_path)
    assert last(tmp_path, "ray/chunks_repeated") > 0
    assert last(tmp_path, "ray/chunks_damaged") > 0


def test_killed_roles_are_restarted_and_the_run_completes(tmp_path, monkeypatch):
    """Every role once, one after the other; what was acknowledged stays."""
    import ray

    made, killed = [], []
    wire = build._wire

    def kept(*arguments):
        made.append(wire(*arguments))
        return made[-1]

    def kill():
        roles = made[0].source.roles
        for role in (roles.collectors[0], roles.learner, roles.evaluator, roles.predictor,
                     roles.shards[0]):  # fmt: skip
            at = made[0].counters.env_steps
            while made[0].counters.env_steps < at + 150:
                time.sleep(0.05)
            ray.kill(role.handle, no_restart=False)
            killed.append(role.name)

    def run(self, stop):
        threading.Thread(target=kill, daemon=True).start()
        return super(RayPipeline, self).run(stop)

    monkeypatch.setattr(build, "_wire", kept)
    monkeypatch.setattr(RayPipeline, "run", run)
    words = (*COUNTER, "run.total_steps=4000", "learner.replay_ratio=2", "run.eval_every=300")
    record = go(tmp_path, *words, *RAY, "pipeline.inference=central", "transport=coded",
                "transport.key_seconds=0", "run.checkpoint_every=500")  # fmt: skip
    assert killed == ["collector 0", "learner", "evaluator", "predictor", "replay 0"]
    assert record["status"] == "done"
    assert record["updates"] > 0
    log = (tmp_path / "rlrun.log").read_text() if (tmp_path / "rlrun.log").exists() else ""
    assert "restarts" not in log
    assert last(tmp_path, "ray/restarts") >= 5
    assert "predictor: process" in (tmp_path / "roles" / "predictor.log").read_text()
    _, streams = stored_rows(tmp_path)
    assert all(len(rows[0]) for rows in streams), "the shard was filled again"


def test_roles_lost_while_nobody_waits_for_them_go_on_from_their_state(tmp_path, monkeypatch):
    """No call fails: the next one is answered by a process that has nothing loaded."""
    import ray

    updates = []
    go_on = AsyncSource.go_on

    def replaced(call):
        try:
            found = ray.get(call())
            found = found[0] if isinstance(found, tuple) else found
        except ray.exceptions.RayError:
            return False
        return isinstance(found, Blank)

    def kill_first(self):
        learner, collector = self.roles.learner, self.roles.collectors[0]
        if not updates and self.counters.env_steps >= 1000:
            updates.append(self.counters.updates)
            while collector.busy:
                self.pump.run(0.1)
            for handle in (learner.handle, collector.handle):
                ray.kill(handle, no_restart=False)
            for call in (lambda: learner.handle.sizes.remote(),
                         lambda: collector.handle.collect.remote(None)):  # fmt: skip
                while not replaced(call):
                    time.sleep(0.1)
        go_on(self)

    refill, restored = RemoteLearner._refill, []

    def compare(self):
        refill(self)
        now = self.roles.ask(self.roles.learner, "state")
        restored.append([*differences(self.last_state["policy"], now["policy"])])

    monkeypatch.setattr(RemoteLearner, "_refill", compare)
    monkeypatch.setattr(AsyncSource, "go_on", kill_first)
    words = (*COUNTER, "run.total_steps=1500", "learner.replay_ratio=4")
    record = go(tmp_path, *words, *RAY, "run.checkpoint_every=1000")
    assert record["updates"] > updates[0]
    assert last(tmp_path, "ray/restarts") >= 2  # a call that was under way may tell of it again
    _, streams = stored_rows(tmp_path)
    assert restored
    assert not any(restored), "the learner has the weights and moments that were saved last"
    assert all(follows(column) for rows in streams for column in rows)


def test_a_role_that_does_not_come_back_ends_the_run(monkeypatch):
    monkeypatch.setattr(roles_module, "GIVE_UP_SECONDS", 0.05)
    roles = Roles.__new__(Roles)
    roles.pump = SimpleNamespace(
        wait=lambda reply: Lost(None), run=lambda seconds: time.sleep(0.01)
    )
    handle = SimpleNamespace(state=SimpleNamespace(remote=lambda: None))
    with pytest.raises(ResourceError, match="the learner was lost and does not come back"):
        roles.ask(Role("learner", handle), "state")


def test_every_call_of_a_role_that_does_not_come_back_ends_the_run(monkeypatch):
    """Also where nobody waits for one call: shards, evaluators and collectors are called again."""
    roles, role = Roles.__new__(Roles), Role("replay 0", None)
    roles.note_lost(role, Lost(None))
    roles.note_lost(role, Lost(None))
    assert role.restarts == 1
    monkeypatch.setattr(roles_module, "GIVE_UP_SECONDS", -1.0)
    with pytest.raises(ResourceError, match="the replay 0 was lost and does not come back"):
        roles.note_lost(role, Lost(None))
    roles.value(role, None)
    roles.note_lost(role, Lost(None))  # it had answered in between


class ByHand:
    """A pump whose timers and replies are those of the test."""

    def __init__(self):
        self.timers, self.waiting = [], []

    def after(self, seconds, call):
        self.timers.append(call)

    def when(self, reply, handle):
        self.waiting.append(handle)


def test_one_try_of_a_chunk_is_under_way_however_long_its_shard_is_away():
    pump, sent = ByHand(), []
    add = SimpleNamespace(remote=lambda *given: sent.append(given))
    shard = ShardHandle(
        "replay 0", SimpleNamespace(add=add), down=True, down_since=time.monotonic()
    )
    roles = Roles.__new__(Roles)
    roles.pump, roles.shards = pump, [shard]
    delivery, done = Delivery(roles), []
    collector = CollectorHandle("collector 0", None)
    chunk = SimpleNamespace(collector=collector, info=SimpleNamespace(seq=0), payload=None)
    delivery.send(chunk, lambda chunk, stored: done.append(stored), done.append)
    for _ in range(6):  # the call fails, and the timers of all tries so far are due
        handles, pump.waiting = pump.waiting, []
        for handle in handles:
            handle(Lost(None))
        timers, pump.timers = pump.timers, []
        for timer in timers:
            timer()
    assert len(sent) == 7
    stored = Stored(1, True, rows=1, windows=0, mass=0.0)
    pump.waiting[-1](stored)
    pump.waiting[-1](stored)
    assert done == [True]
    assert not delivery.pending
    assert not delivery.tries


def test_a_chunk_that_comes_while_a_state_is_saved_is_no_part_of_it():
    """Else its shard would hold it and the resumed collector would collect that number again."""
    roles, sent = Roles.__new__(Roles), []
    roles.pump, roles.collectors, roles.predictor = ByHand(), [CollectorHandle("c", None)], None
    (collector,) = roles.collectors
    collector.busy = True
    delivery = SimpleNamespace(drain=lambda: None, send=lambda chunk, *given: sent.append(chunk))
    counts = SimpleNamespace(counters=Counters())
    source = AsyncSource(roles, counts, keep_env=False, max_seconds=None, delivery=delivery,
                         total_steps=0)  # fmt: skip
    source.traffic.collected = roles.write_log = lambda *given: None
    assert source.quiesce() == []
    found = Collected(0, None, None, {"after": 0}, 0, 0, {}, (0, 0))
    source._replied(collector, "rows", found)
    assert (collector.seq, collector.state, sent, collector.busy) == (0, None, [], True)
    source.go_on()
    assert (collector.seq, collector.state) == (1, {"after": 0})
    assert [chunk.payload for chunk in sent] == ["rows"]


def test_rows_of_a_lost_shard_are_no_part_of_a_later_checkpoint(tmp_path):
    """A shard that was replaced, also between the two calls, has files of its own."""
    replies, starts = [], []

    def ask(shard, method, *given):
        if method == "state_dict":
            starts.append(given[1])
        return replies.pop(0)

    roles = SimpleNamespace(shards=[None], ask=ask)
    buffer = RemoteBuffer(roles, None, rounds=False, directory=tmp_path)
    buffer.files[0, 0] = SimpleNamespace(usable=lambda *given: [SimpleNamespace(stop=50)])
    buffer.saved[0] = 7
    replies += [(7, [(0, 60)]), None, (8, [(0, 60)]), {"rows": None}]
    assert buffer.state_dict() == {"shards": [{"rows": None}]}
    assert starts == [[50], [0]]


def test_impala_learns_from_every_chunk_once(tmp_path):
    record = go(tmp_path, "policy=impala", "env=cartpole", *RAY, "run.total_steps=1500",
                "policy.normalize_reward=true", "learner.learning_starts=0")  # fmt: skip
    state, _ = load_newest(tmp_path / "checkpoints")
    assert record["updates"] == pytest.approx(state["counters"]["chunks"], abs=2)


def test_collectors_share_the_ladder_and_have_seeds_of_their_own():
    plan = make_plan(config("policy=r2d2", "env=cartpole", *RAY, "pipeline.num_actors=3",
                            "collector.num_envs=4"))  # fmt: skip
    parts = [build.collector_parts(plan, i, float("inf"), Counters()) for i in range(3)]
    ladder = [e for part in parts for e in part.collector.explore(0).tolist()]
    assert ladder == sorted(ladder, reverse=True)
    assert ladder[0] == pytest.approx(0.4)
    assert len({*ladder}) == 12
    seeds = {part.collector.seed for part in parts}
    assert len(seeds) == 3
    draws = {part.collector.policy.generator.random() for part in parts}
    assert len(draws) == 3
    serial = make_collector(make_plan(config("policy=r2d2", "env=cartpole")), Counters())
    assert parts[0].collector.seed == serial.seed
