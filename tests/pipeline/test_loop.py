"""The loop: periods, scores, the end, signals, resumed runs, and what a run writes."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.cli.main import main
from rlrun.errors import CheckpointError, Interrupted
from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.learner import Learner
from rlrun.run import start
from rlrun.run.checkpoint import Saver, load_weights
from rlrun.run.diff import differences
from tests.compose import config
from tests.exact import Killed
from tests.in_process import assert_one_line
from tests.log.records import read_records
from tests.pipeline.make import (
    R2D2,
    SMOKE,
    STEPWISE,
    TINY,
    evaluations,
    fails,
    go,
    on_steps,
    record_of,
    resumed,
    saved,
    shown,
    state_of,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of 400 steps, not to be changed."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    go(run_dir, *R2D2, "logger.tensorboard=true")
    return run_dir


def test_environments_draw_the_same_from_global_generators_again(tmp_path, monkeypatch):
    drawn = []
    on_steps(monkeypatch, training=lambda n: drawn.append(
        (random.random(), np.random.random(), torch.rand(1).item())
    ))  # fmt: skip
    for seed in (1, 2):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        go(tmp_path / str(seed), *STEPWISE, "run.total_steps=20")
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]


@pytest.mark.parametrize("words", [(), ("pipeline=overlapped",), ("env.backend=async",)], ids=str)
def test_every_environment_of_a_run_is_closed(tmp_path, words):
    own = ("env=gym", "env.id=tests.env.telling:test/Counted-v0", "env.max_episode_steps=8",
           f"env.kwargs.path={tmp_path}/notes")  # fmt: skip
    go(tmp_path / "run", "policy=random", *own, "run.total_steps=64", *words)
    notes = (tmp_path / "notes").read_text().splitlines()
    assert notes.count("made") == notes.count("closed") > 2


# -- what a run writes -----------------------------------------------------------------------------


def test_the_record_of_a_finished_run(whole):
    record = record_of(whole)
    assert (record["status"], record["exit_code"], record["ended_by"]) == (
        "done", 0, "run.total_steps",
    )  # fmt: skip
    assert record["env_steps"] == record["eval"]["env_steps"] >= 400
    assert set(record["eval"]) >= {"return_mean", "return_std", "return_min", "return_max"}
    assert record["best_eval"]["return_mean"] >= record["eval"]["return_mean"]
    _, meta = load_weights(whole / "checkpoints" / "last.safetensors")
    assert meta == {"env_steps": record["env_steps"], "updates": record["updates"]}


def test_the_times_of_the_parts_sum_to_the_whole(whole):
    """time/ seconds: act and env are part of collect; forward, backward, optimiser of update."""
    last = list(read_records(whole / "timings.jsonl"))[-1]
    t = {key[5:-8]: value for key, value in last.items() if key.endswith("_seconds")}
    assert 0 < t["act"] + t["env"] <= t["collect"]
    assert t["forward"] + t["backward"] + t["optimiser"] == pytest.approx(t["update"])
    assert min(t["forward"], t["backward"], t["optimiser"]) > 0


def test_secrets_are_stored_unresolved(tmp_path, monkeypatch):
    """In config.yaml and in the hyperparameters."""
    monkeypatch.setenv("RLRUN_TEST_SECRET", "hunter2")
    run_dir = tmp_path / "run"
    line = ["debug=smoke", "env=bandit", "logger.progress=off", *TINY]
    assert main([*line, f"run.dir={run_dir}", "env.note=${oc.env:RLRUN_TEST_SECRET}"]) == 0
    for path in run_dir.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_eval_into_a_closed_pipe_is_quiet(tmp_path):
    assert main([*STEPWISE, "debug=smoke", "-q", "run.total_steps=8", f"run.dir={tmp_path}"]) == 0
    line = f"{sys.executable} -m rlrun eval {tmp_path} --episodes 2 | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    assert not (tmp_path / "crash.txt").exists()


def test_profile_reports_the_shares_of_time(tmp_path, capsys):
    """A trace for TensorBoard's plugin; shares on the terminal and in TensorBoard."""
    words = ("debug=profile", "run.total_steps=600", "run.eval_every=600", "logger.profile=3")
    words += ("learner.backend=torch", "logger.progress=plain", "logger.tensorboard=true",
              "learner.replay_ratio=8")  # fmt: skip
    go(tmp_path, *words, *R2D2, "learner.learning_starts=100", "buffer.capacity=1000")
    trace = json.loads((tmp_path / "profile" / "profile.pt.trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::mkldnn_rnn_layer_backward" in names or "aten::lstm" in names
    out = capsys.readouterr().out
    listed = [line.split()[0] for line in out.splitlines() if line.rstrip().endswith("%")]
    parts = ["collect", "act", "env", "add", "sample", "update", "forward", "backward"]
    assert [p for p in listed if p in parts] == parts
    shares = re.findall(r"^\w+ .* ([\d.]+)%$", out, re.M)  # indented ones are parts of others
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.5)
    board = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    assert any("profile" in tag for tag in board.Tags()["tensors"])


def test_a_profile_that_the_run_cuts_short_is_written(tmp_path):
    words = ("run.total_steps=160", "learner.learning_starts=100", "logger.profile=1000000")
    go(tmp_path, *R2D2, *words, "buffer.capacity=1000", "learner.backend=torch")
    assert json.loads((tmp_path / "profile" / "profile.pt.trace.json").read_text())["traceEvents"]


# -- periods, scores and the end -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_sample", "evaluated", "logged", "kept"),
    [
        (1, [8, 16, 24, 32, 40], [10, 20, 30, 40], [15, 30, 40]),
        (7, [14, 21, 28, 35, 42], [14, 21, 35, 42], [21, 35, 42]),
    ],
)
def test_periods_are_independent(tmp_path, n_sample, evaluated, logged, kept):
    """Each is due when a chunk reaches a multiple of it; the end is saved and evaluated."""
    go(tmp_path, *STEPWISE, f"collector.n_sample={n_sample}", "run.total_steps=40",
       "logger.every=10", "run.checkpoint_every=15", "run.keep_checkpoints=9")  # fmt: skip
    assert [step for step, _ in shown(tmp_path, "eval/return_mean")] == evaluated
    assert [step for step, _ in shown(tmp_path, "collect/episodes")] == logged
    assert saved(tmp_path) == kept


def test_the_first_of_equal_evaluations_is_the_best(tmp_path, monkeypatch):
    """A resume keeps it."""
    evaluations(monkeypatch, 1.0, 3.0, 3.0, 2.0, 2.5)
    record = go(tmp_path, *STEPWISE, "run.total_steps=32")
    assert (record["best_eval"]["return_mean"], record["best_eval"]["env_steps"]) == (3.0, 16)
    assert (record["eval"]["return_mean"], record["eval"]["env_steps"]) == (2.0, 32)
    assert [best for _, best in shown(tmp_path, "eval/best_return_mean")] == [1.0, 3.0, 3.0, 3.0]
    best = tmp_path / "checkpoints" / "best.safetensors"
    assert load_weights(best)[1] == record["best_eval"], "whose weights are kept"
    record = resumed(tmp_path, *STEPWISE, "run.total_steps=40")
    assert (record["best_eval"]["env_steps"], record["eval"]["env_steps"]) == (16, 40)
    assert load_weights(best)[1]["env_steps"] == 16


@pytest.mark.parametrize(
    ("returns", "end"), [((1, 1), 16), ((1, 0, 1, 1), 32), ((0, 1, 0, 1, 0), 40)]
)
def test_evaluations_that_end_a_run_are_successive(tmp_path, monkeypatch, returns, end):
    """run.stop_after successive evaluations of at least run.stop_return."""
    evaluations(monkeypatch, *map(float, returns))
    record = go(tmp_path, *STEPWISE, "run.total_steps=40", "run.stop_return=1", "run.stop_after=2")
    assert record["env_steps"] == end
    assert record["ended_by"] == ("run.total_steps" if end == 40 else "run.stop_return")


@pytest.mark.parametrize(("value", "end"), [(1, 16), (2, 32)])
def test_a_resume_continues_the_count_of_solved_evaluations(tmp_path, monkeypatch, value, end):
    """Those that reached another goal do not count."""
    evaluations(monkeypatch, 2.0, 2.0, 2.0, 2.0)
    words = (*STEPWISE, "run.stop_after=2")
    assert go(tmp_path, *words, "run.stop_return=1", "run.total_steps=8")["env_steps"] == 8
    record = resumed(tmp_path, *words, f"run.stop_return={value}", "run.total_steps=40")
    assert record["env_steps"] == (16 if value == 1 else 24), end


def test_a_solved_run_goes_on_without_its_stop_return(tmp_path, capsys, monkeypatch):
    evaluations(monkeypatch, *[1.0] * 9)
    words = (*STEPWISE, "run.total_steps=40", "run.stop_after=2")
    record = go(tmp_path, *words, "run.stop_return=1")
    assert (record["ended_by"], record["env_steps"]) == ("run.stop_return", 16)
    for value in (0.5, 1):
        resumed(tmp_path, *words, f"run.stop_return={value}", "logger.progress=plain")
        assert "run.total_steps=80 run.stop_return=null" in capsys.readouterr().out
    assert record_of(tmp_path)["resumes"] == []
    assert resumed(tmp_path, *words, "run.stop_return=null")["ended_by"] == "run.total_steps"


def test_a_run_goes_on_where_only_earlier_weights_have_solved_its_task(tmp_path, monkeypatch):
    """Results that come late, as on Ray, are of weights before the last ones."""
    scores = iter([(500.0, 4), (445.0, 8), (500.0, 12), (480.0, 16)])

    def late(self, stop, policy, *, env_steps):
        value, steps = next(scores)
        return Evaluation(np.array([value]), np.array([1]), None, steps)

    monkeypatch.setattr(Evaluator, "run_until", late)
    words = ("run.total_steps=40", "run.stop_return=475", "run.stop_after=1")
    record = go(tmp_path, *STEPWISE, *words)
    assert (record["eval"]["return_mean"], record["env_steps"]) == (480.0, 16)


@pytest.mark.parametrize(("policy", "pipeline"), [("random", "serial"), ("scripted", "overlapped")])
def test_a_policy_that_learns_nothing_only_evaluates(tmp_path, capsys, policy, pipeline):
    """Unless steps are asked for; what it scores does not depend on them."""
    words = (f"policy={policy}", "env=bandit", f"pipeline={pipeline}", "logger.progress=plain",
             "logger.tensorboard=false")  # fmt: skip
    c = config(*words)
    assert start.start(start.Launch(c, tmp_path, "seed: 0\n")) == 0
    done = record_of(tmp_path)
    assert (done["status"], done["env_steps"], done["eval"]["episodes"]) == ("done", 0, 50)
    assert [line["env_steps"] for line in read_records(tmp_path / "metrics.jsonl")] == [0]
    assert start.start(start.Launch(c, tmp_path, "seed: 0\n", [])) == 0
    assert f"run.total_steps={c.env.total_steps}" in capsys.readouterr().out
    more = config(*words, "run.total_steps=100", "run.stop_return=null")
    assert start.start(start.Launch(more, tmp_path, "seed: 0\n", [])) == 0
    longer = record_of(tmp_path)
    assert longer["env_steps"] >= 100
    assert longer["eval"]["return_mean"] == done["eval"]["return_mean"]


# -- resumed runs ----------------------------------------------------------------------------------


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)

    def tree():
        files = (p for p in run_dir.rglob("*") if p.is_file())
        return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files}

    before, steps = tree(), record_of(run_dir)["env_steps"]
    c = config(*SMOKE, *R2D2, "logger.progress=plain")
    assert start.start(start.Launch(c, run_dir, "other", [])) == 0
    assert tree() == before
    said = capsys.readouterr().out
    assert f"{steps} env steps" in said
    assert f"rlrun resume {run_dir} run.total_steps={2 * steps}\n" in said


def test_a_checkpoint_with_a_chunk_in_flight_is_none_of_a_serial_run(pipeline_of):
    pipeline = pipeline_of("policy=dqn", *TINY)
    with pytest.raises(CheckpointError):
        pipeline.saving.load_state_dict(pipeline.saving.state_dict() | {"received": {}})


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGTERM", 75), ("SIGUSR1", 75), ("SIGHUP", 75)]
)
def test_a_signal_saves_and_prints_how_to_resume(tmp_path, monkeypatch, capsys, name, code):
    """Its chunk is interrupted, the weights of the moment were not evaluated: a resume with fewer
    steps than are done does that alone.
    """

    def signalled(n):
        if n == 23:  # the twelfth step: every second row is an end
            os.kill(os.getpid(), getattr(signal, name))

    run_dir = tmp_path / "run"
    line = [*STEPWISE, "debug=smoke", "-q", "run.total_steps=100", f"run.dir={run_dir}"]
    with monkeypatch.context() as patch:
        on_steps(patch, training=signalled)
        assert main(line) == code
    assert_one_line(capsys, f"rlrun resume {run_dir}")
    record = record_of(run_dir)
    assert (record["status"], record["exit_code"]) == ("interrupted", code)
    assert (record["env_steps"], record["eval"]) == (12, None)
    assert record["best_eval"]["env_steps"] == 8
    assert saved(run_dir)[-1] == 12
    fewer = ["resume", str(run_dir), "run.total_steps=10", "logger.progress=plain"]
    assert main(fewer) == 0
    out = capsys.readouterr().out
    assert "run.total_steps = 10: " in out
    assert f"rlrun resume {run_dir} run.total_steps=24" in out
    assert (record_of(run_dir)["status"], record_of(run_dir)["env_steps"]) == ("done", 12)
    assert main(["resume", str(run_dir), "-q", "run.total_steps=100"]) == 0
    assert (record_of(run_dir)["status"], record_of(run_dir)["env_steps"]) == ("done", 100)


@pytest.mark.parametrize(
    ("pipeline", "at", "killed"),
    [("serial", 1, True), ("serial", 3, False), ("overlapped", 2, True)],
)
def test_a_signal_does_not_wait_for_an_evaluation(tmp_path, monkeypatch, pipeline, at, killed):
    """The evaluation is pending: the resumed run begins with it and reports it once.

    ``killed``: once behind it, before a checkpoint, and once in the first step after that.
    """
    words = ("policy=dqn", "env=cartpole", "env.backend=sync", *TINY, f"pipeline={pipeline}",
             "run.eval_every=150", "run.stop_return=null", "env.max_episode_steps=9")  # fmt: skip
    counts, run_dir, through = [], tmp_path / "cut", tmp_path / "whole"

    @contextmanager
    def told(act=lambda n: None, **more):
        def evaluating(n):
            np.random.random()  # as a user's environment may
            act(n)

        with monkeypatch.context() as patch:
            on_steps(patch, evaluation=evaluating, **more)
            yield patch

    with told(counts.append):
        go(through, *words)
    at_row = (at - 1) * len(counts) // len(shown(through, "eval/return_mean")) + 2
    with told(lambda n: os.kill(os.getpid(), signal.SIGTERM) if n == at_row else None):
        fails(Interrupted, run_dir, *words)
    assert len(shown(run_dir, "eval/return_mean")) == at - 1
    if killed:
        with told() as patch:
            patch.setattr(Saver, "save", _die)
            fails(Killed, run_dir, *words)
    if killed and pipeline == "serial":
        with told(training=_die):
            fails(Killed, run_dir, *words)
        assert shown(run_dir, "eval/return_mean") == shown(through, "eval/return_mean")[:at]
    order = []
    with told(lambda n: order.append("evaluate"), training=lambda n: order.append("train")):
        assert resumed(run_dir, *words)["digest"] == record_of(through)["digest"]
    assert not list(differences(state_of(through), state_of(run_dir)))
    if killed and pipeline == "serial":
        assert order[0] == "train", "the evaluation was saved as soon as it was done"


def _die(*given, **named):
    raise Killed


def test_an_evaluation_begins_with_a_record_of_the_time(tmp_path, monkeypatch):
    """Wall times of scores are read off it, however fast the run is."""
    monkeypatch.setattr("rlrun.log.TIMINGS_SECONDS", 1000.0)
    words = (
        "run.total_steps=20",
        "run.eval_every=5",
        "run.checkpoint_every=1000",
        "logger.every=5",
    )
    go(tmp_path, *STEPWISE, *words)
    assert {5, 10, 15} <= {r["env_steps"] for r in read_records(tmp_path / "timings.jsonl")}


def test_logs_are_flushed_before_a_checkpoint_refers_to_them(tmp_path, monkeypatch):
    """Private: the other order shows after a loss of power alone."""
    done, sync, write = [], Log.sync, Saver._write
    monkeypatch.setattr(Log, "sync", lambda self: done.append("sync") or sync(self))
    monkeypatch.setattr(Saver, "_write", lambda *a: done.append("save") or write(*a))
    go(tmp_path, *STEPWISE, "run.total_steps=10", "run.checkpoint_every=5", "run.eval_every=5")
    assert done == ["sync", "save"] * 2


def test_order_of_observing_learning_and_counting_a_chunk(tmp_path, monkeypatch):
    """Private, as another order gives plausible numbers: RND learns a chunk after its bonus."""
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
    record = go(tmp_path, "policy=dqn", "env=cartpole", "bonus=rnd", *TINY, "run.total_steps=200")
    clock = 0
    for seen, (word, rows, after), learned in zip(*(done[i::3] for i in range(3)), strict=True):
        clock += rows
        assert (seen, word, after, learned) == (("see",), "step", clock, ("learn", clock))
    assert clock == record["env_steps"]


def test_an_evaluation_that_ran_meanwhile_does_not_set_the_display_back(pipeline_of, monkeypatch):
    """It is of an earlier env step, at which metrics.jsonl has it."""
    pipeline, shown = pipeline_of("policy=dqn"), []
    parts = pipeline.parts
    evaluation = parts.evaluator.run(parts.policy, env_steps=16)
    parts.progress.counters.env_steps = 64
    monkeypatch.setattr(parts.log, "progress", lambda steps, updates, **_: shown.append(steps))
    pipeline.evaluations.record(evaluation, 16)
    assert shown == [64]
    (line,) = read_records(parts.run_dir / "metrics.jsonl")
    assert line["env_steps"] == 16
