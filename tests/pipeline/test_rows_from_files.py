"""Runs on exported rows: exports, offline learning, rows to start from, demonstrations."""

import shutil
from pathlib import Path

import pytest
import torch

from rlrun.buffer.layout import demo_config, make_layout, row_of
from rlrun.config import check
from rlrun.dataset import read_dataset
from rlrun.env import probe
from rlrun.errors import ConfigError, ResourceError
from rlrun.run import build
from rlrun.run.export import export_run
from rlrun.run.plan import make_plan
from rlrun.types import Window
from tests.compose import config
from tests.exact import QUIET, assert_exact_resume
from tests.log.records import read_records
from tests.pipeline.make import R2D2, SMOKE, TINY, fails, go, record_of, resumed, shown, state_of

OFFLINE = (*QUIET, "run.total_steps=60", "run.eval_every=30", "run.eval_episodes=1",
           "run.checkpoint_every=20", "logger.every=20", "learner.batch_size=8",
           "run.stop_return=null", "torso.hidden=[8]", "memory.hidden=4")  # fmt: skip


def export(run_dir: Path, name: str, *overrides: str, **more) -> Path:
    given = {"raw_yaml": "seed: 0\n", "shard_rows": 200} | more
    export_run(run_dir, run_dir.parent / name, config(*SMOKE, *overrides), **given)
    return run_dir.parent / name


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory) -> Path:
    words = ("policy=dqn", "env=cartpole", *TINY)
    go(run_dir := tmp_path_factory.mktemp("cartpole") / "run", *words)
    return export(run_dir, "data", *words)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    """Rows of a policy with box actions, 50 steps per episode."""
    words = ("env=pendulum", "env.max_episode_steps=50", "policy=iql", "pipeline=serial", *TINY)
    go(run_dir := tmp_path_factory.mktemp("pendulum") / "run", *words)
    return export(run_dir, "data", *words)


# -- exports ---------------------------------------------------------------------------------------


def test_rows_of_a_device_buffer_are_exported_without_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.run.build.torch_device", lambda name: torch.device("cpu"))
    record = go(tmp_path / "one", *R2D2, "buffer.device=cuda", "run.total_steps=200")
    data = export(tmp_path / "one", "data", *R2D2)  # rlrun export reads it as buffer.device=cpu
    assert read_dataset(data).steps == record["env_steps"]


def test_an_export_contains_own_rows_only(tmp_path, cartpole):
    words = (*R2D2, f"buffer.demos={cartpole}", "run.total_steps=200")
    record = go(tmp_path / "run", *words)
    assert read_dataset(export(tmp_path / "run", "data", *words)).steps == record["env_steps"]


# -- rows to start from ----------------------------------------------------------------------------


def test_a_run_starts_from_anothers_rows(tmp_path, cartpole):
    """All steps are in the buffer before the first is collected."""
    words = ("policy=dqn", "env=cartpole", *TINY, f"buffer.load={cartpole}")
    record = go(tmp_path, *words, "collector.num_envs=3", "run.total_steps=100")
    rows = state_of(tmp_path)["buffer"]["counts"]["steps"]
    assert rows == read_dataset(cartpole).steps + record["env_steps"]


@pytest.mark.parametrize("chunk", [3, 256])
def test_loading_cuts_no_trajectory(cartpole, monkeypatch, chunk):
    monkeypatch.setattr("rlrun.run.build.READ_ROWS", chunk)
    plan = make_plan(config(*SMOKE, *R2D2, f"buffer.load={cartpole}"))
    replay = build.make_replay(plan)
    build.load_rows(plan, replay)
    replay.check()
    segment = replay.sample(0, 0).segment
    closed = ~segment.valid & torch.cat([torch.zeros_like(segment.valid[:1]), segment.valid[:-1]])
    t, b = closed.nonzero(as_tuple=True)
    ended = (segment.terminated | segment.truncated)[t - 1, b]
    assert len(t) > 5
    assert ended.all(), "a window ends where no episode does"


def test_an_earlier_run_does_not_need_its_dataset(tmp_path):
    """buffer.load is read at the start only: resume and export do not need it."""
    c = config(*SMOKE, "policy=dqn", "env=cartpole", f"buffer.load={tmp_path / 'gone'}")
    with pytest.raises(ConfigError, match=r"buffer.load = "):
        check(c)
    check(c, fresh=False)


# -- offline ---------------------------------------------------------------------------------------

CASES = {
    "bc": ("policy=bc", "env=cartpole"),
    "bc recurrent": ("policy=bc_recurrent", "env=cartpole"),
    "iql": ("policy=iql", "env=cartpole", "buffer=prioritized", "buffer.beta=0.5"),
    "dqn": ("policy=dqn", "env=cartpole", "pipeline=offline", "learner=offline"),
    "sac": ("policy=sac", "env=pendulum", "pipeline=offline", "learner=offline"),
    "cql sac": ("policy=cql_sac", "env=pendulum", "policy.gap_threshold=1.0"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_offline_run_counts_updates_and_resumes(name, cartpole, pendulum, tmp_path):
    words = CASES[name]
    data = pendulum if "env=pendulum" in words else cartpole
    state = assert_exact_resume((*words, *OFFLINE, f"buffer.load={data}"), [20, 40], tmp_path)
    record = record_of(tmp_path / "whole")
    assert (record["env_steps"], record["updates"]) == (60, 60)
    assert state["counters"]["episodes"] == state["counters"]["chunks"] == 0
    seen = {key for li in read_records(tmp_path / "whole/metrics.jsonl") for key in li}
    assert not [key for key in seen if key.startswith("collect/")]
    assert {"train/loss", "eval/return_mean", "buffer/windows"} <= seen


def test_another_seed_is_another_offline_run(cartpole, tmp_path):
    words = ("policy=bc", "env=cartpole", *OFFLINE, f"buffer.load={cartpole}")
    digests = [go(tmp_path / s, *words, f"seed={s}")["digest"] for s in "01"]
    assert digests[0] != digests[1]


# -- demonstrations --------------------------------------------------------------------------------

MIXED = (*R2D2, "buffer.demo_ratio=0.5", "run.total_steps=200", "run.eval_every=100")


@pytest.mark.parametrize(
    "more",
    [("memory=mingru",), ("pipeline=overlapped", "bonus=rnd"), ("policy=dqn", "buffer=rank"),
     ("buffer.initial_priority=td",), ("memory=none", "env.frame_stack=4")],
    ids=" ".join,
)  # fmt: skip
def test_demonstrations_are_mixed_in(tmp_path, cartpole, more):
    words = (*MIXED, *more, f"buffer.demos={cartpole}")
    go(tmp_path, *words)
    assert shown(tmp_path, "buffer/demo_fraction")[-1][1] == pytest.approx(0.5, abs=0.15)
    assert shown(tmp_path, "buffer/demo_windows")[-1][1] > 0
    before = state_of(tmp_path)["buffer"]["counts"]["windows"]
    resumed(tmp_path, *words, "run.total_steps=300")
    assert state_of(tmp_path)["buffer"]["counts"]["windows"] > before


def test_a_killed_run_with_demonstrations_equals_the_run_that_was_not(tmp_path, cartpole):
    words = ("debug=smoke", *MIXED, f"buffer.demos={cartpole}", "run.total_steps=300")
    assert_exact_resume(words, [150], tmp_path)


def test_a_resume_without_its_demonstrations_is_refused(tmp_path, cartpole):
    shutil.copytree(cartpole, data := tmp_path / "moved")
    words = (*MIXED, f"buffer.demos={data}")
    go(tmp_path / "run", *words)
    shutil.rmtree(data)
    error, _ = fails(ConfigError, tmp_path / "run", *words, "run.total_steps=5000")
    assert "buffer.demos = " in str(error)


# -- refused before a directory is made ------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "fix"),
    [
        ("policy=cql_sac env=cartpole buffer.load=DATA", "policy = cql_sac", "policy=cql"),
        ("policy=iql learner=transitions buffer.load=DATA", "learner.replay_ratio = 32",
         "learner=offline"),
        ("policy=bc buffer.capacity=300 buffer.load=DATA", "buffer.capacity = 300",
         "set buffer.capacity="),
        ("policy=bc env=acrobot buffer.load=DATA", "buffer.load = ", "observation space"),
        ("env=acrobot buffer.demos=DATA", "buffer.demos = ", "observation space"),
        ("buffer.demos=no/where", "buffer.demos = ", "rlrun export"),
        ("buffer.demos=DATA buffer.demo_ratio=1", "buffer.demo_ratio = 1", "(0, 1)"),
        ("policy=bc buffer.load=DATA learner.learning_starts=50000",
         "learner.learning_starts = 50000", "steps"),
    ],
)  # fmt: skip
def test_configs_that_are_refused(cartpole, line, key, fix):
    with pytest.raises(ConfigError) as e:
        check(config(*line.replace("DATA", str(cartpole)).split()))
    assert key in str(e.value)
    assert fix in str(e.value)


def test_demonstrations_count_against_max_bytes(cartpole):
    words = ("buffer.capacity=2000", "learner.learning_starts=0")
    c = config(*words)
    row, window = row_of(c, *probe(c.env)[:2]), Window(4, 15, 5)
    most = make_layout(c, row, window, c.collector.num_envs).nbytes
    check(config(*words, f"buffer.max_bytes={most}"))
    demos = f"buffer.demos={cartpole}"
    with pytest.raises(ResourceError, match=r"buffer.demos"):
        check(config(*words, f"buffer.max_bytes={most}", demos))
    lengths = [t.steps for t in read_dataset(cartpole).trajectories()]
    more = make_layout(demo_config(c, row, window, lengths), row, window, 1).nbytes
    check(config(*words, f"buffer.max_bytes={most + more}", demos))
