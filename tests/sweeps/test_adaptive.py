"""Sweepers that ask for batches of jobs get their scores, through the plugin of the launcher."""

import pytest

from rlrun.cli import adaptive
from rlrun.cli.adaptive import run_adaptive
from rlrun.cli.error_report import SweepStopped
from rlrun.cli.sweep_jobs import Sweep
from rlrun.config import Composer
from rlrun.errors import ConfigError, RlrunError
from rlrun.run.files import seal
from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.record import SweepRecord
from tests.in_process import InProcessPool


@pytest.fixture
def scored(build, monkeypatch):
    """Runs whose score is ten times their seed."""
    original = build.run

    def run(config, run_dir, **given):
        code = original(config, run_dir, **given)
        record = {"status": "done", "eval": {"return_mean": 10.0 * config.seed}}
        (run_dir / "run.json").write_bytes(seal(record))
        return code

    monkeypatch.setattr(build, "run", run)


@pytest.mark.parametrize("launcher", ["local", "ray", "basic"])
def test_scores_are_returned(rlrun, build, scored, tmp_path, monkeypatch, launcher):
    returned, original = [], Composer.sweep

    def sweep(self, task, overrides):
        returned.extend(original(self, task, overrides))
        return returned

    monkeypatch.setattr(Composer, "sweep", sweep)
    ours = launcher != "basic"
    line = ["seed=1,2,3", f"hydra/launcher={launcher}", "hydra.sweeper.max_batch_size=2"]
    made = Sweep(tmp_path, SweepRecord([]), [], False)
    if launcher == "ray":
        made.ray = RayLauncherConfig(None, 1, 0, {}, 2)
        monkeypatch.setattr(
            "rlrun.sweeps.launcher.RayPool",
            lambda ray, workers, threads, **given: InProcessPool(workers or 1, threads),
        )
    run_adaptive(Composer(), line, made, ours=ours)
    assert returned == [10.0, 20.0, 30.0]
    assert [p.name for p in build.run_dirs] == ["0_seed=1", "1_seed=2", "2_seed=3"]
    if ours:
        assert [job.status for job in SweepRecord.read(tmp_path).jobs] == ["done"] * 3
        with pytest.raises(ConfigError, match="subdir = x"):
            run_adaptive(
                Composer(), ["seed=8,9", "hydra.sweep.subdir=x", *line[1:]], made, ours=True
            )
    build.codes = {7: 4}
    with pytest.raises(RlrunError, match="no score"):
        run_adaptive(Composer(), ["seed=7", *line[1:]], made, ours=ours)


def test_an_interrupted_adaptive_sweep_says_how_it_goes_on(rlrun, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(adaptive, "run_tasks", lambda *given, **more: 130)
    with pytest.raises(SweepStopped):
        run_adaptive(
            Composer(), ["seed=1,2"], Sweep(tmp_path, SweepRecord([]), [], False), ours=True
        )
    assert f"rlrun resume {tmp_path}" in capsys.readouterr().err
