"""Multirun: validated as a whole, one directory per job, failures counted."""

import dataclasses
import fcntl
import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from rlrun.errors import ConfigError, NumericError
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps import launcher
from rlrun.sweeps.record import SweepRecord
from tests.in_process import assert_one_error
from tests.sweeps.jobs import statuses


@pytest.mark.parametrize(
    "line",
    [["-m", "policy=r2d2,dqn", "seed=0,1"], ["policy=dqn", "-m", "seed=0,1"],
     ["policy=dqn", "seed=range(0,2)", "hydra.mode=MULTIRUN"]],
)  # fmt: skip
def test_m_stands_anywhere(rlrun, build, tmp_path, line):
    done = rlrun(*line)
    assert (done.code, done.err) == (0, "")
    expected = ["0_seed=0", "1_seed=1"]
    if line[0] == "-m":
        expected = ["0_policy=r2d2,seed=0", "1_policy=r2d2,seed=1"]
        expected += ["2_policy=dqn,seed=0", "3_policy=dqn,seed=1"]
    assert [p.name for p in build.run_dirs] == expected
    (sweep,) = {p.parent for p in build.run_dirs}
    assert sweep.parent == tmp_path / "outputs/sweep"
    for run_dir in build.run_dirs:
        assert (run_dir / "config.yaml").is_file()
        assert (run_dir / "overrides.yaml").is_file()


FAULTS = {1: NumericError("loss = nan"), 2: 3, 3: ZeroDivisionError("x")}


@pytest.mark.parametrize("launcher", ["local", "basic"])
def test_failed_jobs_do_not_stop_the_others(rlrun, build, launcher):
    build.codes = dict(FAULTS)
    done = rlrun("-m", "seed=0,1,2,3,4", "sweep.dir=s", f"hydra/launcher={launcher}")
    assert done.code == 1
    assert [c[1][0].seed for c in build.calls] == [0, 1, 2, 3, 4]
    assert "loss = nan" in done.err
    last = done.err.splitlines()[-1]
    for text in ("3 of 5", "#1 (exit 4)", "#2 (exit 3)", "#3 (exit 9)", "rlrun resume "):
        assert text in last
    assert "Traceback" not in done.err
    assert statuses(Path("s")) == ["done", *["failed"] * 3, "done"]


def test_a_sweep_of_a_users_environment_trusts_it_again(rlrun, build):
    build.codes = {1: 3}
    line = "-m", "env=gym", "env.id=tests.env.faulty:test/Faulty-v0", "seed=0,1", "sweep.dir=s"
    assert rlrun(*line).err.splitlines()[-1].endswith("/s --trust tests")


def test_a_module_that_vanishes_beside_a_sweep_is_a_missing_resource(rlrun, build):
    error = ConfigError("env.id = mine:X-v0: module mine cannot be imported")
    error.__cause__ = ModuleNotFoundError("No module named 'mine'")
    build.codes = {0: error}
    assert rlrun("seed=0").code == 2, "one run was not checked before"
    assert "exit 7" in rlrun("-m", "seed=0,1", "sweep.dir=s").err


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), 130, 143, 75])
def test_a_signal_stops_a_sweep_in_one_process(rlrun, build, stop):
    build.codes = {1: stop}
    done = rlrun("-m", "seed=0,1,2", "hydra/launcher=basic", "sweep.dir=s")
    assert done.code == (stop if isinstance(stop, int) else 130)
    assert [c[1][0].seed for c in build.calls] == [0, 1]
    assert "Traceback" not in done.err
    assert f"rlrun resume {Path('s').absolute()}" in done.err


def test_an_interrupted_job_does_not_stop_the_others(rlrun, build):
    build.codes = {1: 75}
    done = rlrun("-m", "seed=0,1,2", "sweep.dir=s")
    assert done.code == 1
    assert "#1 (exit 75)" in done.err
    assert statuses(Path("s")) == ["done", "interrupted", "done"]


def test_parameters_from_yaml(rlrun, build, tmp_path):
    for name, seeds in (("good", "3,4"), ("bad", "3,-4")):
        text = f"defaults: [config, _self_]\nhydra: {{sweeper: {{params: {{seed: '{seeds}'}}}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    assert rlrun("--config-dir", ".", "--config-name", "good", "-m").code == 0
    assert [c[1][0].seed for c in build.calls] == [3, 4]
    assert rlrun("--config-dir", ".", "--config-name", "bad", "-m").code == 2
    assert len(build.calls) == 2


def test_sweep_directories_are_never_shared(rlrun, build):
    for _ in range(2):
        assert rlrun("-m", "seed=0,1", "hydra.sweep.dir=s").code == 0
    assert [p.parent.name for p in build.run_dirs] == ["s", "s", "s_2", "s_2"]


def test_long_overrides_get_short_names(rlrun, build):
    key = "x" * 300
    assert rlrun("-m", "seed=0", f"env.success={key}0,{key}1").code == 0
    assert [p.name for p in build.run_dirs] == ["0", "1"]


def test_jobs_are_added_to_a_sweep(rlrun, build):
    assert rlrun("-m", "policy=dqn", "seed=0,1", "sweep.dir=s").code == 0
    record = SweepRecord.read(Path("s"))
    record.ray = RayLauncherConfig(num_cpus=1, num_gpus=0, resources={}, address=None, retries=2)
    record.write(Path("s"))
    for line in (
        ["policy=dqn", "seed=2,1,0,3,3"],
        ["seed=3,0", "policy=dqn", "learner.threads=null"],
        ["seed=1,2", "policy=dqn", "-q", "logger.tensorboard=false", "run.max_time=90"],
        ["seed=1", "policy=dqn", f"run.eval_every={build.calls[0][1][0].run.eval_every}"],
    ):
        assert rlrun("-m", *line, "sweep.dir=s").code == 0
    assert [c[1][0].seed for c in build.calls] == [0, 1, 2, 3]
    assert SweepRecord.read(Path("s")).ray is None, "what is added here runs here"
    assert [p.name for p in build.run_dirs] == [f"{i}_seed={i}" for i in range(4)]
    assert_one_error(rlrun("-m", "seed=7", "sweep.dir=s", "hydra/launcher=basic"))
    Path("other").mkdir()
    Path("other/file").touch()
    for words in (
        ["-m", "sweep.dir=other"], ["sweep.dir=s"], ["-m", "sweep.dir="], ["-m", "sweep.dir=a,b"],
    ):  # fmt: skip
        assert rlrun(*words, "seed=9").code == 2
    assert len(build.calls) == 4


def resumed(build):
    """Directory of each job that was resumed since the last call -> run.total_steps."""
    found = {c[1][0].name: c[1][1].run.total_steps for c in build.calls if c[0] == "resume"}
    build.calls.clear()
    return found


@pytest.mark.parametrize("launcher", ["local", "basic"])
def test_directories_name_the_seed_and_what_varies(rlrun, build, launcher):
    line = ["policy=dqn", "env=bandit", "policy.lr=0.1,0.2", "++env.kwargs.noise=0.5", "seed=0"]
    assert rlrun("-m", *line, "sweep.dir=s", f"hydra/launcher={launcher}").code == 0
    assert rlrun("-m", "policy=dqn", "policy.gamma=0.9", "seed=7").code == 0
    names = [p.name for p in build.run_dirs]
    assert names[:2] == ["0_policy.lr=0.1,seed=0", "1_policy.lr=0.2,seed=0"]
    assert names[2:] == ["0_policy.gamma=0.9,policy=dqn,seed=7"], "a job alone"
    if launcher == "local":
        assert rlrun("-m", *line[1:2], "policy=ppo", "seed=0", "sweep.dir=s").code == 0
        assert build.run_dirs[-1].name == "2_policy=ppo,seed=0", "differs from those before"


def test_overrides_of_an_interrupted_resume_reach_all_jobs(rlrun, build, monkeypatch):
    """The second of four jobs is interrupted, the others have not started."""
    assert rlrun("-m", "seed=range(4)", "sweep.dir=s", "hydra.sweep.subdir=${seed}").code == 0
    original = build.resume

    def interrupted(run_dir, config, **given):
        original(run_dir, config, **given)
        if run_dir.name == "1":
            os.kill(os.getpid(), signal.SIGINT)
            return 75
        return 0

    monkeypatch.setattr(build, "resume", interrupted)
    assert rlrun("resume", "s", "run.total_steps=777777").code == 130
    assert resumed(build) == {"0": 777777, "1": 777777}
    assert statuses(Path("s")) == ["done", "interrupted", "waiting", "waiting"]
    monkeypatch.setattr(build, "resume", original)
    assert rlrun("resume", "s", "-q").code == 0
    assert resumed(build) == {"1": 777777, "2": 777777, "3": 777777}
    assert rlrun("resume", "s", "-q").code == 0
    assert resumed(build) == {}, "each has ended with them"


def workers_and_threads(sweep):
    record = json.loads((sweep / "sweep.json").read_text())
    return record["workers"], [job["threads"] for job in record["jobs"]]


def test_a_resume_keeps_workers_and_threads(rlrun, build, monkeypatch):
    """Bits may depend on the threads; neither the jobs that are left nor --workers change them."""
    monkeypatch.setattr(launcher, "usable_cores", lambda: 12)
    build.codes = {1: 3, 2: 3, 3: 3}
    line = ("-m", "sweep.dir=s", "hydra.sweep.subdir=${seed}")
    assert rlrun(*line, "seed=range(5)", "hydra.launcher.workers=3").code == 1
    assert workers_and_threads(Path("s")) == (3, [4] * 5)
    monkeypatch.setattr(launcher, "usable_cores", lambda: 64)
    assert rlrun("resume", "s").code == 0
    assert workers_and_threads(Path("s")) == (3, [4] * 5)
    for path in Path("s").glob("*/run.json"):
        path.unlink()
    assert rlrun("resume", "s", "hydra.launcher.workers=1").code == 0
    assert workers_and_threads(Path("s")) == (1, [4] * 5)
    assert_one_error(rlrun("resume", "s", "hydra.launcher.workers=0"))
    monkeypatch.setattr(launcher, "usable_cores", lambda: 12)
    assert rlrun(*line, "seed=4,5,6,7").code == 0
    assert workers_and_threads(Path("s")) == (4, [*[4] * 5, *[3] * 3]), "the command's four jobs"


def test_a_done_job_that_lost_its_record_is_run_again(rlrun, build):
    assert rlrun("-m", "seed=0,1,2", "sweep.dir=s", "hydra.sweep.subdir=${seed}").code == 0
    Path("s/1/run.json").unlink()
    Path("s/1/checkpoints").mkdir()
    Path("s/2/run.json").write_bytes(b"{}")
    done = rlrun("resume", "s")
    assert done.code == 0
    assert [*resumed(build)] == ["1", "2"]
    assert done.err.count("lost_0") == 2
    assert Path("s/2/lost_0/run.json").read_bytes() == b"{}"
    assert Path("s/1/lost_0/checkpoints").is_dir()
    assert not Path("s/1/checkpoints").exists()


def test_the_record_is_read_within_the_lock(rlrun, build, monkeypatch):
    """What another process added until then is kept."""
    assert rlrun("-m", "seed=0", "sweep.dir=s").code == 0
    original, read = SweepRecord.read, SweepRecord.__dict__["read"]

    def checked(path):
        with open(path / ".lock", "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return original(path)

    monkeypatch.setattr(SweepRecord, "read", checked)
    assert rlrun("-m", "seed=1", "sweep.dir=s").code == 0
    assert rlrun("resume", "s", "run.total_steps=9999", "-q").code == 0  # else it says more
    monkeypatch.setattr(SweepRecord, "read", read)
    assert len(resumed(build)) == 2


def test_interpolations_are_those_of_each_job(rlrun, build):
    given = ["seed=3,4", "run.eval_episodes=${seed}", "hydra.sweep.subdir=${hydra.job.num}"]
    assert rlrun("-m", *given).code == 0
    assert [c[1][0].run.eval_episodes for c in build.calls] == [3, 4]
    assert [p.name for p in build.run_dirs] == ["0", "1"]


def test_presets(rlrun, build, composer):
    """All jobs are valid and differ; what is typed wins."""
    assert rlrun("-m", "sweep=lr_grid", "policy=dqn", "env=bandit").code == 0
    configs = [dataclasses.asdict(c[1][0]) for c in build.calls]
    assert len(configs) == 7
    assert all(a != b for a, b in itertools.combinations(configs, 2))
    assert not any("sweep=" in path.name for path in build.run_dirs)
    build.calls.clear()
    typed = ("policy=dqn", "env=bandit", "policy.lr=1e-3,1e-4")
    assert rlrun("-m", "sweep=lr_grid", *typed).code == 0
    assert [c[1][0].policy.lr.start for c in build.calls] == [1e-3, 1e-4]
    ablation = composer.compose(["sweep=r2d2_ablation", "env=tmaze"], sweep=True)
    assert len({*map(tuple, composer.jobs(ablation))}) == 16


def test_a_value_that_is_a_path_is_one_part_of_the_name(rlrun, build):
    done = rlrun("-m", "env.note=../../maps/a", "seed=1,2", "sweep.dir=s")
    assert done.code == 0, done.err
    assert {p.parent for p in build.run_dirs} == {Path("s").absolute()}
    assert [c[1][0].env.note for c in build.calls] == ["../../maps/a"] * 2
    assert f"rlrun report {Path('s').absolute()}" in done.out
    assert rlrun("-m", "seed=3", "sweep.dir=s", "-q").out == ""
