"""Runs on Ray: lock-step is the serial run; without it every row is stored once, whatever dies."""

import json
import os
import signal
import threading
import time

import psutil
import pytest

from rlrun.errors import Interrupted, NumericError
from rlrun.pipeline.parts import MAX_ROLLBACKS
from rlrun.run import ray as build
from rlrun.run.build import make_collector
from rlrun.run.plan import make_plan
from rlrun.types import Counters
from tests.compose import config
from tests.exact import assert_exact_resume
from tests.pipeline.make import TINY, fails, go, shown, state_of
from tests.pipeline.ray import chaos
from tests.pipeline.test_exact import LEARN, ON_POLICY
from tests.pipeline.test_faults import DIVERGES

RAY = ("pipeline=ray", "watchdog.max_seconds=900")
STRICT = (*RAY, "pipeline.strict=true")
ONE = (*STRICT, "pipeline.num_actors=1")
COUNTER = ("policy=r2d2", "env=counter", "collector.num_envs=2", *TINY, "memory.hidden=4",
           "learner.learning_starts=32")  # fmt: skip


def last(run_dir, key):
    """The newest value of a metric that is no part of the digest."""
    return shown(run_dir, key, "timings.jsonl")[-1][1]


# -- lock-step -------------------------------------------------------------------------------------

CASES = {
    "windows": ("policy=r2d2", "env=cartpole_novel", "buffer.initial_priority=td",
                "transport=coded", "memory=gru", *LEARN),
    "rollouts": ("policy=ppo", "memory=lstm", "env=pendulum", *ON_POLICY),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_collector_gives_the_digest_of_the_serial_pipeline(case, tmp_path):
    words = (*CASES[case], "collector.num_envs=2")
    own = ("pipeline.inference=central",) if case == "windows" else ()
    serial, strict = go(tmp_path / "serial", *words), go(tmp_path / "ray", *words, *ONE, *own)
    assert serial["digest"] == strict["digest"]
    assert strict["exact"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("serial", "ray")]
    assert metrics[0] == metrics[1]


def test_several_collectors_give_the_same_numbers_every_time_and_after_a_kill(tmp_path):
    """Two collectors, two shards, and a predictor: one run whole, the same killed and resumed."""
    words = ("policy=r2d2", "env=cartpole_novel", "collector.num_envs=2", *LEARN,
             "buffer.initial_priority=td", "learner.replay_ratio=40", "pipeline.num_actors=2",
             "pipeline.num_shards=2", "pipeline.inference=central")  # fmt: skip
    state = assert_exact_resume((*words, *STRICT), (70,), tmp_path)
    assert state["counters"]["updates"] > 0


# -- collectors that do not wait for each other ----------------------------------------------------


def assert_whole(run_dir):
    """Every row that counts is stored once, in its column's order."""
    columns = chaos.stored_columns(run_dir)
    valid = sum(int((c[1:, 2] != c[:-1, 2] + 1).sum()) for c in columns)  # of them open episodes
    assert valid > 0
    assert all(map(chaos.follows, columns))
    for column in columns:
        assert ((column[1:, 1] - column[:-1, 1]) >= 0).all(), "no episode comes twice"


def test_a_bad_link_loses_nothing_and_stores_nothing_twice(tmp_path, monkeypatch):
    """Of four messages one is dropped, sent twice, late or damaged; updates keep their ratio."""
    chances = {"drop": 0.06, "twice": 0.06, "late": 0.06, "corrupt": 0.06, "answer_seconds": 0.3}
    monkeypatch.setenv("RLRUN_RAY_FAULTS", json.dumps(chances))
    words = (*COUNTER, "run.total_steps=2000", "learner.replay_ratio=8", "logger.every=400",
             "learner.update_per_collect=null", "collector.n_sample=16")  # fmt: skip
    record = go(tmp_path, *words, *RAY, "pipeline.num_shards=2", "transport=coded",
                "transport.key_seconds=0")  # fmt: skip
    assert_whole(tmp_path)
    assert last(tmp_path, "ray/chunks_repeated") > 0
    assert last(tmp_path, "ray/chunks_damaged") > 0
    assert last(tmp_path, "ray/weights_age") >= 0
    assert not record["exact"]
    assert "strict" in record["exact_reason"]
    ratios = [value for _, value in shown(tmp_path, "train/replay_ratio")][1:]
    assert sum(ratios) / len(ratios) == pytest.approx(8, rel=0.25)
    assert {p.name for p in (tmp_path / "roles").iterdir()} >= {"collector_0.log"}


def test_killed_roles_are_restarted_and_the_run_goes_on(tmp_path):
    """One of every class, one after the other; what was saved of the learner is not lost."""
    killed, me = [], psutil.Process()

    def moves_on(steps):
        at = chaos.env_steps(tmp_path)
        while chaos.env_steps(tmp_path) < at + steps:
            time.sleep(0.05)

    def kill():
        moves_on(200)
        for name in sorted({*chaos.roles_of(me).values()}):
            next(p for p, role in chaos.roles_of(me).items() if role == name).kill()
            killed.append(name)
            moves_on(200)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill, daemon=True).start()
    words = (*COUNTER, "run.total_steps=10000000", "run.eval_every=400", "logger.every=50",
             "run.stop_value=null", "pipeline.inference=central", "transport=coded",
             "transport.key_seconds=0", "run.checkpoint_every=300")  # fmt: skip
    _, record = fails(Interrupted, tmp_path, *words, *RAY)
    assert len(killed) >= 3, killed
    # An evaluator that was idle is in its place again before it is asked: nobody misses it.
    assert last(tmp_path, "ray/restarts") >= len({*killed} - {"EvaluatorRole"})
    assert len((tmp_path / "roles" / "predictor.log").read_text().splitlines()) >= 2
    state = state_of(tmp_path)
    assert state["policy"]["updates"] == record["updates"] > 0, "the learner went on"
    columns = chaos.stored_columns(tmp_path)
    assert sum(map(len, columns)) > 200, "the shard was filled again"
    assert all(map(chaos.follows, columns))


def test_a_diverging_run_goes_back_as_often_as_it_may(tmp_path):
    """Calls under way fail too; they are of the run that is given up."""
    words = (*DIVERGES, *RAY, "run.on_nan=rollback", "run.checkpoint_every=100")
    error, record = fails(NumericError, tmp_path, *words, "run.total_steps=3000")
    assert "go on: rlrun resume" in str(error)
    assert (record["rollbacks"], record["exit_code"]) == (MAX_ROLLBACKS, NumericError.exit_code)


def test_impala_learns_from_every_chunk_once(tmp_path):
    record = go(tmp_path, "policy=impala", "env=cartpole", *RAY, *TINY, "run.total_steps=1000",
                "policy.normalize_reward=true", "learner.learning_starts=0")  # fmt: skip
    chunks = state_of(tmp_path)["counters"]["chunks"]
    assert record["updates"] == pytest.approx(chunks, abs=2)


def test_collectors_share_the_ladder_and_have_seeds_of_their_own():
    plan = make_plan(config("policy=r2d2", "env=cartpole", *RAY, "pipeline.num_actors=3",
                            "collector.num_envs=4"))  # fmt: skip
    parts = [build.collector_parts(plan, i, float("inf"), Counters()) for i in range(3)]
    ladder = [e for part in parts for e in part.collector.explore(0).tolist()]
    assert ladder == sorted(ladder, reverse=True)
    assert ladder[0] == pytest.approx(0.4)
    assert len({*ladder}) == 12
    assert len({part.collector.seed for part in parts}) == 3
    assert len({part.collector.policy.generator.random() for part in parts}) == 3
    serial = make_collector(make_plan(config("policy=r2d2", "env=cartpole")), Counters())
    assert parts[0].collector.seed == serial.seed
