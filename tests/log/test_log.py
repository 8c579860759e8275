"""The facade: what goes where, and what a resume leaves."""

from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.log import final_line
from rlrun.log.trial import TrialRow
from rlrun.schema import LoggerConfig
from tests.log.records import OpenedLog, read_records

QUIET = LoggerConfig(
    every=1, tensorboard=True, progress="off", profile=None,
    figures_every=None, csv=False, wandb=None, trackio=False,
    mlflow=None,
)  # fmt: skip
BARE = replace(QUIET, tensorboard=False)
TRIAL = TrialRow("r2d2-cartpole-s1", {"policy": "r2d2", "env": "cartpole", "seed": 1}, frozenset())


def make(config, run_dir, **more):
    run_dir.mkdir(exist_ok=True)
    return OpenedLog(config, run_dir, total_steps=1000, title="r2d2 cartpole s0", **more)


def scalars(run_dir):
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    tags = {*events.Tags()["scalars"]} - {"run/env_steps"}  # for HPARAMS only
    return {(tag, e.step): e.value for tag in tags for e in events.Scalars(tag)}


@pytest.fixture(autouse=True)
def _every_call_is_a_record(monkeypatch):
    monkeypatch.setattr("rlrun.log.TIMINGS_SECONDS", 0.0)


def run(log, steps):
    for step in steps:
        log.progress(step, step // 4, **{"return": float(step)})
        log.write(step, {"train/loss": 1 / (step + 3), "collect/return_mean": float(step)})
        if step % 30 == 0:
            log.write(step, {"eval/return_mean": step * 1.1})
            log.write_timings(lambda: {"time/collect_seconds": 0.25, "codec/buffer_bytes": 3.0})


def test_the_same_calls_give_the_same_bytes_and_tensorboard_agrees(tmp_path):
    for name in "ab":
        with make(QUIET, tmp_path / name) as log:
            run(log, range(0, 300, 10))
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (
        tmp_path / "b/metrics.jsonl"
    ).read_bytes()
    shown = scalars(tmp_path / "a")
    written = {}
    for file in ("metrics.jsonl", "timings.jsonl"):
        for record in read_records(tmp_path / "a" / file):
            step = record.pop("env_steps")
            timed = [key.startswith(("time/", "codec/")) for key in record]
            assert all(timed) if file == "timings.jsonl" else not any(timed)
            written |= {(key, step): value for key, value in record.items()}
    assert shown.keys() == written.keys()
    assert all(shown[k] == pytest.approx(written[k], rel=1e-6) for k in written)
    assert ("time/updates_per_s", 270) in written
    scored = EventAccumulator(str(tmp_path / "a")).Reload().Scalars("run/env_steps")
    assert [event.step for event in scored] == [*range(0, 300, 30)], "those of evaluations"
    walls = [r["time/wall_seconds"] for r in read_records(tmp_path / "a/timings.jsonl")]
    assert walls == sorted(walls)


def test_a_resumed_run_leaves_the_files_of_an_uninterrupted_one(tmp_path):
    with make(QUIET, tmp_path / "whole") as log:
        run(log, range(0, 300, 10))
    with make(QUIET, tmp_path / "cut") as log:
        run(log, range(0, 130, 10))
        committed = log.committed()
        run(log, range(130, 200, 10))
        log.committed()
        assert ("train/loss", 190) in scalars(tmp_path / "cut")  # before it is closed
    wall = list(read_records(tmp_path / "cut/timings.jsonl"))[4]["time/wall_seconds"]
    with make(QUIET, tmp_path / "cut", resume_from=120, committed=committed) as log:
        assert log.wall_seconds >= wall
        run(log, range(130, 300, 10))
    whole, cut = ((tmp_path / n / "metrics.jsonl").read_bytes() for n in ("whole", "cut"))
    assert whole == cut
    records = list(read_records(tmp_path / "cut/timings.jsonl"))
    seconds = [r["time/collect_seconds"] for r in records]
    assert seconds == [0.25] * 5 + [0.5] * 5, "of the whole run, not of a process"
    assert {r["codec/buffer_bytes"] for r in records} == {3.0}
    metrics = {k: v for k, v in scalars(tmp_path / "whole").items() if not k[0].startswith("time/")}
    again = {k: v for k, v in scalars(tmp_path / "cut").items() if not k[0].startswith("time/")}
    assert metrics == again
    steps = [r["env_steps"] for r in read_records(tmp_path / "cut/timings.jsonl")]
    assert steps == list(range(0, 300, 30))


def test_without_tensorboard_there_is_no_event_file(tmp_path):
    with make(BARE, tmp_path) as log:
        run(log, range(0, 60, 10))
        log.hparams("seed: 1", TRIAL, {"eval/return_mean": 1.0})
        log.text("a", "b")
        log.sync()
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "timings.jsonl"}


def test_progress_and_the_final_line(tmp_path, capsys, monkeypatch):
    """What is done instead of training is shown until it goes on."""
    monkeypatch.setattr("rlrun.log.PROGRESS_SECONDS", 1e-9)
    with make(replace(BARE, progress="auto"), tmp_path) as log:
        log.progress(10, 2, epsilon=0.5)
        log.status("evaluating, step 3")
        log.progress(20, 4)
        log.finish("the end")
    out, err = capsys.readouterr()
    assert out == "the end\n"
    assert "epsilon 0.5" in err.splitlines()[0]
    assert "\x1b" not in err
    shown = [line.partition("  updates")[0] for line in err.splitlines()]
    title = "r2d2 cartpole s0"
    assert shown == [
        f"{title}:   1%  steps 10/1000",
        f"evaluating, step 3: {title}:   1%  steps 10/1000",
        f"{title}:   2%  steps 20/1000",
    ]


def test_final_line_states_all_there_is(tmp_path, monkeypatch):
    result = {"return_mean": 497.25, "return_std": 4.125, "episodes": 20, "success": 0.5}
    given = {"env_steps": 24_320, "wall_seconds": 19.2, "run_dir": tmp_path / "a b"}
    line = final_line(result, **given)
    for part in ("497.2 +- 4.12", "20 episodes", "24320 env steps", "0:19", "success 0.5",
                 f"rlrun tensorboard '{tmp_path}/a b'"):  # fmt: skip
        assert part in line
    assert "best" not in line
    assert "best 500" in final_line(result, **given, best=500.0)
    assert "best" not in final_line(result, **given, best=497.25)
    assert "run.stop_return = 490" in final_line(result, **given, solved=490.0)
    assert "not evaluated" in final_line(None, **given)
    for place, path in ((tmp_path.parent, f"{tmp_path.name}/a b"), (tmp_path, "a b")):
        monkeypatch.chdir(place)
        assert f"rlrun tensorboard '{path}'" in final_line(None, **given)
    monkeypatch.chdir(tmp_path)
    there = final_line(None, **given | {"run_dir": tmp_path})
    assert there.endswith(f"rlrun tensorboard {tmp_path}"), "hydra.job.chdir=true"


def test_speeds_are_not_counted_over_a_rewind(tmp_path):
    """Env steps went back: the next record has no speed, the one after has its own."""
    with make(BARE, tmp_path / "a") as log:
        run(log, [30, 60])
        committed = log.committed()
        run(log, [90])
        log.rewind(60, committed)
        run(log, [90, 120])
    records = [*read_records(tmp_path / "a/timings.jsonl")]
    assert [record["env_steps"] for record in records] == [30, 60, 90, 120]
    assert ["time/env_steps_per_s" in record for record in records] == [True, True, False, True]


def test_timings_that_are_left_out_are_not_asked_for(tmp_path, monkeypatch):
    """What counts since the last record, as bytes sent, would be lost."""
    monkeypatch.setattr("rlrun.log.TIMINGS_SECONDS", 1000.0)
    sent = iter([1.0, 2.0])
    with make(BARE, tmp_path / "a") as log:
        for step in (10, 20, 30):
            log.progress(step, step)
            log.write_timings(lambda: {"codec/chunks_bytes": next(sent)})
        log.write_late_timings()
    records = [*read_records(tmp_path / "a/timings.jsonl")]
    assert [(r["env_steps"], r["codec/chunks_bytes"]) for r in records] == [(10, 1.0), (30, 2.0)]


def test_timings_have_few_records_a_second_and_the_last_before_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.log.TIMINGS_SECONDS", 1000.0)
    with make(BARE, tmp_path / "a") as log:
        run(log, [30, 60, 90])
        known = log.committed()
        assert log.committed() == known, "it is written once"
        run(log, [120, 150])
        log.rewind(90, known)
        assert log.committed() == known, "a rewind drops what is not written"
    records = [*read_records(tmp_path / "a/timings.jsonl")]
    assert [record["env_steps"] for record in records] == [30, 90]
    assert records[1]["time/updates_per_s"] > 0
    assert len([*read_records(tmp_path / "a/metrics.jsonl")]) == 6
