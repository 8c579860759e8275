"""Multirun: validated as a whole, one directory per job, failures counted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.errors import NumericError
from tests.in_process import Build, Done, files_under


@pytest.mark.parametrize(
    "line",
    [
        ["-m", "policy=r2d2,dqn", "seed=0,1"],
        ["policy=dqn", "-m", "seed=0,1"],
        ["policy=dqn", "seed=0,1", "--multirun"],
        ["policy=dqn", "seed=range(0,2)", "hydra.mode=MULTIRUN"],
    ],
    ids=["front", "middle", "end", "mode"],
)
def test_m_stands_anywhere(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path, line: list[str]
) -> None:
    done = rlrun(*line)
    assert (done.code, done.err) == (0, "")
    expected = ["0_policy=dqn,seed=0", "1_policy=dqn,seed=1"]
    if line[0] == "-m":
        expected = ["0_policy=r2d2,seed=0", "1_policy=r2d2,seed=1"]
        expected += ["2_policy=dqn,seed=0", "3_policy=dqn,seed=1"]
    assert [p.name for p in build.run_dirs] == expected
    (sweep,) = {p.parent for p in build.run_dirs}
    assert sweep.parent == tmp_path / "outputs/sweep"
    for run_dir in build.run_dirs:
        assert (run_dir / "config.yaml").is_file()
        assert (run_dir / "overrides.yaml").is_file()


@pytest.mark.parametrize(
    "line",
    [
        "seed=0,1,-1",
        "policy.nstep=1,40",
        "policy.lr=1e-3,abc",
        "policy=r2d2,dqn memory=lstm",
        "env=cartpole,cartpol",
        "policy.lrr=1,2",
        "learner.batch_size=32,1000000",
        "env.id=CartPole-v1,CartPole-v9",
        "policy=r2d2,dqn policy.burnin_step=1,2",
    ],
)
def test_one_invalid_job_starts_nothing(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path, line: str
) -> None:
    done = rlrun("-m", *line.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert build.calls == []
    assert files_under(tmp_path) == []


def test_failed_jobs_do_not_stop_the_others(rlrun: Callable[..., Done], build: Build) -> None:
    build.codes = {1: NumericError("loss = nan"), 2: 3, 3: ZeroDivisionError("x")}
    done = rlrun("-m", "seed=0,1,2,3,4")
    assert done.code == 1
    assert [c[1][0].seed for c in build.calls] == [0, 1, 2, 3, 4]
    lines = done.err.splitlines()
    assert lines[0] == "rlrun: error: loss = nan"
    assert "internal error" in lines[1]
    assert lines[2] == "rlrun: 3 of 5 jobs failed: #1 (exit 4), #2 (exit 3), #3 (exit 9)"
    assert len(lines) == 3


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), 130, 143, 75])
def test_a_signal_stops_the_sweep(
    rlrun: Callable[..., Done], build: Build, stop: int | BaseException
) -> None:
    build.codes = {1: stop}
    done = rlrun("-m", "seed=0,1,2")
    assert done.code == (stop if isinstance(stop, int) else 130)
    assert [c[1][0].seed for c in build.calls] == [0, 1]
    assert "Traceback" not in done.err


def test_environment_keys(rlrun: Callable[..., Done], build: Build) -> None:
    assert rlrun("-m", "env=tmaze", "env.length=10,20").code == 0
    assert [c[1][0].env.kwargs["length"] for c in build.calls] == [10, 20]


def test_parameters_from_yaml(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    for name, seeds in (("good", "3,4"), ("bad", "3,-4")):
        text = f"defaults: [config, _self_]\nhydra: {{sweeper: {{params: {{seed: '{seeds}'}}}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    assert rlrun("--config-dir", ".", "--config-name", "good", "-m").code == 0
    assert [c[1][0].seed for c in build.calls] == [3, 4]
    assert rlrun("--config-dir", ".", "--config-name", "bad", "-m").code == 2
    assert len(build.calls) == 2


def test_sweep_directories_are_never_shared(rlrun: Callable[..., Done], build: Build) -> None:
    for _ in range(2):
        assert rlrun("-m", "seed=0,1", "hydra.sweep.dir=s").code == 0
    assert [p.parent.name for p in build.run_dirs] == ["s", "s", "s_2", "s_2"]


def test_long_overrides_get_short_names(rlrun: Callable[..., Done], build: Build) -> None:
    note = "x" * 300
    assert rlrun("-m", "seed=0,1", f"env.note={note}").code == 0
    assert [p.name for p in build.run_dirs] == ["0", "1"]
