"""Loggers beside metrics.jsonl: a table, Weights & Biases, MLflow; none of them ends a run."""

import csv
import importlib.util
import json
import sys
import types
from dataclasses import replace

import pytest

from rlrun.cli.main import main
from rlrun.config import Composer, check, read_composed
from rlrun.errors import ResourceError
from rlrun.log.trial import TrialRow
from tests.log.records import OpenedLog, read_records
from tests.log.test_log import BARE

LINE = ("policy=random", "env=bandit", "debug=smoke", "-q", "logger.tensorboard=false")
TRIAL = TrialRow(
    "random-bandit-s0", {"policy": "random", "env": "bandit", "seed": "0"}, frozenset()
)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_table_has_every_value_of_the_records(tmp_path):
    """Also after a resume: rows that it took back are gone, and columns may be new."""
    run_dir = tmp_path / "run"
    assert main([*LINE, "logger.csv=true", f"run.dir={run_dir}"]) == 0
    assert main(["resume", str(run_dir), "run.total_steps=600", "-q"]) == 0
    rows = {int(row["env_steps"]): row for row in table(run_dir / "metrics.csv")}
    assert list(rows) == sorted(rows)
    written = 0
    for name in ("metrics.jsonl", "timings.jsonl"):
        for record in read_records(run_dir / name):
            row = rows[record.pop("env_steps")]
            for key, value in record.items():
                assert float(row[key]) == value
            written += len(record)
    cells = [cell for row in rows.values() for cell in row.values() if cell != ""]
    assert len(cells) == written + len(rows), "empty cells are what no record has"
    assert max(rows) >= 600


class Faulty(types.ModuleType):
    """A package that counts its calls and raises when it is to log."""

    Settings = staticmethod(lambda **given: given)

    def __init__(self):
        super().__init__("wandb")
        self.calls, self.id = [], "abc"

    def init(self, **given):
        self.calls.append(("init", given["id"], given["mode"]))
        return self

    def define_metric(self, *given, **more):
        pass

    def log(self, values):
        self.calls.append(("log", values["env_steps"], "train/loss" in values))
        raise RuntimeError("no\nnetwork")

    def finish(self):
        self.calls.append("finish")


def test_a_logger_that_fails_is_one_warning_and_its_run_goes_on(tmp_path, caplog, monkeypatch):
    wandb = Faulty()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for _ in range(2):
        config = replace(BARE, wandb="offline", csv=True)
        resumed = None if not wandb.calls else 5
        with OpenedLog(config, tmp_path, total_steps=9, title="a", resume_from=resumed) as log:
            log.hparams("seed: 0", TRIAL, {})
            log.write(10, {"train/loss": 1.0})
            log.write(20, {"train/loss": 2.0})
    assert wandb.calls == [
        ("init", None, "offline"), ("log", 10, True), ("init", "abc", "offline"), ("log", 10, True),
    ]  # fmt: skip
    assert caplog.text.count("logger.wandb") == 2
    assert [row["train/loss"] for row in table(tmp_path / "metrics.csv")] == ["1.0", "2.0"]


class Trackio(types.ModuleType):
    """A stand-in: the records of each run by its name, printing as the package does."""

    def __init__(self):
        super().__init__("trackio")
        self.runs, self.open = {}, []

    def init(self, *, project, name, resume, config, auto_log_cpu, auto_log_gpu):
        assert (project, resume, auto_log_cpu, auto_log_gpu) == ("rlrun", "allow", False, False)
        print("* Trackio project initialized")
        run, records = types.SimpleNamespace(), self.runs.setdefault(name, [config["seed"]])
        run.log = lambda values, step: records.append((step, values))
        self.open.append(name)
        return run

    def finish(self):
        print("* Run finished")
        self.open.pop()


def test_trackio(tmp_path, monkeypatch, capsys):
    """A resumed run goes on in the same run there, and another one of that name in its own."""
    trackio = Trackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    for directory, resumed in (("a", None), ("a", 5), ("b", None)):
        (tmp_path / directory).mkdir(exist_ok=True)
        config = replace(BARE, trackio=True)
        with OpenedLog(
            config, tmp_path / directory, total_steps=9, title="a", resume_from=resumed
        ) as log:
            log.hparams("seed: 0", TRIAL, {})
            log.write(10, {"train/loss": 1.0})
    record = (10, {"train/loss": 1.0})
    assert [*trackio.runs.values()] == [[0, record, record], [0, record]]
    assert all(name.startswith(TRIAL.name) for name in trackio.runs)
    assert trackio.open == []
    assert "*" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value"), [("wandb", "offline"), ("trackio", "true"), ("mlflow", "sqlite:///a.db")]
)
def test_a_missing_package_is_said_before_the_run(name, value, monkeypatch):
    find = importlib.util.find_spec
    absent = "rlrun.config.rules.find_spec"
    monkeypatch.setattr(absent, lambda module: None if module == name else find(module))
    config = read_composed(Composer().compose([f"logger.{name}={value}"]))
    with pytest.raises(ResourceError, match=rf"logger\.{name} = .*pip install .*{name}"):
        check(config)
    check(config, fresh=False)  # to evaluate such a run needs no logger


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "run"
    assert main([*LINE, "logger.wandb=offline", f"run.dir={run_dir}"]) == 0
    assert main(["resume", str(run_dir), "run.total_steps=600", "-q"]) == 0
    known = (run_dir / "wandb_id.txt").read_text()
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{known}"))) >= 1
    assert "logger.wandb" not in (run_dir / "rlrun.log").read_text()


@pytest.mark.filterwarnings("default")  # those of its own packages
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("mlflow.store.db", reason="mlflow-skinny has no local store")
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "run"
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert main([*LINE, f"logger.mlflow={uri}", f"run.dir={run_dir}"]) == 0
    assert main(["resume", str(run_dir), "run.total_steps=600", "-q"]) == 0
    client = mlflow.MlflowClient(uri)
    run = client.get_run((run_dir / "mlflow_id.txt").read_text())
    assert (run.info.status, run.data.params["env"]) == ("FINISHED", "bandit")
    history = client.get_metric_history(run.info.run_id, "eval/return_mean")
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    expected = {(x["env_steps"], x["eval/return_mean"]) for x in lines if "eval/return_mean" in x}
    assert {(point.step, point.value) for point in history} == expected
