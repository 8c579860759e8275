"""Sweepers that ask for batches of jobs get their scores, through the plugin of the launcher."""

import pytest

from rlrun.cli import sweep as command
from rlrun.cli.error_report import SweepStopped
from rlrun.cli.run import Line
from rlrun.cli.sweep import Sweep, run_adaptive
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


def run(path, *words, record=None):
    """Run the adaptive sweep of a command line; return its record."""
    composer, words = Composer(), list(words)
    record = SweepRecord([]) if record is None else record
    run_adaptive(
        Sweep(Line(composer, words), composer.compose(words, sweep=True), path, record, [])
    )
    return record


@pytest.mark.parametrize("launcher", ["local", "ray", "basic"])
def test_scores_are_returned(rlrun, build, scored, tmp_path, monkeypatch, launcher):
    returned, original = [], Composer.sweep

    def sweep(self, task, overrides):
        returned.extend(original(self, task, overrides))
        return returned

    monkeypatch.setattr(Composer, "sweep", sweep)
    line = [f"hydra/launcher={launcher}", "hydra.sweeper.max_batch_size=2"]
    record = SweepRecord([])
    if launcher == "ray":
        record.ray = RayLauncherConfig(None, 1, 0, {}, 2)
        monkeypatch.setattr(
            "rlrun.sweeps.launcher.RayPool",
            lambda ray, workers, threads, **given: InProcessPool(workers or 1, threads),
        )
    run(tmp_path, "seed=1,2,3", *line, record=record)
    assert returned == [10.0, 20.0, 30.0]
    assert [p.name for p in build.run_dirs] == ["0_seed=1", "1_seed=2", "2_seed=3"]
    if launcher != "basic":
        assert [job.status for job in SweepRecord.read(tmp_path).jobs] == ["done"] * 3
        with pytest.raises(ConfigError, match="subdir = x"):
            run(tmp_path, "seed=8,9", "hydra.sweep.subdir=x", *line, record=record)
    build.codes = {7: 4}
    with pytest.raises(RlrunError, match="no score"):
        run(tmp_path, "seed=7", *line, record=record)


def test_an_interrupted_adaptive_sweep_says_how_it_goes_on(rlrun, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_tasks", lambda *given, **more: 130)
    with pytest.raises(SweepStopped):
        run(tmp_path, "seed=1,2")
    assert f"rlrun resume {tmp_path}" in capsys.readouterr().err
