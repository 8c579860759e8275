"""Runs on exported rows: offline learning, mixed-in demonstrations, refused configs."""

import json
import shutil
from pathlib import Path

import pytest

from rlrun.buffer.storage.sizing import demo_config, make_layout, row_of
from rlrun.config import check
from rlrun.dataset import read_dataset
from rlrun.env import probe
from rlrun.errors import ConfigError, ResourceError
from rlrun.run import train
from rlrun.run.export import export_run
from rlrun.rundir.checkpoint import load_newest
from rlrun.types import Window
from tests.compose import config
from tests.exact import assert_exact_resume
from tests.log.records import read_records

QUIET = ("logger.progress=off", "logger.tensorboard=false", "learner.threads=1")
OFFLINE = (*QUIET, "run.total_steps=60", "run.eval_every=30", "run.eval_episodes=2",
           "run.checkpoint_every=20", "logger.every=20", "learner.batch_size=16",
           "run.stop_value=null")  # fmt: skip


def go(run_dir: Path, *overrides: str) -> dict:
    run_dir.mkdir(parents=True, exist_ok=True)
    c = config(*overrides)
    (run_dir / "config.yaml").write_text("{}")
    assert train.run(c, run_dir, raw_yaml="seed: 0\n", overrides=[]) == 0
    return json.loads((run_dir / "run.json").read_text())


def exported(folder: Path, *overrides: str) -> Path:
    c = config(*QUIET, "debug=smoke", *overrides)
    go(folder / "run", *QUIET, "debug=smoke", *overrides)
    export_run(folder / "run", folder / "data", c, raw_yaml="", shard_rows=200)
    return folder / "data"


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory) -> Path:
    return exported(tmp_path_factory.mktemp("cartpole"), "policy=dqn", "env=cartpole")


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    """Rows of a policy with box actions, 50 steps per episode."""
    few = ("env=pendulum", "env.max_episode_steps=50", "policy=iql", "pipeline=serial")
    return exported(tmp_path_factory.mktemp("pendulum"), *few)


CASES = {
    "bc": ("policy=bc", "env=cartpole"),
    "bc_recurrent": ("policy=bc_recurrent", "env=cartpole"),
    "bc_mingru": ("policy=bc_recurrent", "env=cartpole", "memory=mingru"),
    "cql": ("policy=cql", "env=cartpole"),
    "iql": ("policy=iql", "env=cartpole", "buffer=prioritized", "buffer.beta=0.5"),
    "dqn": ("policy=dqn", "policy.lr=1e-3", "env=cartpole", "pipeline=offline", "learner=offline"),
    "sac": ("policy=sac", "env=pendulum", "pipeline=offline", "learner=offline"),
    "bc_box": ("policy=bc", "env=pendulum"),
    "iql_box": ("policy=iql", "env=pendulum"),
    "cql_sac": ("policy=cql_sac", "env=pendulum", "torso.hidden=[16]", "policy.gap_threshold=1.0"),
}


@pytest.fixture(params=list(CASES))
def case(request, cartpole, pendulum):
    words = CASES[request.param]
    data = pendulum if "env=pendulum" in words else cartpole
    return (*words, *OFFLINE, f"buffer.load={data}")


def test_offline_runs_count_updates_and_collect_nothing(case, tmp_path):
    record = go(tmp_path, *case)
    assert (record["env_steps"], record["updates"]) == (60, 60)
    lines = list(read_records(tmp_path / "metrics.jsonl"))
    assert [li["env_steps"] for li in lines] == sorted(li["env_steps"] for li in lines)
    seen = {key for li in lines for key in li}
    assert not [key for key in seen if key.startswith("collect/")]
    assert {"train/loss", "eval/return_mean", "buffer/windows"} <= seen
    state, _ = load_newest(tmp_path / "checkpoints")
    assert state["counters"]["episodes"] == state["counters"]["chunks"] == 0


def test_same_seed_same_bytes_and_resume_is_uninterrupted(case, tmp_path):
    """An offline run depends on its checkpoint only, so that a resumed run is the same run."""
    assert_exact_resume(case, [20, 40], tmp_path)
    whole = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert go(tmp_path / "d", *case, "seed=1")["digest"] != whole["digest"]


MIXED = ("policy=r2d2", "env=cartpole", "debug=smoke", *QUIET, "buffer.demo_ratio=0.5")


@pytest.mark.parametrize(
    "more",
    [(), ("memory=mingru",), ("pipeline=overlapped",), ("policy=dqn", "buffer=rank"),
     ("bonus=rnd",), ("buffer.initial_priority=td",), ("memory=none", "env.frame_stack=4")],
    ids=" ".join,
)  # fmt: skip
def test_demonstrations_are_mixed_in(tmp_path, cartpole, more):
    words = (*MIXED, *more, f"buffer.demos={cartpole}")
    one, two = go(tmp_path / "one", *words), go(tmp_path / "two", *words)
    assert one["digest"] == two["digest"]
    found = {k: v for li in read_records(tmp_path / "one/metrics.jsonl") for k, v in li.items()}
    assert found["buffer/demo_fraction"] == pytest.approx(0.5, abs=0.15)
    assert found["buffer/demo_windows"] > 0
    state, _ = load_newest(tmp_path / "one/checkpoints")
    assert train.resume(tmp_path / "one", config(*words, "run.total_steps=600"), raw_yaml="",
                        overrides=[]) == 0  # fmt: skip
    later, _ = load_newest(tmp_path / "one/checkpoints")
    assert later["buffer"]["counts"]["windows"] > state["buffer"]["counts"]["windows"]


def test_an_export_contains_own_rows_only(tmp_path, cartpole):
    data = exported(tmp_path, "policy=r2d2", "env=cartpole", f"buffer.demos={cartpole}")
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert read_dataset(data).steps == record["env_steps"]


@pytest.mark.parametrize(
    ("words", "key", "message"),
    [
        (("policy=bc",), "buffer.load = null", "rlrun export"),
        (("policy=cql", "env=cartpole"), "buffer.load = null", "pipeline=serial"),
        (("policy=cql", "env=pendulum", "buffer.load=DATA"), "policy = cql",
         "; policy=cql_sac is its like there; policy="),
        (("policy=cql_sac", "env=cartpole", "buffer.load=DATA"), "policy = cql_sac",
         "; policy=cql is its like there; policy="),
        (("policy=cql_sac", "env=pendulum"), "buffer.load = null", "pipeline=serial"),
        (("policy=cql", "env=pendulum"), "policy = cql", "policy=cql_sac is its like there"),
        (("policy=cql_sac", "env=pendulum", "memory=lstm", "buffer.load=DATA"),
         "policy.learn_unroll_len = null", "learn_unroll_len=16"),
        (("policy=cql", "memory=lstm", "buffer.load=DATA"), "memory = lstm", "memory=none"),
        (("policy=iql", "learner=transitions", "buffer.load=DATA"), "learner.replay_ratio = 32",
         "learner=offline"),
        (("policy=random", "pipeline=offline"), "pipeline = offline", "pipeline=serial"),
        (("policy=ppo", "pipeline=offline"), "pipeline = offline", "pipeline=serial"),
        (("policy=ppo", "buffer.demos=DATA"), "buffer.demos = ", "buffer.demos=null"),
        (("policy=iql", "bonus=rnd", "buffer.load=DATA"), "bonus = rnd", "bonus=none"),
        (("policy=bc", "bonus=rnd", "pipeline=serial"), "bonus = rnd", "learns from no reward"),
        (("policy=iql", "explore=boltzmann", "buffer.load=DATA"), "explore = boltzmann",
         "policy=cql"),
        (("policy=bc", "buffer.capacity=300", "buffer.load=DATA"), "buffer.capacity = 300",
         "set buffer.capacity="),
        (("policy=bc", "buffer.load=NONE"), "buffer.load = ", "rlrun export"),
        (("policy=bc", "env=acrobot", "buffer.load=DATA"), "buffer.load = ", "observation space"),
        (("buffer.demos=NONE",), "buffer.demos = ", "rlrun export"),
        (("env=acrobot", "buffer.demos=DATA"), "buffer.demos = ", "observation space"),
        (("buffer.demos=DATA", "policy=random"), "buffer.demos = ", "buffer.demos=null"),
        (("buffer.demos=DATA", "policy=bc", "buffer.load=DATA"), "buffer.demos = ", "buffer.load"),
        (("buffer.demos=DATA", "buffer.demo_ratio=1"), "buffer.demo_ratio = 1", "within (0, 1)"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)  # fmt: skip
def test_configs_that_are_refused(cartpole, words, key, message):
    given = [w.replace("DATA", str(cartpole)).replace("NONE", "no/where") for w in words]
    with pytest.raises(ConfigError) as e:
        check(config(*given))
    assert key in str(e.value)
    assert message in str(e.value)


def test_demonstrations_count_against_max_bytes(cartpole):
    words = ("buffer.capacity=2000", "learner.learning_starts=0")
    c = config(*words)
    row, window = row_of(c, *probe(c.env)), Window(4, 15, 5)
    most = make_layout(c, row, window).nbytes
    check(config(*words, f"buffer.max_bytes={most}"))
    demos = f"buffer.demos={cartpole}"
    with pytest.raises(ResourceError, match="with the run's rows"):
        check(config(*words, f"buffer.max_bytes={most}", demos))
    lengths = [t.steps for t in read_dataset(cartpole).trajectories()]
    more = make_layout(demo_config(c, row, window, lengths), row, window).nbytes
    check(config(*words, f"buffer.max_bytes={most + more}", demos))


def test_a_dataset_that_makes_no_update_is_refused(cartpole):
    """By the checks, before a directory is created."""
    words = (*CASES["bc"], *OFFLINE, "run.total_steps=60000", f"buffer.load={cartpole}")
    with pytest.raises(
        ConfigError, match=r"learner.learning_starts = 50000: the dataset has \d+ steps"
    ):
        check(config(*words, "learner.learning_starts=50000"))


def test_a_killed_run_with_demonstrations_equals_the_run_that_was_not(tmp_path, cartpole):
    words = (*MIXED, f"buffer.demos={cartpole}", "run.total_steps=300")
    assert_exact_resume(words, [150], tmp_path)


def test_a_resume_without_its_demonstrations_is_refused(tmp_path, cartpole):
    data = tmp_path / "moved"
    shutil.copytree(cartpole, data)
    words = (*MIXED, f"buffer.demos={data}")
    go(tmp_path / "run", *words)
    shutil.rmtree(data)
    longer = config(*words, "run.total_steps=5000")
    with pytest.raises(ConfigError, match=r"buffer\.demos = .* is no directory"):
        train.resume(tmp_path / "run", longer, raw_yaml="", overrides=[])
