"""Small runs: files, determinism, resume, interruption, TensorBoard against metrics.jsonl."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.build import pipeline as build
from rlrun.build import replay as build_replay
from rlrun.build.plan import make_plan
from rlrun.cli.main import main
from rlrun.config import check
from rlrun.errors import ConfigError, Interrupted
from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.learner import Learner
from rlrun.pipeline.serial import Pipeline
from rlrun.pipeline.stop import StopRequest
from rlrun.run import train
from rlrun.run.ending import interrupted_error
from rlrun.run.evaluate import evaluate_run
from rlrun.run.export import export_run
from rlrun.rundir import checkpoint
from rlrun.rundir.checkpoint import list_checkpoints, load_newest, load_weights
from rlrun.rundir.record import RunRecord
from rlrun.rundir.saver import Saver
from rlrun.types import Counters, tree_leaves
from tests.compose import config
from tests.log.records import read_records
from tests.rundir.test_checkpoint import same

SMOKE = ("debug=smoke", "logger.progress=off")


def go(run_dir: Path, *overrides: str) -> dict:
    """One in-process run; its run.json."""
    run_dir.mkdir(parents=True, exist_ok=True)
    c = config(*SMOKE, *overrides)
    (run_dir / "config.yaml").write_text("{}")
    assert train.run(c, run_dir, raw_yaml="seed: 0\n", overrides=[]) == 0
    return json.loads((run_dir / "run.json").read_text())


@pytest.mark.parametrize("policy", ["random", "scripted"])
@pytest.mark.parametrize("kind", ["serial", "overlapped"])
def test_a_policy_that_learns_nothing_only_evaluates(tmp_path, policy, kind):
    """Unless steps are asked for; what it scores does not depend on them."""
    words = (f"policy={policy}", "env=bandit", f"pipeline={kind}", "logger.progress=off")
    c = config(*words)
    (tmp_path / "config.yaml").write_text("{}")
    assert train.run(c, tmp_path, raw_yaml="seed: 0\n", overrides=[]) == 0
    done = json.loads((tmp_path / "run.json").read_text())
    assert (done["status"], done["env_steps"], done["eval"]["episodes"]) == ("done", 0, 50)
    assert [line["env_steps"] for line in read_records(tmp_path / "metrics.jsonl")] == [0]
    assert "run.total_steps=" + str(c.env.total_steps) in train._done(tmp_path, c)
    more = config(*words, "run.total_steps=100", "run.stop_value=null")
    assert (
        train.resume(tmp_path, more, raw_yaml="seed: 0\n", overrides=["run.total_steps=100"]) == 0
    )
    longer = json.loads((tmp_path / "run.json").read_text())
    assert longer["env_steps"] >= 100
    assert longer["eval"]["return_mean"] == done["eval"]["return_mean"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("policy=r2d2", "env=cartpole"),
        ("policy=r2d2", "env=tmaze", "buffer=uniform", "memory=gru"),
        ("policy=r2d2", "env=repeat_previous", "buffer.initial_priority=td"),
        ("policy=drqn", "env=cartpole_novel", "collector.trajectory=collect"),
        ("policy=dqn", "env=cartpole", "buffer=prioritized"),
        ("policy=random", "env=bandit"),
        ("policy=r2d2", "env=identity", "collector.unit=window", "collector.n_sample=3"),
        ("policy=r2d2", "env=acrobot", "env.backend=async", "collector.num_envs=2"),
        ("policy=r2d2", "env=cartpole", "buffer=rank", "env.frame_stack=3"),
        ("policy=dqn", "env=cartpole", "buffer=rank", "env.frame_stack=2"),
        ("policy=dqn", "env=bitflip", "env.bits=4", "buffer.relabel=future"),
        ("policy=ppo", "env=cartpole", "env.frame_stack=2", "policy.normalize_obs=true"),
        ("policy=ppo", "env=cartpole_novel", "memory=lstm", "policy.prev_inputs=true"),
        ("policy=a2c", "env=pendulum", "policy.normalize_reward=true"),
        ("policy=impala", "env=tmaze", "memory=gru"),
        ("policy=pqn", "env=tmaze", "memory=gru", "learner.batch_size=32"),
    ],
)
def test_same_seed_same_bytes(tmp_path, overrides):
    """Determinism: metrics.jsonl, weights and digest are equal; another seed is not."""
    one, two = go(tmp_path / "one", *overrides), go(tmp_path / "two", *overrides)
    other = go(tmp_path / "three", *overrides, "seed=1")
    names = ("metrics.jsonl", "checkpoints/last.safetensors")
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one["digest"] == two["digest"] != other["digest"]
    assert one["status"] == "done"
    assert one["exit_code"] == 0
    assert one["env_steps"] >= 400
    assert one["eval"]["env_steps"] == one["env_steps"]
    assert set(one["eval"]) >= {"return_mean", "return_std", "return_min", "return_max", "episodes"}
    assert one["best_eval"]["return_mean"] >= one["eval"]["return_mean"]


def test_tensorboard_shows_the_metrics(tmp_path):
    record = go(tmp_path, "policy=r2d2", "env=cartpole")
    board = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    points: dict[str, list] = {}
    for file in ("metrics.jsonl", "timings.jsonl"):
        for line in read_records(tmp_path / file):
            step = line.pop("env_steps")
            for key, value in line.items():
                points.setdefault(key, []).append((step, pytest.approx(value, rel=1e-6)))
    # for the row of the HPARAMS tab: env steps with every score, and the wall time at the end
    points["run/env_steps"] = [(step, step) for step, _ in points["eval/return_mean"]]
    end = record["env_steps"], pytest.approx(record["wall_seconds"], rel=1e-6)
    points["time/wall_seconds"].append(end)
    tags = set(board.Tags()["scalars"])
    assert tags == set(points)
    for tag in tags:
        assert [(e.step, e.value) for e in board.Scalars(tag)] == points[tag], tag
    assert {t.split("/")[0] for t in tags} == {"collect", "train", "buffer", "eval", "time", "run"}
    assert any("config" in t for t in board.Tags()["tensors"])


def test_resume_finishes_the_run(tmp_path):
    """Counters, replay, optimiser and evaluations continue; no step is logged twice."""
    go(tmp_path, "policy=r2d2", "env=cartpole")
    before = [line["env_steps"] for line in read_records(tmp_path / "metrics.jsonl")]
    state, _ = load_newest(tmp_path / "checkpoints")
    longer = config(*SMOKE, "policy=r2d2", "env=cartpole", "run.total_steps=900")
    assert train.resume(tmp_path, longer, raw_yaml="", overrides=[]) == 0
    record = RunRecord.read(tmp_path)
    assert record.env_steps >= 900
    assert record.updates > state["counters"]["updates"]
    steps = [line["env_steps"] for line in read_records(tmp_path / "metrics.jsonl")]
    assert steps[: len(before)] == before
    assert steps == sorted(steps)
    assert steps[-1] >= 900
    after, _ = load_newest(tmp_path / "checkpoints")
    rows = after["buffer"]["counts"]["rows"]
    assert rows == after["counters"]["env_steps"], "the buffer lost or doubled rows"


@pytest.mark.parametrize(
    "overrides",
    [
        ("policy=ppo", "env.frame_stack=3", "policy.normalize_reward=true"),
        ("policy=ppo", "memory=lstm", "policy.prev_inputs=true", "policy.normalize_obs=true"),
        ("policy=impala", "memory=gru", "pipeline=overlapped"),
        ("policy=pqn", "memory=gru", "policy.prev_inputs=true"),
    ],
)
def test_an_on_policy_run_resumes(tmp_path, overrides):
    """Counters and logs continue; no rollout is learned from twice."""
    overrides = ("env=cartpole", *overrides)
    go(tmp_path, *overrides)
    state, _ = load_newest(tmp_path / "checkpoints")
    assert state["buffer"]["filled"] == 0, "everything was learned from"
    longer = config(*SMOKE, *overrides, "run.total_steps=900")
    assert train.resume(tmp_path, longer, raw_yaml="", overrides=[]) == 0
    record = RunRecord.read(tmp_path)
    assert record.env_steps >= 900
    assert record.updates > state["counters"]["updates"]
    steps = [line["env_steps"] for line in read_records(tmp_path / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_resuming_a_finished_run_changes_nothing(tmp_path, capsys):
    words = (*SMOKE, "policy=random", "env=bandit", "run.stop_value=null", "run.total_steps=96")
    go(tmp_path, *words)

    def tree():
        files = (p for p in tmp_path.rglob("*") if p.is_file())
        return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files}

    before = tree()
    shown = "logger.progress=plain"
    assert train.resume(tmp_path, config(*words, shown), raw_yaml="other", overrides=[]) == 0
    assert tree() == before
    said = capsys.readouterr().out
    assert "the run is done (96 env steps); nothing was changed" in said
    assert f"rlrun resume {tmp_path} run.total_steps=192\n" in said
    c = config(*words, "run.total_steps=192")
    assert train.resume(tmp_path, c, raw_yaml="seed: 0\n", overrides=[]) == 0
    assert RunRecord.read(tmp_path).env_steps == 192


def test_a_solved_run_goes_on_without_its_stop_value(tmp_path, capsys, monkeypatch):
    evaluations(monkeypatch, *[1.0] * 9)
    words = (*STEPWISE, "run.total_steps=40", "run.stop_after=2")
    record = go(tmp_path, *words, "run.stop_value=1")
    assert (record["ended_by"], record["env_steps"]) == ("run.stop_value", 16)
    for value in (0.5, 1):
        c = config(*SMOKE, *words, f"run.stop_value={value}", "logger.progress=plain")
        assert train.resume(tmp_path, c, raw_yaml="", overrides=[]) == 0
        assert "run.total_steps=80 run.stop_value=null" in capsys.readouterr().out
    assert RunRecord.read(tmp_path).resumes == []
    assert resumed(tmp_path, *words, "run.stop_value=null")["ended_by"] == "run.total_steps"


@pytest.mark.parametrize("policy", ["r2d2", "dqn"])
@pytest.mark.parametrize("buffer", ["uniform", "prioritized", "rank"])
def test_a_buffer_on_a_device(tmp_path, monkeypatch, policy, buffer):
    """buffer.device=cuda on a CPU: deterministic and resumable runs."""
    monkeypatch.setattr("rlrun.build.replay.torch_device", lambda name: torch.device("cpu"))
    line = (f"policy={policy}", "env=cartpole", f"buffer={buffer}", "buffer.device=cuda")
    if buffer == "prioritized":
        line += ("buffer.initial_priority=td",)
    one, two = go(tmp_path / "one", *line), go(tmp_path / "two", *line)
    assert one["digest"] == two["digest"]
    host = go(tmp_path / "host", *line[:-1], "buffer.device=cpu")
    assert abs(host["env_steps"] - one["env_steps"]) <= 16  # other draws, other episode ends
    c = config(*SMOKE, *line, "run.total_steps=700")
    assert train.resume(tmp_path / "one", c, raw_yaml="seed: 0\n", overrides=[]) == 0
    assert json.loads((tmp_path / "one" / "run.json").read_text())["env_steps"] >= 700


def test_rows_in_files_are_the_same_rows(tmp_path):
    """buffer.mmap changes the storage of rows only; the directory is emptied."""
    line = ("policy=r2d2", "env=cartpole")
    memory = go(tmp_path / "memory", *line)
    files = go(tmp_path / "files", *line, f"buffer.mmap={tmp_path / 'rows'}")
    assert memory["digest"] == files["digest"]
    assert (tmp_path / "rows").is_dir()
    assert not list((tmp_path / "rows").iterdir())


@pytest.mark.parametrize("policy", ["r2d2", "dqn", "ppo", "sac"])
def test_a_run_of_no_steps_evaluates_the_untrained_policy(tmp_path, policy):
    env = "bandit_continuous" if policy == "sac" else "bandit"
    check(config(f"policy={policy}", f"env={env}", "run.total_steps=0"))
    done = go(tmp_path, f"policy={policy}", f"env={env}", "run.total_steps=0")
    assert (done["status"], done["env_steps"]) == ("done", 0)
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record["env_steps"] == 0
    assert "eval/return_mean" in record
    if policy == "dqn":  # schedules begin when steps are asked for
        words = (f"policy={policy}", f"env={env}", "run.total_steps=4000", "run.stop_value=null")
        begun, longer = make_plan(config("run.total_steps=0")), make_plan(config(*words))
        assert longer.resumed(begun.settings()).horizon == 4000
        assert begun.resumed(longer.settings()).horizon == 4000


@pytest.mark.parametrize("policy", ["r2d2", "dqn"])
def test_a_run_starts_from_anothers_rows(tmp_path, policy):
    """export -> buffer.load: all steps are in the buffer before the first is collected."""
    c = config(*SMOKE, f"policy={policy}", "env=cartpole")
    first = go(tmp_path / "first", f"policy={policy}", "env=cartpole")
    export_run(tmp_path / "first", tmp_path / "data", c, raw_yaml="seed: 0\n", shard_rows=100)
    go(tmp_path / "second", f"policy={policy}", "env=cartpole",
       f"buffer.load={tmp_path / 'data'}", "collector.num_envs=3", "seed=5")  # fmt: skip
    state, _ = load_newest(tmp_path / "second" / "checkpoints")
    steps = json.loads((tmp_path / "second" / "run.json").read_text())["env_steps"]
    assert state["buffer"]["counts"]["rows"] == first["env_steps"] + steps


@pytest.mark.parametrize("chunk", [3, 256])
def test_loading_cuts_no_trajectory(tmp_path, monkeypatch, chunk):
    """collector.trajectory=collect: loading a dataset ends no collect call."""
    monkeypatch.setattr("rlrun.build.replay.READ_ROWS", chunk)
    line = ("policy=r2d2", "env=cartpole")
    go(tmp_path / "first", *line)
    c = config(*SMOKE, *line)
    data = tmp_path / "data"
    export_run(tmp_path / "first", data, c, raw_yaml="seed: 0\n", shard_rows=100)
    c = config(*SMOKE, *line, f"buffer.load={data}", "collector.trajectory=collect")
    plan = make_plan(c)
    replay = build_replay.make_replay(plan)
    build_replay.load_rows(plan, replay)
    replay.check()
    assert replay.close
    segment = replay.sample(0, 0).segment
    closed = ~segment.valid & torch.cat([torch.zeros_like(segment.valid[:1]), segment.valid[:-1]])
    t, b = closed.nonzero(as_tuple=True)
    ended = (segment.terminated | segment.truncated)[t - 1, b]
    assert len(t) > 5
    assert ended.all(), "a window ends where no episode does"


def test_an_earlier_run_does_not_need_its_dataset(tmp_path):
    """buffer.load is read at the start only: resume and export do not need it."""
    first = go(tmp_path / "first", "policy=dqn", "env=cartpole")
    assert first["status"] == "done"
    c = config(*SMOKE, "policy=dqn", "env=cartpole", f"buffer.load={tmp_path / 'gone'}")
    with pytest.raises(ConfigError, match="is no directory"):
        check(c)
    check(c, fresh=False)


def test_a_resumed_buffer_has_no_window_across_the_cut(tmp_path):
    from dataclasses import replace

    c = config(*SMOKE, "policy=r2d2", "env=counter", "run.total_steps=300")
    (tmp_path / "run").mkdir()
    train.run(c, tmp_path / "run", raw_yaml="", overrides=[])
    longer = replace(c, run=replace(c.run, total_steps=600))
    state, _ = load_newest(tmp_path / "run" / "checkpoints")
    with Log(c.logger, tmp_path / "run", total_steps=600, title="", resume_from=300) as log:
        pipeline = build.make_pipeline(make_plan(longer), tmp_path / "run", log)
        pipeline.load_state_dict(state)
        pipeline.run(StopRequest())
        replay = pipeline.buffer
    replay.check()

    keys = replay.windows.keys(replay.windows.all())
    segment = replay.get(keys, 0).segment
    for i in range(len(keys)):
        own = segment.valid[:, i].nonzero().squeeze(-1)
        rows = segment.obs[own, i]
        assert (rows[:, :2] == rows[0, :2]).all(), "a window mixes two episodes"
        assert (rows[1:, 2] - rows[:-1, 2] == 1).all()
        assert segment.obs[own[-1] + 1, i, 2] == rows[-1, 2] + 1


def test_two_evaluations_at_the_stop_value_end_the_run(tmp_path):
    record = go(tmp_path, "policy=random", "env=bandit", "run.stop_value=-1",
                "run.eval_every=50", "run.total_steps=100000")  # fmt: skip
    evals = [
        line for line in read_records(tmp_path / "metrics.jsonl") if "eval/return_mean" in line
    ]
    assert len(evals) == 2
    assert record["env_steps"] < 200


def test_one_evaluation_at_the_stop_value_does_not_end_the_run(tmp_path):
    record = go(tmp_path, "policy=random", "env=bandit", "run.stop_value=2")
    assert record["env_steps"] >= 400


def spawn(run_dir: Path, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "rlrun", "policy=r2d2", "env=cartpole", f"run.dir={run_dir}"]
    command += ["logger.progress_seconds=0.2", "run.stop_value=null", *overrides]
    command += ["learner.batch_size=4", "learner.replay_ratio=15"]  # as many updates, small ones
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
def test_a_signal_saves_and_prints_how_to_resume(tmp_path, number, code):
    run_dir = tmp_path / "run"
    process = spawn(run_dir)
    deadline = time.monotonic() + 60
    metrics = run_dir / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "rlrun resume" in err
    assert "Traceback" not in err
    record = RunRecord.read(run_dir)
    assert record.status == "interrupted"
    assert record.exit_code == code
    state, _ = load_newest(run_dir / "checkpoints")
    assert state["counters"]["env_steps"] == record.env_steps
    assert main(["resume", str(run_dir), "run.total_steps=3000", "-q"]) == 0
    assert RunRecord.read(run_dir).status == "done"


@pytest.mark.parametrize(
    ("pipeline", "when", "killed"),  # every pair
    [("serial", 1, False), ("serial", 2, True), ("serial", 3, False),
     ("overlapped", 1, True), ("overlapped", 2, False), ("overlapped", 3, True)],
)  # fmt: skip
def test_a_signal_does_not_wait_for_an_evaluation(tmp_path, monkeypatch, pipeline, when, killed):
    """The evaluation is pending: the resumed run starts with it and reports it once."""
    words = (*SMOKE, "policy=r2d2", "env=cartpole", f"pipeline={pipeline}", "run.eval_every=150",
             "run.total_steps=400", "run.stop_value=null")  # fmt: skip
    go(tmp_path, *words)
    run_dir, c, calls = tmp_path / "stopped", config(*words), []
    run_dir.mkdir()
    run_until = Evaluator.run_until

    def signalled(self, stop, policy, *, env_steps):
        calls.append(env_steps)
        if len(calls) == when:
            os.kill(os.getpid(), signal.SIGTERM)
        return run_until(self, stop, policy, env_steps=env_steps)

    with monkeypatch.context() as m:
        m.setattr(Evaluator, "run_until", signalled)
        with pytest.raises(Interrupted):
            train.run(c, run_dir, raw_yaml="", overrides=[])
    state, _ = load_newest(run_dir / "checkpoints")
    assert (state["owed"], state["counters"]["env_steps"]) == (True, calls[-1])
    assert len(calls) == when
    if killed:  # behind the evaluation, before the next checkpoint
        with monkeypatch.context() as m:
            m.setattr(Pipeline, "_collect", lambda self: {}["killed"])
            m.setattr(Pipeline, "_save", lambda self: {}["killed"])
            with pytest.raises(KeyError):
                train.resume(run_dir, c, raw_yaml="", overrides=[])
    with monkeypatch.context() as m:
        m.setattr(Pipeline, "_collect", lambda self: {}["killed"])
        if when < 3:  # there is something left to collect
            with pytest.raises(KeyError):
                train.resume(run_dir, c, raw_yaml="", overrides=[])
            assert not load_newest(run_dir / "checkpoints")[0]["owed"], "saved as soon as done"
    assert train.resume(run_dir, c, raw_yaml="", overrides=[]) == 0
    until = [
        [line for line in read_records(path / "metrics.jsonl") if line["env_steps"] <= calls[-1]]
        for path in (run_dir, tmp_path)
    ]
    assert until[0] == until[1]
    assert "eval/return_mean" in until[0][-1]


def test_a_killed_run_resumes_from_its_checkpoint(tmp_path):
    run_dir = tmp_path / "run"
    process = spawn(run_dir, "run.checkpoint_every=500")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(
        run_dir.glob("checkpoints/step_*/manifest.json")
    ):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert RunRecord.read(run_dir).status == "running"
    assert main(["resume", str(run_dir), "run.total_steps=2000", "-q"]) == 0
    steps = [line["env_steps"] for line in read_records(run_dir / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert RunRecord.read(run_dir).env_steps >= 2000


def test_a_second_process_is_refused(tmp_path):
    from rlrun.errors import LockedError
    from rlrun.rundir.lock import lock_run_dir

    c = config(*SMOKE)
    with lock_run_dir(tmp_path), pytest.raises(LockedError):
        train.run(c, tmp_path, raw_yaml="", overrides=[])


def test_interrupted_is_not_a_failure():
    error = interrupted_error(75, 10, Path("x"))
    assert isinstance(error, Interrupted)
    assert error.exit_code == 75
    assert Interrupted.exit_code == 130, "the class keeps its own code"


def test_eval_uses_seeds_training_never_used(tmp_path, capsys):
    seeds = make_plan(config("seed=3", "env=cartpole")).env_seeds
    assert [s // 2**29 for s in (seeds.collect, seeds.eval, seeds.final)] == [0, 1, 2]
    go(tmp_path, "policy=random", "env=cartpole")
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigError):
        evaluate_run(tmp_path, episodes=3, weights="final", seed=None, device=None)


def test_secrets_are_stored_unresolved(tmp_path, monkeypatch):
    """Unresolved secrets stay unresolved: in config.yaml and in the hyperparameters."""
    monkeypatch.setenv("RLRUN_TEST_SECRET", "hunter2")
    run_dir = tmp_path / "run"
    line = [*SMOKE, "env=bandit", f"run.dir={run_dir}", "env.note=${oc.env:RLRUN_TEST_SECRET}"]
    assert main(line) == 0
    for path in run_dir.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_eval_into_a_closed_pipe_is_quiet(tmp_path):
    assert main(["policy=random", "env=bandit", "debug=smoke", "-q", f"run.dir={tmp_path}"]) == 0
    line = f"{sys.executable} -m rlrun eval {tmp_path} --episodes 2 | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert not (tmp_path / "crash.txt").exists()


def test_rows_of_a_device_buffer_are_exported_without_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.build.replay.torch_device", lambda name: torch.device("cpu"))
    line = ("policy=r2d2", "env=cartpole")
    record = go(tmp_path / "one", *line, "buffer.device=cuda")
    c = config(*SMOKE, *line)  # as rlrun export reads the config: buffer.device=cpu
    export_run(tmp_path / "one", tmp_path / "data", c, raw_yaml="seed: 0\n", shard_rows=1000)
    from rlrun.dataset import read_dataset

    assert read_dataset(tmp_path / "data").steps == record["env_steps"]


def test_the_newest_rows_are_exported_with_their_states(tmp_path):
    """--last of a ring that wrapped: the end of every trajectory with its states."""
    from rlrun.dataset import read_dataset

    line = (
        "policy=r2d2", "env=cartpole", "buffer.capacity=200", "policy.learn_unroll_len=5",
        "policy.burnin_step=3", "policy.nstep=2", "memory.hidden=4", "torso.hidden=[4]",
    )  # fmt: skip
    c, counters = config(*SMOKE, *line), Counters()
    plan = make_plan(c)
    collector, replay = build.make_collector(plan, counters), build_replay.make_replay(plan)
    for _ in range(20):
        replay.add(collector.collect_rows())
    state = {"buffer": replay.state_dict(), "counters": {"env_steps": counters.env_steps}}
    checkpoint.save(tmp_path / "run" / "checkpoints", state, env_steps=1, keep=1)

    def export(name, last):
        given = {"raw_yaml": "", "shard_rows": 64, "last": last}
        export_run(tmp_path / "run", tmp_path / name, c, **given)
        return read_dataset(tmp_path / name)

    every = export("every", None)
    assert replay.ring.oldest > 0, "the ring has wrapped"
    whole = {e.obs[-1].numpy().tobytes(): e for e in every.episodes()}  # by the last observation
    states = 0
    for last in (40, 97, every.rows - 4, every.rows, 10**6):
        some = export(f"last{last}", last)
        assert some.rows == min(every.rows, -(-last // 4) * 4), "as many of each environment"
        for name, x in some.block(0, some.rows // 4).items():
            tail = every.block((every.rows - some.rows) // 4, every.rows // 4)[name]
            np.testing.assert_array_equal(x, tail)
        for got in some.episodes():
            want, n = whole[got.obs[-1].numpy().tobytes()], len(got.reward)
            assert torch.equal(got.obs, want.obs[-n - 1 :])
            for field in ("action", "reward", "terminated", "truncated"):
                assert torch.equal(getattr(got, field), getattr(want, field)[-n:]), field
            for a, b in zip(tree_leaves(got.states), tree_leaves(want.states), strict=True):
                assert torch.equal(a, b[-n:])
                states += int(a.any(-1).sum())
    assert states > 20, "windows begin within episodes"


def test_profile_reports_the_shares_of_time(tmp_path, capsys):
    """A trace for TensorBoard's plugin; shares on the terminal and in TensorBoard."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    quick = ("debug=profile", "run.total_steps=2000", "run.eval_every=2000", "run.eval_episodes=2")
    quick += ("learner.backend=torch", "logger.progress=plain", "logger.profile=3")
    c = config(*quick, "policy=r2d2", "env=cartpole")
    assert train.run(c, run_dir, raw_yaml="seed: 0\n", overrides=[]) == 0
    trace = json.loads((run_dir / "profile" / "profile.pt.trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::mkldnn_rnn_layer_backward" in names or "aten::lstm" in names
    out = capsys.readouterr().out
    shown = [line.split()[0] for line in out.splitlines() if line.rstrip().endswith("%")]
    parts = ["collect", "act", "env", "add", "sample", "update", "forward", "backward"]
    assert [p for p in shown if p in parts] == parts
    board = EventAccumulator(str(run_dir), size_guidance={"tensors": 0}).Reload()
    assert any("profile" in tag for tag in board.Tags()["tensors"])


def test_the_times_of_the_parts_sum_to_the_whole(tmp_path):
    """time/ seconds: act and env are part of collect; forward, backward, optimiser of update."""
    go(tmp_path, "policy=r2d2", "env=cartpole")
    last = list(read_records(tmp_path / "timings.jsonl"))[-1]
    t = {key[5:-8]: value for key, value in last.items() if key.endswith("_seconds")}
    assert 0 < t["act"] + t["env"] <= t["collect"]
    assert t["forward"] + t["backward"] + t["optimiser"] == pytest.approx(t["update"])
    assert min(t["forward"], t["backward"], t["optimiser"]) > 0


STEPWISE = (
    "policy=random", "env=bandit", "collector.num_envs=1", "collector.n_sample=1",
    "run.stop_value=null", "run.eval_every=8", "logger.tensorboard=false",
)  # fmt: skip


def evaluations(monkeypatch, *returns):
    """Make successive evaluations return ``returns``."""
    left = iter(returns)

    def evaluated(self, stop, policy, *, env_steps):
        return Evaluation(np.array([next(left)]), np.array([1]), None, env_steps)

    monkeypatch.setattr(Evaluator, "run_until", evaluated)


def resumed(run_dir: Path, *overrides: str) -> dict:
    """The run.json of a resumed run."""
    c = config(*SMOKE, *overrides)
    assert train.resume(run_dir, c, raw_yaml="seed: 0\n", overrides=[]) == 0
    return json.loads((run_dir / "run.json").read_text())


def shown(run_dir: Path, key: str) -> list:
    """(env_steps, value) of every line of metrics.jsonl that has ``key``."""
    lines = read_records(run_dir / "metrics.jsonl")
    return [(line["env_steps"], line[key]) for line in lines if key in line]


def saved(run_dir: Path) -> list[int]:
    """The env steps of the checkpoints."""
    return [int(path.name.split("_")[1]) for path in list_checkpoints(run_dir / "checkpoints")]


@pytest.mark.parametrize(
    ("n_sample", "evaluated", "logged", "kept"),
    [
        (1, [8, 16, 24, 32, 40], [10, 20, 30, 40], [15, 30, 40]),
        (7, [14, 21, 28, 35, 42], [14, 21, 35, 42], [21, 35, 42]),
    ],
)
def test_periods_are_independent(tmp_path, monkeypatch, n_sample, evaluated, logged, kept):
    """Each is due when a chunk reaches a multiple of it; the end is saved and evaluated."""
    evaluations(monkeypatch, *range(10))
    go(tmp_path, *STEPWISE, f"collector.n_sample={n_sample}", "run.total_steps=40",
       "logger.every=10", "run.checkpoint_every=15", "run.keep_checkpoints=9")  # fmt: skip
    assert [step for step, _ in shown(tmp_path, "eval/return_mean")] == evaluated
    assert [step for step, _ in shown(tmp_path, "collect/episodes")] == logged
    assert saved(tmp_path) == kept


def test_the_configured_number_of_checkpoints_is_kept(tmp_path, monkeypatch):
    evaluations(monkeypatch, *range(10))
    go(tmp_path, *STEPWISE, "run.total_steps=20", "run.checkpoint_every=5",
       "run.keep_checkpoints=3")  # fmt: skip
    assert saved(tmp_path) == [10, 15, 20]


def test_the_first_of_equal_evaluations_is_the_best(tmp_path, monkeypatch):
    evaluations(monkeypatch, 1.0, 3.0, 3.0, 2.0)
    record = go(tmp_path, *STEPWISE, "run.total_steps=32")
    assert (record["best_eval"]["return_mean"], record["best_eval"]["env_steps"]) == (3.0, 16)
    assert (record["eval"]["return_mean"], record["eval"]["env_steps"]) == (2.0, 32)
    assert [best for _, best in shown(tmp_path, "eval/best_return_mean")] == [1.0, 3.0, 3.0, 3.0]
    _, meta = load_weights(tmp_path / "checkpoints" / "best.safetensors")
    assert meta == record["best_eval"], "whose weights are kept"
    _, meta = load_weights(tmp_path / "checkpoints" / "last.safetensors")
    assert meta == {"env_steps": 32, "updates": 0}


def test_a_resume_keeps_the_best_evaluation(tmp_path, monkeypatch):
    evaluations(monkeypatch, 5.0, 3.0)
    go(tmp_path, *STEPWISE, "run.total_steps=8")
    record = resumed(tmp_path, *STEPWISE, "run.total_steps=16")
    assert (record["best_eval"]["env_steps"], record["eval"]["env_steps"]) == (8, 16)
    assert load_weights(tmp_path / "checkpoints" / "best.safetensors")[1]["env_steps"] == 8


@pytest.mark.parametrize(
    ("returns", "end"), [((1, 1), 16), ((1, 0, 1, 1), 32), ((0, 1, 0, 1, 0), 40)]
)
def test_evaluations_that_end_a_run_are_successive(tmp_path, monkeypatch, returns, end):
    """run.stop_after successive evaluations of at least run.stop_value."""
    evaluations(monkeypatch, *map(float, returns))
    record = go(tmp_path, *STEPWISE, "run.total_steps=40", "run.stop_value=1", "run.stop_after=2")
    assert record["env_steps"] == end


def test_a_resume_continues_the_count_of_solved_evaluations(tmp_path, monkeypatch):
    evaluations(monkeypatch, *[1.0] * 5)
    words = (*STEPWISE, "run.stop_value=1", "run.stop_after=2")
    assert go(tmp_path, *words, "run.total_steps=8")["env_steps"] == 8
    assert resumed(tmp_path, *words, "run.total_steps=40")["env_steps"] == 16


def test_a_run_ends_at_total_steps_and_evaluates_its_last_weights_once(tmp_path, monkeypatch):
    evaluations(monkeypatch, 1.0, 2.0)
    record = go(tmp_path, *STEPWISE, "run.total_steps=10")
    assert record["env_steps"] == record["eval"]["env_steps"] == 10
    assert [step for step, _ in shown(tmp_path, "eval/return_mean")] == [8, 10]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").rglob("*")}
    assert resumed(tmp_path, *STEPWISE, "run.total_steps=10")["env_steps"] == 10
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").rglob("*")}
    assert after == before, "there is nothing new to save"


def test_an_interrupted_run_reports_no_evaluation_of_its_last_weights(tmp_path, monkeypatch):
    evaluations(monkeypatch, 1.0, 2.0)
    collect = Collector.collect

    def signalled(self):
        if self.counters.env_steps == 11:
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(self)

    monkeypatch.setattr(Collector, "collect", signalled)
    c = config(*SMOKE, *STEPWISE, "run.total_steps=100")
    with pytest.raises(Interrupted):
        train.run(c, tmp_path, raw_yaml="", overrides=[])
    record = RunRecord.read(tmp_path)
    assert (record.env_steps, record.eval) == (11, None), "the chunk is interrupted"
    assert record.best_eval["env_steps"] == 8
    assert saved(tmp_path)[-1] == 11


def test_logs_are_flushed_before_a_checkpoint_refers_to_them(tmp_path, monkeypatch):
    evaluations(monkeypatch, *range(10))
    done, sync, write = [], Log.sync, Saver._write
    monkeypatch.setattr(Log, "sync", lambda self: done.append("sync") or sync(self))
    monkeypatch.setattr(Saver, "_write", lambda *a: done.append("save") or write(*a))
    go(tmp_path, *STEPWISE, "run.total_steps=10", "run.checkpoint_every=5", "run.eval_every=5")
    assert done == ["sync", "save"] * 2


LEARNING = (
    "policy=dqn", "env=cartpole", "torso.hidden=[4]", "bonus=rnd", "run.stop_value=null",
    "logger.tensorboard=false", "run.total_steps=200", "run.eval_every=150",
    "learner.learning_starts=20", "learner.update_per_collect=null", "learner.replay_ratio=0.75",
)  # fmt: skip


def test_order_of_observing_learning_and_counting_a_chunk(tmp_path, monkeypatch):
    """End rows are not steps; RND learns a chunk after its bonus was added."""
    done, observe, step, update = [], RND.observe, Learner.step, RND.update

    def stepped(self, rows, keys):
        done.append(("step", rows, self.counters.env_steps))
        return step(self, rows, keys)

    def observed(self, chunk):
        done.append(("see",))
        return observe(self, chunk)

    def updated(self, env_steps):
        done.append(("learn", env_steps))
        return update(self, env_steps)

    monkeypatch.setattr(RND, "observe", observed)
    monkeypatch.setattr(Learner, "step", stepped)
    monkeypatch.setattr(RND, "update", updated)
    record = go(tmp_path, *LEARNING)
    clock = 0
    for seen, (word, rows, after), learned in zip(*(done[i::3] for i in range(3)), strict=True):
        clock += rows
        assert (seen, word, after, learned) == (("see",), "step", clock, ("learn", clock))
    assert clock == record["env_steps"]


def test_a_restored_pipeline_equals_the_saved_one(tmp_path):
    """All of a checkpoint is restored; only the environments are not in it."""
    go(tmp_path / "run", *LEARNING)
    state, _ = load_newest(tmp_path / "run" / "checkpoints")
    (tmp_path / "again").mkdir()
    assert 0 < state["learner"]["credit"] < 8
    assert state["bonus"]
    assert min(state["counters"].values()) > 0
    c = config(*SMOKE, *LEARNING)
    with Log(c.logger, tmp_path / "again", total_steps=200, title="", resume_from=200) as log:
        pipeline = build.make_pipeline(make_plan(c), tmp_path / "again", log)
        pipeline.load_state_dict(state)
        back = pipeline.state_dict()
        pipeline.close()
    checkpoint.save(tmp_path / "again" / "checkpoints", back, env_steps=1, keep=1)
    again, _ = load_newest(tmp_path / "again" / "checkpoints")
    assert again.keys() == state.keys()
    for name in state:
        assert same(state[name], again[name]), name


class _Judged(Pipeline):
    """Trains for 100 steps at a time until an evaluation, of whichever weights, is above 475."""

    def _train(self, stop):
        if self.last["return_mean"] < 475:
            self.counters.env_steps += 100
            self.last = {"return_mean": 500.0, "env_steps": self.counters.env_steps - 50}

    def _evaluate(self, stop):
        self.last = {"return_mean": self.scores.pop(0), "env_steps": self.counters.env_steps}


def test_a_run_goes_on_where_only_earlier_weights_have_solved_its_task():
    """Results that come late, as on Ray, are of weights before the last ones."""
    pipeline = _Judged.__new__(_Judged)
    pipeline.counters, pipeline.last, pipeline.best = Counters(), {"return_mean": 0.0}, None
    pipeline.scores, pipeline.dirty, pipeline.pending_evaluation = [445.0, 480.0], False, False
    pipeline.saver, pipeline.profiler = SimpleNamespace(wait=lambda: None), None
    result = pipeline._run(StopRequest())
    assert result.final == {"return_mean": 480.0, "env_steps": 200}
