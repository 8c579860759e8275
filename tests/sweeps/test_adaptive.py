"""Sweepers that ask for batches of jobs get their scores, through the plugin of the launcher."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.cli import adaptive
from rlrun.cli.adaptive import run_adaptive
from rlrun.cli.error_report import SweepStopped
from rlrun.cli.sweep_jobs import Sweep
from rlrun.config import Composer
from rlrun.errors import ConfigError, RlrunError
from rlrun.rundir.durable import seal
from rlrun.schema.launcher import RayLauncherConfig
from rlrun.sweeps.cores import usable_cores
from rlrun.sweeps.record import SweepRecord
from tests.in_process import Build, Done, InProcessPool


@pytest.fixture
def scored(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose score is ten times their seed."""
    original = build.run

    def run(config: Any, run_dir: Path, **given: Any) -> int:
        code = original(config, run_dir, **given)
        record = {"status": "done", "eval": {"return_mean": 10.0 * config.seed}}
        (run_dir / "run.json").write_bytes(seal(record))
        return code

    monkeypatch.setattr(sys.modules["rlrun.run.train"], "run", run)


@pytest.mark.parametrize("launcher", ["local", "ray", "basic"])
def test_scores_are_returned(
    rlrun: Callable[..., Done],
    build: Build,
    scored: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
) -> None:
    returned: list[Any] = []
    original = Composer.sweep

    def sweep(self: Composer, task: Any, overrides: Any) -> list[Any]:
        returned.extend(original(self, task, overrides))
        return returned

    monkeypatch.setattr(Composer, "sweep", sweep)
    path = tmp_path / "s"
    path.mkdir()
    batches = "hydra.sweeper.max_batch_size=2"
    line = ["seed=1,2,3", f"hydra/launcher={launcher}", batches]
    made = Sweep(path, SweepRecord([]), [], False)
    if launcher == "ray":
        made.ray = RayLauncherConfig(None, 1, 0, {}, 2)
        monkeypatch.setattr(
            "rlrun.sweeps.launcher.RayPool",
            lambda ray, workers, threads, **given: InProcessPool(workers or 1, threads),
        )
    run_adaptive(Composer(), line, made, ours=launcher != "basic")
    assert returned == [10.0, 20.0, 30.0]
    assert [p.name for p in build.run_dirs] == ["0_seed=1", "1_seed=2", "2_seed=3"]
    if launcher != "basic":
        assert [job.status for job in SweepRecord.read(path).jobs] == ["done"] * 3
        record = SweepRecord.read(path)
        assert (record.workers, len({job.threads for job in record.jobs})) == (
            1 if launcher == "ray" else min(2, usable_cores()), 1)  # fmt: skip
        with pytest.raises(ConfigError, match=r"hydra.sweep.subdir = x: is the directory of more"):
            run_adaptive(
                Composer(), ["seed=8,9", "hydra.sweep.subdir=x", *line[1:]], made, ours=True
            )
    build.codes = {7: 4}
    with pytest.raises(RlrunError, match="the run has no score"):
        run_adaptive(Composer(), ["seed=7", *line[1:]], made, ours=launcher != "basic")


def test_an_interrupted_adaptive_sweep_says_how_it_goes_on(
    rlrun: Callable[..., Done],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "run_tasks", lambda *given, **more: 130)
    made = Sweep(tmp_path, SweepRecord([]), [], False)
    with pytest.raises(SweepStopped):
        run_adaptive(Composer(), ["seed=1,2"], made, ours=True)
    assert f"goes on with: rlrun resume {tmp_path}\n" in capsys.readouterr().err
