"""Runs on Ray: lock-step is the serial run; without it every row is stored once, whatever dies."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rlrun.codec import DamagedFrame
from rlrun.dataset import open_source
from rlrun.errors import Interrupted, NumericError
from rlrun.pipeline.parts import MAX_ROLLBACKS
from rlrun.pipeline.ray.driver import RaySource
from rlrun.run.export import export_run
from tests.compose import config
from tests.exact import assert_exact_resume
from tests.pipeline.make import SMOKE, TINY, fails, go, shown, state_of
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
    "compiled rows": ("policy=pqn", "env=cartpole", *ON_POLICY),
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
    if case == "windows":
        assert exported(tmp_path / "serial", words) == exported(tmp_path / "ray", (*words, *ONE))


def exported(run_dir, words):
    """The lengths of the trajectories of a run's replay, as a dataset."""
    data = run_dir.with_name(f"{run_dir.name}_data")
    export_run(run_dir, data, config(*SMOKE, *words), raw_yaml="", shard_rows=1000)
    return [trajectory.steps for trajectory in open_source(str(data)).trajectories()]


TWO = ("policy=r2d2", "env=cartpole_novel", "collector.num_envs=2", *LEARN, *STRICT,
       "buffer.initial_priority=td", "learner.replay_ratio=40", "pipeline.num_actors=2",
       "pipeline.inference=central", "transport=coded", "transport.key_seconds=0")  # fmt: skip


def test_several_collectors_give_the_same_numbers_whatever_is_lost(tmp_path, monkeypatch, caplog):
    """A run that is killed and resumed, and loses a collector, the predictor and the bytes of a
    chunk, is the one that nothing disturbs.

    Private: a signal from outside comes between two orders by chance alone.
    """
    orders, chunks, order, unpacked = [], [], RaySource._order, RaySource._unpacked

    def is_disturbed(source):
        return "cut" in source.roles.directory.parts

    def order_and_kill(self, collector):
        import ray

        order(self, collector)
        if is_disturbed(self):
            orders.append(collector)
            if len(orders) in (3, 13):  # the latter after the resume
                ray.kill(collector.role.handle if len(orders) == 3 else self.predictor.handle)

    def damaged_once(self, collector, value):
        if is_disturbed(self):
            chunks.append(collector)
            if len(chunks) == 6:
                raise DamagedFrame("a bit has changed")
        return unpacked(self, collector, value)

    monkeypatch.setattr(RaySource, "_order", order_and_kill)
    monkeypatch.setattr(RaySource, "_unpacked", damaged_once)
    state = assert_exact_resume(TWO, (70,), tmp_path)
    assert state["counters"]["updates"] > 0
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["exact"]
    names = [record.args[0] for record in caplog.records if "started again" in record.msg]
    assert sorted(name.split()[0] for name in names) == ["collector", "collector", "predictor"]


def test_collectors_that_share_a_process_give_the_same_numbers_also_if_it_is_lost(
    tmp_path, monkeypatch
):
    """Private: a signal from outside comes between two orders by chance alone."""
    words = ("policy=r2d2", "env=cartpole_novel", "collector.num_envs=2", *LEARN, *STRICT,
             "pipeline.num_actors=3", "transport=coded")  # fmt: skip
    alone = go(tmp_path / "alone", *words)
    orders, order = [], RaySource._order

    def order_and_kill(self, collector):
        import ray

        order(self, collector)
        orders.append(collector)
        if len(orders) == 8:
            ray.kill(collector.role.handle)

    monkeypatch.setattr(RaySource, "_order", order_and_kill)
    together = go(tmp_path / "together", *words, "pipeline.collectors_per_process=2")
    assert together["digest"] == alone["digest"]
    assert last(tmp_path / "together", "ray/restarts") == 1
    assert len([*(tmp_path / "together" / "roles").glob("process_of_collectors_*")]) == 2


# -- collectors that do not wait for each other ----------------------------------------------------


def stored_columns(run_dir):
    """The observations [T, 3] of every column in the newest checkpoint: (env, episode, t)."""
    rings = [stream["ring"] for stream in state_of(run_dir)["buffer"]["streams"]]
    rows = [ring["obs"] if "obs" in ring else ring["fields"]["obs"] for ring in rings]
    rows = [x["rows"] if isinstance(x, dict) else x for x in rows]
    rows = [x for x in rows if x.stop > x.first]  # a collector may begin when the run ends
    return [column for x in rows for column in x.arrays(x.first, x.stop)[""]]


def follows(rows):
    """Whether the rows [T, 3] of a column are steps after each other, or open an episode."""
    episode, t = rows[:, 1], rows[:, 2]
    goes_on = (episode[1:] == episode[:-1]) & (t[1:] == t[:-1] + 1)
    return bool((goes_on | (t[1:] == 0)).all())


def test_every_row_is_stored_once_and_updates_keep_their_ratio(tmp_path):
    words = (*COUNTER, "run.total_steps=1500", "learner.replay_ratio=8", "logger.every=300",
             "learner.update_per_collect=null", "collector.n_sample=16")  # fmt: skip
    record = go(tmp_path, *words, *RAY, "pipeline.num_actors=2", "transport=coded")
    columns = stored_columns(tmp_path)
    assert sum(map(len, columns)) >= 1000
    for column in columns:
        assert follows(column)
        assert (np.diff(column[:, 1]) >= 0).all(), "no episode comes twice"
    assert last(tmp_path, "ray/weights_age") > 0
    assert last(tmp_path, "ray/policy_lag") > 0
    sizes = [n for _, n in shown(tmp_path, "ray/weights_raw_bytes", "timings.jsonl")]
    assert any(sizes)
    assert not any(n % 2 for n in sizes), "whole weights since the record before"
    assert not record["exact"]
    assert "strict" in record["exact_reason"]
    ratios = [value for _, value in shown(tmp_path, "train/replay_ratio")][1:]
    assert sum(ratios) / len(ratios) == pytest.approx(8, rel=0.05)


def env_steps(run_dir):
    """Env steps of the newest record."""
    path = Path(run_dir, "timings.jsonl")
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # the last may be half
    return int(json.loads(lines[-1])["env_steps"]) if lines else 0


def test_killed_roles_are_replaced_and_the_run_goes_on(tmp_path, caplog):
    """One of every kind, one after the other."""
    logs, killed = tmp_path / "roles", []

    def processes(role):
        """The processes of a role so far."""
        path = logs / f"{role}.log"
        return re.findall(r"process (\d+)", path.read_text()) if path.exists() else []

    def wait_for(role, count, steps):
        deadline = time.monotonic() + 120
        while len(processes(role)) < count or env_steps(tmp_path) < steps:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)

    def kill():
        for role in ("collector_0", "predictor", "evaluator"):
            wait_for(role, 1, 0)
            os.kill(int(processes(role)[-1]), signal.SIGKILL)
            killed.append(role)
            wait_for(role, 2, env_steps(tmp_path) + 100)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill, daemon=True).start()
    words = (*COUNTER, "run.total_steps=10000000", "run.eval_every=200", "logger.every=50",
             "run.stop_return=null", "pipeline.inference=central", "pipeline.num_actors=2",
             "transport=coded", "transport.key_seconds=0", "run.checkpoint_every=300")  # fmt: skip
    _, record = fails(Interrupted, tmp_path, *words, *RAY)
    assert [len(processes(role)) for role in killed] == [2, 2, 2]
    assert last(tmp_path, "ray/restarts") >= 3
    assert record["updates"] > 0
    names = [role.replace("_", " ") for role in killed]
    assert all(name in caplog.text for name in names)
    assert all(map(follows, stored_columns(tmp_path)))
    assert state_of(tmp_path)["collectors"][0]["inexact"], "its episodes were cut"


def test_a_diverging_run_goes_back_as_often_as_it_may(tmp_path):
    """Chunks under way are of the run that is given up."""
    words = (*DIVERGES, *RAY, "run.on_nan=rollback", "run.checkpoint_every=100")
    error, record = fails(NumericError, tmp_path, *words, "run.total_steps=3000")
    assert "rlrun resume" in str(error)
    assert (record["rollbacks"], record["exit_code"]) == (MAX_ROLLBACKS, NumericError.exit_code)


def test_impala_learns_from_every_chunk_once(tmp_path):
    record = go(tmp_path, "policy=impala", "env=cartpole", *RAY, *TINY, "run.total_steps=1000",
                "policy.normalize_reward=true", "learner.learning_starts=0")  # fmt: skip
    state = state_of(tmp_path)
    assert record["updates"] == state["counters"]["chunks"]
    heard = [c is not None and c["episode_length"].any() for c in state["collectors"]]
    last_heard = max(n for n, rows in enumerate(heard) if rows)  # one may begin too late for any
    assert len(state["policy"]["running"]) == 4 * (1 + last_heard), "columns of the collectors"
